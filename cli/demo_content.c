/* SPDX-License-Identifier: Apache-2.0 */
/* One pass at the memory's speed: words are compared in groups without a branch, and only a group
 * that differs is looked at byte by byte. */
#include "demo_content.h"

#include <string.h>

/* 2^64 by the golden ratio, made odd. */
#define WORD_STEP UINT64_C(0x9e3779b97f4a7c15)

enum { WORD_BYTES = 8, GROUP_WORDS = 32, GROUP_BYTES = GROUP_WORDS * WORD_BYTES };

/* Mixes as splitmix64 does: neighbours become strangers. */
static uint64_t mixed(uint64_t value) {
    value += WORD_STEP;
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t demo_content_key(uint64_t seed, uint64_t owner, uint64_t block) {
    return mixed(mixed(mixed(seed) ^ owner) ^ block);
}

uint64_t demo_content_key_at(uint64_t key, size_t offset_bytes) {
    return key + offset_bytes / WORD_BYTES * WORD_STEP;
}

/* The words of a group that begins with `word`, as they should be. */
static inline void group_make(uint64_t word, uint64_t *group) {
    for (size_t i = 0; i < GROUP_WORDS; i++)
        group[i] = word + i * WORD_STEP;
}

void demo_content_fill(void *at, size_t size_bytes, uint64_t key) {
    unsigned char *to = at;
    uint64_t group[GROUP_WORDS];

    group_make(key, group);
    while (size_bytes >= GROUP_BYTES) {
        memcpy(to, group, GROUP_BYTES);
        for (size_t i = 0; i < GROUP_WORDS; i++)
            group[i] += GROUP_WORDS * WORD_STEP;
        to += GROUP_BYTES;
        size_bytes -= GROUP_BYTES;
    }
    memcpy(to, group, size_bytes);
}

static uint64_t bytes_apart(const unsigned char *a, const unsigned char *b, size_t size_bytes) {
    uint64_t apart = 0;

    for (size_t i = 0; i < size_bytes; i++)
        apart += a[i] != b[i];
    return apart;
}

uint64_t demo_content_lost(const void *at, size_t size_bytes, uint64_t key) {
    const unsigned char *from = at;
    uint64_t expected[GROUP_WORDS], found[GROUP_WORDS], lost = 0;

    group_make(key, expected);
    while (size_bytes >= GROUP_BYTES) {
        uint64_t differs = 0;

        memcpy(found, from, GROUP_BYTES);
        for (size_t i = 0; i < GROUP_WORDS; i++)
            differs |= found[i] ^ expected[i];
        if (differs != 0)
            lost += bytes_apart(from, (const unsigned char *)expected, GROUP_BYTES);
        for (size_t i = 0; i < GROUP_WORDS; i++)
            expected[i] += GROUP_WORDS * WORD_STEP;
        from += GROUP_BYTES;
        size_bytes -= GROUP_BYTES;
    }
    return lost + bytes_apart(from, (const unsigned char *)expected, size_bytes);
}

uint64_t demo_content_not_zero(const void *at, size_t size_bytes) {
    static const unsigned char zeros[GROUP_BYTES];
    const unsigned char *from = at;
    uint64_t found[GROUP_WORDS], count = 0;

    while (size_bytes >= GROUP_BYTES) {
        uint64_t differs = 0;

        memcpy(found, from, GROUP_BYTES);
        for (size_t i = 0; i < GROUP_WORDS; i++)
            differs |= found[i];
        if (differs != 0)
            count += bytes_apart(from, zeros, GROUP_BYTES);
        from += GROUP_BYTES;
        size_bytes -= GROUP_BYTES;
    }
    return count + bytes_apart(from, zeros, size_bytes);
}
