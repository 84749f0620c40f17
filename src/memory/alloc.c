/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks come and go. An alloc takes settled memory first, then lets limbo settle, then makes a
 * chunk, and where it is refused one once more after shortage.c; what fails leaves nothing behind.
 * A free only takes the block out of the tables.
 *
 * A packed chunk grows with its tag, for a tag's next blocks; but a block takes the spare memory in
 * front of the vacant addresses with it, so that what a chunk was grown by is used before more is
 * made: blocks of any sizes fill the device as chunks of exactly their sizes would. */
#include "memory/state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "memory/export.h"
#include "memory/growth.h"

struct making {
    struct tg_tag *tag;
    struct tg__block *block;
    struct tg__chunk *chunk;
    uint64_t room_bytes;     /* the block's, in whole granules */
    struct tg__piece piece;  /* what of it was spare: all, or its beginning */
    struct tg__growth growth; /* of the chunk */
};

/* ---- memory that is there already ------------------------------------------------------------ */

static bool take_spare(struct making *making) {
    struct tg_tag *tag = making->tag;

    if (tg__arena_take(tag, making->room_bytes, &making->piece))
        return true;
    if (tag->limbo_bytes < making->room_bytes)
        return false;
    tg__limbo_settle(tag->memory, TG__SETTLE_MS);
    return tg__arena_take(tag, making->room_bytes, &making->piece);
}

/* Somebody else's content is in it. Where zeroing fails the range is behind a fence of its own. */
static int clean(struct making *making) {
    struct tg_memory *memory = making->tag->memory;
    struct tg__block *block = making->block;
    int rc;

    if (making->piece.range.size_bytes == 0 || making->piece.is_blank ||
        making->tag->params.fill_none)
        return 0;
    pthread_mutex_unlock(&memory->lock);
    rc = tg__copy_zero(memory, making->piece.range);
    pthread_mutex_lock(&memory->lock);
    if (rc != 0) {
        block->order = ++memory->frees;
        block->gate.is_shut = true;
        tg__limbo_add(block);
        making->block = NULL;
    }
    return rc;
}

/* ---- new memory ------------------------------------------------------------------------------ */

/* The device is asked only where the answer matters; where it does not say, nothing grows. */
static uint64_t grown_bytes(struct making *making) {
    struct tg_tag *tag = making->tag;
    struct tg_memory *memory = tag->memory;
    uint64_t free_bytes = 0, total_bytes, spare_bytes = tag->spare.size_bytes;

    making->growth = (struct tg__growth){
        .block_bytes = making->room_bytes,
        .need_bytes = making->room_bytes - making->piece.range.size_bytes,
        .least_bytes = memory->least_chunk_bytes,
        .used_bytes = tag->chunk_bytes > spare_bytes ? tag->chunk_bytes - spare_bytes : 0,
        .spare_bytes = spare_bytes,
    };
    if (tg__growth_extra(&making->growth) > 0 &&
        memory->ops->memory(memory->device, &free_bytes, &total_bytes) != 0)
        free_bytes = 0;
    return tg__growth_chunk(&making->growth, free_bytes);
}

/* Behind the piece, where there is one: then with what is vacant there. */
static int find_packed(struct making *making) {
    struct tg_tag *tag = making->tag;
    struct tg__range *range = &making->chunk->range;
    uint64_t vacant_bytes;

    tg__arena_take_tail(tag, making->room_bytes, &making->piece);
    range->size_bytes = grown_bytes(making);
    if (making->piece.range.size_bytes > 0) {
        range->addr = tg__range_end(&making->piece.range);
        vacant_bytes = tg__ranges_at(&tag->vacant, range->addr);
        if (range->size_bytes > vacant_bytes)
            range->size_bytes = vacant_bytes;
        return tg__ranges_cut(&tag->vacant, *range);
    }
    return tg__arena_find(tag, making->growth.need_bytes, range);
}

static int find_addr(struct making *making) {
    struct tg_memory *memory = making->tag->memory;
    struct tg__range *range = &making->chunk->range;

    if (making->tag->params.packed)
        return find_packed(making);
    range->size_bytes = making->growth.need_bytes = making->room_bytes;
    return memory->ops->reserve(memory->device, range->size_bytes, &range->addr);
}

static void shorten(struct making *making) {
    struct tg_tag *tag = making->tag;
    struct tg__range *range = &making->chunk->range;
    uint64_t size_bytes = tg__growth_less(&making->growth, range->size_bytes);
    struct tg__range rest = {range->addr + size_bytes, range->size_bytes - size_bytes};

    pthread_mutex_lock(&tag->memory->lock);
    (void)!tg__ranges_add(&tag->vacant, rest, NULL); /* tg__tag_enter made room */
    pthread_mutex_unlock(&tag->memory->lock);
    range->size_bytes = size_bytes;
}

/* Without lock. A smaller chunk may fit where one does not, or be allowed: a chunk of the host
 * device is a file. */
static int back(struct making *making) {
    struct tg_memory *memory = making->tag->memory;
    struct tg__chunk *chunk = making->chunk;
    uint64_t given_bytes = tg__shortage_begin(memory);
    int rc = tg__chunk_make(chunk);

    while ((tg__is_short(rc) || rc == -EFBIG) && !chunk->is_charged &&
           chunk->range.size_bytes > making->growth.need_bytes) {
        shorten(making);
        rc = tg__chunk_make(chunk);
    }
    if (tg__is_short(rc) && !chunk->is_charged && tg__shortage_settle(memory, given_bytes))
        rc = tg__chunk_make(chunk);
    return rc;
}

static void discard_chunk(struct making *making) {
    struct tg__chunk *chunk = making->chunk;
    struct tg_error why = *tg_last_error();

    making->chunk = NULL;
    chunk->frees_addr = true;
    tg__chunk_leave(chunk);
    if (making->tag->params.packed)
        tg__arena_shrink(making->tag);
    tg__fail_as(&why);
}

static void place(struct making *making) {
    struct tg__chunk *chunk = making->chunk;
    uint64_t need_bytes = making->growth.need_bytes;
    struct tg__range rest = {chunk->range.addr + need_bytes, chunk->range.size_bytes - need_bytes};

    making->chunk = NULL;
    tg__plots_put(&making->tag->chunks, chunk);
    if (rest.size_bytes > 0)
        tg__arena_add(making->tag, rest);
    if (making->piece.range.size_bytes == 0)
        making->piece.range.addr = chunk->range.addr;
}

/* With lock, which it gives up meanwhile. */
static int make_chunk(struct making *making) {
    struct tg_tag *tag = making->tag;
    struct tg__chunk *chunk = making->chunk;
    int rc = find_addr(making);

    if (rc == 0) {
        pthread_mutex_unlock(&tag->memory->lock);
        rc = back(making);
        pthread_mutex_lock(&tag->memory->lock);
        if (chunk->is_charged)
            tag->chunk_bytes += chunk->range.size_bytes;
        if (rc == 0) /* peers that came meanwhile did not find it in a table */
            rc = tg__chunk_access(chunk);
        if (rc == 0)
            place(making);
        else
            discard_chunk(making);
    }
    if (rc != 0 && making->piece.range.size_bytes > 0)
        tg__arena_untake(tag, &making->piece);
    return rc;
}

/* ---- alloc ----------------------------------------------------------------------------------- */

static int check_size(const struct tg_memory *memory, uint64_t size_bytes) {
    if (size_bytes == 0)
        return tg__fail(-EINVAL, "a block of 0 bytes was asked for");
    if (size_bytes > memory->total_bytes)
        return tg__fail(-EINVAL,
                        "a block of %" PRIu64 " bytes was asked for: the device has %" PRIu64,
                        size_bytes, memory->total_bytes);
    return 0;
}

static int make_block(struct making *making) {
    struct tg_tag *tag = making->tag;
    int rc = tg__tag_enter(tag);

    if (rc != 0)
        return rc;
    if (!tag->params.packed || !take_spare(making))
        rc = make_chunk(making);
    /* What has settled for the chunk may do by itself. */
    if (tg__is_short(rc) && tag->params.packed &&
        tg__arena_take(tag, making->room_bytes, &making->piece))
        rc = 0;
    making->block->range.addr = making->piece.range.addr;
    if (rc == 0)
        rc = clean(making);
    tg__tag_leave(tag);
    if (rc != 0)
        return rc;
    tg__plots_put(&tag->blocks, making->block);
    tag->size_bytes += making->block->size_bytes;
    return 0;
}

int tg_tag_alloc(struct tg_tag *tag, uint64_t size_bytes, void **block) {
    return tg__tag_alloc(tag, size_bytes, 0, block);
}

int tg__tag_alloc(struct tg_tag *tag, uint64_t size_bytes, uint32_t flags, void **block) {
    struct tg_memory *memory = tag == NULL ? NULL : tag->memory;
    const struct tg_error before = *tg_last_error();
    struct making making = {.tag = tag};
    int saved = errno, rc = tg__memory_check(memory);

    if (rc == 0 && block == NULL)
        rc = tg__fail(-EINVAL, "a block is given through a pointer, not through NULL");
    if (rc == 0)
        rc = check_size(memory, size_bytes);
    if (rc != 0)
        return rc;
    making.room_bytes = (size_bytes + memory->granule_bytes - 1) / memory->granule_bytes *
                        memory->granule_bytes;
    making.block = calloc(1, sizeof *making.block);
    making.chunk = tg__chunk_new(tag, (struct tg__range){0, 0});
    if (making.block == NULL || making.chunk == NULL) {
        free(making.block);
        free(making.chunk);
        errno = saved;
        return tg__fail_memory();
    }
    if (!tag->params.packed)
        making.block->flags = making.chunk->flags = flags;
    making.block->tag = tag;
    making.block->size_bytes = size_bytes;
    making.block->range.size_bytes = making.room_bytes;
    pthread_mutex_lock(&memory->lock);
    tg__memory_tidy(memory);
    rc = make_block(&making);
    pthread_mutex_unlock(&memory->lock);
    free(making.chunk);
    tg__shortage_ask(memory, making.room_bytes, rc);
    if (rc == 0)
        *block = (void *)(uintptr_t)making.block->range.addr;
    else
        free(making.block);
    errno = saved;
    return tg__memory_done(memory, rc, &before);
}

/* ---- free ------------------------------------------------------------------------------------ */

static int fail_no_block(const struct tg_memory *memory, uint64_t addr,
                         const struct tg__block *around) {
    if (around != NULL && around->range.addr != addr)
        return tg__fail(-EINVAL,
                        "%#" PRIx64 " lies inside the block that begins at %#" PRIx64
                        ": free takes where a block begins",
                        addr, around->range.addr);
    if (around != NULL && around->estate != NULL)
        return tg__fail(-EINVAL, "%#" PRIx64 " was mapped by the program, and is unmapped by it",
                        addr);
    if (around != NULL)
        return tg__fail(-EINVAL, "the block at %#" PRIx64 " was freed already", addr);
    for (const struct tg__block *freed = memory->limbo; freed != NULL; freed = freed->next) {
        if (freed->range.addr == addr)
            return tg__fail(-EINVAL, "the block at %#" PRIx64 " was freed already", addr);
    }
    return tg__fail(-EINVAL, "no block of this memory begins at %#" PRIx64, addr);
}

/* Idle: nothing uses the block any more. But for us, where its tag is in motion. */
static int free_locked(struct tg_memory *memory, uint64_t addr, struct tg_queue *queue,
                       bool is_idle) {
    size_t number;
    struct tg__block *block = tg__tag_block(memory, addr, &number);

    if (block == NULL || block->range.addr != addr || block->is_freed || block->estate != NULL)
        return fail_no_block(memory, addr, block);
    if (queue != NULL && memory->ops->fence(memory->device, queue, &block->gate.fence) == -EINVAL)
        return -EINVAL;
    block->order = ++memory->frees;
    if (!is_idle || block->chunk != NULL || tg__tag_is_moving(block->tag))
        tg__gate_shut(memory, &block->gate, queue);
    if (block->chunk != NULL)
        tg__export_free(block);
    else if (tg__tag_is_moving(block->tag))
        block->is_freed = true;
    else
        tg__block_retire(block, number);
    tg__memory_tidy(memory);
    return 0;
}

static int free_block(struct tg_memory *memory, void *block, struct tg_queue *queue,
                      bool is_idle) {
    const struct tg_error before = *tg_last_error();
    int saved = errno, rc = tg__memory_check(memory);

    if (rc != 0 && rc != TG_EBROKEN)
        return rc;
    pthread_mutex_lock(&memory->lock);
    rc = free_locked(memory, (uintptr_t)block, queue, is_idle);
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return tg__memory_done(memory, rc, &before);
}

int tg_memory_free(struct tg_memory *memory, void *block, struct tg_queue *queue) {
    return free_block(memory, block, queue, false);
}

int tg__memory_free_idle(struct tg_memory *memory, void *block) {
    return free_block(memory, block, NULL, true);
}
