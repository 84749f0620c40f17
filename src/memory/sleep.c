/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep: drain, save, unmap, release, publish. Everything up to the last unmap can be undone: the
 * handles are still held and the content is in the chunks. A chunk that is then not released is on
 * its way out, counts as occupied, and is tried again at each later call. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/receipt.h"
#include "memory/agent.h"
#include "memory/report.h"

/* It has something to give. */
static bool is_wakeful(const struct tg_tag *tag) {
    return tag->state == TG_TAG_AWAKE || tg__tag_is_half(tag);
}

/* ---- drain ----------------------------------------------------------------------------------- */

/* With lock, which it gives up meanwhile. */
static int wait_for_allocs(struct tg_tag *tag, uint64_t deadline_ns) {
    const struct timespec deadline = tg__timespec(deadline_ns);
    int rc = 0;

    while (tag->allocs > 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&tag->memory->left, &tag->memory->lock, &deadline);
    if (tag->allocs > 0)
        return tg__fail(TG_EBUSY, "tag '%s': allocations that did not end in time: %" PRIu32,
                        tag->name, tag->allocs);
    return 0;
}

int tg__tags_still(struct tg_memory *memory, struct tg_tag *chosen, uint64_t deadline_ns) {
    struct tg_tag *tag;
    int rc = 0;

    for (tag = chosen; tag != NULL; tag = tag->next_chosen) {
        tag->before = tag->state;
        tag->state = TG_TAG_DRAINING;
    }
    for (tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen)
        rc = wait_for_allocs(tag, deadline_ns);
    if (rc == 0)
        return 0;
    for (tag = chosen; tag != NULL; tag = tag->next_chosen)
        tag->state = tag->before;
    tg__tags_rest(memory, chosen);
    return rc;
}

int tg__tags_drain(struct tg_memory *memory, uint32_t wait_ms) {
    struct tg_fence fence;
    uint64_t order;
    int rc;

    pthread_mutex_lock(&memory->lock);
    order = memory->frees;
    pthread_mutex_unlock(&memory->lock);
    rc = memory->ops->fence(memory->device, NULL, &fence);
    if (rc == 0)
        rc = memory->ops->wait(memory->device, &fence, wait_ms);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    tg__limbo_settled(memory, order);
    tg__memory_tidy(memory);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

/* ---- save ------------------------------------------------------------------------------------ */

static bool needs_saving(const struct tg_tag *tag) {
    return tag->params.backup == TG_BACKUP_HOST && !tag->is_saved && !tag->is_dropped;
}

/* For blocks that have no host memory yet. */
static int make_segment(struct tg_tag *tag) {
    uint64_t size_bytes = tg__segment_missing(tag);
    int rc;

    if (size_bytes == 0)
        return 0;
    rc = tg__segment_new(tag, size_bytes, &tag->fresh_segment);
    if (rc == 0)
        (void)!tg__segment_adopt(tag->fresh_segment); /* blocks are missing it */
    return rc;
}

/* A tag that a failed sleep was to drop may be half asleep: its content is in the chunks alone. */
static int begin_saving(struct tg_tag *tag, uint64_t *copied_bytes) {
    struct tg__copying copying;
    int rc = tg__tag_map(tag);

    if (rc == 0)
        rc = make_segment(tag);
    if (rc != 0)
        return rc;
    tg__copy_begin(&copying, tag, TG__COPY_SAVE);
    tg__segment_touch_begin(tag->fresh_segment);
    rc = tg__copy_until(&copying, UINT64_MAX, copied_bytes);
    tg__segment_touch_end(tag->fresh_segment);
    return rc;
}

static int save(struct tg_memory *memory, struct tg_tag *chosen, struct tg_receipt *receipt) {
    uint64_t copied_bytes = 0;
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        if (needs_saving(tag))
            rc = begin_saving(tag, &copied_bytes);
    }
    rc = tg__copy_end(memory, chosen, copied_bytes, rc);
    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        if (!needs_saving(tag))
            continue;
        if (tag->fresh_segment != NULL)
            tg__segment_touched(tag->fresh_segment);
        if (tag->params.checked)
            tg__copy_sum(tag);
        tag->is_saved = true;
    }
    if (rc == 0)
        receipt->copied_bytes = copied_bytes;
    return rc;
}

/* ---- unmap, release -------------------------------------------------------------------------- */

/* What follows the last unmap must not need memory. */
static int make_room(struct tg_memory *memory, struct tg_tag *chosen) {
    int rc = 0;

    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen)
        rc = tg__ranges_room(&tag->vacant, tag->spare.count + 1);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

static int unmap_all(struct tg_tag *chosen) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen)
        rc = tg__chunks_unmap(tag);
    return rc;
}

static void release_all(struct tg_memory *memory, struct tg_tag *chosen) {
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        for (size_t i = 0; i < tag->chunks.count; i++) {
            struct tg__chunk *chunk = tag->chunks.items[i];

            if (memory->ops->release(memory->device, chunk->handle) == 0)
                chunk->handle = 0;
        }
    }
}

/* ---- the two ends ---------------------------------------------------------------------------- */

/* With lock. Returns the bytes given. */
static uint64_t publish_tag(struct tg_tag *tag) {
    uint64_t given_bytes = 0, asleep_bytes = 0;

    for (size_t i = 0; i < tag->chunks.count; i++) {
        struct tg__chunk *chunk = tag->chunks.items[i];

        if (chunk->handle != 0) {
            tg__chunk_leave(chunk);
            continue;
        }
        given_bytes += chunk->range.size_bytes;
        free(chunk);
    }
    tag->chunks.count = 0;
    for (size_t i = 0; i < tag->spare.count; i++)
        (void)!tg__ranges_add(&tag->vacant, tag->spare.items[i], NULL); /* room was made */
    tg__ranges_free(&tag->spare);
    tg__ranges_free(&tag->blank);
    for (size_t i = 0; i < tag->blocks.count; i++)
        asleep_bytes += tg__plots_range(&tag->blocks, i)->size_bytes;
    tag->chunk_bytes -= given_bytes;
    tag->fresh_segment = NULL;
    if (tag->is_dropped) {
        tag->is_saved = false;
        if (!tag->params.keep_host)
            tg__segments_drop(tag);
    }
    tag->state = TG_TAG_ASLEEP;
    tg__charge_give(tag, given_bytes, asleep_bytes);
    return given_bytes;
}

static void publish(struct tg__report *report, struct tg_tag *chosen) {
    pthread_mutex_lock(&report->memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        uint64_t given_bytes = publish_tag(tag);

        tg__receipt_add(report->receipt, tag->name, given_bytes);
        report->receipt->gained_bytes += given_bytes;
    }
    tg__tags_rest(report->memory, chosen);
    tg__report_stays(report, chosen);
    pthread_mutex_unlock(&report->memory->lock);
}

/* Whether all of the tag's chunks are mapped again. */
static bool map_again(struct tg_tag *tag) {
    bool is_whole = true;

    for (size_t i = 0; i < tag->chunks.count; i++) {
        struct tg__chunk *chunk = tag->chunks.items[i];

        if (!chunk->is_mapped)
            (void)!tg__chunk_map_kept(chunk);
        is_whole = is_whole && chunk->is_mapped;
    }
    return is_whole;
}

/* Awake as before. Where the device refuses that too, asleep with its chunks: see state.h. */
static void undo(struct tg__report *report, struct tg_tag *chosen) {
    struct tg_memory *memory = report->memory;
    struct tg_error why = *tg_last_error();

    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        bool is_whole = map_again(tag);

        if (is_whole && tag->before == TG_TAG_AWAKE) {
            if (tag->fresh_segment != NULL)
                tg__segment_drop(tag->fresh_segment);
            tag->is_saved = false;
            tag->state = TG_TAG_AWAKE;
        } else {
            tag->state = TG_TAG_ASLEEP;
            if (!is_whole)
                tg__receipt_add(report->receipt, "stays: not mapped again", tag->chunk_bytes);
        }
        tag->fresh_segment = NULL;
    }
    tg__tags_rest(memory, chosen);
    pthread_mutex_unlock(&memory->lock);
    tg__fail_as(&why);
}

static int sleep_chosen(struct tg__report *report, struct tg_tag *chosen, uint64_t deadline_ns) {
    struct tg_memory *memory = report->memory;
    struct tg_receipt *receipt = report->receipt;
    int rc = tg__tags_drain(memory, tg__ms_left(deadline_ns));

    tg__report_mark(report, &receipt->drain_ns);
    if (rc == 0) {
        tg__tags_move(memory, chosen, TG_TAG_SAVING);
        rc = save(memory, chosen, receipt);
        tg__report_mark(report, &receipt->copy_ns);
    }
    if (rc == 0)
        rc = make_room(memory, chosen);
    if (rc == 0)
        rc = unmap_all(chosen);
    if (rc == 0) {
        release_all(memory, chosen);
        publish(report, chosen);
    } else {
        undo(report, chosen);
    }
    tg__report_mark(report, &receipt->map_ns);
    return rc;
}

/* With turn. */
static int sleep_named(struct tg__report *report, const char *names, const char *drop,
                       uint32_t wait_ms) {
    struct tg_memory *memory = report->memory;
    uint64_t deadline_ns = report->begin_ns + wait_ms * TG__NS_PER_MS;
    struct tg_tag *chosen;
    int rc;

    if (memory->is_tried)
        return tg__fail(-EALREADY, "a wake of this memory waits for its end");
    rc = tg__names_choose(memory, names, &chosen);
    if (rc == 0)
        rc = tg__names_drop(memory, drop, chosen);
    if (rc != 0)
        return rc;
    tg__agent_look();
    pthread_mutex_lock(&memory->lock);
    tg__memory_tidy(memory);
    tg__tags_keep(&chosen, is_wakeful);
    pthread_mutex_unlock(&memory->lock);
    if (chosen != NULL) {
        rc = tg__charge_quiet(memory, wait_ms);
        tg__handback_end(memory);
    }
    tg__report_mark(report, &report->receipt->wait_ns);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    tg__tags_keep(&chosen, is_wakeful);
    rc = tg__tags_still(memory, chosen, deadline_ns);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
        report->receipt->asked_bytes += tag->chunk_bytes;
    pthread_mutex_unlock(&memory->lock);
    if (rc != 0 || chosen == NULL) {
        tg__report_mark(report, &report->receipt->drain_ns);
        return rc;
    }
    return sleep_chosen(report, chosen, deadline_ns);
}

int tg_memory_sleep(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                    struct tg_receipt *receipt) {
    return tg_memory_sleep_drop(memory, tags, NULL, wait_ms, receipt);
}

int tg_memory_sleep_drop(struct tg_memory *memory, const char *tags, const char *drop,
                         uint32_t wait_ms, struct tg_receipt *receipt) {
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = sleep_named(&report, tags, drop, wait_ms);
        pthread_mutex_unlock(&memory->turn);
    }
    return tg__report_end(&report, rc);
}
