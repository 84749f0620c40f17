/* SPDX-License-Identifier: Apache-2.0 */
/* From the digests of many files to one series a stack, for each rank.
 *
 * A rank is one process's history: its files in the order of their steps. Files that cannot share a
 * series (other moments of the step, another process with the same rank, a second file of one
 * step, an out-of-memory file among regular ones) are left out, and a note says so. */
#ifndef TG_SNAPSHOT_MERGE_H
#define TG_SNAPSHOT_MERGE_H

#include "snapshot/digest.h"

struct tg__rank {
    int64_t rank, pid;
    size_t input;  /* index of its last file among the inputs */
    bool is_alone; /* that file is judged by itself */
    enum tg_step_source source;
    double step_confidence;
    size_t devices;        /* of its last file */
    size_t points;         /* the series' length, at least 1 */
    uint64_t *steps;       /* by point: its number */
    struct tg__vec stacks; /* uint32_t: row to stack of the common places */
    struct tg__vec held;   /* struct tg__held by row: before the first step, by point, at the end
                              of the last file */
    struct tg__held *old;  /* as a row: the digests' blocks from before the history */
    uint64_t live_bytes, peak_bytes; /* of its last file */
};

static inline const struct tg__held *tg__rank_row(const struct tg__rank *rank, size_t row) {
    return (const struct tg__held *)rank->held.items + row * (rank->points + 2);
}

struct tg__merge {
    struct tg__budget budget; /* of what the ranks hold: places times points */
    struct tg__places places; /* owns its texts */
    struct tg__vec ranks;     /* struct tg__rank, by rank, then by pid */
    struct tg__vec notes;     /* char *, each malloc'ed */
    const struct tg_leak_input *inputs; /* lent while it is made */
};

/* Errors: -ENOMEM, TG_ELIMIT. Free in any case. */
int tg__merge_make(struct tg__merge *merge, const struct tg_leak_input *inputs, size_t count);
void tg__merge_free(struct tg__merge *merge);

/* Adds a note to notes; printf's format. Errors: -ENOMEM. */
int tg__note(struct tg__vec *notes, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
