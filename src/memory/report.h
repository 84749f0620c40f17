/* SPDX-License-Identifier: Apache-2.0 */
/* A receipt while it is being filled: begun with the operation, ended with its status. The end also
 * puts errno back, and after a success the thread's last error. In a forked child the status is all
 * that it has. */
#ifndef TG_MEMORY_REPORT_H
#define TG_MEMORY_REPORT_H

#include <tidegate/receipt.h>

#include "memory/state.h"

struct tg__report {
    struct tg_receipt *receipt; /* the caller's, or `own` */
    struct tg_receipt own;
    struct tg_memory *memory;
    struct tg_error before; /* the thread's last error */
    int errno_before;
    uint64_t begin_ns, mark_ns;
    uint64_t free_bytes; /* the driver's, at the beginning; asked for the caller's receipt only */
    bool is_measured;
};

void tg__report_begin(struct tg__report *report, struct tg_memory *memory,
                      struct tg_receipt *receipt);
/* The time since the last mark goes to this phase. */
void tg__report_mark(struct tg__report *report, uint64_t *phase_ns);
/* Chunks of the chosen tags that could not be released, as lines. With lock. */
void tg__report_stays(struct tg__report *report, const struct tg_tag *chosen);
/* Returns the status. */
int tg__report_end(struct tg__report *report, int status);

#endif
