/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. One pass over the events with a map from address to the event that allocated it,
 * then one over the final blocks. */
#include "snapshot/replay.h"

#include "base/error.h"

struct run {
    struct tg__replay *replay;
    const struct tg_event *events;
    size_t count;
    struct tg__map open;   /* address to event: allocated here and not yet freed */
    enum tg_action free;   /* the kind of event that ends a block's life */
    size_t sample;         /* samples that lie before or at the present event */
    int64_t running;       /* live bytes, but for those that were there before the history */
    int64_t peak, last_peak;
    int64_t before;        /* live bytes at the beginning */
    int64_t running_at_oom;
};

static struct tg__held *row_of(struct tg__replay *r, uint32_t stack, int *rc) {
    uint32_t row = tg__map_get(r->rows, stack);
    void *added;

    if (row == UINT32_MAX) {
        row = (uint32_t)r->digest->stacks.count;
        if ((*rc = tg__vec_push(&r->digest->stacks, &stack)) != 0 ||
            (*rc = tg__vec_extend(&r->digest->held, r->samples, &added)) != 0 ||
            (*rc = tg__map_put(r->rows, stack, row)) != 0)
            return NULL;
    }
    return (struct tg__held *)r->digest->held.items + row * r->samples;
}

/* A block of this stack was there at samples [from, to). */
static int add(struct tg__replay *r, uint32_t stack, uint64_t size_bytes, size_t from, size_t to) {
    struct tg__held *row;
    int rc = 0;

    if (from >= to)
        return 0;
    row = row_of(r, stack, &rc);
    if (row == NULL)
        return rc;
    /* Differences, summed up when all is replayed: a long life costs no more than a short one. */
    tg__held_add(&row[from], (struct tg__held){(int64_t)size_bytes, 1});
    if (to < r->samples)
        tg__held_add(&row[to], (struct tg__held){-(int64_t)size_bytes, -1});
    return 0;
}

/* The first sample that comes after event `index`. */
static size_t sample_after(const struct tg__replay *r, size_t index) {
    size_t low = 0, high = r->samples - 1;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->positions[middle] <= index)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The block allocated by event `birth` ended at the present event. Nearly all live and die between
 * two samples, so that is looked at first. */
static int end_life(struct run *run, uint32_t birth) {
    const struct tg_event *event = &run->events[birth];
    struct tg__replay *r = run->replay;

    if (run->sample == 0 || r->positions[run->sample - 1] <= birth)
        return 0;
    return add(r, event->stack, tg__rounded(event->size_bytes), sample_after(r, birth),
               run->sample);
}

static int on_alloc(struct run *run, size_t index) {
    const struct tg_event *event = &run->events[index];
    uint32_t lost = tg__map_take(&run->open, event->addr);
    int rc = 0;

    run->running = tg__plus(run->running, (int64_t)tg__rounded(event->size_bytes));
    if (lost != UINT32_MAX) { /* its free was not recorded */
        run->running =
            tg__minus(run->running, (int64_t)tg__rounded(run->events[lost].size_bytes));
        rc = end_life(run, lost);
    }
    return rc != 0 ? rc : tg__map_put(&run->open, event->addr, (uint32_t)index);
}

static int on_free(struct run *run, size_t index) {
    const struct tg_event *event = &run->events[index];
    uint32_t birth = tg__map_take(&run->open, event->addr);
    uint64_t size_bytes = tg__rounded(event->size_bytes);
    struct tg__held *old;

    if (birth != UINT32_MAX) {
        run->running =
            tg__minus(run->running, (int64_t)tg__rounded(run->events[birth].size_bytes));
        return end_life(run, birth);
    }
    /* Allocated before the history began; by whom is not known. */
    run->before = tg__plus(run->before, (int64_t)size_bytes);
    run->running = tg__minus(run->running, (int64_t)size_bytes);
    old = run->replay->digest->old.items;
    tg__held_add(&old[0], (struct tg__held){(int64_t)size_bytes, 1});
    tg__held_add(&old[run->sample], (struct tg__held){-(int64_t)size_bytes, -1});
    return 0;
}

static void note_peak(struct run *run) {
    size_t last_step = run->replay->samples - 2; /* index of the last sample before the end */

    if (run->running > run->peak)
        run->peak = run->running;
    /* The last whole step lies between the last two samples of the history. */
    if (run->sample == last_step && run->running > run->last_peak)
        run->last_peak = run->running;
}

static int replay_events(struct run *run) {
    struct tg__replay *r = run->replay;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < run->count; i++) {
        const struct tg_event *event = &run->events[i];
        while (run->sample < r->samples - 1 && r->positions[run->sample] <= i) {
            run->sample++;
            if (run->sample == r->samples - 2)
                run->last_peak = run->running;
        }
        if (event->action == TG_ACTION_ALLOC) {
            rc = on_alloc(run, i);
            note_peak(run);
        } else if (event->action == run->free) {
            rc = on_free(run, i);
        } else if (event->action == TG_ACTION_OOM) {
            r->has_oom = true;
            r->oom_us = event->time_us;
            r->oom_asked_bytes = event->size_bytes;
            r->oom_free_bytes = event->addr;
            run->running_at_oom = run->running;
        }
    }
    run->sample = r->samples - 1;
    return rc;
}

/* A block that is there at the end: since the event that allocated it, or since before. Within the
 * history it is charged as the blocks are that came and went, to the event's stack; where events
 * have none (context="state") living blocks would else seem to grow at the cost of the dead. */
static int final_block(struct run *run, const struct tg_block *block) {
    struct tg__replay *r = run->replay;
    uint32_t birth = tg__map_take(&run->open, block->addr);
    uint64_t size_bytes = tg__rounded(block->requested_bytes);
    size_t end = r->samples - 1;
    int rc;

    r->live_bytes = tg__sum(r->live_bytes, block->size_bytes);
    if (birth == UINT32_MAX) {
        run->before = tg__plus(run->before, (int64_t)size_bytes);
        return add(r, block->stack, size_bytes, 0, r->samples);
    }
    size_bytes = tg__rounded(run->events[birth].size_bytes);
    rc = add(r, run->events[birth].stack, size_bytes, sample_after(r, birth), end);
    if (rc != 0)
        return rc;
    return add(r, block->stack != 0 ? block->stack : run->events[birth].stack, size_bytes, end,
               r->samples);
}

static int final_blocks(struct run *run) {
    const struct tg_snapshot *s = run->replay->snapshot;
    const struct tg_segment *segments = s->segments.items;
    const struct tg_block *blocks = s->blocks.items;
    int rc = 0;

    for (size_t i = 0; i < s->segments.count; i++) {
        if (segments[i].device != (int32_t)run->replay->device)
            continue;
        for (uint32_t j = 0; rc == 0 && j < segments[i].block_count; j++) {
            const struct tg_block *block = &blocks[segments[i].first_block + j];
            if (block->state == TG_BLOCK_LIVE)
                rc = final_block(run, block);
        }
    }
    return rc;
}

enum tg_action tg__freeing_action(const struct tg_event *events, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (events[i].action == TG_ACTION_FREE_REQUESTED)
            return TG_ACTION_FREE_REQUESTED;
    }
    return TG_ACTION_FREE_COMPLETED;
}

int tg__replay_run(struct tg__replay *r) {
    struct run run = {.replay = r};
    int rc;

    run.events = tg_snapshot_trace(r->snapshot, r->device, &run.count);
    run.free = tg__freeing_action(run.events, run.count);
    tg__map_init(&run.open);
    rc = replay_events(&run);
    if (rc == 0)
        rc = final_blocks(&run);
    tg__map_free(&run.open);
    r->peak_bytes = tg__not_negative(tg__plus(run.before, run.peak));
    r->last_step_peak_bytes =
        r->samples > 2 ? tg__not_negative(tg__plus(run.before, run.last_peak)) : r->peak_bytes;
    r->oom_live_bytes = tg__not_negative(tg__plus(run.before, run.running_at_oom));
    return rc;
}
