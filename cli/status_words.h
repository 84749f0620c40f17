/* SPDX-License-Identifier: Apache-2.0 */
/* What both the text and the page of `tidegate status` say of the ledger's figures. */
#ifndef CLI_STATUS_WORDS_H
#define CLI_STATUS_WORDS_H

#include "figures.h"
#include "status_report.h"

/* Room for any name of the ledger, and for a tenant with role and rank. */
struct status_name {
    char text[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES + 24];
};

/* What another program wrote into the ledger, harmless and terminated. */
struct status_name status_name(const char *name, size_t room);

/* "trainer rank 0"; the role where it says more than the name. */
struct status_name status_who(const struct tg_tenant_view *tenant);

/* "0.3 s", "2 s", "5 min", "3 h": nobody needs it more exactly. */
struct figure status_age(double seconds);

struct figure status_size(uint64_t size_bytes);

uint64_t status_host_bytes(const struct tg_tenant_view *tenant);

/* What it has of the device, or has been promised. */
uint64_t status_held_bytes(const struct tg_tenant_view *tenant);

/* Whether somebody lives on it, or has died there just now. After the last tenant nobody settles
 * the dead, so what the ledger still says of them means nothing. */
bool status_is_used(const struct tg_node_view *view, uint32_t device);

/* The device's next waiter in the order in which they will be served; *after begins at 0. NULL: no
 * more. */
const struct tg_tenant_view *status_waiter_next(const struct tg_node_view *view, uint32_t device,
                                                uint64_t *after);

/* A sentence without its end. */
struct status_line {
    char text[320];
};

/* "next: engine waits for kv_cache 61 GiB, since 2 s". */
struct status_line status_wait_line(const struct tg_node_view *view,
                                    const struct tg_tenant_view *tenant);

/* "next: wake kv_cache needs 61 GiB, short by 7.0 GiB; the trainer's cache covers it". */
struct status_line status_wake_line(const struct status_wake *wake);

#endif
