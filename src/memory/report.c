/* SPDX-License-Identifier: Apache-2.0 */
/* How a receipt is filled: the time of each phase, what could not be released, and by how much the
 * driver's free memory changed. The driver is asked only where the caller wants a receipt. */
#include "memory/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/receipt.h"
#include "memory/export.h"

static bool free_now(struct tg_memory *memory, uint64_t *free_bytes) {
    uint64_t total_bytes;

    return memory->ops->memory(memory->device, free_bytes, &total_bytes) == 0;
}

void tg__report_begin(struct tg__report *report, struct tg_memory *memory,
                      struct tg_receipt *receipt) {
    memset(report, 0, sizeof *report);
    report->memory = memory;
    report->before = *tg_last_error();
    report->errno_before = errno;
    report->receipt = receipt != NULL ? receipt : &report->own;
    memset(report->receipt, 0, sizeof *report->receipt);
    report->begin_ns = report->mark_ns = tg__clock_ns();
    report->is_measured = receipt != NULL && memory != NULL && getpid() == memory->pid &&
                          free_now(memory, &report->free_bytes);
}

void tg__report_mark(struct tg__report *report, uint64_t *phase_ns) {
    uint64_t now = tg__clock_ns();

    *phase_ns += now - report->mark_ns;
    report->mark_ns = now;
}

/* One opener stands for all that have the block. */
static void report_kept(struct tg_receipt *receipt, const struct tg__block *block) {
    char name[sizeof receipt->items[0].name] = "stays: exported before";

    if (block->leases != NULL)
        snprintf(name, sizeof name, "stays: exported to pid %d", (int)block->leases->pid);
    tg__receipt_add(receipt, name, block->range.size_bytes);
}

void tg__report_stays(struct tg__report *report, const struct tg_tag *chosen) {
    for (const struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        if (tag->held_bytes > 0)
            tg__receipt_add(report->receipt, "stays: shared", tag->held_bytes);
        for (size_t i = 0; i < tag->kept.count; i++)
            report_kept(report->receipt, tag->kept.items[i]);
        for (const struct tg__chunk *chunk = report->memory->leaving; chunk != NULL;
             chunk = chunk->next) {
            if (chunk->tag == tag && chunk->is_charged)
                tg__receipt_add(report->receipt, "stays: not released", chunk->range.size_bytes);
        }
    }
}

int tg__report_end(struct tg__report *report, int status) {
    struct tg_receipt *receipt = report->receipt;
    struct tg_error why = *tg_last_error();
    uint64_t free_bytes;

    receipt->status = status;
    if (report->is_measured && free_now(report->memory, &free_bytes))
        receipt->driver_bytes = free_bytes > report->free_bytes ? free_bytes - report->free_bytes
                                                                : report->free_bytes - free_bytes;
    receipt->all_ns = tg__clock_ns() - report->begin_ns;
    tg__fail_as(status != 0 ? &why : &report->before);
    errno = report->errno_before;
    return tg__memory_note(report->memory, status);
}
