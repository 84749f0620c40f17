/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* value UINT32_MAX marks a free slot, so any key may be stored. */
struct tg__map_slot {
    uint64_t key;
    uint32_t value;
};

/* item UINT32_MAX marks a free slot; half of the hash spares most calls of `same`. */
struct tg__index_slot {
    uint32_t hash;
    uint32_t item;
};

/* Where the loader put us: not the same in the next process, so that no file can be made whose keys
 * all meet in one seat. */
uint64_t tg__hash_seed(void) {
    static const char here;

    return tg__hash_u64((uint64_t)(uintptr_t)&here);
}

void tg__map_init(struct tg__map *map) {
    memset(map, 0, sizeof *map);
}

void tg__map_free(struct tg__map *map) {
    free(map->slots);
    tg__map_init(map);
}

static size_t home_seat(const struct tg__map *map, uint64_t key) {
    return tg__hash_u64(key ^ tg__hash_seed()) & map->mask;
}

static size_t map_seat(const struct tg__map *map, uint64_t key) {
    size_t i = home_seat(map, key);

    while (map->slots[i].value != UINT32_MAX && map->slots[i].key != key)
        i = (i + 1) & map->mask;
    return i;
}

static int map_grow(struct tg__map *map) {
    struct tg__map old = *map;
    size_t size = old.slots == NULL ? 64 : (old.mask + 1) * 2;

    map->slots = malloc(size * sizeof *map->slots);
    if (map->slots == NULL) {
        *map = old;
        return tg__fail_memory();
    }
    memset(map->slots, 0xff, size * sizeof *map->slots);
    map->mask = size - 1;
    for (size_t i = 0; old.slots != NULL && i <= old.mask; i++) {
        if (old.slots[i].value != UINT32_MAX)
            map->slots[map_seat(map, old.slots[i].key)] = old.slots[i];
    }
    free(old.slots);
    return 0;
}

int tg__map_put(struct tg__map *map, uint64_t key, uint32_t value) {
    size_t i;

    if (map->slots == NULL || map->count * 4 >= (map->mask + 1) * 3) {
        int rc = map_grow(map);
        if (rc != 0)
            return rc;
    }
    i = map_seat(map, key);
    map->count += map->slots[i].value == UINT32_MAX;
    map->slots[i] = (struct tg__map_slot){key, value};
    return 0;
}

uint32_t tg__map_get(const struct tg__map *map, uint64_t key) {
    return map->slots == NULL ? UINT32_MAX : map->slots[map_seat(map, key)].value;
}

uint32_t tg__map_take(struct tg__map *map, uint64_t key) {
    size_t hole, i;
    uint32_t value;

    if (map->slots == NULL)
        return UINT32_MAX;
    hole = map_seat(map, key);
    value = map->slots[hole].value;
    if (value == UINT32_MAX)
        return value;
    map->count--;
    /* Close the hole: pull back each follower that may sit there, so that no probe ends early. */
    for (i = (hole + 1) & map->mask; map->slots[i].value != UINT32_MAX; i = (i + 1) & map->mask) {
        size_t home = home_seat(map, map->slots[i].key);
        if (((i - home) & map->mask) >= ((i - hole) & map->mask)) {
            map->slots[hole] = map->slots[i];
            hole = i;
        }
    }
    map->slots[hole].value = UINT32_MAX;
    return value;
}

void tg__index_init(struct tg__index *index, struct tg__budget *budget) {
    memset(index, 0, sizeof *index);
    index->budget = budget;
}

static size_t index_bytes(const struct tg__index *index) {
    return index->slots == NULL ? 0 : (index->mask + 1) * sizeof *index->slots;
}

void tg__index_free(struct tg__index *index) {
    if (index->budget != NULL)
        index->budget->left_bytes += index_bytes(index);
    free(index->slots);
    tg__index_init(index, index->budget);
}

/* The stored half chooses the seat too: growth then needs no second hash. */
static uint32_t folded(uint64_t hash) {
    return (uint32_t)(hash ^ hash >> 32);
}

uint32_t tg__index_find(const struct tg__index *index, uint64_t hash, tg__same_fn same,
                        const void *owner, const void *wanted) {
    uint32_t stored = folded(hash);

    if (index->slots == NULL)
        return UINT32_MAX;
    for (size_t i = stored & index->mask;; i = (i + 1) & index->mask) {
        const struct tg__index_slot *slot = &index->slots[i];
        if (slot->item == UINT32_MAX)
            return UINT32_MAX;
        if (slot->hash == stored && same(owner, slot->item, wanted))
            return slot->item;
    }
}

static void index_place(struct tg__index *index, struct tg__index_slot slot) {
    size_t i = slot.hash & index->mask;

    while (index->slots[i].item != UINT32_MAX)
        i = (i + 1) & index->mask;
    index->slots[i] = slot;
}

static int index_grow(struct tg__index *index) {
    struct tg__index old = *index;
    size_t size = old.slots == NULL ? 64 : (old.mask + 1) * 2;
    size_t bytes = size * sizeof *index->slots;

    /* Old and new are there together for a while: the whole new table must be to be had. */
    if (index->budget != NULL && index->budget->left_bytes < bytes)
        return tg__fail(TG_ELIMIT, "it would take more memory than it is allowed");
    index->slots = malloc(size * sizeof *index->slots);
    if (index->slots == NULL) {
        *index = old;
        return tg__fail_memory();
    }
    if (index->budget != NULL)
        index->budget->left_bytes -= bytes - index_bytes(&old);
    memset(index->slots, 0xff, size * sizeof *index->slots);
    index->mask = size - 1;
    for (size_t i = 0; old.slots != NULL && i <= old.mask; i++) {
        if (old.slots[i].item != UINT32_MAX)
            index_place(index, old.slots[i]);
    }
    free(old.slots);
    return 0;
}

int tg__index_add(struct tg__index *index, uint64_t hash, uint32_t item) {
    if (index->slots == NULL || index->count * 4 >= (index->mask + 1) * 3) {
        int rc = index_grow(index);
        if (rc != 0)
            return rc;
    }
    index_place(index, (struct tg__index_slot){folded(hash), item});
    index->count++;
    return 0;
}

/* Both halves of the product, folded: one multiplication mixes two words. */
__extension__ typedef unsigned __int128 product_wide;

static inline uint64_t folded_product(uint64_t a, uint64_t b) {
    product_wide product = (product_wide)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t tg__hash_bytes(const void *bytes, size_t length) {
    /* Both factors hold something that a file's author cannot know: none can be made zero. */
    const uint64_t seed = tg__hash_seed(), key = tg__hash_u64(seed + 1);
    const unsigned char *at = bytes;
    uint64_t hash = seed ^ length * UINT64_C(0x9e3779b97f4a7c15), other = key, word[4];

    /* Stacks are long: two chains, neither of which waits for the other. */
    for (; length >= sizeof word; length -= sizeof word, at += sizeof word) {
        memcpy(word, at, sizeof word);
        hash = folded_product(word[0] ^ key, word[1] ^ hash) ^ hash >> 7;
        other = folded_product(word[2] ^ seed, word[3] ^ other) ^ other >> 7;
    }
    hash ^= tg__hash_u64(other);
    for (; length >= 16; length -= 16, at += 16) {
        memcpy(word, at, 16);
        hash = folded_product(word[0] ^ key, word[1] ^ hash) ^ hash >> 7;
    }
    word[0] = word[1] = 0;
    memcpy(word, at, length);
    return folded_product(word[0] ^ key, word[1] ^ hash) ^ hash >> 7;
}
