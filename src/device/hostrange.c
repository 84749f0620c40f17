/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the host device: what is reserved, and which chunk lies where in it.
 *
 * A reserved range has a table with a word for each granule: the chunk whose mapping begins there,
 * a mark for where it goes on, or nothing. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "device/host.h"

struct range {
    uint64_t mapped;             /* granules that are not vacant */
    struct tg__hostchunk *granules[];
};

/* A mapping goes on. */
static struct tg__hostchunk continued;

static uint64_t granules(uint64_t size_bytes) {
    return size_bytes / TG__HOST_GRANULE_BYTES;
}

static void *pointer(uint64_t addr) {
    return (void *)(uintptr_t)addr;
}

static void *reserve_at(void *addr, uint64_t size_bytes, int flags) {
    return mmap(addr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags,
                -1, 0);
}

static int fail_reserve(uint64_t size_bytes) {
    return tg__fail(-errno, "cannot reserve %" PRIu64 " MiB of addresses: %s", size_bytes >> 20,
                    tg_error_text(-errno));
}

/* Nothing to unmap is fine. */
static bool unmap(uint64_t from, uint64_t to) {
    return from == to || munmap(pointer(from), to - from) == 0;
}

/* More than is needed, so that a range at a granule's boundary can be cut out of it. */
static int reserve_aligned(uint64_t size_bytes, uint64_t *addr) {
    uint64_t all_bytes = size_bytes + TG__HOST_GRANULE_BYTES, begin, end, aligned;
    void *all = reserve_at(NULL, all_bytes, 0);
    bool is_cut;

    if (all == MAP_FAILED)
        return fail_reserve(size_bytes);
    begin = (uint64_t)(uintptr_t)all;
    end = begin + all_bytes;
    aligned = (begin + TG__HOST_GRANULE_BYTES - 1) & ~(TG__HOST_GRANULE_BYTES - 1);
    is_cut = unmap(aligned + size_bytes, end);
    if (is_cut) {
        end = aligned + size_bytes;
        is_cut = unmap(begin, aligned);
    }
    if (!is_cut) {
        int rc = fail_reserve(size_bytes);

        munmap(all, end - begin);
        return rc;
    }
    *addr = aligned;
    return 0;
}

int tg__hostrange_reserve(struct tg__host *host, uint64_t size_bytes, uint64_t *addr) {
    struct tg__span span = {.size_bytes = size_bytes};
    struct range *range;
    int rc = tg__spans_room(&host->ranges);

    if (rc != 0)
        return rc;
    range = calloc(1, sizeof *range + granules(size_bytes) * sizeof *range->granules);
    if (range == NULL)
        return tg__fail_memory();
    rc = reserve_aligned(size_bytes, &span.addr);
    if (rc != 0) {
        free(range);
        return rc;
    }
    span.what = range;
    tg__spans_insert(&host->ranges, &span);
    *addr = span.addr;
    return 0;
}

int tg__hostrange_unreserve(struct tg__host *host, uint64_t addr, uint64_t size_bytes) {
    struct tg__span *span = tg__spans_exact(&host->ranges, addr, size_bytes);
    struct range *range;

    if (span == NULL)
        return tg__fail(-EINVAL, "%#" PRIx64 " and %" PRIu64 " bytes are not a reserved range",
                        addr, size_bytes);
    range = span->what;
    if (range->mapped != 0)
        return tg__fail(-EINVAL, "%" PRIu64 " MiB are still mapped in the reserved range",
                        range->mapped * 2);
    if (munmap(pointer(addr), size_bytes) != 0)
        return tg__fail(-errno, "cannot give addresses back: %s", tg_error_text(-errno));
    tg__spans_remove(&host->ranges, span);
    free(range);
    return 0;
}

/* The words of a piece of a reserved range, or NULL and a sentence. */
static struct tg__hostchunk **find_words(const struct tg__host *host, uint64_t addr,
                                     uint64_t size_bytes, struct range **range) {
    struct tg__span *span = tg__spans_find(&host->ranges, addr, size_bytes);

    if (span == NULL) {
        tg__fail(-EINVAL, "%#" PRIx64 " and %" PRIu64 " bytes are not inside a reserved range",
                 addr, size_bytes);
        return NULL;
    }
    *range = span->what;
    return (*range)->granules + granules(addr - span->addr);
}

/* Doubles the home mapping to addr, over the reservation that is there. */
static int double_home(const struct tg__hostchunk *chunk, uint64_t addr) {
    void *there = pointer(addr);
    int rc;

    if (mremap(chunk->home, 0, chunk->size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there) != there) {
        rc = tg__fail(-errno, "cannot map a chunk: %s", tg_error_text(-errno));
        /* Where the kernel had made room already, nobody else's mapping may come in. */
        reserve_at(there, chunk->size_bytes, MAP_FIXED_NOREPLACE);
        return rc;
    }
    if (mprotect(there, chunk->size_bytes, PROT_READ | PROT_WRITE) != 0) {
        rc = tg__fail(-errno, "cannot open a chunk's mapping: %s", tg_error_text(-errno));
        reserve_at(there, chunk->size_bytes, MAP_FIXED);
        return rc;
    }
    return 0;
}

int tg__hostrange_map(struct tg__host *host, uint64_t addr, struct tg__hostchunk *chunk) {
    uint64_t count = granules(chunk->size_bytes);
    struct range *range;
    struct tg__hostchunk **words = find_words(host, addr, chunk->size_bytes, &range);
    int rc;

    if (words == NULL)
        return -EINVAL;
    for (uint64_t i = 0; i < count; i++) {
        if (words[i] != NULL)
            return tg__fail(-EINVAL, "something is mapped at %#" PRIx64 " already",
                            addr + i * TG__HOST_GRANULE_BYTES);
    }
    rc = double_home(chunk, addr);
    if (rc != 0)
        return rc;
    words[0] = chunk;
    for (uint64_t i = 1; i < count; i++)
        words[i] = &continued;
    range->mapped += count;
    chunk->mappings++;
    return 0;
}

/* Whether whole mappings fill these words: one begins at the first, none goes on behind the last,
 * and none is missing. */
static bool are_whole(struct tg__hostchunk *const *words, uint64_t count, bool has_next) {
    if (words[0] == &continued || (has_next && words[count] == &continued))
        return false;
    for (uint64_t i = 0; i < count; i++) {
        if (words[i] == NULL)
            return false;
    }
    return true;
}

int tg__hostrange_unmap(struct tg__host *host, uint64_t addr, uint64_t size_bytes) {
    uint64_t count = granules(size_bytes);
    struct range *range;
    struct tg__hostchunk **words = find_words(host, addr, size_bytes, &range);
    /* The range may go on: it holds one granule more. */
    bool has_next = words != NULL && tg__spans_find(&host->ranges, addr,
                                                    size_bytes + TG__HOST_GRANULE_BYTES) != NULL;

    if (words == NULL)
        return -EINVAL;
    if (!are_whole(words, count, has_next))
        return tg__fail(-EINVAL, "whole neighbouring mappings do not fill %#" PRIx64 " and %" PRIu64
                        " bytes", addr, size_bytes);
    if (reserve_at(pointer(addr), size_bytes, MAP_FIXED) == MAP_FAILED)
        return tg__fail(-errno, "cannot unmap: %s", tg_error_text(-errno));
    range->mapped -= count;
    for (uint64_t i = 0; i < count; i++) {
        struct tg__hostchunk *chunk = words[i];

        words[i] = NULL;
        if (chunk != &continued)
            tg__hostchunk_unmapped(host, chunk);
    }
    return 0;
}

/* In a forked child the addresses are left as they are: in their place may be something newer. */
void tg__hostrange_free_all(struct tg__host *host, bool is_forked) {
    const struct tg__span *spans = host->ranges.vec.items;

    for (size_t i = 0; i < host->ranges.vec.count; i++) {
        if (!is_forked)
            munmap(pointer(spans[i].addr), spans[i].size_bytes);
        free(spans[i].what);
    }
    tg__spans_free(&host->ranges);
}
