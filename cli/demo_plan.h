/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo's trainer does in each step: the allocations and frees of the whole steps of a
 * recorded history, in their order, with the sizes of the file.
 *
 * A step's allocations and frees are the events between its two boundaries; a free of what was not
 * allocated in these steps has nothing to free and does not count. A block whose free is missing
 * ends where its address is given out again. Peak is the most that was live at once in the step,
 * counted from nothing at the start of the first; sizes are as requested. */
#ifndef CLI_DEMO_PLAN_H
#define CLI_DEMO_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tidegate/snapshot.h>

#include "say.h"

enum demo_act_kind {
    DEMO_ACT_ALLOC,
    DEMO_ACT_FREE,
    DEMO_ACT_LOST /* a free that is not in the file: its block's address is given out again */
};

struct demo_act {
    uint64_t size_bytes; /* of the block; not scaled */
    uint32_t block;      /* blocks are numbered by their allocation */
    uint32_t kind;       /* enum demo_act_kind */
};

struct demo_step {
    size_t first_act, act_count;
    uint64_t allocations, frees;
    uint64_t peak_bytes;
};

struct demo_plan {
    struct demo_act *acts;
    size_t act_count;
    struct demo_step *steps;
    size_t step_count;
    uint32_t block_count;
    uint64_t peak_bytes;  /* over all steps */
    uint64_t allocations; /* likewise */
};

/* Makes the plan from the longest history of a snapshot, which may be closed afterwards. False:
 * *why says it, and nothing is to be freed. */
bool demo_plan_make(const struct tg_snapshot *snapshot, struct demo_plan *plan,
                    struct sentence *why);
void demo_plan_free(struct demo_plan *plan);

/* A size as it is on a device where the peak of the plan is to be target_bytes: at least 1. */
uint64_t demo_plan_scaled(const struct demo_plan *plan, uint64_t size_bytes,
                          uint64_t target_bytes);

#endif
