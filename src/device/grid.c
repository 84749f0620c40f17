/* SPDX-License-Identifier: Apache-2.0 */
#include "device/grid.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"

struct tg__gridrange {
    uint64_t mapped; /* granules that are not vacant */
    void *words[];
};

/* Its address alone: a mapping goes on. */
static char continued;

void tg__grid_init(struct tg__grid *grid, uint64_t granule_bytes) {
    tg__spans_init(&grid->ranges);
    grid->granule_bytes = granule_bytes;
}

void tg__grid_free(struct tg__grid *grid) {
    const struct tg__span *spans = grid->ranges.vec.items;

    for (size_t i = 0; i < grid->ranges.vec.count; i++)
        free(spans[i].what);
    tg__spans_free(&grid->ranges);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

int tg__grid_prepare(struct tg__grid *grid, uint64_t size_bytes, struct tg__gridrange **range) {
    struct tg__gridrange *made;
    int rc = tg__spans_room(&grid->ranges);

    if (rc != 0)
        return rc;
    made = calloc(1, sizeof *made + size_bytes / grid->granule_bytes * sizeof *made->words);
    if (made == NULL)
        return tg__fail_memory();
    *range = made;
    return 0;
}

void tg__grid_drop(struct tg__gridrange *range) {
    free(range);
}

void tg__grid_insert(struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                     struct tg__gridrange *range) {
    struct tg__span span = {.addr = addr, .size_bytes = size_bytes, .what = range};

    tg__spans_insert(&grid->ranges, &span);
}

int tg__grid_check_empty(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes) {
    const struct tg__span *span = tg__spans_exact(&grid->ranges, addr, size_bytes);
    const struct tg__gridrange *range;

    if (span == NULL)
        return tg__fail(-EINVAL, "%#" PRIx64 " and %" PRIu64 " bytes are not a reserved range",
                        addr, size_bytes);
    range = span->what;
    if (range->mapped != 0)
        return tg__fail(-EINVAL, "%" PRIu64 " MiB are still mapped in the reserved range",
                        (range->mapped * grid->granule_bytes) >> 20);
    return 0;
}

void tg__grid_remove(struct tg__grid *grid, uint64_t addr, uint64_t size_bytes) {
    struct tg__span *span = tg__spans_exact(&grid->ranges, addr, size_bytes);

    free(span->what);
    tg__spans_remove(&grid->ranges, span);
}

/* ---- mappings -------------------------------------------------------------------------------- */

static int find_piece(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                      struct tg__gridpiece *piece) {
    const struct tg__span *span = tg__spans_find(&grid->ranges, addr, size_bytes);

    if (span == NULL)
        return tg__fail(-EINVAL, "%#" PRIx64 " and %" PRIu64 " bytes are not inside a reserved "
                        "range", addr, size_bytes);
    piece->range = span->what;
    piece->words = piece->range->words + (addr - span->addr) / grid->granule_bytes;
    piece->count = size_bytes / grid->granule_bytes;
    return 0;
}

int tg__grid_find_vacant(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                         struct tg__gridpiece *piece) {
    int rc = find_piece(grid, addr, size_bytes, piece);

    for (uint64_t i = 0; rc == 0 && i < piece->count; i++) {
        if (piece->words[i] != NULL)
            rc = tg__fail(-EINVAL, "something is mapped at %#" PRIx64 " already",
                          addr + i * grid->granule_bytes);
    }
    return rc;
}

/* One begins at the first word, none goes on behind the last, and none is missing. */
static bool are_whole(const struct tg__gridpiece *piece, bool has_next) {
    if (piece->words[0] == &continued || (has_next && piece->words[piece->count] == &continued))
        return false;
    for (uint64_t i = 0; i < piece->count; i++) {
        if (piece->words[i] == NULL)
            return false;
    }
    return true;
}

int tg__grid_find_whole(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                        struct tg__gridpiece *piece) {
    int rc = find_piece(grid, addr, size_bytes, piece);
    bool has_next;

    if (rc != 0)
        return rc;
    /* The range may go on: it holds one granule more. */
    has_next = tg__spans_find(&grid->ranges, addr, size_bytes + grid->granule_bytes) != NULL;
    if (!are_whole(piece, has_next))
        return tg__fail(-EINVAL, "whole neighbouring mappings do not fill %#" PRIx64 " and %" PRIu64
                        " bytes", addr, size_bytes);
    return 0;
}

void tg__grid_fill(const struct tg__gridpiece *piece, void *what) {
    piece->words[0] = what;
    for (uint64_t i = 1; i < piece->count; i++)
        piece->words[i] = &continued;
    piece->range->mapped += piece->count;
}

void *tg__grid_clear(const struct tg__gridpiece *piece, uint64_t index) {
    void *what = piece->words[index];

    piece->words[index] = NULL;
    piece->range->mapped--;
    return what == &continued ? NULL : what;
}

uint64_t tg__grid_next_run(const struct tg__grid *grid, const struct tg__span *span,
                           uint64_t *first) {
    const struct tg__gridrange *range = span->what;
    uint64_t count = span->size_bytes / grid->granule_bytes, end;

    if (range->mapped == 0)
        return 0;
    while (*first < count && range->words[*first] == NULL)
        (*first)++;
    for (end = *first; end < count && range->words[end] != NULL;)
        end++;
    return end - *first;
}
