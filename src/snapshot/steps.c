/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "snapshot/replay.h"

/* Fewer boundaries say nothing about growth; of more the last are kept. */
#define BOUNDARIES_MIN 2
#define BOUNDARIES_MAX TG_SNAPSHOT_STEPS_MAX

static size_t longest_trace(const struct tg_snapshot *s, size_t *count) {
    const struct tg__range *traces = s->traces.items;
    size_t longest = 0;

    for (size_t i = 1; i < s->traces.count; i++)
        longest = traces[i].count > traces[longest].count ? i : longest;
    *count = s->traces.count > 0 ? traces[longest].count : 0;
    return longest;
}

/* A name, or a prefix of one where the pattern ends with '*'. */
static bool matches(struct tg_text text, const char *pattern) {
    size_t length = strlen(pattern);

    if (length > 0 && pattern[length - 1] == '*')
        return text.length >= length - 1 && memcmp(text.bytes, pattern, length - 1) == 0;
    return text.length == length && memcmp(text.bytes, pattern, length) == 0;
}

static int push(struct tg__steps *steps, uint64_t boundary) {
    const uint64_t *known = steps->boundaries.items;

    if (steps->boundaries.count > 0 && known[steps->boundaries.count - 1] >= boundary)
        return 0;
    return tg__vec_push(&steps->boundaries, &boundary);
}

/* Annotations whose name matches, at their start or end. */
static int from_annotations(const struct tg_snapshot *s, const char *pattern, bool ends,
                            struct tg__steps *steps) {
    const struct tg_annotation *annotations = s->annotations.items;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < s->annotations.count; i++) {
        const struct tg_annotation *a = &annotations[i];
        if (a->is_end == ends && matches(tg__places_text(&s->places, a->name), pattern))
            rc = push(steps, a->time_us);
    }
    steps->by_time = true;
    return rc;
}

static uint32_t metadata_of(const struct tg_snapshot *s, const struct tg_event *event) {
    const struct tg__context *contexts = s->contexts.items.items;

    return contexts[event->context].user_metadata;
}

/* Events carry the metadata that their thread had set: a step begins where a matching text differs
 * from the last one that matched, or follows another text. Empty ones say nothing: the threads of
 * the backward pass have none. */
static int from_metadata(const struct tg_snapshot *s, const char *pattern,
                         struct tg__steps *steps) {
    size_t count, trace = longest_trace(s, &count);
    const struct tg_event *events = tg_snapshot_trace(s, trace, &count);
    uint32_t last = 0;
    int rc = 0;

    steps->trace = trace;
    steps->by_time = count > 0 && events[0].time_us != 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint32_t metadata = metadata_of(s, &events[i]);
        if (metadata == 0 || metadata == last)
            continue;
        last = metadata;
        if (matches(tg__places_text(&s->places, metadata), pattern))
            rc = push(steps, steps->by_time ? events[i].time_us : i);
    }
    return rc;
}

/* Several optimizers have several names; of those the one that stepped most often counts, so that
 * two that step in turn make one step. Counts are kept by number of the name. */
static int most_frequent_optimizer(const struct tg_snapshot *s, uint32_t *name) {
    const struct tg_annotation *annotations = s->annotations.items;
    uint32_t *counts = calloc(s->places.texts.items.count, sizeof *counts);

    *name = 0;
    if (counts == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < s->annotations.count; i++) {
        const struct tg_annotation *a = &annotations[i];
        if (a->is_end && matches(tg__places_text(&s->places, a->name), "Optimizer.step#*") &&
            ++counts[a->name] > counts[*name])
            *name = a->name;
    }
    free(counts);
    return 0;
}

static int from_optimizer(const struct tg_snapshot *s, struct tg__steps *steps) {
    const struct tg_annotation *annotations = s->annotations.items;
    uint32_t name;
    int rc = most_frequent_optimizer(s, &name);

    for (size_t i = 0; rc == 0 && name != 0 && i < s->annotations.count; i++) {
        if (annotations[i].is_end && annotations[i].name == name)
            rc = push(steps, annotations[i].time_us);
    }
    steps->by_time = true;
    return rc;
}

/* An anchor lies somewhere within its step, amid activations. Between two anchors the moment with
 * the least live memory is taken: the pause between two steps. */
static int from_period(const struct tg_snapshot *s, struct tg__steps *steps) {
    size_t count, trace = longest_trace(s, &count), least_at = 0;
    const struct tg_event *events = tg_snapshot_trace(s, trace, &count);
    size_t last_anchor = 0, shortest = SIZE_MAX;
    int64_t live = 0, least = 0;
    bool has_begun = false;
    enum tg_action freeing = tg__freeing_action(events, count);
    uint32_t anchor;
    int rc = tg__period_find(events, count, s->places.stacks.items.count, &anchor,
                             &steps->confidence);

    steps->trace = trace;
    /* Times are needed only to find the same moments in other devices' histories. */
    steps->by_time = s->traces.count > 1 && count > 0 && events[0].time_us != 0;
    for (size_t i = 0; rc == 0 && anchor != 0 && i < count; i++) {
        bool is_alloc = events[i].action == TG_ACTION_ALLOC;
        if (is_alloc && events[i].stack == anchor) {
            if (has_begun) {
                rc = push(steps, steps->by_time ? events[least_at].time_us : least_at);
                shortest = i - last_anchor < shortest ? i - last_anchor : shortest;
            }
            has_begun = true;
            last_anchor = i;
            least = live;
            least_at = i;
        }
        if (live < least) {
            least = live;
            least_at = i;
        }
        if (is_alloc)
            live = tg__plus(live, (int64_t)events[i].size_bytes);
        else if (events[i].action == freeing)
            live = tg__minus(live, (int64_t)events[i].size_bytes);
    }
    /* What follows the last anchor may be a whole step as well. */
    if (rc == 0 && count - last_anchor >= shortest)
        rc = push(steps, steps->by_time ? events[least_at].time_us : least_at);
    return rc;
}

static bool settle_on(struct tg__steps *steps, enum tg_step_source source) {
    uint64_t *known = steps->boundaries.items;

    if (steps->boundaries.count >= BOUNDARIES_MIN) {
        if (steps->boundaries.count > BOUNDARIES_MAX) {
            memmove(known, known + steps->boundaries.count - BOUNDARIES_MAX,
                    BOUNDARIES_MAX * sizeof *known);
            steps->boundaries.count = BOUNDARIES_MAX;
            steps->start_known = true;
        }
        steps->source = source;
        return true;
    }
    steps->boundaries.count = 0;
    return false;
}

static int from_mark(const struct tg_snapshot *s, const char *mark, struct tg__steps *steps) {
    int rc = from_annotations(s, mark, false, steps);

    if (rc == 0 && !settle_on(steps, TG_STEPS_MARK)) {
        rc = from_metadata(s, mark, steps);
        settle_on(steps, TG_STEPS_MARK);
    }
    return rc;
}

int tg__steps_find(const struct tg_snapshot *s, const char *mark, struct tg__steps *steps) {
    int rc;

    memset(steps, 0, sizeof *steps);
    tg__vec_init(&steps->boundaries, sizeof(uint64_t), NULL);
    steps->confidence = 1;
    if (mark != NULL) {
        steps->start_known = true;
        return from_mark(s, mark, steps);
    }
    rc = from_annotations(s, "ProfilerStep#*", true, steps);
    if (rc != 0 || settle_on(steps, TG_STEPS_PROFILER))
        return rc;
    rc = from_optimizer(s, steps);
    if (rc != 0 || settle_on(steps, TG_STEPS_OPTIMIZER))
        return rc;
    rc = from_period(s, steps);
    if (rc == 0 && !settle_on(steps, TG_STEPS_PERIOD))
        steps->confidence = 0;
    return rc;
}

void tg__steps_free(struct tg__steps *steps) {
    tg__vec_free(&steps->boundaries);
}

/* How many events of history `trace` come before boundary `index`. */
static size_t position_of(const struct tg__steps *steps, const struct tg_snapshot *s, size_t trace,
                          size_t index) {
    uint64_t boundary = ((const uint64_t *)steps->boundaries.items)[index];
    size_t count, low = 0, high;
    const struct tg_event *events = tg_snapshot_trace(s, trace, &count);

    if (!steps->by_time)
        return trace == steps->trace ? boundary : 0;
    /* The first event at or after the boundary's time. */
    for (high = count; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (events[middle].time_us < boundary)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t tg__steps_count(const struct tg__steps *steps) {
    if (steps->source == TG_STEPS_NONE)
        return 0;
    return steps->boundaries.count - (steps->start_known ? 1 : 0);
}

void tg__steps_place(const struct tg__steps *steps, const struct tg_snapshot *s, size_t trace,
                     size_t *positions) {
    size_t count = tg__steps_count(steps);
    size_t shift = steps->start_known && count > 0 ? 0 : 1;

    positions[0] = 0;
    for (size_t i = shift; i <= count; i++)
        positions[i] = position_of(steps, s, trace, i - shift);
}

int tg_snapshot_steps(const struct tg_snapshot *snapshot, const char *step_mark, size_t device,
                      size_t *positions, size_t *steps) {
    struct tg__steps found;
    int rc;

    if (snapshot == NULL || positions == NULL || steps == NULL)
        return tg__fail(-EINVAL, "tg_snapshot_steps: a pointer is NULL");
    rc = tg__steps_find(snapshot, step_mark, &found);
    if (rc == 0) {
        tg__steps_place(&found, snapshot, device, positions);
        *steps = tg__steps_count(&found);
    }
    tg__steps_free(&found);
    return rc;
}
