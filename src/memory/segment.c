/* SPDX-License-Identifier: Apache-2.0 */
/* The host memory where content sleeps. Each sleep, or what prepares for it, makes one segment for
 * the blocks that have no copy yet, of exactly their size; a copy begins on a cache line. Where a
 * block is freed its pages go at once, its addresses with the last copy of the segment.
 *
 * Segments are not copied by fork, and on huge pages where there are some. Touching them for the
 * first time would be most of what a first sleep costs: several threads do it, while what they have
 * touched is pinned step by step, and what is pinned is copied. */
#include "memory/state.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"

#define COPY_ALIGN UINT64_C(64)

static size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* What a block's copy takes. */
static size_t place_bytes(const struct tg__block *block) {
    return round_up(tg__block_saved(block), COPY_ALIGN);
}

/* ---- making ---------------------------------------------------------------------------------- */

uint64_t tg__segment_missing(const struct tg_tag *tag) {
    uint64_t size_bytes = 0;

    for (size_t i = 0; i < tag->blocks.count; i++) {
        const struct tg__block *block = tag->blocks.items[i];

        if (block->segment == NULL)
            size_bytes += place_bytes(block);
    }
    return size_bytes;
}

static struct tg__segment *new_segment(struct tg_tag *tag, size_t size_bytes) {
    size_t step_bytes = tag->memory->step_bytes;
    size_t step_count = (size_bytes + step_bytes - 1) / step_bytes;
    struct tg__segment *segment =
        calloc(1, sizeof *segment + step_count * sizeof *segment->is_pinned);

    if (segment != NULL) {
        segment->tag = tag;
        segment->size_bytes = segment->held_bytes = size_bytes;
        segment->step_bytes = step_bytes;
        segment->step_count = step_count;
    }
    return segment;
}

int tg__segment_new(struct tg_tag *tag, uint64_t size_bytes, struct tg__segment **segment) {
    struct tg__segment *fresh = new_segment(tag, tg__hostmap_pages(size_bytes));
    int rc;

    if (fresh == NULL)
        return tg__fail_memory();
    rc = tg__charge_host(fresh);
    if (rc != 0)
        goto free;
    rc = tg__hostmap_make(&fresh->map, fresh->size_bytes);
    if (rc != 0)
        goto give;
    pthread_mutex_lock(&tag->memory->lock);
    tag->host_bytes += fresh->held_bytes;
    pthread_mutex_unlock(&tag->memory->lock);
    *segment = fresh;
    return 0;
give:
    tg_tenant_host_give(fresh->tenant, tag->name, fresh->held_bytes, 0);
free:
    free(fresh);
    return rc;
}

/* ---- making ready ---------------------------------------------------------------------------- */

void tg__segment_touch_begin(struct tg__segment *segment) {
    const struct tg_memory *memory;

    if (segment == NULL)
        return;
    memory = segment->tag->memory;
    tg__touch_begin(&segment->touch, segment->map.bytes, segment->size_bytes, 0,
                    memory->has_near ? &memory->near : NULL);
    segment->is_touching = true;
}

void tg__segment_touch_end(struct tg__segment *segment) {
    if (segment == NULL)
        return;
    segment->is_touching = false;
    tg__touch_end(&segment->touch);
}

void tg__segments_rewind(struct tg_tag *tag) {
    for (struct tg__segment *segment = tag->segments; segment != NULL; segment = segment->next)
        segment->steps_ready = 0;
}

/* The end of a step, from the segment's beginning. */
static size_t step_end(const struct tg__segment *segment, size_t step) {
    return step + 1 < segment->step_count ? (step + 1) * segment->step_bytes : segment->size_bytes;
}

static int pin_step(struct tg__segment *segment, size_t step, int on) {
    struct tg_memory *memory = segment->tag->memory;
    size_t begin = step * segment->step_bytes;
    int rc;

    if (segment->is_pinned[step] == (on != 0))
        return 0;
    rc = memory->ops->pin(memory->device, segment->map.bytes + begin,
                          step_end(segment, step) - begin, on);
    if (rc == 0)
        segment->is_pinned[step] = on != 0;
    return rc;
}

int tg__segment_ready(struct tg__segment *segment, size_t step) {
    int rc = 0;

    if (step < segment->steps_ready)
        return 0;
    if (segment->is_touching)
        rc = tg__touch_wait(&segment->touch, step_end(segment, step));
    if (rc != 0)
        return rc;
    segment->steps_ready = step + 1;
    return pin_step(segment, step, 1) == TG_EBROKEN ? TG_EBROKEN : 0;
}

void tg__segment_touched(struct tg__segment *segment) {
    if (!segment->is_touched)
        tg_tenant_host_commit(segment->tenant, segment->tag->name, segment->held_bytes);
    segment->is_touched = true;
}

/* ---- giving back ----------------------------------------------------------------------------- */

static void give_bytes(struct tg__segment *segment, uint64_t size_bytes) {
    segment->held_bytes -= size_bytes;
    segment->tag->host_bytes -= size_bytes;
    if (size_bytes > 0)
        tg_tenant_host_give(segment->tenant, segment->tag->name, size_bytes, segment->is_touched);
}

/* The steps in which bytes from `begin` to `end` lie. */
static int unpin(struct tg__segment *segment, size_t begin, size_t end) {
    int rc = 0;

    if (!tg__gate_is_open(segment->tag->memory, &segment->gate))
        return TG_EBUSY;
    for (size_t i = begin / segment->step_bytes; i * segment->step_bytes < end && rc == 0; i++)
        rc = pin_step(segment, i, 0);
    return rc;
}

/* The whole pages inside a range. */
static struct tg__range pages_inside(const struct tg__range *range) {
    uint64_t page = tg__hostmap_pages(1), end = tg__range_end(range) / page * page;
    struct tg__range pages = {.addr = round_up(range->addr, page)};

    pages.size_bytes = end > pages.addr ? end - pages.addr : 0;
    return pages;
}

static int drop_pages(const struct tg__range *gap) {
    struct tg__range pages = pages_inside(gap);

    if (pages.size_bytes == 0)
        return 0;
    return madvise((void *)(uintptr_t)pages.addr, pages.size_bytes, MADV_DONTNEED) == 0 ? 0
                                                                                        : -errno;
}

/* Gives the pages of one gap back, or of all where some could not be given before. Pinned pages
 * would stay the device's: their steps are pinned again at the next copy. */
static void sweep(struct tg__segment *segment, const struct tg__range *gap) {
    uint64_t empty_bytes = 0;
    int rc;

    if (segment->is_unswept) {
        rc = unpin(segment, 0, segment->size_bytes);
    } else {
        size_t begin = gap->addr - (uintptr_t)segment->map.bytes;

        rc = unpin(segment, begin, begin + gap->size_bytes);
    }
    if (rc == 0 && !segment->is_unswept)
        rc = drop_pages(gap);
    for (size_t i = 0; rc == 0 && i < segment->gaps.count; i++) {
        if (segment->is_unswept)
            rc = drop_pages(&segment->gaps.items[i]);
        empty_bytes += pages_inside(&segment->gaps.items[i]).size_bytes;
    }
    segment->is_unswept = rc != 0;
    if (rc == 0)
        give_bytes(segment, segment->held_bytes - (segment->size_bytes - empty_bytes));
}

/* Takes long where the segment is large; needs no lock where nobody else knows the segment. */
static int unmap_segment(struct tg__segment *segment) {
    int rc = unpin(segment, 0, segment->size_bytes);

    return rc != 0 ? rc : tg__hostmap_free(&segment->map);
}

/* With lock. */
static void free_segment(struct tg__segment *segment) {
    give_bytes(segment, segment->held_bytes);
    tg__ranges_free(&segment->gaps);
    free(segment);
}

static void add_grave(struct tg__segment *segment) {
    struct tg_memory *memory = segment->tag->memory;

    segment->next = memory->graves;
    memory->graves = segment;
}

/* 0: the segment is no more. */
static int bury(struct tg__segment *segment) {
    int rc = unmap_segment(segment);

    if (rc == 0)
        free_segment(segment);
    return rc;
}

static void unlink_segment(struct tg__segment *segment) {
    struct tg__segment **at = &segment->tag->segments;

    while (*at != segment)
        at = &(*at)->next;
    *at = segment->next;
}

static void drop(struct tg__segment *segment) {
    unlink_segment(segment);
    if (bury(segment) != 0)
        add_grave(segment);
}

/* Gives each block that has none its place, in order of address. Returns how much is used. */
static size_t place_copies(struct tg__segment *segment) {
    struct tg__plots *blocks = &segment->tag->blocks;
    size_t used = 0;

    for (size_t i = 0; i < blocks->count; i++) {
        struct tg__block *block = blocks->items[i];
        size_t size_bytes = place_bytes(block);

        if (block->segment != NULL || size_bytes == 0 || used + size_bytes > segment->size_bytes)
            continue;
        block->segment = segment;
        block->copy = segment->map.bytes + used;
        used += size_bytes;
        segment->copies++;
    }
    return used;
}

bool tg__segment_adopt(struct tg__segment *segment) {
    struct tg_tag *tag = segment->tag;
    size_t used = place_copies(segment);
    struct tg__range tail = {(uintptr_t)segment->map.bytes + used, segment->size_bytes - used};

    if (segment->copies == 0)
        return false;
    segment->next = tag->segments;
    tag->segments = segment;
    /* Without memory for the note it goes with the segment. Mostly it is less than a page; more,
     * where blocks were freed since the segment was made for them. */
    if (tail.size_bytes > 0 && tg__ranges_add(&segment->gaps, tail, NULL) == 0 &&
        pages_inside(&tail).size_bytes > 0)
        sweep(segment, &tail);
    return true;
}

void tg__segment_release(struct tg__block *block) {
    struct tg__segment *segment = block->segment;
    struct tg__range gap = {(uintptr_t)block->copy, place_bytes(block)};

    if (segment == NULL)
        return;
    block->segment = NULL;
    block->copy = NULL;
    segment->copies--;
    if (segment->copies == 0)
        drop(segment);
    /* Without memory for the note the pages go with the segment. */
    else if (tg__ranges_add(&segment->gaps, gap, &gap) == 0)
        sweep(segment, &gap);
}

void tg__segment_drop(struct tg__segment *segment) {
    struct tg__plots *blocks = &segment->tag->blocks;

    for (size_t i = 0; i < blocks->count; i++) {
        struct tg__block *block = blocks->items[i];

        if (block->segment == segment) {
            block->segment = NULL;
            block->copy = NULL;
        }
    }
    drop(segment);
}

void tg__segments_drop(struct tg_tag *tag) {
    while (tag->segments != NULL)
        tg__segment_drop(tag->segments);
    tag->is_saved = false;
}

void tg__segments_detach(struct tg_tag *tag, struct tg__segment **detached) {
    while (tag->segments != NULL) {
        struct tg__segment *segment = tag->segments;

        tag->segments = segment->next;
        segment->next = *detached;
        *detached = segment;
    }
    for (size_t i = 0; i < tag->blocks.count; i++) {
        struct tg__block *block = tag->blocks.items[i];

        block->segment = NULL;
        block->copy = NULL;
    }
    tag->is_saved = false;
}

void tg__segments_bury(struct tg_memory *memory, struct tg__segment *detached) {
    while (detached != NULL) {
        struct tg__segment *segment = detached;
        int rc = unmap_segment(segment);

        detached = segment->next;
        pthread_mutex_lock(&memory->lock);
        if (rc == 0)
            free_segment(segment);
        else
            add_grave(segment);
        pthread_mutex_unlock(&memory->lock);
    }
}

void tg__segments_retry(struct tg_memory *memory) {
    struct tg__segment **at = &memory->graves;

    while (*at != NULL) {
        struct tg__segment *segment = *at, *next = segment->next;

        if (bury(segment) == 0)
            *at = next;
        else
            at = &segment->next;
    }
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        if (tg__tag_is_moving(tag))
            continue; /* the list is the sleep's or the wake's */
        for (struct tg__segment *segment = tag->segments; segment != NULL;
             segment = segment->next) {
            if (segment->is_unswept)
                sweep(segment, NULL);
        }
    }
}
