/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate status` tells: the node's ledger as it was read, for its two printers. */
#ifndef CLI_STATUS_REPORT_H
#define CLI_STATUS_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include <tidegate/ledger.h>

#include "say.h"

/* Reads the node's ledger. *has_ledger false: there is none, which is an answer. Returns 0 or a
 * negative status. */
int status_read(struct tg_node_view *view, bool *has_ledger);

/* That there is none, and where it would be. */
void status_absence_write(struct sentence *sentence);

void status_text_print(const struct tg_node_view *view);

/* One object of doc/schema/status-1.json; view NULL: there is no ledger. False: no memory. */
bool status_json_print(const struct tg_node_view *view);

/* Prometheus' text format; view NULL: there is no ledger. */
void status_metrics_print(FILE *out, const struct tg_node_view *view);

/* What a device's memory lacks for a tag that sleeps on it, and who could return it. */
struct status_wake {
    const char *tag; /* lent from the view */
    uint64_t asleep_bytes, short_bytes;
    uint64_t returnable_bytes, richest_bytes; /* of all tenants of the device; of the one */
    const struct tg_tenant_view *richest;     /* who has most; NULL: nobody has any */
};

/* The next tag that sleeps on a device, is not waited for, and was not told yet; each name once.
 * *place begins at 0. False: no more, or the device was never measured. */
bool status_wake_next(const struct tg_node_view *view, uint32_t device, uint32_t *place,
                      struct status_wake *wake);

/* "off", "observe", "on"; NULL: it has none. */
const char *status_mode_text(uint32_t mode);

/* Seconds from a moment of the view's clock until the view was made; never negative. */
double status_seconds_since(const struct tg_node_view *view, uint64_t then_ns);

#endif
