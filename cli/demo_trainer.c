/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's trainer: does what the recorded program did, allocation by allocation. Every block is
 * filled when it is allocated, and looked at when it is freed and after each wake. */
#include <errno.h>
#include <stdlib.h>

#include "demo_content.h"
#include "demo_heap.h"
#include "demo_side.h"

/* Room for what a caching allocator loses in pieces, when the device is asked for. */
#define NEEDED_PERCENT 90

struct block {
    void *at; /* NULL: not live, or it found no memory */
    uint64_t size_bytes; /* scaled */
    uint32_t piece;
};

struct trainer {
    struct tg_tag *tag;
    struct demo_side *side;
    struct demo_heap heap;
    struct block *blocks; /* by the plan's numbers */
    uint32_t round;       /* blocks of different rounds have different contents */
    uint64_t live_bytes;  /* in the file's sizes */
};

static void *segment_take(void *argument, uint64_t size_bytes) {
    struct trainer *trainer = argument;
    void *segment;

    if (tg_tag_alloc(trainer->tag, size_bytes, &segment) != 0)
        return NULL;
    demo_side_touch(trainer->side, segment, size_bytes);
    return segment;
}

static void segment_give(void *argument, void *segment) {
    struct trainer *trainer = argument;

    /* What the heap gives is a block of the tag: this cannot fail. */
    (void)!tg_memory_free(trainer->side->memory, segment, NULL);
}

static uint64_t needed_bytes(const struct demo_setup *setup) {
    uint64_t bytes = setup->capacity_bytes / 100 * NEEDED_PERCENT;

    return bytes / setup->granule_bytes * setup->granule_bytes;
}

static int trainer_open(struct demo_side *side, void **state) {
    /* As a training program would: the next sleep comes in a moment, into the same memory. */
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .keep_host = 1};
    struct trainer *trainer = calloc(1, sizeof *trainer);
    struct demo_source source = {.take = segment_take,
                                 .give = segment_give,
                                 .argument = trainer,
                                 .granule_bytes = side->setup->granule_bytes};

    if (trainer == NULL)
        return -ENOMEM;
    *state = trainer;
    demo_heap_init(&trainer->heap, &source);
    trainer->side = side;
    trainer->blocks = calloc((size_t)side->setup->plan.block_count + 1, sizeof *trainer->blocks);
    if (trainer->blocks == NULL)
        return -ENOMEM;
    return tg_tag_open(side->memory, demo_trainer_role.tag, &params, &trainer->tag);
}

static int trainer_begin(struct demo_side *side, void *state) {
    (void)side;
    (void)state;
    return 0;
}

static uint64_t key_of(const struct demo_side *side, const struct trainer *trainer,
                       uint32_t block) {
    uint64_t owner = (uint64_t)DEMO_TRAINER << 32 | trainer->round;

    return demo_content_key(side->setup->options.seed, owner, block);
}

static int block_make(struct demo_side *side, struct trainer *trainer, const struct demo_act *act) {
    struct block *block = &trainer->blocks[act->block];

    block->size_bytes = demo_plan_scaled(&side->setup->plan, act->size_bytes,
                                         side->setup->trainer_peak_bytes);
    switch (demo_heap_alloc(&trainer->heap, block->size_bytes, &block->at, &block->piece)) {
    case DEMO_HEAP_GIVEN:
        demo_side_fill(side, block->at, block->size_bytes, key_of(side, trainer, act->block));
        break;
    case DEMO_HEAP_FULL:
        block->at = NULL;
        side->reply.out_of_memory++;
        break;
    case DEMO_HEAP_NO_MEMORY:
        block->at = NULL;
        return -ENOMEM;
    }
    side->reply.allocations++;
    trainer->live_bytes += act->size_bytes;
    if (trainer->live_bytes > side->reply.peak_bytes)
        side->reply.peak_bytes = trainer->live_bytes;
    return 0;
}

static void block_verify(struct demo_side *side, const struct trainer *trainer, uint32_t number) {
    const struct block *block = &trainer->blocks[number];

    if (block->at != NULL)
        demo_side_verify(side, block->at, block->size_bytes, key_of(side, trainer, number));
}

static void block_drop(struct demo_side *side, struct trainer *trainer, uint32_t number) {
    struct block *block = &trainer->blocks[number];

    block_verify(side, trainer, number);
    if (block->at != NULL)
        demo_heap_free(&trainer->heap, block->piece);
    block->at = NULL;
}

/* Ends a round: nothing of it is left, so the next one begins as the first did. */
static void round_end(struct demo_side *side, struct trainer *trainer) {
    for (uint32_t i = 0; i < side->setup->plan.block_count; i++)
        block_drop(side, trainer, i);
    trainer->live_bytes = 0;
    trainer->round++;
}

static int trainer_run(struct demo_side *side, void *state, uint32_t number) {
    const struct demo_plan *plan = &side->setup->plan;
    const struct demo_step *step = &plan->steps[number];
    struct trainer *trainer = state;
    int status = 0;

    for (uint32_t i = 0; i < plan->block_count; i++)
        block_verify(side, trainer, i);
    side->reply.peak_bytes = trainer->live_bytes;
    for (size_t i = 0; status == 0 && i < step->act_count && !demo_side_must_stop(side); i++) {
        const struct demo_act *act = &plan->acts[step->first_act + i];

        if (act->kind == DEMO_ACT_ALLOC) {
            status = block_make(side, trainer, act);
        } else {
            block_drop(side, trainer, act->block);
            trainer->live_bytes -= act->size_bytes;
            side->reply.frees += act->kind == DEMO_ACT_FREE;
        }
        demo_side_measure(side, trainer->heap.segment_bytes);
    }
    if (number + 1 == plan->step_count)
        round_end(side, trainer);
    demo_heap_trim(&trainer->heap);
    demo_side_measure(side, trainer->heap.segment_bytes);
    return status;
}

static void trainer_close(void *state) {
    struct trainer *trainer = state;

    demo_heap_destroy(&trainer->heap);
    free(trainer->blocks);
    free(trainer);
}

const struct demo_role demo_trainer_role = {
    .name = "trainer",
    .tag = "training",
    .open = trainer_open,
    .needed_bytes = needed_bytes,
    .begin = trainer_begin,
    .run = trainer_run,
    .close = trainer_close,
};
