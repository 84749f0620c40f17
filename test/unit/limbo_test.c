/* SPDX-License-Identifier: Apache-2.0 */
/* A freed range is touched only when the work that was given before its free has ended. */
#include <unistd.h>

#include "base/clock.h"
#include "memory_world.h"
#include "suite.h"

static struct world world;
static struct tg_queue *queue;
static const struct tg_device_ops *ops;
static const struct tg_tag_params general = {0};
static const struct tg_tag_params packed = {.packed = 1};

static void open_world(const char *options) {
    world_open(&world, options, true);
    ops = tg_device_ops(world.spy);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
}

/* One that never ends its work gives nothing back before it is closed. */
static void close_stuck(void) {
    tg_memory_close(world.memory);
    tg_tenant_leave(world.tenant);
    tg_ledger_close(world.ledger);
    tg_device_close(world.spy);
}

static void work(void *block, struct tg_queue *on) {
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)block, 1, 100, on));
}

static void wait_for_all(void) {
    struct tg_fence fence;

    ck_assert_ok(ops->fence(world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(world.spy, &fence, 10000));
}

/* Any call of the memory that changes nothing. */
static void look(void) {
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
}

START_TEST(freed_memory_stays_while_its_users_run) {
    struct tg_tag *tag;
    void *block;
    size_t count, last_wait = 0, first_unmap = 0;
    const struct tg__spy_call *calls;

    open_world("capacity=256MiB,lag=300");
    tag = world_tag(&world, "a", _i ? packed : general);
    block = world_alloc(tag, 5 * MIB);
    work(block, queue);
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_free(world.memory, block, queue));
    ck_assert_uint_eq(world_info(tag).block_count, 0);
    ck_assert_uint_eq(world_info(tag).limbo_bytes, 6 * MIB);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, world_info(tag).device_bytes);
    wait_for_all();
    look();
    ck_assert_uint_eq(world_info(tag).limbo_bytes, 0);
    ck_assert_uint_eq(world_free_bytes(&world), 256 * MIB);
    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count && first_unmap == 0; i++) {
        if (calls[i].op == TG__OP_wait && calls[i].status == 0)
            last_wait = i;
        if (calls[i].op == TG__OP_unmap)
            first_unmap = i;
    }
    ck_assert_uint_gt(first_unmap, last_wait);
    ck_assert_uint_gt(last_wait, 0);
    world_close(&world);
}
END_TEST

START_TEST(a_free_waits_for_its_own_queue_alone) {
    struct tg_tag *tag;
    struct tg_queue *other;
    void *busy, *idle;

    open_world("capacity=64MiB,lag=300");
    ck_assert_ok(ops->queue_open(world.spy, &other));
    tag = world_tag(&world, "a", general);
    busy = world_alloc(tag, 1);
    idle = world_alloc(tag, 1);
    work(busy, queue);
    ck_assert_ok(tg_memory_free(world.memory, idle, other));
    ck_assert_uint_eq(world_info(tag).limbo_bytes, 0);
    ck_assert_ok(tg_memory_free(world.memory, busy, NULL));
    ck_assert_uint_eq(world_info(tag).limbo_bytes, GRANULE);
    wait_for_all();
    world_close(&world);
}
END_TEST

START_TEST(a_free_does_not_wait) {
    struct tg_tag *tag;
    void *block;
    uint64_t began_ns;

    open_world("capacity=64MiB,lag=2000");
    tag = world_tag(&world, "a", general);
    block = world_alloc(tag, 1);
    work(block, queue);
    began_ns = tg__clock_ns();
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_uint_lt(tg__clock_ns() - began_ns, 1000 * TG__NS_PER_MS);
    wait_for_all();
    world_close(&world);
}
END_TEST

/* Three blocks in one chunk, as after a wake; the middle one was written. */
static void three_in_a_chunk(struct tg_tag *tag, void **blocks) {
    for (int i = 0; i < 3; i++) {
        blocks[i] = world_alloc(tag, GRANULE);
        memset(blocks[i], 7, GRANULE);
    }
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 10000, NULL));
    memset(blocks[1], 7, GRANULE);
}

START_TEST(settled_memory_is_taken_first_and_is_zero) {
    struct tg_tag *tag;
    void *blocks[3];

    open_world("capacity=64MiB,lag=5");
    tag = world_tag(&world, "a", packed);
    three_in_a_chunk(tag, blocks);
    work(blocks[1], queue);
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], queue));
    tg__spy_clear(world.spy);
    /* In limbo still: alloc waits for it rather than take more of the device. */
    ck_assert_ptr_eq(world_alloc(tag, 1000), blocks[1]);
    ck_assert(content_is_zero(blocks[1], GRANULE));
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 1);
    world_close(&world);
}
END_TEST

START_TEST(fill_none_takes_it_as_it_is) {
    struct tg_tag_params params = {.packed = 1, .fill_none = 1};
    struct tg_tag *tag;
    void *blocks[3];

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", params);
    three_in_a_chunk(tag, blocks);
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    tg__spy_clear(world.spy);
    ck_assert_ptr_eq(world_alloc(tag, 1000), blocks[1]);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 0);
    world_close(&world);
}
END_TEST

START_TEST(limbo_is_settled_before_the_device_is_full) {
    struct tg_tag *general_tag, *packed_tag;
    void *block;

    open_world("capacity=64MiB,lag=20");
    general_tag = world_tag(&world, "a", general);
    packed_tag = world_tag(&world, "b", packed);
    block = world_alloc(general_tag, 60 * MIB);
    work(block, queue);
    ck_assert_ok(tg_memory_free(world.memory, block, queue));
    world_alloc(packed_tag, 30 * MIB);
    ck_assert_uint_eq(world_info(general_tag).device_bytes, 0);
    world_close(&world);
}
END_TEST

/* The device has room in holes only: the block needs new addresses, in a reservation that is not
 * taken for a part of the first. */
START_TEST(blocks_lie_in_several_reservations) {
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .packed = 1};
    struct tg_tag *tag;
    const struct tg__spy_call *calls;
    uint64_t reserved_bytes = 0;
    void *blocks[32], *large;
    size_t count;

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", params);
    for (int i = 0; i < 32; i++) {
        blocks[i] = world_alloc(tag, GRANULE);
        content_write(blocks[i], GRANULE, (uint64_t)i);
    }
    for (int i = 1; i < 31; i += 2)
        ck_assert_ok(tg_memory_free(world.memory, blocks[i], NULL));
    tg__spy_clear(world.spy);
    large = world_alloc(tag, 3 * GRANULE);
    content_write(large, 3 * GRANULE, 99);
    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count; i++)
        reserved_bytes += calls[i].op == TG__OP_reserve ? calls[i].size_bytes : 0;
    /* Once, and with a granule that is never used: so nothing beside it is a neighbour. */
    ck_assert_uint_eq(reserved_bytes, 64 * MIB + GRANULE);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    for (int i = 0; i < 32; i += 2)
        ck_assert(content_is(blocks[i], GRANULE, (uint64_t)i));
    ck_assert(content_is(large, 3 * GRANULE, 99));
    world_close(&world);
}
END_TEST

START_TEST(sleep_gives_the_addresses_of_spare_memory_back) {
    struct tg_tag *tag;
    void *blocks[3];

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", packed);
    three_in_a_chunk(tag, blocks);
    for (int i = 0; i < 80; i++) {
        ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
        ck_assert_uint_eq(world_info(tag).device_bytes, 3 * GRANULE);
        ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
        ck_assert_uint_eq(world_info(tag).device_bytes, 2 * GRANULE);
        ck_assert_ptr_eq(world_alloc(tag, GRANULE), blocks[1]);
        ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    }
    ck_assert_uint_eq(world_calls(&world, TG__OP_reserve), 1);
    world_close(&world);
}
END_TEST

START_TEST(a_queue_that_is_none_is_told) {
    struct tg_tag *tag;
    void *block;

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", general);
    block = world_alloc(tag, 1);
    ck_assert_says(tg_memory_free(world.memory, block, (struct tg_queue *)&world), -EINVAL,
                   "no open queue");
    ck_assert_uint_eq(world_info(tag).block_count, 1);
    world_close(&world);
}
END_TEST

START_TEST(a_device_that_never_ends_its_work_keeps_nobody) {
    struct tg_tag *tag;
    struct tg_receipt receipt;
    void *block, *other;
    uint64_t began_ns;

    open_world("capacity=64MiB,hang=1");
    tag = world_tag(&world, "a", general);
    block = world_alloc(tag, 1000);
    other = world_alloc(tag, 1000);
    content_write(other, 1000, 5);
    work(block, queue);
    began_ns = tg__clock_ns();
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    world_alloc(tag, 1000);
    ck_assert_says(tg_memory_sleep(world.memory, "a", 50, &receipt), TG_EBUSY, "");
    ck_assert_int_eq(receipt.status, TG_EBUSY);
    ck_assert_uint_ge(receipt.drain_ns, 50 * TG__NS_PER_MS);
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_uint_lt(tg__clock_ns() - began_ns, 5000 * TG__NS_PER_MS);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert(content_is(other, 1000, 5));
    ck_assert_uint_eq(world_info(tag).limbo_bytes, GRANULE);
    close_stuck();
}
END_TEST

START_TEST(an_alloc_that_cannot_zero_gives_nothing_lost) {
    struct tg_tag *tag;
    void *blocks[3], *block;

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", packed);
    three_in_a_chunk(tag, blocks);
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    world_arm(&world, TG__OP_fill, TG__FAULT_ONCE, 1, 0);
    ck_assert_says(tg_tag_alloc(tag, 1000, &block), TG_EDEVICE, "");
    world_disarm(&world);
    ck_assert_uint_eq(world_info(tag).block_count, 2);
    ck_assert_ptr_eq(world_alloc(tag, 1000), blocks[1]);
    ck_assert(content_is_zero(blocks[1], GRANULE));
    world_close(&world);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("limbo");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, freed_memory_stays_while_its_users_run, 0, 2);
    tcase_add_test(tcase, a_free_waits_for_its_own_queue_alone);
    tcase_add_test(tcase, a_free_does_not_wait);
    tcase_add_test(tcase, settled_memory_is_taken_first_and_is_zero);
    tcase_add_test(tcase, fill_none_takes_it_as_it_is);
    tcase_add_test(tcase, limbo_is_settled_before_the_device_is_full);
    tcase_add_test(tcase, blocks_lie_in_several_reservations);
    tcase_add_test(tcase, sleep_gives_the_addresses_of_spare_memory_back);
    tcase_add_test(tcase, a_queue_that_is_none_is_told);
    tcase_add_test(tcase, a_device_that_never_ends_its_work_keeps_nobody);
    tcase_add_test(tcase, an_alloc_that_cannot_zero_gives_nothing_lost);
    return suite_run("limbo", tcase);
}
