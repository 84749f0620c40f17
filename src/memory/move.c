/* SPDX-License-Identifier: Apache-2.0 */
/* How chunks give back what is idle in them, while what is live stays where it is: a repack's spare
 * pieces, a trim's ranges. The live runs of a chunk are copied to small chunks, which then take its
 * place: unmap the large one, map the small ones at the same addresses, release the large one.
 *
 * The caller promises that nobody gives the device work meanwhile (a quiet section): no call tells
 * which work touches a range, and what is written to a large chunk after the copy would be lost.
 *
 * All or nothing for each chunk. Small chunks begin at addresses of their own, in tag->fresh, so
 * what is given up there leaves as any chunk does. Until the large chunk is unmapped nothing has
 * changed; where the small ones cannot be mapped in its place, it is mapped again; where that is
 * refused too, the tag is half asleep as after a sleep that failed so: see state.h. */
#include "memory/move.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/receipt.h"
#include "memory/report.h"

struct moving {
    struct tg_tag *tag;
    const struct tg__ranges *idle;
    uint64_t moved_bytes;
    size_t moves;
    uint64_t stuck_bytes; /* of this pass: idle, where there is no room for the move */
};

/* A chunk is left alone where more than so many times the bytes would be moved that are gained. */
enum { MOVES_PER_GAIN = 4 };

/* ---- what is worth it ------------------------------------------------------------------------ */

static bool next_live(const struct moving *moving, const struct tg__chunk *large,
                      struct tg__range *run) {
    return tg__ranges_gap(moving->idle, tg__range_end(run), tg__range_end(&large->range), run);
}

static uint64_t live_bytes(const struct moving *moving, const struct tg__chunk *large,
                           size_t *runs) {
    struct tg__range run = {.addr = large->range.addr};
    uint64_t size_bytes = 0;

    for (*runs = 0; next_live(moving, large, &run); ++*runs)
        size_bytes += run.size_bytes;
    return size_bytes;
}

/* The idle bytes of a chunk that is to give them back; else 0. */
static uint64_t worth_bytes(const struct moving *moving, const struct tg__chunk *large) {
    size_t runs;
    uint64_t live = live_bytes(moving, large, &runs), idle = large->range.size_bytes - live;

    /* A packed one without anything live is on its way out already. */
    if (live == 0 && moving->tag->params.packed)
        return 0;
    return live / MOVES_PER_GAIN <= idle ? idle : 0;
}

/* ---- small chunks at addresses of their own -------------------------------------------------- */

/* Packed: vacant ones of the tag's spans. */
static int find_addr(struct tg_tag *tag, struct tg__range *range) {
    struct tg_memory *memory = tag->memory;

    if (tag->params.packed)
        return tg__arena_find(tag, range->size_bytes, range);
    return memory->ops->reserve(memory->device, range->size_bytes, &range->addr);
}

/* With lock. */
static int plan_run(struct tg_tag *tag, const struct tg__chunk *large,
                    const struct tg__range *run) {
    struct tg__range at = {.size_bytes = run->size_bytes};
    struct tg__chunk *small = tg__chunk_new(tag, at);
    int rc;

    if (small == NULL)
        return tg__fail_memory();
    rc = find_addr(tag, &small->range);
    if (rc != 0) {
        free(small);
        return rc;
    }
    small->flags = large->flags;
    small->devices = large->devices;
    small->frees_addr = true;
    small->home_addr = run->addr;
    tg__plots_put(&tag->fresh, small);
    return 0;
}

/* For what a chunk with so many live runs leaves. With lock. */
static int make_room(struct tg_tag *tag, const struct tg__chunk *large, size_t runs) {
    struct tg__block *block;

    if (tag->params.packed)
        return tg__ranges_room(&tag->vacant, 2 * runs + 1);
    block = tg__plots_find(&tag->blocks, large->range.addr, NULL);
    return tg__ranges_room(&block->holes, runs + 1);
}

/* Makes room for all that is put into tables until the end of this move, too. With lock. */
static int plan(struct moving *moving, const struct tg__chunk *large) {
    struct tg_tag *tag = moving->tag;
    struct tg__range run = {.addr = large->range.addr};
    size_t runs;
    int rc;

    live_bytes(moving, large, &runs);
    rc = tg__plots_room(&tag->fresh, runs);
    if (rc == 0)
        rc = tg__plots_room(&tag->chunks, runs);
    if (rc == 0)
        rc = make_room(tag, large, runs);
    while (rc == 0 && next_live(moving, large, &run))
        rc = plan_run(tag, large, &run);
    return rc;
}

static void *pointer(uint64_t addr) {
    return (void *)(uintptr_t)addr;
}

static int fill_all(struct tg_tag *tag) {
    struct tg_memory *memory = tag->memory;
    struct tg__plots *fresh = &tag->fresh;
    uint64_t copied_bytes = 0;
    int rc = 0;

    for (size_t i = 0; i < fresh->count && rc == 0; i++) {
        struct tg__chunk *small = fresh->items[i];

        rc = tg__chunk_make(small);
        pthread_mutex_lock(&memory->lock);
        if (small->is_charged)
            tag->chunk_bytes += small->range.size_bytes;
        pthread_mutex_unlock(&memory->lock);
        if (rc == 0)
            rc = memory->ops->copy(memory->device, pointer(small->range.addr),
                                   pointer(small->home_addr), small->range.size_bytes,
                                   memory->queue);
        if (rc == 0)
            copied_bytes += small->range.size_bytes;
    }
    return tg__copy_end(memory, tag, copied_bytes, rc);
}

/* From their vacant addresses to where they belong, mapped at neither. */
static int take_home(struct tg_tag *tag) {
    struct tg_memory *memory = tag->memory;
    int rc = 0;

    for (size_t i = 0; i < tag->fresh.count && rc == 0; i++) {
        struct tg__chunk *small = tag->fresh.items[i];

        rc = memory->ops->unmap(memory->device, small->range.addr, small->range.size_bytes);
        if (rc != 0)
            break;
        small->is_mapped = false;
        pthread_mutex_lock(&memory->lock);
        rc = tg__chunk_free_addr(small);
        pthread_mutex_unlock(&memory->lock);
        if (rc != 0)
            break;
        small->frees_addr = false;
        small->range.addr = small->home_addr;
    }
    return rc;
}

static int map_home(struct tg_tag *tag) {
    int rc = 0;

    for (size_t i = 0; i < tag->fresh.count && rc == 0; i++)
        rc = tg__chunk_map_kept(tag->fresh.items[i]);
    return rc;
}

/* ---- one chunk ------------------------------------------------------------------------------- */

static void abandon(struct tg_tag *tag) {
    struct tg_error why = *tg_last_error();

    pthread_mutex_lock(&tag->memory->lock);
    for (size_t i = 0; i < tag->fresh.count; i++)
        tg__chunk_leave(tag->fresh.items[i]);
    tg__plots_free(&tag->fresh);
    pthread_mutex_unlock(&tag->memory->lock);
    tg__fail_as(&why);
}

/* The large chunk is where it was, or, where that is refused too, not mapped. */
static void go_back(struct tg_tag *tag, struct tg__chunk *large) {
    struct tg_error why = *tg_last_error();

    abandon(tag);
    (void)!tg__chunk_map_kept(large);
    tg__fail_as(&why);
}

/* Without memory from now on: of a packed tag vacant, else a hole of the block. With lock. */
static void vacate(struct tg_tag *tag, struct tg__range hole) {
    if (tag->params.packed) {
        tg__ranges_clip(&tag->spare, hole);
        tg__ranges_clip(&tag->blank, hole);
        (void)!tg__ranges_add(&tag->vacant, hole, NULL); /* room was made */
    } else {
        tg__block_hollow(tg__plots_find(&tag->blocks, hole.addr, NULL), hole);
    }
}

/* What was idle has no memory, and the small chunks are the tag's. With lock. */
static void exchange(struct moving *moving, size_t number) {
    struct tg_tag *tag = moving->tag;
    struct tg__chunk *large = tag->chunks.items[number];
    struct tg__range run = {.addr = large->range.addr}, hole;
    uint64_t from = large->range.addr, end = tg__range_end(&large->range);

    for (bool has_run = true; has_run; from = tg__range_end(&run)) {
        has_run = next_live(moving, large, &run);
        hole = (struct tg__range){from, (has_run ? run.addr : end) - from};
        if (hole.size_bytes > 0)
            vacate(tag, hole);
    }
    tg__plots_drop(&tag->chunks, number);
    for (size_t i = 0; i < tag->fresh.count; i++)
        tg__plots_put(&tag->chunks, tag->fresh.items[i]);
    tg__plots_free(&tag->fresh);
    tg__chunk_leave(large);
}

static int move_chunk(struct moving *moving, size_t number) {
    struct tg_tag *tag = moving->tag;
    struct tg_memory *memory = tag->memory;
    struct tg__chunk *large = tag->chunks.items[number];
    size_t runs;
    uint64_t live = live_bytes(moving, large, &runs);
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = plan(moving, large);
    pthread_mutex_unlock(&memory->lock);
    if (rc == 0)
        rc = fill_all(tag);
    if (rc == 0)
        rc = take_home(tag);
    if (rc == 0)
        rc = memory->ops->unmap(memory->device, large->range.addr, large->range.size_bytes);
    if (rc != 0) {
        abandon(tag);
        return rc;
    }
    large->is_mapped = false;
    rc = map_home(tag);
    if (rc != 0) {
        go_back(tag, large);
        return rc;
    }
    pthread_mutex_lock(&memory->lock);
    exchange(moving, number);
    pthread_mutex_unlock(&memory->lock);
    moving->moved_bytes += live;
    moving->moves++;
    return 0;
}

/* ---- one tag --------------------------------------------------------------------------------- */

/* What takes a chunk's place has nothing idle: that it is looked at next does no harm. */
static int pass(struct moving *moving) {
    struct tg_tag *tag = moving->tag;
    int rc = 0;

    moving->stuck_bytes = 0;
    for (size_t i = 0; i < tag->chunks.count && rc == 0;) {
        uint64_t worth = worth_bytes(moving, tag->chunks.items[i]);

        rc = worth > 0 ? move_chunk(moving, i) : 0;
        if (worth > 0 && rc == 0)
            continue;
        if (tg__is_short(rc)) {
            moving->stuck_bytes += worth;
            rc = 0;
        }
        i++;
    }
    return rc;
}

static uint64_t worth_of(const struct moving *moving) {
    const struct tg_tag *tag = moving->tag;
    uint64_t size_bytes = 0;

    for (size_t i = 0; i < tag->chunks.count; i++)
        size_bytes += worth_bytes(moving, tag->chunks.items[i]);
    return size_bytes;
}

static uint64_t held_bytes(struct tg_tag *tag) {
    uint64_t size_bytes;

    pthread_mutex_lock(&tag->memory->lock);
    size_bytes = tag->chunk_bytes;
    pthread_mutex_unlock(&tag->memory->lock);
    return size_bytes;
}

/* What one chunk gives back may be the room that another one's move needs. */
static int move_tag(struct moving *moving, struct tg_receipt *receipt) {
    struct tg_tag *tag = moving->tag;
    uint64_t before = held_bytes(tag), after;
    size_t moves;
    int rc;

    receipt->asked_bytes += worth_of(moving);
    do {
        moves = moving->moves;
        rc = pass(moving);
    } while (rc == 0 && moving->stuck_bytes > 0 && moving->moves > moves);
    receipt->copied_bytes += moving->moved_bytes;
    after = held_bytes(tag);
    if (before > after) {
        tg__receipt_add(receipt, tag->name, before - after);
        receipt->gained_bytes += before - after;
    }
    if (moving->stuck_bytes > 0)
        tg__receipt_add(receipt, "stays: no room to move", moving->stuck_bytes);
    return rc;
}

/* ---- the quiet section ----------------------------------------------------------------------- */

int tg__quiet_begin(struct tg__report *report, struct tg_tag *chosen, uint32_t wait_ms) {
    struct tg_memory *memory = report->memory;
    uint64_t deadline_ns = report->begin_ns + wait_ms * TG__NS_PER_MS;
    int rc = tg__charge_quiet(memory, wait_ms);

    tg__report_mark(report, &report->receipt->wait_ns);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    rc = tg__tags_still(memory, chosen, deadline_ns);
    pthread_mutex_unlock(&memory->lock);
    if (rc != 0)
        return rc;
    rc = tg__tags_drain(memory, tg__ms_left(deadline_ns));
    tg__report_mark(report, &report->receipt->drain_ns);
    if (rc == 0)
        tg__tags_move(memory, chosen, TG_TAG_SAVING);
    else
        tg__quiet_end(report, chosen);
    return rc;
}

static bool is_whole(const struct tg_tag *tag) {
    for (size_t i = 0; i < tag->chunks.count; i++) {
        if (!((const struct tg__chunk *)tag->chunks.items[i])->is_mapped)
            return false;
    }
    return true;
}

void tg__quiet_end(struct tg__report *report, struct tg_tag *chosen) {
    struct tg_memory *memory = report->memory;
    struct tg_error why = *tg_last_error();

    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        tag->state = is_whole(tag) ? TG_TAG_AWAKE : TG_TAG_ASLEEP;
        if (tag->state == TG_TAG_ASLEEP)
            tg__receipt_add(report->receipt, "stays: not mapped again", tag->chunk_bytes);
    }
    tg__tags_rest(memory, chosen);
    tg__report_stays(report, chosen);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
        tg__arena_shrink(tag);
    pthread_mutex_unlock(&memory->lock);
    tg__fail_as(&why);
    tg__report_mark(report, &report->receipt->map_ns);
}

int tg__chunks_move(struct tg__report *report, struct tg_tag *chosen,
                    const struct tg__ranges *idle) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        struct moving moving = {.tag = tag, .idle = idle != NULL ? idle : &tag->spare};

        rc = move_tag(&moving, report->receipt);
    }
    return rc;
}
