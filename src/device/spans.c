/* SPDX-License-Identifier: Apache-2.0 */
#include "device/spans.h"

#include <string.h>

void tg__spans_init(struct tg__spans *spans) {
    tg__vec_init(&spans->vec, sizeof(struct tg__span), NULL);
}

void tg__spans_free(struct tg__spans *spans) {
    tg__vec_free(&spans->vec);
}

/* How many begin at addr or before it. */
static size_t count_up_to(const struct tg__spans *spans, uint64_t addr) {
    const struct tg__span *items = spans->vec.items;
    size_t low = 0, high = spans->vec.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (items[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct tg__span *tg__spans_find(const struct tg__spans *spans, uint64_t addr, uint64_t size_bytes) {
    size_t count = count_up_to(spans, addr);
    struct tg__span *span;

    if (count == 0)
        return NULL;
    span = (struct tg__span *)spans->vec.items + count - 1;
    if (addr - span->addr >= span->size_bytes)
        return NULL;
    return size_bytes <= span->size_bytes - (addr - span->addr) ? span : NULL;
}

struct tg__span *tg__spans_exact(const struct tg__spans *spans, uint64_t addr,
                                 uint64_t size_bytes) {
    struct tg__span *span = tg__spans_find(spans, addr, size_bytes);

    return span != NULL && span->addr == addr && span->size_bytes == size_bytes ? span : NULL;
}

bool tg__spans_overlap(const struct tg__spans *spans, uint64_t addr, uint64_t size_bytes) {
    const struct tg__span *items = spans->vec.items;
    size_t count = count_up_to(spans, addr);

    if (count > 0 && addr - items[count - 1].addr < items[count - 1].size_bytes)
        return true;
    return count < spans->vec.count && items[count].addr - addr < size_bytes;
}

int tg__spans_room(struct tg__spans *spans) {
    return tg__vec_room(&spans->vec, 1);
}

void tg__spans_insert(struct tg__spans *spans, const struct tg__span *span) {
    struct tg__span *items = spans->vec.items;
    size_t at = count_up_to(spans, span->addr);

    memmove(items + at + 1, items + at, (spans->vec.count - at) * sizeof *items);
    items[at] = *span;
    spans->vec.count++;
}

void tg__spans_remove(struct tg__spans *spans, struct tg__span *span) {
    struct tg__span *items = spans->vec.items;
    size_t at = (size_t)(span - items);

    spans->vec.count--;
    memmove(span, span + 1, (spans->vec.count - at) * sizeof *items);
}
