/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the host device: reserved as PROT_NONE, mapped by doubling a chunk's home. */
#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#include "base/error.h"
#include "device/host.h"

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
    struct tg__gridrange *range;
    uint64_t reserved = 0;
    int rc = tg__grid_prepare(&host->grid, size_bytes, &range);

    if (rc != 0)
        return rc;
    rc = reserve_aligned(size_bytes, &reserved);
    if (rc != 0) {
        tg__grid_drop(range);
        return rc;
    }
    tg__grid_insert(&host->grid, reserved, size_bytes, range);
    *addr = reserved;
    return 0;
}

int tg__hostrange_unreserve(struct tg__host *host, uint64_t addr, uint64_t size_bytes) {
    int rc = tg__grid_check_empty(&host->grid, addr, size_bytes);

    if (rc != 0)
        return rc;
    if (munmap(pointer(addr), size_bytes) != 0)
        return tg__fail(-errno, "cannot give addresses back: %s", tg_error_text(-errno));
    tg__grid_remove(&host->grid, addr, size_bytes);
    return 0;
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
    struct tg__gridpiece piece;
    int rc = tg__grid_find_vacant(&host->grid, addr, chunk->size_bytes, &piece);

    if (rc == 0)
        rc = double_home(chunk, addr);
    if (rc != 0)
        return rc;
    tg__grid_fill(&piece, chunk);
    chunk->mappings++;
    return 0;
}

int tg__hostrange_unmap(struct tg__host *host, uint64_t addr, uint64_t size_bytes) {
    struct tg__gridpiece piece;
    int rc = tg__grid_find_whole(&host->grid, addr, size_bytes, &piece);

    if (rc != 0)
        return rc;
    if (reserve_at(pointer(addr), size_bytes, MAP_FIXED) == MAP_FAILED)
        return tg__fail(-errno, "cannot unmap: %s", tg_error_text(-errno));
    for (uint64_t i = 0; i < piece.count; i++) {
        struct tg__hostchunk *chunk = tg__grid_clear(&piece, i);

        if (chunk != NULL)
            tg__hostchunk_unmapped(host, chunk);
    }
    return 0;
}

/* In a forked child the addresses are left as they are: in their place may be something newer. */
void tg__hostrange_free_all(struct tg__host *host, bool is_forked) {
    const struct tg__span *spans = host->grid.ranges.vec.items;

    for (size_t i = 0; i < host->grid.ranges.vec.count && !is_forked; i++)
        munmap(pointer(spans[i].addr), spans[i].size_bytes);
    tg__grid_free(&host->grid);
}
