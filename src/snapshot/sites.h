/* SPDX-License-Identifier: Apache-2.0 */
/* The sites of one rank: its stacks' series judged, and gathered by the line of the user's code.
 *
 * Each stack is judged by itself, so that a leak is not hidden by what else its line allocates.
 * What stays undecided is judged once more as a sum, first by line, then for the whole rank: memory
 * that changes its stack from step to step is told there. */
#ifndef TG_SNAPSHOT_SITES_H
#define TG_SNAPSHOT_SITES_H

#include "snapshot/merge.h"
#include "snapshot/own.h"

/* One line of the user's code that behaves in one way; in one rank, then in the answer. */
struct tg__site {
    uint32_t where;      /* text of the places given */
    uint32_t stack;      /* of the largest part */
    uint32_t own_frame;  /* index in it; its count: none */
    enum tg_leak_list list;
    enum tg_growth_kind kind;
    double bytes_per_step, blocks_per_step, confidence;
    double part;         /* size of the largest part, which chose the stack */
    uint64_t bytes, blocks;
    size_t steps_grown;
    int64_t first_step;
};

/* The judged rank. */
struct tg__judged {
    struct tg__vec sites; /* struct tg__site */
    size_t small_growers; /* lines that leak less than min_bytes_per_step */
    size_t replacements;  /* growth that only replaces blocks older than the history */
    bool undecided;       /* something that may grow by min_bytes_per_step is not told */
};

/* Errors: -ENOMEM. Free in any case. `places` gets the texts of `where`. */
int tg__sites_judge(const struct tg__rank *rank, struct tg__places *places,
                    struct tg__own *own, uint64_t min_bytes_per_step,
                    struct tg__judged *judged);
void tg__judged_free(struct tg__judged *judged);

#endif
