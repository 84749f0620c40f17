/* SPDX-License-Identifier: Apache-2.0 */
/* Two open-addressing tables with linear probing.
 *
 *   tg__map    64-bit keys (addresses) to 32-bit values, with removal.
 *   tg__index  finds the number of an item that the caller keeps in an array, by hash and an
 *              equality of the caller's; without removal. What interning stands on. */
#ifndef TG_BASE_MAP_H
#define TG_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vec.h"

struct tg__map {
    struct tg__map_slot *slots;
    size_t count, mask; /* mask + 1 slots; no slots at all: mask 0 */
};

void tg__map_init(struct tg__map *map);
void tg__map_free(struct tg__map *map);
/* Sets key to value, new or not. value is not UINT32_MAX. Errors: -ENOMEM. */
int tg__map_put(struct tg__map *map, uint64_t key, uint32_t value);
/* The value of key, or UINT32_MAX. */
uint32_t tg__map_get(const struct tg__map *map, uint64_t key);
/* Removes key and returns its value, or UINT32_MAX. */
uint32_t tg__map_take(struct tg__map *map, uint64_t key);

struct tg__index {
    struct tg__index_slot *slots;
    size_t count, mask;
    struct tg__budget *budget;
};

typedef bool (*tg__same_fn)(const void *owner, uint32_t item, const void *wanted);

void tg__index_init(struct tg__index *index, struct tg__budget *budget);
void tg__index_free(struct tg__index *index);
/* The number of the item that has this hash and is `same` as wanted, or UINT32_MAX. */
uint32_t tg__index_find(const struct tg__index *index, uint64_t hash, tg__same_fn same,
                        const void *owner, const void *wanted);
/* Adds an item that find did not find. Errors: -ENOMEM, TG_ELIMIT. */
int tg__index_add(struct tg__index *index, uint64_t hash, uint32_t item);

/* Mixes a 64-bit value so that every bit depends on every other. */
static inline uint64_t tg__hash_u64(uint64_t x) {
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* Begins every hash of what a file says, so that no file can be made whose items all collide: it
 * differs from process to process. */
uint64_t tg__hash_seed(void);

/* Two numbers into one hash, seeded. */
static inline uint64_t tg__hash_pair(uint64_t a, uint64_t b) {
    return tg__hash_u64(tg__hash_u64(a ^ tg__hash_seed()) + b);
}

/* Hash of a run of bytes; differs from process to process. */
uint64_t tg__hash_bytes(const void *bytes, size_t length);

#endif
