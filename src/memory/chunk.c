/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: made, mapped, and let go step by step, so that a step which the device refuses can be
 * tried again later from where it stopped. */
#include "memory/state.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"

struct tg__chunk *tg__chunk_new(struct tg_tag *tag, struct tg__range range) {
    struct tg__chunk *chunk = calloc(1, sizeof *chunk);

    if (chunk != NULL) {
        chunk->tag = tag;
        chunk->range = range;
    }
    return chunk;
}

static int create_as(struct tg__chunk *chunk, uint32_t flags) {
    struct tg_memory *memory = chunk->tag->memory;
    int rc = memory->ops->create(memory->device, chunk->range.size_bytes, flags, &chunk->handle);

    chunk->is_exportable = rc == 0 && (flags & TG_CHUNK_EXPORTABLE) != 0;
    if (rc != 0)
        chunk->handle = 0;
    return rc;
}

/* A chunk that nobody may ever ask for is no reason to fail: a host device has a descriptor for
 * each that is exportable, and a driver may refuse. */
int tg__chunk_create(struct tg__chunk *chunk) {
    uint32_t flags = chunk->flags & ~TG__CHUNK_OFFERED;
    int rc;

    if (flags == chunk->flags)
        return create_as(chunk, flags);
    rc = create_as(chunk, flags | TG_CHUNK_EXPORTABLE);
    if (rc == 0 || rc == -ENOMEM || rc == TG_EBROKEN || tg__is_short(rc))
        return rc;
    return create_as(chunk, flags);
}

/* Devices that are to have access beside this one. */
static uint64_t wanted(const struct tg__chunk *chunk) {
    return chunk->devices |
           (chunk->estate != NULL ? 0 : atomic_load(&chunk->tag->memory->peers));
}

int tg__chunk_access(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;
    uint64_t devices = wanted(chunk);
    int rc;

    if (!chunk->is_mapped || (devices & ~chunk->granted) == 0)
        return 0;
    rc = memory->ops->access(memory->device, chunk->range.addr, chunk->range.size_bytes, devices);
    if (rc == 0)
        chunk->granted = devices;
    return rc;
}

int tg__chunks_access(struct tg_tag *tag) {
    int rc = 0;

    for (size_t i = 0; i < tag->chunks.count + tag->kept.count; i++) {
        const struct tg__block *kept =
            i < tag->chunks.count ? NULL : tag->kept.items[i - tag->chunks.count];
        int result = tg__chunk_access(kept != NULL ? kept->chunk : tag->chunks.items[i]);

        rc = rc != 0 ? rc : result;
    }
    return rc;
}

int tg__chunk_map_kept(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;
    uint64_t devices = wanted(chunk);
    int rc = memory->ops->map(memory->device, chunk->range.addr, chunk->handle, devices);

    chunk->is_mapped = rc == 0;
    chunk->granted = devices;
    return rc;
}

int tg__chunk_map(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;
    int rc = tg__chunk_map_kept(chunk);

    if (rc != 0) {
        struct tg_error why = *tg_last_error();

        if (memory->ops->release(memory->device, chunk->handle) == 0)
            chunk->handle = 0;
        tg__fail_as(&why);
    }
    return rc;
}

int tg__chunk_back(struct tg__chunk *chunk) {
    int rc = tg__chunk_create(chunk);

    return rc != 0 ? rc : tg__chunk_map(chunk);
}

bool tg__is_short(int status) {
    return status == TG_ENOFIT || status == TG_ENEVERFITS || status == TG_EDEVICEMEMORY;
}

static int make(struct tg__chunk *chunk, int (*back)(struct tg__chunk *chunk)) {
    struct tg_tag *tag = chunk->tag;
    uint64_t size_bytes = chunk->range.size_bytes;
    int rc = tg__charge_reserve(tag, size_bytes, 0);

    if (rc != 0)
        return rc;
    rc = back(chunk);
    chunk->is_charged = chunk->handle != 0;
    if (chunk->is_charged)
        tg__charge_commit(tag, size_bytes, 0);
    else
        tg__charge_cancel(tag, size_bytes);
    return rc;
}

int tg__chunk_make(struct tg__chunk *chunk) {
    return make(chunk, tg__chunk_back);
}

int tg__chunk_make_unmapped(struct tg__chunk *chunk) {
    return make(chunk, tg__chunk_create);
}

int tg__chunk_unback(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;
    int rc = 0;

    if (chunk->is_mapped)
        rc = memory->ops->unmap(memory->device, chunk->range.addr, chunk->range.size_bytes);
    if (rc != 0)
        return rc;
    chunk->is_mapped = false;
    if (chunk->handle != 0)
        rc = memory->ops->release(memory->device, chunk->handle);
    if (rc == 0)
        chunk->handle = 0;
    return rc;
}

bool tg__is_one_reservation(const struct tg_tag *tag, const struct tg__estate *one,
                            const struct tg__estate *other) {
    return one == other && (one != NULL || tag->params.packed);
}

int tg__chunks_unmap(struct tg_tag *tag) {
    const struct tg_device_ops *ops = tag->memory->ops;
    struct tg__chunk **chunks = (struct tg__chunk **)tag->chunks.items;
    size_t count = tag->chunks.count, next;

    for (size_t i = 0; i < count; i = next) {
        struct tg__range run = chunks[i]->range;
        int rc = 0;

        for (next = i + 1; chunks[i]->is_mapped && next < count && chunks[next]->is_mapped &&
                           tg__is_one_reservation(tag, chunks[i]->estate, chunks[next]->estate) &&
                           chunks[next]->range.addr == tg__range_end(&run);
             next++)
            run.size_bytes += chunks[next]->range.size_bytes;
        if (chunks[i]->is_mapped)
            rc = ops->unmap(tag->memory->device, run.addr, run.size_bytes);
        if (rc != 0)
            return rc;
        for (size_t j = i; j < next; j++)
            chunks[j]->is_mapped = false;
    }
    return 0;
}

int tg__chunk_free_addr(struct tg__chunk *chunk) {
    struct tg_tag *tag = chunk->tag;
    struct tg_memory *memory = tag->memory;

    if (tag->params.packed)
        return tg__ranges_add(&tag->vacant, chunk->range, NULL);
    return memory->ops->unreserve(memory->device, chunk->range.addr, chunk->range.size_bytes);
}

/* Goes as far as it can; 0: the chunk is no more. */
static int step_out(struct tg__chunk *chunk) {
    struct tg_tag *tag = chunk->tag;
    struct tg_memory *memory = tag->memory;
    bool was_mapped = chunk->is_mapped;
    int rc;

    if (!tg__gate_is_open(memory, &chunk->gate))
        return TG_EBUSY;
    rc = tg__chunk_unback(chunk);
    if (was_mapped && !chunk->is_mapped)
        tag->leaving_mapped--;
    if (rc != 0)
        return tg__memory_note(memory, rc);
    if (chunk->is_charged) {
        tag->chunk_bytes -= chunk->range.size_bytes;
        memory->given_bytes += chunk->range.size_bytes;
        tg__charge_give(tag, chunk->range.size_bytes, 0);
        chunk->is_charged = false;
    }
    if (chunk->frees_addr)
        rc = tg__chunk_free_addr(chunk);
    if (rc != 0)
        return tg__memory_note(memory, rc);
    free(chunk);
    return 0;
}

struct tg__chunk *tg__chunk_leaving_in(const struct tg_memory *memory, struct tg__range range) {
    struct tg__chunk *chunk = memory->leaving;

    while (chunk != NULL && !(chunk->is_mapped && chunk->range.addr < tg__range_end(&range) &&
                              range.addr < tg__range_end(&chunk->range)))
        chunk = chunk->next;
    return chunk;
}

void tg__chunk_leave(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;

    if (chunk->is_mapped)
        chunk->tag->leaving_mapped++;
    if (step_out(chunk) != 0) {
        chunk->next = memory->leaving;
        memory->leaving = chunk;
    }
}

void tg__chunks_retry(struct tg_memory *memory) {
    struct tg__chunk **at = &memory->leaving;

    while (*at != NULL) {
        struct tg__chunk *chunk = *at, *next = chunk->next;

        if (step_out(chunk) == 0)
            *at = next;
        else
            at = &chunk->next;
    }
}
