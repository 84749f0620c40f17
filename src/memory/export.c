/* SPDX-License-Identifier: Apache-2.0 */
/* From a block to the token that names it, and to the chunk that an opener gets. A block is taken
 * out of its tag's tables by its first lease and put back after its last, both while the tag is
 * awake: what sleeps or is in motion is never touched. */
#include "memory/export.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"

static atomic_uint_fast64_t generations;

/* ---- tokens ---------------------------------------------------------------------------------- */

static struct tg__chunk *chunk_of(const struct tg__block *block) {
    return block->chunk != NULL ? block->chunk
                                : tg__plots_find(&block->tag->chunks, block->range.addr, NULL);
}

/* Of one that sleeps its next chunk decides. */
static int check_kind(const struct tg__block *block) {
    const struct tg__chunk *chunk = chunk_of(block);

    if (block->tag->params.packed)
        return tg__fail(-ENOTSUP, "tag '%s' is packed, which promises that nobody opens its blocks",
                        block->tag->name);
    if ((block->flags & TG__CHUNK_OFFERED) == 0 || (chunk != NULL && !chunk->is_exportable))
        return tg__fail(-ENOTSUP, "the block at %#" PRIx64 " of tag '%s' was not made to be opened "
                        "by others", block->range.addr, block->tag->name);
    return 0;
}

static int name_block(struct tg_memory *memory, uint64_t addr, struct tg__token *token) {
    struct tg__block *block = tg__tag_block(memory, addr, NULL);
    int rc;

    if (block == NULL || block->is_freed || block->estate != NULL)
        return -ENOENT;
    rc = check_kind(block);
    if (rc != 0)
        return rc;
    if (block->generation == 0)
        block->generation = atomic_fetch_add(&generations, 1) + 1;
    token->addr = block->range.addr;
    token->generation = block->generation;
    token->size_bytes = block->range.size_bytes;
    return 0;
}

int tg__export_token(struct tg_memory *memory, uint64_t addr, struct tg__token *token) {
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = name_block(memory, addr, token);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

/* ---- leases ---------------------------------------------------------------------------------- */

/* Of an awake tag. Its host copy would be of no use: what others write is not in it. */
static int keep(struct tg__block *block) {
    struct tg_tag *tag = block->tag;
    size_t number, chunk_number;
    int rc = tg__plots_room(&tag->kept, 1);

    if (rc != 0)
        return rc;
    (void)tg__plots_find(&tag->blocks, block->range.addr, &number);
    block->chunk = tg__plots_find(&tag->chunks, block->range.addr, &chunk_number);
    tg__plots_drop(&tag->blocks, number);
    tg__plots_drop(&tag->chunks, chunk_number);
    tg__segment_release(block);
    tg__plots_put(&tag->kept, block);
    return 0;
}

static int check_lend(struct tg__block *block) {
    const struct tg_tag *tag = block->tag;
    const struct tg__chunk *chunk;

    if (block->chunk == NULL && tg__tag_is_moving(tag))
        return -EAGAIN;
    if (block->chunk == NULL && tag->state != TG_TAG_AWAKE)
        return tg__fail(TG_EASLEEP, "tag '%s' sleeps", tag->name);
    chunk = chunk_of(block);
    if (chunk == NULL || chunk->range.size_bytes != block->range.size_bytes)
        return tg__fail(-ENOTSUP, "the block has been trimmed: its memory is in pieces");
    if (!chunk->is_exportable)
        return tg__fail(-ENOTSUP, "the block cannot be opened by others");
    return 0;
}

static int lend(struct tg_memory *memory, const struct tg__token *token, struct tg__lease *lease,
                int *fd) {
    struct tg__block *block = tg__tag_block(memory, token->addr, NULL);
    int rc;

    if (block == NULL || block->is_freed || block->generation != token->generation)
        return -ENOENT;
    rc = check_lend(block);
    if (rc == 0)
        rc = memory->ops->export_fd(memory->device, chunk_of(block)->handle, fd);
    if (rc != 0)
        return tg__memory_note(memory, rc);
    if (block->chunk == NULL)
        rc = keep(block);
    if (rc != 0) {
        close(*fd);
        return rc;
    }
    lease->memory = memory;
    lease->block = block;
    lease->generation = block->generation;
    lease->next = block->leases;
    block->leases = lease;
    return 0;
}

int tg__export_lend(struct tg_memory *memory, const struct tg__token *token,
                    struct tg__lease *lease, int *fd) {
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = lend(memory, token, lease, fd);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

void tg__export_end(struct tg__lease *lease) {
    struct tg_memory *memory = lease->memory;
    struct tg__lease **at;

    if (memory == NULL)
        return;
    pthread_mutex_lock(&memory->lock);
    for (at = &lease->block->leases; *at != lease; at = &(*at)->next)
        ;
    *at = lease->next;
    tg__memory_tidy(memory);
    pthread_mutex_unlock(&memory->lock);
}

/* ---- what they keep -------------------------------------------------------------------------- */

static void take_out(struct tg__block *block) {
    struct tg__plots *kept = &block->tag->kept;
    size_t number;

    (void)tg__plots_find(kept, block->range.addr, &number);
    tg__plots_drop(kept, number);
}

/* Its users have a fence; others had it, and are through. */
static void let_go(struct tg__block *block) {
    struct tg__chunk *chunk = block->chunk;

    take_out(block);
    block->tag->limbo_bytes -= block->range.size_bytes;
    chunk->gate = block->gate;
    chunk->frees_addr = true;
    tg__ranges_free(&block->holes);
    free(block);
    tg__chunk_leave(chunk);
}

/* Where there is no memory for it the block stays kept, and is looked at again. */
static void put_back(struct tg__block *block) {
    struct tg_tag *tag = block->tag;

    /* What allocs that are inside were promised stays theirs. */
    if (tg__plots_room(&tag->blocks, (size_t)tag->allocs + 1) != 0 ||
        tg__plots_room(&tag->chunks, (size_t)tag->allocs + 1) != 0)
        return;
    take_out(block);
    tg__plots_put(&tag->blocks, block);
    tg__plots_put(&tag->chunks, block->chunk);
    block->chunk = NULL;
}

void tg__export_free(struct tg__block *block) {
    struct tg_tag *tag = block->tag;

    block->is_freed = true;
    tag->size_bytes -= block->size_bytes;
    tag->limbo_bytes += block->range.size_bytes;
}

void tg__exports_look(struct tg_memory *memory) {
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        for (size_t i = tag->kept.count; i-- > 0;) {
            struct tg__block *block = tag->kept.items[i];

            if (block->leases != NULL)
                continue;
            if (block->is_freed)
                let_go(block);
            else if (tag->state == TG_TAG_AWAKE)
                put_back(block);
        }
    }
}

size_t tg__exports_live(const struct tg_tag *tag) {
    size_t count = 0;

    for (size_t i = 0; i < tag->kept.count; i++)
        count += !((const struct tg__block *)tag->kept.items[i])->is_freed;
    return count;
}

static void drop(struct tg_tag *tag) {
    while (tag->kept.count > 0) {
        struct tg__block *block = tag->kept.items[tag->kept.count - 1];

        for (struct tg__lease *lease = block->leases; lease != NULL; lease = lease->next)
            lease->memory = NULL;
        block->leases = NULL;
        if (!block->is_freed) {
            block->gate.is_shut = true;
            tg__export_free(block);
        }
        let_go(block);
    }
}

void tg__exports_drop(struct tg_memory *memory) {
    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next)
        drop(tag);
    pthread_mutex_unlock(&memory->lock);
}
