/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks lie.
 *
 * General: each block has a reservation and a chunk of its own. Packed: blocks lie in spans, large
 * reservations; each address of a span is vacant, in a chunk that leaves, or backed by a chunk, and
 * there it is a block, in limbo, or spare. A span has a granule more than is used of it: so no two
 * are neighbours, and no range reaches over the end of a reservation. */
#include "memory/state.h"

#include <stdlib.h>

#include "base/error.h"
#include "memory/growth.h"

/* ---- addresses ------------------------------------------------------------------------------- */

static int add_span(struct tg_tag *tag, uint64_t size_bytes) {
    struct tg_memory *memory = tag->memory;
    const struct tg_device_ops *ops = memory->ops;
    struct tg__range span = {.size_bytes = size_bytes};
    int rc = tg__ranges_room(&tag->spans, 1);

    if (rc == 0)
        rc = tg__ranges_room(&tag->vacant, (size_t)2 * tag->allocs);
    if (rc == 0)
        rc = ops->reserve(memory->device, size_bytes + memory->granule_bytes, &span.addr);
    if (rc != 0)
        return rc;
    rc = tg__ranges_add(&tag->spans, span, NULL);
    return rc != 0 ? rc : tg__ranges_add(&tag->vacant, span, NULL);
}

static bool find_in_spans(struct tg_tag *tag, uint64_t need_bytes, struct tg__range *range) {
    uint64_t largest_bytes = 0;

    if (tg__ranges_take(&tag->vacant, range->size_bytes, &range->addr))
        return true;
    for (size_t i = 0; i < tag->vacant.count; i++) {
        if (tag->vacant.items[i].size_bytes > largest_bytes)
            largest_bytes = tag->vacant.items[i].size_bytes;
    }
    if (largest_bytes < need_bytes)
        return false;
    range->size_bytes = largest_bytes;
    return tg__ranges_take(&tag->vacant, largest_bytes, &range->addr);
}

int tg__arena_find(struct tg_tag *tag, uint64_t need_bytes, struct tg__range *range) {
    uint64_t total_bytes = tag->memory->total_bytes;
    int rc = 0;

    if (find_in_spans(tag, need_bytes, range))
        return 0;
    /* Addresses cost nothing but their number is bounded by the process's limit, if it has one. */
    rc = add_span(tag, range->size_bytes > total_bytes ? range->size_bytes : total_bytes);
    if (rc != 0 && range->size_bytes < total_bytes)
        rc = add_span(tag, range->size_bytes);
    if (rc != 0 && need_bytes < range->size_bytes)
        rc = add_span(tag, need_bytes);
    if (rc == 0)
        find_in_spans(tag, need_bytes, range);
    return rc;
}

static int unreserve_span(struct tg_memory *memory, const struct tg__range *span) {
    return memory->ops->unreserve(memory->device, span->addr,
                                  span->size_bytes + memory->granule_bytes);
}

void tg__arena_shrink(struct tg_tag *tag) {
    for (size_t i = tag->spans.count; i-- > 0;) {
        struct tg__range span = tag->spans.items[i];
        bool is_unused = false;

        for (size_t j = 0; j < tag->vacant.count && !is_unused; j++)
            is_unused = tag->vacant.items[j].addr == span.addr &&
                        tag->vacant.items[j].size_bytes == span.size_bytes;
        if (is_unused && unreserve_span(tag->memory, &span) == 0) {
            /* Both are whole items: cutting them needs no room. */
            (void)!tg__ranges_cut(&tag->vacant, span);
            (void)!tg__ranges_cut(&tag->spans, span);
        }
    }
}

/* ---- what becomes free ----------------------------------------------------------------------- */

/* Takes the chunk out of the table and lets it go, with its addresses or without. */
static void let_go(struct tg_tag *tag, size_t number, bool frees_addr) {
    struct tg__chunk *chunk = tag->chunks.items[number];

    tg__plots_drop(&tag->chunks, number);
    chunk->frees_addr = frees_addr;
    tg__chunk_leave(chunk);
}

/* Chunks of which nothing but `free_range`, a whole range of spare, is left. */
static void let_free_chunks_go(struct tg_tag *tag, struct tg__range free_range) {
    size_t i = tg__plots_from(&tag->chunks, free_range.addr);

    while (i < tag->chunks.count) {
        struct tg__range range = *tg__plots_range(&tag->chunks, i);

        if (range.addr >= tg__range_end(&free_range))
            return;
        if (range.addr < free_range.addr || tg__range_end(&range) > tg__range_end(&free_range) ||
            tg__ranges_cut(&tag->spare, range) != 0) {
            i++;
        } else {
            tg__ranges_clip(&tag->blank, range);
            let_go(tag, i, true);
        }
    }
}

static int settle_packed(struct tg__block *block) {
    struct tg_tag *tag = block->tag;
    struct tg__range merged;
    int rc;

    if (tg__plots_find(&tag->chunks, block->range.addr, NULL) == NULL) {
        if (tag->leaving_mapped > 0)
            return TG_EBUSY; /* the old chunk may still be mapped just there */
        return tg__ranges_add(&tag->vacant, block->range, NULL);
    }
    rc = tg__ranges_add(&tag->spare, block->range, &merged);
    if (rc == 0)
        let_free_chunks_go(tag, merged);
    return rc;
}

/* A trimmed block has several chunks, or none where it begins: its addresses go when all have. */
static int settle_general(struct tg__block *block) {
    struct tg_tag *tag = block->tag;
    struct tg_memory *memory = tag->memory;
    size_t i = tg__plots_from(&tag->chunks, block->range.addr);

    while (i < tag->chunks.count &&
           tg__plots_range(&tag->chunks, i)->addr < tg__range_end(&block->range)) {
        bool is_whole = tg__plots_range(&tag->chunks, i)->size_bytes == block->range.size_bytes;

        let_go(tag, i, is_whole);
        if (is_whole)
            return 0;
    }
    if (tg__chunk_leaving_in(memory, block->range) != NULL)
        return TG_EBUSY;
    return memory->ops->unreserve(memory->device, block->range.addr, block->range.size_bytes);
}

int tg__arena_settle(struct tg__block *block) {
    return block->tag->params.packed ? settle_packed(block) : settle_general(block);
}

/* ---- spare memory ---------------------------------------------------------------------------- */

/* Each chunk began with a block, and each piece begins where spare memory does: so what is blank
 * lies in one chunk, and no such range reaches over both ends of a piece or of a chunk. */
static bool is_blank(struct tg_tag *tag, struct tg__range range) {
    return tg__ranges_clip(&tag->blank, range) == range.size_bytes;
}

bool tg__arena_take(struct tg_tag *tag, uint64_t size_bytes, struct tg__piece *piece) {
    struct tg__range range = {.size_bytes = size_bytes};

    if (!tg__ranges_take(&tag->spare, size_bytes, &range.addr))
        return false;
    *piece = (struct tg__piece){range, is_blank(tag, range)};
    return true;
}

void tg__arena_take_tail(struct tg_tag *tag, uint64_t size_bytes, struct tg__piece *piece) {
    struct tg__range tail = {0, 0};

    for (size_t i = 0; i < tag->spare.count; i++) {
        struct tg__range range = tag->spare.items[i];
        uint64_t vacant_bytes = tg__ranges_at(&tag->vacant, tg__range_end(&range));

        if (range.size_bytes > tail.size_bytes && range.size_bytes < size_bytes &&
            vacant_bytes >= size_bytes - range.size_bytes)
            tail = range;
    }
    *piece = (struct tg__piece){.range = tail};
    if (tail.size_bytes == 0)
        return;
    (void)!tg__ranges_cut(&tag->spare, tail); /* a whole item */
    piece->is_blank = is_blank(tag, tail);
}

void tg__arena_untake(struct tg_tag *tag, const struct tg__piece *piece) {
    struct tg_error why = *tg_last_error();
    struct tg__range merged;

    /* tg__tag_enter made room. */
    if (piece->is_blank)
        (void)!tg__ranges_add(&tag->blank, piece->range, NULL);
    if (tg__ranges_add(&tag->spare, piece->range, &merged) == 0)
        let_free_chunks_go(tag, merged);
    tg__fail_as(&why);
}

void tg__arena_add(struct tg_tag *tag, struct tg__range rest) {
    /* tg__tag_enter made room. */
    (void)!tg__ranges_add(&tag->blank, rest, NULL);
    (void)!tg__ranges_add(&tag->spare, rest, NULL);
}

/* ---- what a sleeping or trimmed tag needs ---------------------------------------------------- */

/* How far a chunk that begins with this block reaches: in packed arenas over its neighbours. A
 * page's is its own. */
static uint64_t run_end(const struct tg_tag *tag, size_t *i) {
    const struct tg__block *block = tag->blocks.items[*i];
    bool has_others = tag->params.packed && block->estate == NULL;
    uint64_t end = tg__range_end(&block->range);

    for (++*i; has_others && *i < tag->blocks.count; ++*i) {
        block = tag->blocks.items[*i];
        if (block->range.addr != end || block->estate != NULL)
            break;
        end = tg__range_end(&block->range);
    }
    return end;
}

static int plan_chunk(struct tg_tag *tag, struct tg__range range, const struct tg__block *first) {
    struct tg__chunk *chunk;
    int rc = tg__plots_room(&tag->fresh, 1);

    if (rc != 0)
        return rc;
    chunk = tg__chunk_new(tag, range);
    if (chunk == NULL)
        return tg__fail_memory();
    chunk->estate = first->estate;
    chunk->flags = first->flags;
    chunk->devices = first->devices;
    tg__plots_put(&tag->fresh, chunk);
    return 0;
}

int tg__arena_plan(struct tg_tag *tag) {
    size_t i = 0;
    int rc = 0;

    while (rc == 0 && i < tag->blocks.count) {
        const struct tg__block *first = tag->blocks.items[i];
        bool is_packed = tag->params.packed && first->estate == NULL;
        struct tg__range range = {.addr = first->range.addr};
        uint64_t end = run_end(tag, &i);

        while (rc == 0 && range.addr < end) {
            range.size_bytes = end - range.addr;
            if (is_packed && range.size_bytes > TG__LARGEST_CHUNK_BYTES)
                range.size_bytes = TG__LARGEST_CHUNK_BYTES;
            rc = plan_chunk(tag, range, first);
            range.addr += range.size_bytes;
        }
    }
    return rc;
}

int tg__arena_plan_holes(struct tg_tag *tag) {
    int rc = 0;

    for (size_t i = 0; i < tag->blocks.count && rc == 0; i++) {
        const struct tg__block *block = tag->blocks.items[i];

        for (size_t j = 0; j < block->holes.count && rc == 0; j++)
            rc = plan_chunk(tag, block->holes.items[j], block);
    }
    return rc != 0 ? rc : tg__plots_room(&tag->chunks, tag->fresh.count);
}
