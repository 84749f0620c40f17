/* SPDX-License-Identifier: Apache-2.0 */
/* Both tables are sorted arrays: they are searched often, change rarely, and hold few enough items
 * that moving the rest costs less than a tree would. Room is made beforehand where a change must
 * not fail. */
#include "memory/ranges.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static int grow(void **items, size_t *capacity, size_t item_bytes, size_t needed) {
    size_t wanted = *capacity + *capacity / 2;
    void *grown;

    if (needed <= *capacity)
        return 0;
    if (wanted < needed)
        wanted = needed + 8;
    grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL)
        return tg__fail_memory();
    *items = grown;
    *capacity = wanted;
    return 0;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

void tg__ranges_free(struct tg__ranges *ranges) {
    free(ranges->items);
    memset(ranges, 0, sizeof *ranges);
}

int tg__ranges_room(struct tg__ranges *ranges, size_t more) {
    void *items = ranges->items;
    int rc = grow(&items, &ranges->capacity, sizeof *ranges->items, ranges->count + more);

    ranges->items = items;
    return rc;
}

/* The number of the first range that ends behind addr. */
static size_t first_behind(const struct tg__ranges *ranges, uint64_t addr) {
    size_t low = 0, high = ranges->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (tg__range_end(&ranges->items[middle]) <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_range(struct tg__ranges *ranges, size_t i) {
    ranges->count--;
    memmove(&ranges->items[i], &ranges->items[i + 1],
            (ranges->count - i) * sizeof *ranges->items);
}

static int insert_range(struct tg__ranges *ranges, size_t i, struct tg__range range) {
    int rc = tg__ranges_room(ranges, 1);

    if (rc != 0)
        return rc;
    memmove(&ranges->items[i + 1], &ranges->items[i],
            (ranges->count - i) * sizeof *ranges->items);
    ranges->items[i] = range;
    ranges->count++;
    return 0;
}

int tg__ranges_add(struct tg__ranges *ranges, struct tg__range range, struct tg__range *merged) {
    size_t i = first_behind(ranges, range.addr);
    bool joins_left = i > 0 && tg__range_end(&ranges->items[i - 1]) == range.addr;
    bool joins_right = i < ranges->count && ranges->items[i].addr == tg__range_end(&range);

    assert(i == ranges->count || ranges->items[i].addr >= tg__range_end(&range));
    if (joins_left) {
        i--;
        ranges->items[i].size_bytes += range.size_bytes;
        if (joins_right) {
            ranges->items[i].size_bytes += ranges->items[i + 1].size_bytes;
            remove_range(ranges, i + 1);
        }
    } else if (joins_right) {
        ranges->items[i].addr = range.addr;
        ranges->items[i].size_bytes += range.size_bytes;
    } else {
        int rc = insert_range(ranges, i, range);

        if (rc != 0)
            return rc;
    }
    ranges->size_bytes += range.size_bytes;
    if (merged != NULL)
        *merged = ranges->items[i];
    return 0;
}

bool tg__ranges_take(struct tg__ranges *ranges, uint64_t size_bytes, uint64_t *addr) {
    size_t best = ranges->count;

    for (size_t i = 0; i < ranges->count; i++) {
        uint64_t has = ranges->items[i].size_bytes;

        if (has >= size_bytes && (best == ranges->count || has < ranges->items[best].size_bytes))
            best = i;
    }
    if (best == ranges->count)
        return false;
    *addr = ranges->items[best].addr;
    ranges->items[best].addr += size_bytes;
    ranges->items[best].size_bytes -= size_bytes;
    ranges->size_bytes -= size_bytes;
    if (ranges->items[best].size_bytes == 0)
        remove_range(ranges, best);
    return true;
}

int tg__ranges_cut(struct tg__ranges *ranges, struct tg__range range) {
    size_t i = first_behind(ranges, range.addr);
    struct tg__range old;

    assert(i < ranges->count);
    old = ranges->items[i];
    assert(old.addr <= range.addr && tg__range_end(&range) <= tg__range_end(&old));
    if (old.addr < range.addr && tg__range_end(&range) < tg__range_end(&old)) {
        struct tg__range tail = {.addr = tg__range_end(&range)};
        int rc;

        tail.size_bytes = tg__range_end(&old) - tail.addr;
        rc = insert_range(ranges, i + 1, tail);
        if (rc != 0)
            return rc;
        ranges->items[i].size_bytes = range.addr - old.addr;
    } else {
        ranges->items[i].size_bytes -= range.size_bytes;
        if (old.addr == range.addr)
            ranges->items[i].addr = tg__range_end(&range);
        if (ranges->items[i].size_bytes == 0)
            remove_range(ranges, i);
    }
    ranges->size_bytes -= range.size_bytes;
    return 0;
}

uint64_t tg__ranges_clip(struct tg__ranges *ranges, struct tg__range range) {
    uint64_t taken = 0, end = tg__range_end(&range);
    size_t i = first_behind(ranges, range.addr);

    while (i < ranges->count && ranges->items[i].addr < end) {
        struct tg__range *item = &ranges->items[i];
        uint64_t from = item->addr > range.addr ? item->addr : range.addr;
        uint64_t to = tg__range_end(item) < end ? tg__range_end(item) : end;

        assert(item->addr == from || tg__range_end(item) == to);
        if (item->addr == from)
            item->addr = to;
        item->size_bytes -= to - from;
        taken += to - from;
        if (item->size_bytes == 0)
            remove_range(ranges, i);
        else
            i++;
    }
    ranges->size_bytes -= taken;
    return taken;
}

bool tg__ranges_gap(const struct tg__ranges *ranges, uint64_t from, uint64_t end,
                    struct tg__range *gap) {
    size_t i = first_behind(ranges, from);
    uint64_t to = end;

    if (i < ranges->count && ranges->items[i].addr <= from)
        from = tg__range_end(&ranges->items[i++]); /* no two touch */
    if (i < ranges->count && ranges->items[i].addr < end)
        to = ranges->items[i].addr;
    if (from >= end)
        return false;
    *gap = (struct tg__range){from, to - from};
    return true;
}

uint64_t tg__ranges_at(const struct tg__ranges *ranges, uint64_t addr) {
    size_t i = first_behind(ranges, addr);

    return i < ranges->count && ranges->items[i].addr == addr ? ranges->items[i].size_bytes : 0;
}

/* ---- plots ---------------------------------------------------------------------------------- */

void tg__plots_free(struct tg__plots *plots) {
    free(plots->items);
    memset(plots, 0, sizeof *plots);
}

int tg__plots_room(struct tg__plots *plots, size_t more) {
    void *items = plots->items;
    int rc = grow(&items, &plots->capacity, sizeof *plots->items, plots->count + more);

    plots->items = items;
    return rc;
}

size_t tg__plots_from(const struct tg__plots *plots, uint64_t addr) {
    size_t low = 0, high = plots->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (tg__range_end(tg__plots_range(plots, middle)) <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void tg__plots_put(struct tg__plots *plots, void *item) {
    const struct tg__range *range = item;
    size_t i = tg__plots_from(plots, range->addr);

    assert(plots->count < plots->capacity);
    assert(i == plots->count || tg__plots_range(plots, i)->addr >= tg__range_end(range));
    memmove(&plots->items[i + 1], &plots->items[i],
            (plots->count - i) * sizeof *plots->items);
    plots->items[i] = item;
    plots->count++;
}

void *tg__plots_find(const struct tg__plots *plots, uint64_t addr, size_t *number) {
    size_t i = tg__plots_from(plots, addr);

    if (i == plots->count || tg__plots_range(plots, i)->addr > addr)
        return NULL;
    if (number != NULL)
        *number = i;
    return plots->items[i];
}

void tg__plots_drop(struct tg__plots *plots, size_t number) {
    assert(number < plots->count);
    plots->count--;
    memmove(&plots->items[number], &plots->items[number + 1],
            (plots->count - number) * sizeof *plots->items);
}
