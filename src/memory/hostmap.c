/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/hostmap.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

static size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}

size_t tg__hostmap_pages(size_t size_bytes) {
    return round_up(size_bytes, (size_t)sysconf(_SC_PAGESIZE));
}

/* The kernel gives no address on a huge page's boundary on demand: a mapping that is one too long
 * has one inside. What is never touched costs nothing. */
int tg__hostmap_make(struct tg__hostmap *map, size_t size_bytes) {
    size_t slack = size_bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    void *mapping = mmap(NULL, size_bytes + slack, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mapping == MAP_FAILED)
        return tg__fail(-errno, "no address space for host copies of %zu bytes: %s", size_bytes,
                        tg_error_text(-errno));
    map->mapping = mapping;
    map->mapping_bytes = size_bytes + slack;
    map->bytes = mapping;
    if (slack > 0)
        map->bytes = (unsigned char *)round_up((uintptr_t)mapping, HUGE_PAGE_BYTES);
    /* Both are wishes: without the first it is slower, and without the second a fork costs more. */
    madvise(mapping, map->mapping_bytes, MADV_HUGEPAGE);
    madvise(mapping, map->mapping_bytes, MADV_DONTFORK);
    return 0;
}

int tg__hostmap_free(struct tg__hostmap *map) {
    return munmap(map->mapping, map->mapping_bytes) == 0 ? 0 : -errno;
}
