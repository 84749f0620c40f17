/* SPDX-License-Identifier: Apache-2.0 */
/* Repack: what is spare inside large chunks goes back to the device, and what is live stays where
 * it is. The live runs of a chunk are copied to small chunks, which then take its place: unmap the
 * large one, map the small ones at the same addresses, release the large one.
 *
 * The caller promises that nobody gives the device work meanwhile (a quiet section): no call tells
 * which work touches a range, and what is written to a large chunk after the copy would be lost.
 *
 * All or nothing for each chunk. Small chunks begin at vacant addresses, in tag->fresh, so what is
 * given up there leaves as any chunk does. Until the large chunk is unmapped nothing has changed;
 * where the small ones cannot be mapped in its place, it is mapped again; where that is refused
 * too, the tag is half asleep as after a sleep that failed so: see state.h. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/receipt.h"
#include "memory/report.h"

/* A chunk is left alone where more than so many times the bytes would be moved that are gained. */
enum { MOVES_PER_GAIN = 4 };

struct repack {
    struct tg_memory *memory;
    struct tg_tag *tag;
    uint64_t moved_bytes;
    uint64_t stuck_bytes; /* of this pass: spare, where there is no room for the move */
};

/* ---- what is worth it ------------------------------------------------------------------------ */

static bool next_live(const struct tg_tag *tag, const struct tg__chunk *large,
                      struct tg__range *run) {
    return tg__ranges_gap(&tag->spare, tg__range_end(run), tg__range_end(&large->range), run);
}

static uint64_t live_bytes(const struct tg_tag *tag, const struct tg__chunk *large,
                           size_t *runs) {
    struct tg__range run = {.addr = large->range.addr};
    uint64_t size_bytes = 0;

    for (*runs = 0; next_live(tag, large, &run); ++*runs)
        size_bytes += run.size_bytes;
    return size_bytes;
}

/* The spare bytes of a chunk that is to be repacked; else 0. */
static uint64_t worth_bytes(const struct tg_tag *tag, const struct tg__chunk *large) {
    size_t runs;
    uint64_t live = live_bytes(tag, large, &runs), spare = large->range.size_bytes - live;

    /* One without anything live is on its way out already. */
    return live > 0 && live / MOVES_PER_GAIN <= spare ? spare : 0;
}

/* ---- small chunks at vacant addresses -------------------------------------------------------- */

/* With lock. */
static int plan_run(struct tg_tag *tag, const struct tg__range *run) {
    struct tg__range at = {.size_bytes = run->size_bytes};
    struct tg__chunk *small = tg__chunk_new(tag, at);
    int rc;

    if (small == NULL)
        return tg__fail_memory();
    rc = tg__arena_find(tag, run->size_bytes, &small->range);
    if (rc != 0) {
        free(small);
        return rc;
    }
    small->frees_addr = true;
    small->home_addr = run->addr;
    tg__plots_put(&tag->fresh, small);
    return 0;
}

/* Makes room for all that is put into tables until the end of this move, too. With lock. */
static int plan(struct tg_tag *tag, const struct tg__chunk *large) {
    struct tg__range run = {.addr = large->range.addr};
    size_t runs;
    int rc;

    live_bytes(tag, large, &runs);
    rc = tg__plots_room(&tag->fresh, runs);
    if (rc == 0)
        rc = tg__plots_room(&tag->chunks, runs);
    if (rc == 0)
        rc = tg__ranges_room(&tag->vacant, 2 * runs + 1);
    while (rc == 0 && next_live(tag, large, &run))
        rc = plan_run(tag, &run);
    return rc;
}

static void *pointer(uint64_t addr) {
    return (void *)(uintptr_t)addr;
}

static int fill_all(struct repack *repack) {
    struct tg_memory *memory = repack->memory;
    struct tg__plots *fresh = &repack->tag->fresh;
    uint64_t copied_bytes = 0;
    int rc = 0;

    for (size_t i = 0; i < fresh->count && rc == 0; i++) {
        struct tg__chunk *small = fresh->items[i];

        rc = tg__chunk_make(small);
        pthread_mutex_lock(&memory->lock);
        if (small->is_charged)
            repack->tag->chunk_bytes += small->range.size_bytes;
        pthread_mutex_unlock(&memory->lock);
        if (rc == 0)
            rc = memory->ops->copy(memory->device, pointer(small->range.addr),
                                   pointer(small->home_addr), small->range.size_bytes,
                                   memory->queue);
        if (rc == 0)
            copied_bytes += small->range.size_bytes;
    }
    return tg__copy_end(memory, repack->tag, copied_bytes, rc);
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
        pthread_mutex_lock(&memory->lock);
        (void)!tg__ranges_add(&tag->vacant, small->range, NULL); /* room was made */
        pthread_mutex_unlock(&memory->lock);
        small->is_mapped = small->frees_addr = false;
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

/* What was spare is vacant, and the small chunks are the tag's. With lock. */
static void exchange(struct tg_tag *tag, size_t number) {
    struct tg__chunk *large = tag->chunks.items[number];
    struct tg__range run = {.addr = large->range.addr}, hole;
    uint64_t from = large->range.addr, end = tg__range_end(&large->range);

    for (bool has_run = true; has_run; from = tg__range_end(&run)) {
        has_run = next_live(tag, large, &run);
        hole = (struct tg__range){from, (has_run ? run.addr : end) - from};
        if (hole.size_bytes > 0)
            (void)!tg__ranges_add(&tag->vacant, hole, NULL); /* room was made */
    }
    tg__ranges_clip(&tag->spare, large->range);
    tg__ranges_clip(&tag->blank, large->range);
    tg__plots_drop(&tag->chunks, number);
    for (size_t i = 0; i < tag->fresh.count; i++)
        tg__plots_put(&tag->chunks, tag->fresh.items[i]);
    tg__plots_free(&tag->fresh);
    tg__chunk_leave(large);
}

static int move_chunk(struct repack *repack, size_t number) {
    struct tg_tag *tag = repack->tag;
    struct tg_memory *memory = repack->memory;
    struct tg__chunk *large = tag->chunks.items[number];
    size_t runs;
    uint64_t live = live_bytes(tag, large, &runs);
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = plan(tag, large);
    pthread_mutex_unlock(&memory->lock);
    if (rc == 0)
        rc = fill_all(repack);
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
    exchange(tag, number);
    pthread_mutex_unlock(&memory->lock);
    repack->moved_bytes += live;
    return 0;
}

/* ---- one tag --------------------------------------------------------------------------------- */

/* Small chunks have nothing spare: that they come next does no harm. */
static int pass(struct repack *repack) {
    struct tg_tag *tag = repack->tag;
    int rc = 0;

    repack->stuck_bytes = 0;
    for (size_t i = 0; i < tag->chunks.count && rc == 0; i++) {
        uint64_t worth = worth_bytes(tag, tag->chunks.items[i]);

        if (worth == 0)
            continue;
        rc = move_chunk(repack, i);
        if (tg__is_short(rc)) {
            repack->stuck_bytes += worth;
            rc = 0;
        }
    }
    return rc;
}

static uint64_t worth_of(const struct tg_tag *tag) {
    uint64_t size_bytes = 0;

    for (size_t i = 0; i < tag->chunks.count; i++)
        size_bytes += worth_bytes(tag, tag->chunks.items[i]);
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
static int repack_tag(struct tg__report *report, struct tg_tag *tag) {
    struct repack repack = {.memory = report->memory, .tag = tag};
    struct tg_receipt *receipt = report->receipt;
    uint64_t before = held_bytes(tag), after, moved;
    int rc;

    receipt->asked_bytes += worth_of(tag);
    do {
        moved = repack.moved_bytes;
        rc = pass(&repack);
    } while (rc == 0 && repack.stuck_bytes > 0 && repack.moved_bytes > moved);
    receipt->copied_bytes += repack.moved_bytes;
    after = held_bytes(tag);
    if (before > after) {
        tg__receipt_add(receipt, tag->name, before - after);
        receipt->gained_bytes += before - after;
    }
    if (repack.stuck_bytes > 0)
        tg__receipt_add(receipt, "stays: no room to move", repack.stuck_bytes);
    return rc;
}

/* ---- the call -------------------------------------------------------------------------------- */

static bool is_repackable(const struct tg_tag *tag) {
    return tag->state == TG_TAG_AWAKE && tag->params.packed;
}

static bool is_whole(const struct tg_tag *tag) {
    for (size_t i = 0; i < tag->chunks.count; i++) {
        if (!((const struct tg__chunk *)tag->chunks.items[i])->is_mapped)
            return false;
    }
    return true;
}

static void end(struct tg__report *report, struct tg_tag *chosen) {
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
}

static int repack_chosen(struct tg__report *report, struct tg_tag *chosen, uint64_t deadline_ns) {
    struct tg_memory *memory = report->memory;
    struct tg_receipt *receipt = report->receipt;
    int rc = tg__tags_drain(memory, tg__ms_left(deadline_ns));

    tg__report_mark(report, &receipt->drain_ns);
    if (rc == 0)
        tg__tags_move(memory, chosen, TG_TAG_SAVING);
    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen)
        rc = repack_tag(report, tag);
    end(report, chosen);
    tg__report_mark(report, &receipt->map_ns);
    return rc;
}

/* With turn. */
static int repack_named(struct tg__report *report, const char *names, uint32_t wait_ms) {
    struct tg_memory *memory = report->memory;
    uint64_t deadline_ns = report->begin_ns + wait_ms * TG__NS_PER_MS;
    struct tg_tag *chosen;
    int rc;

    if (memory->is_tried)
        return tg__fail(-EALREADY, "a wake of this memory waits for its end");
    rc = tg__names_choose(memory, names, &chosen);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    tg__memory_tidy(memory);
    tg__tags_keep(&chosen, is_repackable);
    pthread_mutex_unlock(&memory->lock);
    if (chosen != NULL)
        rc = tg__charge_quiet(memory, wait_ms);
    tg__report_mark(report, &report->receipt->wait_ns);
    if (rc != 0 || chosen == NULL)
        return rc;
    pthread_mutex_lock(&memory->lock);
    rc = tg__tags_still(memory, chosen, deadline_ns);
    pthread_mutex_unlock(&memory->lock);
    return rc != 0 ? rc : repack_chosen(report, chosen, deadline_ns);
}

int tg_memory_repack(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                     struct tg_receipt *receipt) {
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = repack_named(&report, tags, wait_ms);
        pthread_mutex_unlock(&memory->turn);
    }
    return tg__report_end(&report, rc);
}
