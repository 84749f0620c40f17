/* SPDX-License-Identifier: Apache-2.0 */
/* See digest.h: find the steps, replay each device, and keep what outlived a step. */
#include "snapshot/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "snapshot/replay.h"
#include "snapshot/steps.h"

/* Places times steps, beside what the file itself accounts for. */
#define HELD_BYTES_BASE ((size_t)64 << 20)

static size_t device_count(const struct tg_snapshot *s) {
    const struct tg_segment *segments = s->segments.items;
    size_t count = s->traces.count;

    /* A bare list of segments has no histories. Segments of the host (-1) are not the card's. */
    for (size_t i = 0; i < s->segments.count; i++) {
        if (segments[i].device >= 0 && (size_t)segments[i].device + 1 > count &&
            segments[i].device < TG__DEVICES_MAX)
            count = (size_t)segments[i].device + 1;
    }
    return count;
}

static void add_device(struct tg_digest_info *info, struct tg_digest *digest,
                       const struct tg__replay *replay) {
    info->devices += replay->live_bytes > 0 || replay->peak_bytes > 0;
    info->live_bytes = tg__sum(info->live_bytes, replay->live_bytes);
    /* A card is full for itself: the fullest one counts. */
    if (replay->peak_bytes > info->peak_bytes)
        info->peak_bytes = replay->peak_bytes;
    if (replay->last_step_peak_bytes > digest->last_step_peak_bytes)
        digest->last_step_peak_bytes = replay->last_step_peak_bytes;
    if (replay->has_oom && (info->has_oom == 0 || replay->oom_us >= digest->oom_us)) {
        info->has_oom = 1;
        digest->oom_us = replay->oom_us;
        info->oom_asked_bytes = replay->oom_asked_bytes;
        info->oom_free_bytes = replay->oom_free_bytes;
        info->oom_live_bytes = replay->oom_live_bytes;
    }
}

/* From differences between samples to what was held at each. */
static void sum_up(struct tg_digest *digest) {
    struct tg__held *held = digest->held.items;
    struct tg__held *old = digest->old.items;

    for (size_t i = 1; i < digest->held.count; i++) {
        if (i % digest->samples != 0)
            tg__held_add(&held[i], held[i - 1]);
    }
    for (size_t i = 1; i < digest->samples; i++)
        tg__held_add(&old[i], old[i - 1]);
}

static int replay_devices(const struct tg_snapshot *s, const struct tg__steps *steps,
                          struct tg_digest *digest) {
    size_t devices = device_count(s), *positions;
    struct tg__map rows;
    void *old;
    int rc = tg__vec_extend(&digest->old, digest->samples, &old);

    if (rc != 0)
        return rc;
    positions = calloc(digest->samples, sizeof *positions);
    if (positions == NULL)
        return tg__fail_memory();
    tg__map_init(&rows);
    for (size_t device = 0; rc == 0 && device < devices; device++) {
        struct tg__replay replay = {.snapshot = s, .device = device, .positions = positions,
                                    .samples = digest->samples, .digest = digest, .rows = &rows};
        tg__steps_place(steps, s, device, positions);
        rc = tg__replay_run(&replay);
        add_device(&digest->info, digest, &replay);
    }
    tg__map_free(&rows);
    free(positions);
    if (rc == 0)
        sum_up(digest);
    return rc;
}

/* The rows name stacks of the snapshot, which may go: from here on they name our own copies. */
static int own_stacks(const struct tg_snapshot *s, struct tg_digest *digest) {
    uint32_t *stacks = digest->stacks.items;
    struct tg__map frames;
    int rc = 0;

    tg__map_init(&frames);
    for (size_t row = 0; rc == 0 && row < digest->stacks.count; row++)
        rc = tg__places_copy_stack(&digest->places, &s->places, &frames, stacks[row],
                                   &stacks[row]);
    tg__map_free(&frames);
    tg__places_settle(&digest->places);
    return rc;
}

static void note_events(const struct tg_snapshot *s, struct tg_digest_info *info) {
    const struct tg_segment *segments = s->segments.items;

    for (size_t device = 0; device < s->traces.count; device++) {
        size_t count;
        const struct tg_event *events = tg_snapshot_trace(s, device, &count);
        info->events += count;
        if (count == 0)
            continue;
        if (info->first_us == 0 || events[0].time_us < info->first_us)
            info->first_us = events[0].time_us;
        if (events[count - 1].time_us > info->last_us)
            info->last_us = events[count - 1].time_us;
    }
    for (size_t i = 0; i < s->segments.count; i++)
        info->reserved_bytes = tg__sum(info->reserved_bytes, segments[i].total_bytes);
}

static int fill(struct tg_digest *digest, const struct tg_snapshot *s, const char *mark) {
    struct tg__steps steps;
    int rc = tg__steps_find(s, mark, &steps);

    if (rc == 0) {
        digest->info.steps = tg__steps_count(&steps);
        digest->info.step_source = steps.source;
        digest->info.step_confidence = steps.confidence;
        digest->samples = digest->info.steps + 2;
        note_events(s, &digest->info);
        rc = replay_devices(s, &steps, digest);
    }
    tg__steps_free(&steps);
    tg__vec_trim(&digest->held);
    tg__vec_trim(&digest->stacks);
    return rc != 0 ? rc : own_stacks(s, digest);
}

int tg_digest_make(const struct tg_snapshot *snapshot, const char *step_mark,
                   struct tg_digest **digest) {
    struct tg_digest *made;
    int rc;

    if (snapshot == NULL || digest == NULL)
        return tg__fail(-EINVAL, "tg_digest_make: a pointer is NULL");
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return tg__fail_memory();
    tg__vec_init(&made->stacks, sizeof(uint32_t), NULL);
    made->budget.left_bytes =
        HELD_BYTES_BASE + 4 * (snapshot->events.count * sizeof(struct tg_event) +
                               snapshot->blocks.count * sizeof(struct tg_block));
    tg__vec_init(&made->held, sizeof(struct tg__held), &made->budget);
    tg__vec_init(&made->old, sizeof(struct tg__held), &made->budget);
    rc = tg__places_init(&made->places, NULL, true);
    if (rc == 0)
        rc = fill(made, snapshot, step_mark);
    if (rc == TG_ELIMIT)
        tg__fail(rc, "too many places outlive a step, times %zu steps", made->info.steps);
    if (rc != 0) {
        tg_digest_close(made);
        return rc;
    }
    *digest = made;
    return 0;
}

void tg_digest_close(struct tg_digest *digest) {
    if (digest == NULL)
        return;
    tg__vec_free(&digest->stacks);
    tg__vec_free(&digest->held);
    tg__vec_free(&digest->old);
    tg__places_free(&digest->places);
    free(digest);
}

void tg_digest_info(const struct tg_digest *digest, struct tg_digest_info *info) {
    *info = digest->info;
}
