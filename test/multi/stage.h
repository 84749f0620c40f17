/* SPDX-License-Identifier: Apache-2.0 */
/* The place where actors meet: a directory of their own with the ledger and the host device. */
#ifndef TEST_MULTI_STAGE_H
#define TEST_MULTI_STAGE_H

#include <stdint.h>

#include <tidegate/ledger.h>

/* Makes a fresh directory under /dev/shm, names it in $TIDEGATE_DIR, and takes it away again. */
const char *stage_open(void);
void stage_close(void);
/* What the ledger says now; lent until the next call. Fails the test where it cannot be read. */
const struct tg_node_view *stage_view(void);
/* Bytes that the ledger counts as taken, reserved ones included, by this tenant if it lives, or by
 * all that live (NULL). */
uint64_t stage_taken(const char *tenant);
/* How many files lie there. */
uint32_t stage_files(void);
/* When all have left or died: the dead are told for 2 s at most. */
void stage_wait_forgotten(void);
/* The same as the device counts: total - free. uri as actors open it; in a process of its own, so
 * that the test itself opens nothing. */
uint64_t stage_used(const char *uri);
uint64_t stage_now_ns(void);
void stage_rest_ms(uint32_t ms);

#endif
