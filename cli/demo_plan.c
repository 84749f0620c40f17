/* SPDX-License-Identifier: Apache-2.0 */
/* Frees name an address; which block they mean is found by sorting: the events of one address, in
 * the order of time, are that address's blocks one after the other. */
#include "demo_plan.h"

#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

/* Sums of sizes beyond this are no card's, and could not be scaled exactly. */
#define PEAK_MOST (UINT64_C(1) << 52)

#define NO_BLOCK UINT32_MAX

/* One allocation or free of the history, and the blocks that it begins and ends. */
struct place {
    uint64_t addr;
    uint32_t event; /* within the steps */
    uint32_t begins, ends; /* NO_BLOCK: none */
};

/* The events of the whole steps. */
struct history {
    const struct tg_event *events;
    size_t count;
    size_t positions[TG_SNAPSHOT_STEPS_MAX + 1]; /* of the first step's start, then the ends */
    size_t steps;
    enum tg_action freeing; /* what ends a block's life */
};

static bool longest_history(const struct tg_snapshot *snapshot, struct history *history,
                            struct sentence *why) {
    size_t longest = 0, count, device;

    for (device = 0; tg_snapshot_trace(snapshot, device, &count) != NULL; device++) {
        if (count > history->count) {
            history->count = count;
            longest = device;
        }
    }
    if (tg_snapshot_steps(snapshot, NULL, longest, history->positions, &history->steps) != 0) {
        sentence_set(why, "%s", tg_last_error()->text);
        return false;
    }
    if (history->steps == 0) {
        sentence_set(why, "no whole step is in it: record two or more, with Optimizer.step "
                          "annotations if possible");
        return false;
    }
    if (history->count >= NO_BLOCK) {
        sentence_set(why, "has %zu events: more than a demo can replay", history->count);
        return false;
    }
    history->events = tg_snapshot_trace(snapshot, longest, &count) + history->positions[0];
    history->freeing = TG_ACTION_FREE_COMPLETED;
    for (size_t i = 0; i < count; i++) {
        if (history->events[i - history->positions[0]].action == TG_ACTION_FREE_REQUESTED)
            history->freeing = TG_ACTION_FREE_REQUESTED;
    }
    history->count = history->positions[history->steps] - history->positions[0];
    return true;
}

static int by_address(const void *left, const void *right) {
    const struct place *a = left, *b = right;

    if (a->addr != b->addr)
        return a->addr < b->addr ? -1 : 1;
    return a->event < b->event ? -1 : a->event > b->event;
}

static int by_event(const void *left, const void *right) {
    const struct place *a = left, *b = right;

    return a->event < b->event ? -1 : a->event > b->event;
}

/* Finds which block each place ends: sorted by address, the one that the place before it began. */
static void ends_find(struct place *places, size_t count) {
    uint32_t open = NO_BLOCK;

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && places[i].addr != places[i - 1].addr)
            open = NO_BLOCK;
        places[i].ends = open;
        open = places[i].begins;
    }
}

/* The allocations and frees, numbered and in the order of time. NULL: no memory. */
static struct place *places_make(const struct history *history, size_t *count,
                                 uint32_t *block_count) {
    struct place *places = calloc(history->count + 1, sizeof *places);
    uint32_t blocks = 0;

    *count = 0;
    for (size_t i = 0; places != NULL && i < history->count; i++) {
        const struct tg_event *event = &history->events[i];
        bool is_alloc = event->action == TG_ACTION_ALLOC;

        if (is_alloc || event->action == history->freeing)
            places[(*count)++] = (struct place){.addr = event->addr,
                                                .event = (uint32_t)i,
                                                .begins = is_alloc ? blocks++ : NO_BLOCK};
    }
    if (places == NULL)
        return NULL;
    qsort(places, *count, sizeof *places, by_address);
    ends_find(places, *count);
    qsort(places, *count, sizeof *places, by_event);
    *block_count = blocks;
    return places;
}

/* Adds what one place does to the plan. False: its sizes are beyond belief. */
static bool place_add(struct demo_plan *plan, struct demo_step *step, const struct place *place,
                      uint64_t size_bytes, uint64_t *sizes, uint64_t *live_bytes) {
    if (place->ends != NO_BLOCK) {
        bool is_lost = place->begins != NO_BLOCK;

        plan->acts[plan->act_count++] =
            (struct demo_act){.kind = is_lost ? DEMO_ACT_LOST : DEMO_ACT_FREE,
                              .block = place->ends,
                              .size_bytes = sizes[place->ends]};
        *live_bytes -= sizes[place->ends];
        step->frees += !is_lost;
    }
    if (place->begins == NO_BLOCK)
        return true;
    if (size_bytes > PEAK_MOST - *live_bytes)
        return false;
    sizes[place->begins] = size_bytes;
    plan->acts[plan->act_count++] =
        (struct demo_act){.block = place->begins, .size_bytes = size_bytes};
    *live_bytes += size_bytes;
    step->allocations++;
    if (*live_bytes > step->peak_bytes)
        step->peak_bytes = *live_bytes;
    return true;
}

/* Fills in the steps and their acts; room is there. */
static bool steps_fill(struct demo_plan *plan, const struct history *history,
                       const struct place *places, size_t place_count, uint64_t *sizes) {
    uint64_t live_bytes = 0;
    size_t at = 0;

    for (size_t i = 0; i < plan->step_count; i++) {
        struct demo_step *step = &plan->steps[i];
        size_t end = history->positions[i + 1] - history->positions[0];

        step->first_act = plan->act_count;
        step->peak_bytes = live_bytes;
        for (; at < place_count && places[at].event < end; at++) {
            if (!place_add(plan, step, &places[at], history->events[places[at].event].size_bytes,
                           sizes, &live_bytes))
                return false;
        }
        step->act_count = plan->act_count - step->first_act;
        plan->allocations += step->allocations;
        if (step->peak_bytes > plan->peak_bytes)
            plan->peak_bytes = step->peak_bytes;
    }
    return true;
}

bool demo_plan_make(const struct tg_snapshot *snapshot, struct demo_plan *plan,
                    struct sentence *why) {
    struct history history = {.count = 0};
    uint64_t *sizes = NULL;
    struct place *places;
    bool is_made = false;
    size_t count;

    memset(plan, 0, sizeof *plan);
    if (!longest_history(snapshot, &history, why))
        return false;
    places = places_make(&history, &count, &plan->block_count);
    plan->step_count = history.steps;
    plan->steps = calloc(plan->step_count, sizeof *plan->steps);
    if (places != NULL) { /* a place is two acts at most */
        plan->acts = calloc(2 * count + 1, sizeof *plan->acts);
        sizes = calloc((size_t)plan->block_count + 1, sizeof *sizes);
    }
    if (plan->steps == NULL || plan->acts == NULL || sizes == NULL)
        sentence_set(why, "not enough memory");
    else if (!steps_fill(plan, &history, places, count, sizes))
        sentence_set(why, "its sizes add up to more than any card has");
    else if (plan->peak_bytes == 0)
        sentence_set(why, "nothing is allocated in its steps");
    else
        is_made = true;
    free(sizes);
    free(places);
    if (!is_made)
        demo_plan_free(plan);
    return is_made;
}

void demo_plan_free(struct demo_plan *plan) {
    free(plan->acts);
    free(plan->steps);
    memset(plan, 0, sizeof *plan);
}

uint64_t demo_plan_scaled(const struct demo_plan *plan, uint64_t size_bytes,
                          uint64_t target_bytes) {
    double scaled = (double)size_bytes * (double)target_bytes / (double)plan->peak_bytes;

    return scaled < 1 ? 1 : (uint64_t)scaled;
}
