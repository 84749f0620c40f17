/* SPDX-License-Identifier: Apache-2.0 */
/* The pure pieces of the demo: contents that tell their place, and the allocator that cuts up
 * segments. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "demo_content.h"
#include "demo_crew.h"
#include "demo_heap.h"
#include "suite.h"

#define MIB ((uint64_t)1 << 20)

enum { SEED = 7, BLOCKS = 300, ROUNDS = 20000 };

/* ---- contents -------------------------------------------------------------------------------- */

START_TEST(every_byte_counts) {
    unsigned char block[1000];
    uint64_t key = demo_content_key(SEED, 1, 2);

    for (size_t size = 1; size <= sizeof block; size += 37) {
        demo_content_fill(block, size, key);
        ck_assert_uint_eq(demo_content_lost(block, size, key), 0);
        for (size_t i = 0; i < size; i++) {
            block[i] ^= 0x10;
            ck_assert_uint_eq(demo_content_lost(block, size, key), 1);
            block[i] ^= 0x10;
        }
    }
}
END_TEST

START_TEST(contents_tell_their_block_and_place) {
    uint64_t block[512], key = demo_content_key(SEED, 1, 2);

    demo_content_fill(block, sizeof block, key);
    ck_assert_uint_gt(demo_content_lost(block, sizeof block, demo_content_key(SEED, 1, 3)), 3000);
    ck_assert_uint_gt(demo_content_lost(block, sizeof block, demo_content_key(SEED, 2, 2)), 3000);
    ck_assert_uint_gt(demo_content_lost(block, sizeof block, demo_content_key(8, 1, 2)), 3000);
    ck_assert_uint_gt(demo_content_lost(block + 1, sizeof block - 8, key), 3000);
    ck_assert_uint_gt(demo_content_lost(block + 256, sizeof block / 2, key), 1500);
}
END_TEST

START_TEST(zero_is_looked_at_wholly) {
    unsigned char block[777] = {0};

    ck_assert_uint_eq(demo_content_not_zero(block, sizeof block), 0);
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] = 1;
        ck_assert_uint_eq(demo_content_not_zero(block, sizeof block), 1);
        block[i] = 0;
    }
    ck_assert_uint_eq(demo_content_not_zero(block, 0), 0);
}
END_TEST

/* ---- the crew -------------------------------------------------------------------------------- */

/* Two threads do what one would: every size, each byte. */
START_TEST(crew_does_what_one_would) {
    static uint64_t block[(3 * MIB) / 8];
    unsigned char *bytes = (unsigned char *)block;
    uint64_t key = demo_content_key(SEED, 1, 2);
    struct demo_crew crew;

    demo_crew_open(&crew);
    for (size_t size = MIB / 2 - 3; size <= sizeof block; size += MIB / 4 + 1237) {
        demo_crew_do(&crew, DEMO_FILL, block, size, key);
        ck_assert_uint_eq(demo_content_lost(block, size, key), 0);
        ck_assert_uint_eq(demo_crew_do(&crew, DEMO_COMPARE, block, size, key), 0);
        bytes[0] ^= 1;
        bytes[size / 2 + 4096] ^= 1;
        bytes[size - 1] ^= 1;
        ck_assert_uint_eq(demo_crew_do(&crew, DEMO_COMPARE, block, size, key), 3);
        memset(block, 0, size);
        ck_assert_uint_eq(demo_crew_do(&crew, DEMO_COMPARE_ZERO, block, size, 0), 0);
        bytes[10] = bytes[size - 10] = 1;
        ck_assert_uint_eq(demo_crew_do(&crew, DEMO_COMPARE_ZERO, block, size, 0), 2);
    }
    demo_crew_close(&crew);
}
END_TEST

/* ---- the heap -------------------------------------------------------------------------------- */

/* A device of so many bytes. */
struct source {
    uint64_t left_bytes, taken_bytes;
    uint64_t takes, gives;
};

/* The size is kept before the segment. */
static void *take(void *argument, uint64_t size_bytes) {
    struct source *source = argument;
    unsigned char *at;

    if (size_bytes > source->left_bytes)
        return NULL;
    at = malloc(size_bytes + 64);
    memcpy(at, &size_bytes, sizeof size_bytes);
    source->left_bytes -= size_bytes;
    source->taken_bytes += size_bytes;
    source->takes++;
    return at + 64;
}

static void give(void *argument, void *segment) {
    struct source *source = argument;
    unsigned char *at = (unsigned char *)segment - 64;
    uint64_t size_bytes;

    memcpy(&size_bytes, at, sizeof size_bytes);
    source->left_bytes += size_bytes;
    source->taken_bytes -= size_bytes;
    source->gives++;
    free(at);
}

static void heap_make(struct demo_heap *heap, struct source *source, uint64_t left_bytes) {
    struct demo_source from = {
        .take = take, .give = give, .argument = source, .granule_bytes = 2 * MIB};

    memset(source, 0, sizeof *source);
    source->left_bytes = left_bytes;
    demo_heap_init(heap, &from);
}

struct held {
    void *at;
    uint64_t size_bytes, key;
    uint32_t piece;
};

static void held_drop(struct demo_heap *heap, struct held *held) {
    ck_assert_uint_eq(demo_content_lost(held->at, held->size_bytes, held->key), 0);
    demo_heap_free(heap, held->piece);
    held->at = NULL;
}

/* Blocks keep their contents, so no two share a byte. */
START_TEST(blocks_do_not_overlap) {
    struct held blocks[BLOCKS] = {0};
    struct source source;
    struct demo_heap heap;
    uint64_t full = 0;

    heap_make(&heap, &source, 64 * MIB);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint64_t luck = demo_content_key(SEED, 0, i);
        struct held *held = &blocks[luck % BLOCKS];

        if (held->at != NULL) {
            held_drop(&heap, held);
            continue;
        }
        held->size_bytes = 1 + (luck >> 32) % ((uint64_t)1 << (luck >> 16) % 22);
        held->key = luck;
        if (demo_heap_alloc(&heap, held->size_bytes, &held->at, &held->piece) == DEMO_HEAP_GIVEN)
            demo_content_fill(held->at, held->size_bytes, held->key);
        else
            full++;
        if (i % 1000 == 0)
            demo_heap_trim(&heap);
        ck_assert_uint_eq(heap.segment_bytes, source.taken_bytes);
    }
    ck_assert_uint_lt(full, ROUNDS / 100);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].at != NULL)
            held_drop(&heap, &blocks[i]);
    }
    ck_assert_uint_gt(source.taken_bytes, 0); /* cached until asked for */
    demo_heap_trim(&heap);
    ck_assert_uint_eq(source.taken_bytes, 0);
    ck_assert_uint_eq(source.takes, source.gives);
    demo_heap_destroy(&heap);
}
END_TEST

START_TEST(full_device_first_loses_its_cache) {
    struct source source;
    struct demo_heap heap;
    uint32_t small, large;
    void *at;

    heap_make(&heap, &source, 8 * MIB);
    ck_assert_int_eq(demo_heap_alloc(&heap, 100, &at, &small), DEMO_HEAP_GIVEN);
    demo_heap_free(&heap, small);
    ck_assert_uint_eq(source.taken_bytes, 2 * MIB);
    ck_assert_int_eq(demo_heap_alloc(&heap, 8 * MIB, &at, &large), DEMO_HEAP_GIVEN);
    ck_assert_uint_eq(source.taken_bytes, 8 * MIB);
    ck_assert_int_eq(demo_heap_alloc(&heap, 100, &at, &small), DEMO_HEAP_FULL);
    demo_heap_free(&heap, large);
    ck_assert_int_eq(demo_heap_alloc(&heap, 100, &at, &small), DEMO_HEAP_GIVEN);
    demo_heap_free(&heap, small);
    demo_heap_trim(&heap);
    ck_assert_uint_eq(source.taken_bytes, 0);
    demo_heap_destroy(&heap);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("demo");

    tcase_add_test(cases, every_byte_counts);
    tcase_add_test(cases, contents_tell_their_block_and_place);
    tcase_add_test(cases, zero_is_looked_at_wholly);
    tcase_add_test(cases, crew_does_what_one_would);
    tcase_add_test(cases, blocks_do_not_overlap);
    tcase_add_test(cases, full_device_first_loses_its_cache);
    return suite_run("cli_demo", cases);
}
