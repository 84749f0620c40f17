/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of packed tags grow with what the tag has, merge when it wakes, and cost nobody memory
 * that chunks of exactly the blocks' sizes would have left. */
#include <stdlib.h>

#include "base/error.h"
#include "memory/growth.h"
#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

#define GIB (UINT64_C(1) << 30)

enum { BLOCKS = 1600 };

static struct world world;
static const struct tg_tag_params packed = {.packed = 1};
static void *blocks[BLOCKS];

/* ---- how large: pure ------------------------------------------------------------------------- */

static const struct {
    uint64_t need, used, spare, free, chunk; /* MiB */
} sizes[] = {
    {2, 0, 0, 1000, 64},            /* the least */
    {100, 0, 0, 10000, 100},        /* there is nothing yet */
    {20, 1600, 0, 100000, 220},     /* by an eighth of all */
    {20, 1600, 115, 100000, 100},   /* less what is spare, in whole blocks */
    {20, 1600, 200, 100000, 64},    /* nothing is left of it: the least */
    {80, 1600, 200, 100000, 80},    /* or what is needed */
    {20, 1600, 0, 900, 120},        /* an eighth of what is free */
    {20, 1600, 0, 0, 64},           /* nothing is known to be free */
    {20, 80000, 0, 100000, 1020},   /* the largest, in whole blocks */
    {1022, 80000, 0, 100000, 1022}, /* all in all */
    {5000, 80000, 0, 100000, 5000}, /* but for what is needed */
};

START_TEST(a_chunk_grows_by_an_eighth) {
    struct tg__growth growth = {.block_bytes = sizes[_i].need * MIB,
                                .least_bytes = 64 * MIB,
                                .need_bytes = sizes[_i].need * MIB,
                                .used_bytes = sizes[_i].used * MIB,
                                .spare_bytes = sizes[_i].spare * MIB};

    ck_assert_uint_eq(tg__growth_chunk(&growth, sizes[_i].free * MIB), sizes[_i].chunk * MIB);
}
END_TEST

START_TEST(what_is_not_to_be_had_shrinks_to_what_is_needed) {
    static const uint64_t steps[] = {1010, 510, 250, 130, 70, 30, 10};
    struct tg__growth growth = {.block_bytes = 20 * MIB, .need_bytes = 10 * MIB};

    for (size_t i = 1; i < sizeof steps / sizeof *steps; i++)
        ck_assert_uint_eq(tg__growth_less(&growth, steps[i - 1] * MIB), steps[i] * MIB);
}
END_TEST

/* ---- few chunks ------------------------------------------------------------------------------ */

static uint64_t spare_bytes(struct tg_tag *tag) {
    return tag->spare.size_bytes;
}

static void alloc_all(struct tg_tag *tag, uint64_t size_bytes) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = world_alloc(tag, size_bytes);
        *(int *)blocks[i] = i;
        ck_assert(spare_bytes(tag) <= world.memory->least_chunk_bytes ||
                  spare_bytes(tag) <= world_info(tag).size_bytes / 8);
    }
}

static void free_thirds(void) {
    for (int i = 0; i < BLOCKS; i += 3) {
        ck_assert_ok(tg_memory_free(world.memory, blocks[i], NULL));
        blocks[i] = NULL;
    }
}

static void check_all(int (*expected)(int)) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL)
            ck_assert_int_eq(*(int *)blocks[i], expected(i));
    }
}

static int its_number(int i) {
    return i;
}

static int zero(int i) {
    (void)i;
    return 0;
}

static size_t sleep_calls(void) {
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_uint_eq(world_free_bytes(&world), 40 * GIB);
    return world_calls(&world, TG__OP_unmap);
}

/* A map of the device sets its access too. */
static size_t wake_calls(void) {
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), world_calls(&world, TG__OP_map));
    return world_calls(&world, TG__OP_map);
}

START_TEST(thousands_of_blocks_are_few_chunks) {
    struct tg_tag *tag;

    world_open(&world, "capacity=40GiB", true);
    tag = world_tag(&world, "a", packed);
    alloc_all(tag, 20 * MIB);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 54);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), world_calls(&world, TG__OP_map));
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 0); /* fresh memory is zero */
    check_all(its_number);
    ck_assert_uint_eq(sleep_calls(), 1); /* all are neighbours */
    ck_assert_uint_eq(wake_calls(), 32); /* of 1 GiB */
    check_all(zero);
    ck_assert_uint_eq(world_info(tag).device_bytes, (uint64_t)BLOCKS * 20 * MIB);
    ck_assert_uint_eq(sleep_calls(), 1);
    ck_assert_uint_eq(wake_calls(), 32);
    world_close(&world);
}
END_TEST

/* Those of memory and content, in their order: "cm" is a create and a map. */
static const char *order(void) {
    static const char letters[TG__OP_COUNT] = {[TG__OP_create] = 'c',  [TG__OP_map] = 'm',
                                               [TG__OP_unmap] = 'u',   [TG__OP_copy] = 'x',
                                               [TG__OP_release] = 'r', [TG__OP_reserve] = 'a'};
    static char text[64];
    size_t count, length = 0;
    const struct tg__spy_call *calls = tg__spy_calls(world.spy, &count);

    for (size_t i = 0; i < count; i++) {
        if (letters[calls[i].op] != '\0' && length + 1 < sizeof text)
            text[length++] = letters[calls[i].op];
    }
    text[length] = '\0';
    return text;
}

/* As who has all of it in chunks of 1 GiB at once: created, mapped; unmapped, released. */
START_TEST(a_tag_without_content_moves_by_the_driver_s_own_way) {
    struct tg_tag *tag;

    world_open(&world, "capacity=40GiB", true);
    tag = world_tag(&world, "a", packed);
    for (int i = 0; i < 448; i++)
        (void)world_alloc(tag, 20 * MIB);
    ck_assert_uint_eq(sleep_calls(), 1);
    ck_assert_uint_eq(wake_calls(), 9);
    ck_assert_str_eq(order(), "cccccccccmmmmmmmmm");
    ck_assert_uint_eq(sleep_calls(), 1);
    ck_assert_str_eq(order(), "urrrrrrrrr");
    world_close(&world);
}
END_TEST

/* Whatever the order in which they were opened: the link works while the rest is made. */
START_TEST(tags_with_content_wake_first) {
    static const struct tg_tag_params saved = {.backup = TG_BACKUP_HOST, .packed = 1};
    int *numbers[2];

    world_open(&world, "capacity=40GiB", true);
    (void)world_alloc(world_tag(&world, "empty", packed), 2 * GIB);
    for (int i = 0; i < 2; i++) {
        numbers[i] = world_alloc(world_tag(&world, i == 0 ? "a" : "b", saved), 20 * MIB);
        *numbers[i] = i + 5;
    }
    (void)world_alloc(world_tag(&world, "last", packed), 20 * MIB);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_str_eq(order(), "cmxcmxccmmcm");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(*numbers[i], i + 5);
    world_close(&world);
}
END_TEST

/* Of each three blocks one is gone: no chunk reaches over a hole, for it would be memory that
 * nobody has asked for. One chunk then for each run of blocks. */
START_TEST(with_holes_there_is_one_chunk_for_each_run) {
    struct tg_tag *tag;
    size_t runs = BLOCKS / 3;

    world_open(&world, "capacity=40GiB", true);
    tag = world_tag(&world, "a", packed);
    alloc_all(tag, 20 * MIB);
    if (_i == 0)
        free_thirds();
    ck_assert_uint_eq(sleep_calls(), 1);
    if (_i == 1)
        free_thirds();
    ck_assert_uint_eq(wake_calls(), runs);
    ck_assert_uint_eq(world_info(tag).device_bytes, runs * 40 * MIB);
    check_all(zero);
    ck_assert_uint_eq(sleep_calls(), runs);
    world_close(&world);
}
END_TEST

START_TEST(addresses_are_used_again) {
    struct tg_tag *tag;

    world_open(&world, "capacity=64MiB", true);
    world.memory->least_chunk_bytes = 32 * MIB;
    tag = world_tag(&world, "a", packed);
    for (int i = 0; i < 6; i++)
        blocks[i] = world_alloc(tag, 6 * MIB);
    for (int i = 0; i < 40; i++) {
        ck_assert_ok(tg_memory_free(world.memory, blocks[i % 6], NULL));
        ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
        blocks[i % 6] = world_alloc(tag, 6 * MIB);
    }
    ck_assert_uint_eq(tag->spans.count, 1);
    for (int i = 0; i < 6; i++)
        ck_assert_ok(tg_memory_free(world.memory, blocks[i], NULL));
    world_close(&world);
}
END_TEST

/* ---- growth costs nobody anything ------------------------------------------------------------ */

/* Whatever their sizes, the last block gets exactly what is left. */
START_TEST(blocks_fill_the_device_to_the_last_granule) {
    static const uint64_t mib[] = {20, 6, 62, 2, 34, 14};
    uint64_t left_mib = 4096;
    struct tg_tag *tag;

    world_open(&world, "capacity=4GiB", _i);
    tag = world_tag(&world, "a", packed);
    for (int i = 0; left_mib > 0; i++) {
        uint64_t size_mib = mib[i % 6] < left_mib ? mib[i % 6] : left_mib;

        world_alloc(tag, size_mib * MIB);
        left_mib -= size_mib;
        ck_assert_uint_ge(world_info(tag).device_bytes, (4096 - left_mib) * MIB);
    }
    ck_assert_uint_eq(world_free_bytes(&world), 0);
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * GIB);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 0);
    world_close(&world);
}
END_TEST

/* As a program does that reads what is free and takes it all. */
START_TEST(a_later_tag_gets_all_that_is_free) {
    struct tg_tag *weights, *cache;
    uint64_t free_bytes;

    world_open(&world, "capacity=4GiB", true);
    weights = world_tag(&world, "weights", packed);
    cache = world_tag(&world, "cache", packed);
    for (int i = 0; i < 70; i++)
        world_alloc(weights, 14 * MIB);
    free_bytes = world_free_bytes(&world);
    ck_assert_uint_ge(free_bytes, 4 * GIB - 980 / 8 * 9 * (uint64_t)MIB - 16 * MIB);
    for (uint64_t left = free_bytes; left > 0;) {
        uint64_t size_bytes = left > 100 * MIB ? 100 * MIB : left;

        world_alloc(cache, size_bytes);
        left -= size_bytes;
    }
    ck_assert_uint_eq(world_free_bytes(&world), 0);
    ck_assert_uint_eq(world_info(cache).device_bytes, free_bytes);
    world_close(&world);
}
END_TEST

/* A grown chunk that only limbo is in goes before an alloc is refused. */
START_TEST(a_chunk_without_blocks_makes_room) {
    struct tg_tag *tag, *other;
    void *block;
    uint64_t begin_bytes;

    world_open(&world, "capacity=1GiB,lag=40", true);
    tag = world_tag(&world, "a", packed);
    other = world_tag(&world, "b", packed);
    block = world_alloc(tag, GRANULE);
    begin_bytes = world_info(tag).device_bytes;
    ck_assert_uint_gt(begin_bytes, GRANULE);
    ck_assert_ok(tg_device_ops(world.spy)->fill(world.spy, (uintptr_t)block, 1, 100,
                                                world.memory->queue));
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, begin_bytes);
    world_alloc(other, GIB);
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    ck_assert_uint_eq(world_free_bytes(&world), 0);
    world_close(&world);
}
END_TEST

static struct tg_tag *grown_tag(const char *options) {
    struct tg_tag *tag;

    world_open(&world, options, true);
    tag = world_tag(&world, "a", packed);
    for (int i = 0; i < 32; i++) /* exactly its chunks: nothing is spare */
        blocks[i] = world_alloc(tag, 32 * MIB);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_uint_eq(spare_bytes(tag), 0);
    tg__spy_clear(world.spy);
    return tag;
}

static void check_creates(const uint64_t *mib, size_t count) {
    size_t all, found = 0;
    const struct tg__spy_call *calls = tg__spy_calls(world.spy, &all);

    for (size_t i = 0; i < all; i++) {
        if (calls[i].op != TG__OP_create)
            continue;
        ck_assert_uint_lt(found, count);
        ck_assert_uint_eq(calls[i].size_bytes, mib[found++] * MIB);
    }
    ck_assert_uint_eq(found, count);
}

START_TEST(a_chunk_shrinks_step_by_step) {
    static const int codes[] = {TG_EDEVICEMEMORY, -EFBIG};
    static const uint64_t once[] = {140, 80};
    static const uint64_t all[] = {140, 80, 40, 20};
    struct tg_tag *tag = grown_tag("capacity=2GiB");
    uint64_t free_bytes = world_free_bytes(&world);
    void *block;

    world_arm(&world, TG__OP_create, TG__FAULT_EVERY, 1, codes[_i]);
    ck_assert_int_eq(tg_tag_alloc(tag, 20 * MIB, &block), codes[_i]);
    check_creates(all, 4);
    ck_assert_uint_eq(world_free_bytes(&world), free_bytes);
    tg__spy_clear(world.spy);
    world_arm(&world, TG__OP_create, TG__FAULT_ONCE, 1, codes[_i]);
    block = world_alloc(tag, 20 * MIB);
    world_disarm(&world);
    check_creates(once, 2);
    ck_assert_ptr_eq(block, (char *)blocks[31] + 32 * MIB);
    ck_assert_uint_eq(spare_bytes(tag), 60 * MIB);
    ck_assert_ptr_eq(world_alloc(tag, 60 * MIB), (char *)block + 20 * MIB);
    world_close(&world);
}
END_TEST

/* What peers have in the ledger is no reason to fail either. */
START_TEST(what_a_peer_has_reserved_is_not_grown_into) {
    struct tg_tag *tag = grown_tag("capacity=2GiB");
    struct tg_tenant *peer = world_peer(&world, "peer");

    ck_assert_ok(tg_tenant_reserve(peer, "x", GIB - 40 * MIB, 0));
    world_alloc(tag, 20 * MIB);
    ck_assert_uint_le(world_view(&world).occupied_bytes, GIB + 40 * MIB);
    world_alloc(tag, 20 * MIB);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, GIB + 40 * MIB);
    ck_assert_int_ne(tg_tag_alloc(tag, 1, &(void *){NULL}), 0);
    tg_tenant_cancel(peer, "x", GIB - 40 * MIB);
    tg_tenant_leave(peer);
    world_close(&world);
}
END_TEST

START_TEST(a_device_that_does_not_say_what_is_free_grows_nothing) {
    static const uint64_t exact[] = {64};
    struct tg_tag *tag;

    world_open(&world, "capacity=8GiB", false);
    tag = world_tag(&world, "a", packed);
    world_alloc(tag, 960 * MIB);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    tg__spy_clear(world.spy);
    world_arm(&world, TG__OP_memory, TG__FAULT_EVERY, 1, TG_EDEVICE);
    world_alloc(tag, 2 * MIB);
    world_disarm(&world);
    check_creates(exact, 1);
    world_close(&world);
}
END_TEST

/* ---- a block over two chunks ----------------------------------------------------------------- */

START_TEST(a_block_takes_the_spare_end_with_it) {
    static const uint64_t sizes_mib[] = {4, 4};
    struct tg_tag *tag;
    char *first, *second;

    world_open(&world, "capacity=256MiB", true); /* the least chunk has 4 MiB */
    tag = world_tag(&world, "a", packed);
    first = world_alloc(tag, GRANULE);
    if (_i == 1) { /* the end was used before */
        char *used = world_alloc(tag, GRANULE);

        ck_assert_ptr_eq(used, first + GRANULE);
        content_write(used, GRANULE, 5);
        ck_assert_ok(tg_memory_free(world.memory, used, NULL));
    }
    second = world_alloc(tag, 4 * MIB);
    ck_assert_ptr_eq(second, first + GRANULE);
    check_creates(sizes_mib, 2);
    ck_assert_uint_eq(spare_bytes(tag), GRANULE);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), (size_t)_i);
    ck_assert(content_is_zero(second, 4 * MIB));
    content_write(second, 4 * MIB, 7);
    /* It goes as one, and takes its chunk with it but not its neighbour's. */
    ck_assert_ok(tg_memory_free(world.memory, second, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * MIB);
    ck_assert(content_is_zero(world_alloc(tag, GRANULE), GRANULE));
    world_close(&world);
}
END_TEST

START_TEST(what_is_not_made_leaves_the_spare_end) {
    struct tg_tag *tag;
    void *first, *second, *block;

    world_open(&world, "capacity=256MiB", true);
    tag = world_tag(&world, "a", packed);
    first = world_alloc(tag, GRANULE);
    world_arm(&world, (enum tg__op[]){TG__OP_create, TG__OP_map}[_i], TG__FAULT_EVERY, 1,
              TG_EDEVICE);
    ck_assert_int_eq(tg_tag_alloc(tag, 9 * MIB, &block), TG_EDEVICE);
    world_disarm(&world);
    ck_assert_int_eq(tg_last_error()->status, TG_EDEVICE);
    ck_assert_uint_eq(spare_bytes(tag), GRANULE);
    ck_assert_uint_eq(tag->blank.size_bytes, GRANULE);
    second = world_alloc(tag, GRANULE);
    ck_assert_ptr_eq(second, (char *)first + GRANULE);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 0);
    world_close(&world);
}
END_TEST

static void *freed_meanwhile;
static const struct tg_device_ops *real;

static int create_beside_a_free(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                                uint64_t *chunk) {
    (void)device;
    (void)size_bytes;
    (void)flags;
    (void)chunk;
    ck_assert_ok(tg_memory_free(world.memory, freed_meanwhile, NULL));
    return tg__fail(TG_EDEVICE, "no chunk today");
}

/* Then the chunk in which the spare end lies has nothing else. */
START_TEST(the_spare_end_goes_with_its_chunk) {
    struct tg_device_ops ops;
    struct tg_tag *tag;
    void *block;

    world_open(&world, "capacity=256MiB", true);
    tag = world_tag(&world, "a", packed);
    freed_meanwhile = world_alloc(tag, GRANULE);
    real = world.memory->ops;
    ops = *real;
    ops.create = create_beside_a_free;
    world.memory->ops = &ops;
    if (_i == 1)
        world_arm(&world, TG__OP_unmap, TG__FAULT_ONCE, 1, TG_EDEVICE);
    ck_assert_says(tg_tag_alloc(tag, 9 * MIB, &block), TG_EDEVICE, "no chunk today");
    world.memory->ops = real;
    world_disarm(&world);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    ck_assert_uint_eq(spare_bytes(tag), 0);
    ck_assert_uint_eq(tag->blank.size_bytes, 0);
    world_close(&world);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("growth");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_chunk_grows_by_an_eighth, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(tcase, what_is_not_to_be_had_shrinks_to_what_is_needed);
    tcase_add_test(tcase, thousands_of_blocks_are_few_chunks);
    tcase_add_test(tcase, a_tag_without_content_moves_by_the_driver_s_own_way);
    tcase_add_test(tcase, tags_with_content_wake_first);
    tcase_add_loop_test(tcase, with_holes_there_is_one_chunk_for_each_run, 0, 2);
    tcase_add_test(tcase, addresses_are_used_again);
    tcase_add_loop_test(tcase, blocks_fill_the_device_to_the_last_granule, 0, 2);
    tcase_add_test(tcase, a_later_tag_gets_all_that_is_free);
    tcase_add_test(tcase, a_chunk_without_blocks_makes_room);
    tcase_add_loop_test(tcase, a_chunk_shrinks_step_by_step, 0, 2);
    tcase_add_test(tcase, what_a_peer_has_reserved_is_not_grown_into);
    tcase_add_test(tcase, a_device_that_does_not_say_what_is_free_grows_nothing);
    tcase_add_loop_test(tcase, a_block_takes_the_spare_end_with_it, 0, 2);
    tcase_add_loop_test(tcase, what_is_not_made_leaves_the_spare_end, 0, 2);
    tcase_add_loop_test(tcase, the_spare_end_goes_with_its_chunk, 0, 2);
    return suite_run("growth", tcase);
}
