/* SPDX-License-Identifier: Apache-2.0 */
/* Content that is computed from (seed, offset), never from a stored copy: whoever knows the seed
 * can tell whether a byte was lost. */
#ifndef TEST_MULTI_CONTENT_H
#define TEST_MULTI_CONTENT_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t content_word(uint64_t seed, size_t index) {
    uint64_t x = seed + index * UINT64_C(0x9e3779b97f4a7c15);

    x ^= x >> 29;
    return x * UINT64_C(0xbf58476d1ce4e5b9);
}

/* size_bytes is a multiple of 8. */
static inline void content_write(void *block, size_t size_bytes, uint64_t seed) {
    uint64_t *words = block;

    for (size_t i = 0; i < size_bytes / 8; i++)
        words[i] = content_word(seed, i);
}

/* Bytes of words that differ. */
static inline uint64_t content_lost(const void *block, size_t size_bytes, uint64_t seed) {
    const uint64_t *words = block;
    uint64_t wrong = 0;

    for (size_t i = 0; i < size_bytes / 8; i++)
        wrong += words[i] != content_word(seed, i);
    return 8 * wrong;
}

/* The next of a series that looks random; state is any number. */
static inline uint64_t random_next(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return content_word(*state, 1) ^ *state >> 17;
}

#endif
