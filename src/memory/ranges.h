/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of address ranges, and tables of things that lie at one. Pure: no device.
 *
 *   tg__ranges  what is free: neighbours are one range; taken from the smallest that fits.
 *   tg__plots   pointers to structs that begin with a tg__range, in order of address; no two
 *               overlap. The table does not own what it points to. */
#ifndef TG_MEMORY_RANGES_H
#define TG_MEMORY_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tg__range {
    uint64_t addr, size_bytes;
};

static inline uint64_t tg__range_end(const struct tg__range *range) {
    return range->addr + range->size_bytes;
}

struct tg__ranges {
    struct tg__range *items; /* in order of address; no two touch */
    size_t count, capacity;
    uint64_t size_bytes; /* of all */
};

void tg__ranges_free(struct tg__ranges *ranges);
/* Makes sure that the next `more` calls of add and cut cannot fail. Errors: -ENOMEM. */
int tg__ranges_room(struct tg__ranges *ranges, size_t more);
/* Adds a range that overlaps none; merged may be NULL, else it is the range it is now part of.
 * Errors: -ENOMEM: nothing is added. */
int tg__ranges_add(struct tg__ranges *ranges, struct tg__range range, struct tg__range *merged);
/* Takes size_bytes from the low end of the smallest range that has them; false if none has. */
bool tg__ranges_take(struct tg__ranges *ranges, uint64_t size_bytes, uint64_t *addr);
/* Takes exactly this range, which lies inside one of the set. Errors: -ENOMEM: nothing is taken. */
int tg__ranges_cut(struct tg__ranges *ranges, struct tg__range range);
/* Takes what of this range is in the set, and returns how much. No item of the set reaches beyond
 * both of its ends. */
uint64_t tg__ranges_clip(struct tg__ranges *ranges, struct tg__range range);
/* The first range from `from` on, up to `end`, of which the set has nothing; false: there is none.
 * gap is written in success only. */
bool tg__ranges_gap(const struct tg__ranges *ranges, uint64_t from, uint64_t end,
                    struct tg__range *gap);
/* How much begins at addr: 0 where no item of the set does. */
uint64_t tg__ranges_at(const struct tg__ranges *ranges, uint64_t addr);

struct tg__plots {
    void **items;
    size_t count, capacity;
};

void tg__plots_free(struct tg__plots *plots);
/* Makes sure that the next `more` puts cannot fail. Errors: -ENOMEM. */
int tg__plots_room(struct tg__plots *plots, size_t more);
/* Puts an item; room was made. */
void tg__plots_put(struct tg__plots *plots, void *item);
/* The item in whose range addr lies, or NULL; its number too if asked for. */
void *tg__plots_find(const struct tg__plots *plots, uint64_t addr, size_t *number);
/* The number of the first item that ends behind addr; count if none. */
size_t tg__plots_from(const struct tg__plots *plots, uint64_t addr);
void tg__plots_drop(struct tg__plots *plots, size_t number);

static inline const struct tg__range *tg__plots_range(const struct tg__plots *plots, size_t i) {
    return plots->items[i];
}

#endif
