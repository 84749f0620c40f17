/* SPDX-License-Identifier: Apache-2.0 */
/* Tags, blocks, sleep and wake in one process, when the device does what it is asked. */
#include "memory_world.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/state.h"
#include "suite.h"

static struct world world;
static const struct tg_tag_params none = {0};
static const struct tg_tag_params host = {.backup = TG_BACKUP_HOST};
static const struct tg_tag_params packed = {.backup = TG_BACKUP_HOST, .packed = 1};
static const struct tg_tag_params packed_none = {.packed = 1};

static void set_up(void) {
    world_open(&world, "capacity=256MiB", true);
}

static void tear_down(void) {
    world_close(&world);
}

/* ---- tags and blocks ------------------------------------------------------------------------- */

START_TEST(a_tag_is_the_same_by_its_name) {
    struct tg_tag *weights = world_tag(&world, "weights", packed), *again;
    struct tg_tag_params other = packed;

    ck_assert_ptr_eq(world_tag(&world, "weights", packed), weights);
    other.keep_host = 1;
    ck_assert_says(tg_tag_open(world.memory, "weights", &other, &again), -EEXIST, "weights");
    other.keep_host = 0;
    other.packed = 7; /* any truth is as good */
    ck_assert_ptr_eq(world_tag(&world, "weights", other), weights);
}
END_TEST

START_TEST(a_wrong_name_is_told) {
    struct tg_tag *tag = NULL;
    char name[64];

    ck_assert_says(tg_tag_open(world.memory, "", &none, &tag), -EINVAL, "empty");
    ck_assert_says(tg_tag_open(world.memory, NULL, &none, &tag), -EINVAL, "empty");
    ck_assert_says(tg_tag_open(world.memory, "kv cache", &none, &tag), -EINVAL,
                   "wrong character at 3");
    ck_assert_says(tg_tag_open(world.memory, "a,b", &none, &tag), -EINVAL, "at 2");
    ck_assert_says(tg_tag_open(world.memory, "caf\xc3\xa9", &none, &tag), -EINVAL, "at 4");
    memset(name, 'x', sizeof name);
    name[32] = 0;
    ck_assert_says(tg_tag_open(world.memory, name, &none, &tag), -EINVAL, "32 bytes");
    name[31] = 0;
    ck_assert_ok(tg_tag_open(world.memory, name, NULL, &tag));
    ck_assert_ok(tg_tag_open(world.memory, "Az_09-.x", NULL, &tag));
    ck_assert_says(tg_tag_open(world.memory, "b", &(struct tg_tag_params){.backup = 2}, &tag),
                   -EINVAL, "backup 2");
}
END_TEST

START_TEST(a_block_is_zero_and_on_a_granule) {
    struct tg_tag *tags[] = {world_tag(&world, "a", none), world_tag(&world, "b", packed_none)};

    for (int i = 0; i < 2; i++) {
        static const uint64_t sizes[] = {1, GRANULE - 1, GRANULE, GRANULE + 1, 9 * MIB};
        uint64_t size_bytes = 0;

        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            char *block = world_alloc(tags[i], sizes[j]);

            size_bytes += sizes[j];
            ck_assert_uint_eq((uintptr_t)block % GRANULE, 0);
            ck_assert(content_is_zero(block, sizes[j]));
            memset(block, 7, sizes[j]);
        }
        ck_assert_uint_eq(world_info(tags[i]).block_count, 5);
        ck_assert_uint_eq(world_info(tags[i]).size_bytes, size_bytes);
        ck_assert_uint_eq(world_info(tags[i]).device_bytes % GRANULE, 0);
        ck_assert_uint_ge(world_info(tags[i]).device_bytes, size_bytes);
    }
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 256 * MIB - world_free_bytes(&world));
}
END_TEST

START_TEST(what_is_used_again_is_zeroed_unless_the_tag_says_no) {
    struct tg_tag_params params = {.packed = 1, .fill_none = _i};
    struct tg_tag *tag = world_tag(&world, "a", params);
    void *block = world_alloc(tag, GRANULE), *again;

    world_alloc(tag, GRANULE); /* keeps the chunk */
    content_write(block, GRANULE, 1);
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    tg__spy_clear(world.spy);
    again = world_alloc(tag, GRANULE);
    ck_assert_ptr_eq(again, block);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), _i ? 0 : 1);
    if (_i)
        ck_assert(content_is(again, GRANULE, 1));
    else
        ck_assert(content_is_zero(again, GRANULE));
}
END_TEST

START_TEST(a_wrong_size_is_told) {
    struct tg_tag *tag = world_tag(&world, "a", none);
    void *block = NULL;

    ck_assert_says(tg_tag_alloc(tag, 0, &block), -EINVAL, "0 bytes");
    ck_assert_says(tg_tag_alloc(tag, 256 * MIB + 1, &block), -EINVAL, "the device has 268435456");
    ck_assert_says(tg_tag_alloc(tag, UINT64_MAX, &block), -EINVAL, "the device has");
    ck_assert_ptr_null(block);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 0);
}
END_TEST

START_TEST(small_packed_blocks_share_a_chunk) {
    struct tg_tag *tag = world_tag(&world, "a", packed);
    void *first = world_alloc(tag, 1000), *second;

    second = world_alloc(tag, GRANULE);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 1);
    ck_assert_uint_eq((uintptr_t)second, (uintptr_t)first + GRANULE);
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * MIB);
    ck_assert_ok(tg_memory_free(world.memory, first, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * MIB);
    ck_assert_ok(tg_memory_free(world.memory, second, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
}
END_TEST

START_TEST(a_chunk_falls_back_to_what_is_asked) {
    struct tg_tag *big = world_tag(&world, "big", none), *tag = world_tag(&world, "a", packed);
    void *block;

    world_alloc(big, 254 * MIB);
    world_alloc(tag, 1);
    ck_assert_uint_eq(world_free_bytes(&world), 0);
    ck_assert_says(tg_tag_alloc(tag, 1, &block), TG_ENEVERFITS, "");
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 256 * MIB);
    ck_assert_uint_eq(world_view(&world).reserved_bytes, 0);
}
END_TEST

START_TEST(what_is_no_block_is_told) {
    struct tg_tag *tag = world_tag(&world, "a", none);
    char *block = world_alloc(tag, 5 * MIB);
    int foreign;

    ck_assert_says(tg_memory_free(world.memory, &foreign, NULL), -EINVAL, "no block");
    ck_assert_says(tg_memory_free(world.memory, NULL, NULL), -EINVAL, "no block");
    ck_assert_says(tg_memory_free(world.memory, block + 1, NULL), -EINVAL, "inside the block");
    ck_assert_says(tg_memory_free(world.memory, block + 5 * MIB, NULL), -EINVAL, "inside");
    ck_assert_says(tg_memory_free(world.memory, block + 6 * MIB, NULL), -EINVAL, "no block");
    ck_assert_uint_eq(world_info(tag).block_count, 1);
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_says(tg_memory_free(world.memory, block, NULL), -EINVAL, "");
    ck_assert_uint_eq(world_info(tag).block_count, 0);
}
END_TEST

/* ---- sleep and wake -------------------------------------------------------------------------- */

enum { BLOCKS = 6 };
static const uint64_t block_bytes[BLOCKS] = {100, GRANULE, 3 * MIB + 5, 2 * GRANULE, 64, 5 * MIB};

static void fill(struct tg_tag *tag, void **blocks) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = world_alloc(tag, block_bytes[i]);
        content_write(blocks[i], block_bytes[i], (uint64_t)i);
    }
}

static void check_filled(void *const *blocks) {
    for (int i = 0; i < BLOCKS; i++)
        ck_assert(content_is(blocks[i], block_bytes[i], (uint64_t)i));
}

static void sleep_and_wake(struct tg_tag_params params) {
    struct tg_tag *tag = world_tag(&world, "a", params);
    void *blocks[BLOCKS];
    struct tg_receipt receipt;
    uint64_t device_bytes, live_bytes = 0;

    fill(tag, blocks);
    for (int i = 0; i < BLOCKS; i++)
        live_bytes += (block_bytes[i] + GRANULE - 1) / GRANULE * GRANULE;
    device_bytes = world_info(tag).device_bytes;
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, device_bytes);
    ck_assert_uint_eq(receipt.driver_bytes, device_bytes);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "a");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    ck_assert_uint_eq(world_free_bytes(&world), 256 * MIB);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, live_bytes);
    ck_assert_ok(tg_memory_wake(world.memory, "a", 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, live_bytes);
    ck_assert_uint_eq(receipt.driver_bytes, live_bytes);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, live_bytes);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, 0);
    for (int i = 0; i < BLOCKS; i++) {
        if (params.backup == TG_BACKUP_HOST)
            ck_assert(content_is(blocks[i], block_bytes[i], (uint64_t)i));
        else
            ck_assert(content_is_zero(blocks[i], block_bytes[i]));
    }
}

START_TEST(content_is_there_after_wake_and_else_zero) {
    struct tg_tag_params params = {.backup = _i & 1 ? TG_BACKUP_HOST : TG_BACKUP_NONE,
                                   .packed = _i & 2,
                                   .checked = _i & 4};
    sleep_and_wake(params);
}
END_TEST

START_TEST(sleep_and_wake_are_idempotent_in_any_order) {
    struct tg_tag *a = world_tag(&world, "a", host), *b = world_tag(&world, "b", packed);
    void *in_a[BLOCKS], *in_b[BLOCKS];

    fill(a, in_a);
    fill(b, in_b);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_ok(tg_memory_sleep(world.memory, "b", 1000, NULL));
    ck_assert_ok(tg_memory_sleep(world.memory, "a,b", 1000, NULL));
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, "a", 0, NULL));
    check_filled(in_a);
    ck_assert_int_eq(world_info(b).state, TG_TAG_ASLEEP);
    ck_assert_ok(tg_memory_wake(world.memory, "b,a", 0, NULL));
    check_filled(in_b);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_filled(in_a);
    check_filled(in_b);
}
END_TEST

/* In turn: with all content, without b's, without any, with all. */
START_TEST(what_a_sleep_drops_is_zero_and_the_rest_is_there) {
    static const char *const drops[] = {NULL, "b", "b,a", NULL};
    static const uint64_t saved[] = {2, 1, 0, 2};
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .packed = _i & 1, .keep_host = _i & 2};
    struct tg_tag *a = world_tag(&world, "a", params), *b = world_tag(&world, "b", params);
    void *in_a[BLOCKS], *in_b[BLOCKS];
    struct tg_receipt receipt;
    const void *copy;
    uint64_t size_bytes;

    fill(a, in_a);
    fill(b, in_b);
    for (int round = 0; round < 4; round++) {
        ck_assert_ok(tg_memory_sleep_drop(world.memory, "a,b", drops[round], 1000, &receipt));
        ck_assert_uint_eq(receipt.copied_bytes, saved[round] * world_info(a).size_bytes);
        ck_assert_int_eq(tg_memory_hostcopy(world.memory, in_b[0], &copy, &size_bytes),
                         drops[round] == NULL ? 0 : -ENODATA);
        ck_assert_uint_eq(world_info(b).host_bytes > 0, drops[round] == NULL || params.keep_host);
        /* What sleeps is left alone: its content is not dropped by a later call. */
        ck_assert_ok(tg_memory_sleep_drop(world.memory, "a,b", "a,b", 1000, NULL));
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
        for (int i = 0; i < BLOCKS; i++) {
            if (round != 2)
                ck_assert(content_is(in_a[i], block_bytes[i], (uint64_t)i));
            else
                ck_assert(content_is_zero(in_a[i], block_bytes[i]));
            if (drops[round] == NULL)
                ck_assert(content_is(in_b[i], block_bytes[i], (uint64_t)i));
            else
                ck_assert(content_is_zero(in_b[i], block_bytes[i]));
            content_write(in_a[i], block_bytes[i], (uint64_t)i);
            content_write(in_b[i], block_bytes[i], (uint64_t)i);
        }
    }
}
END_TEST

START_TEST(only_what_goes_to_sleep_can_be_dropped) {
    struct tg_tag *a = world_tag(&world, "a", host);

    world_tag(&world, "b", none);
    ck_assert_says(tg_memory_sleep_drop(world.memory, "a", "b", 0, NULL), -EINVAL,
                   "tag 'b' is to be dropped, and is not among those that sleep");
    ck_assert_says(tg_memory_sleep_drop(world.memory, NULL, "kv", 0, NULL), -ENOENT, "no tag 'kv'");
    ck_assert_says(tg_memory_sleep_drop(world.memory, NULL, "", 0, NULL), -EINVAL, "empty name");
    ck_assert_int_eq(world_info(a).state, TG_TAG_AWAKE);
    ck_assert_ok(tg_memory_sleep_drop(world.memory, NULL, "b", 1000, NULL));
    ck_assert_int_eq(world_info(a).state, TG_TAG_ASLEEP);
}
END_TEST

/* It sizes itself by the device's free memory. What does nothing disturbs nobody. */
START_TEST(nothing_sleeps_or_wakes_while_a_peer_starts_up) {
    struct tg_tag *a = world_tag(&world, "a", host);
    struct tg_tenant *peer = world_peer(&world, "peer");
    struct tg_tenant_note note = {.is_starting = 1};
    struct tg_receipt receipt;
    void *in_a[BLOCKS];

    fill(a, in_a);
    tg_tenant_note(peer, &note);
    ck_assert_says(tg_memory_sleep(world.memory, "a", 20, &receipt), TG_ESTARTING,
                   "peer is starting up");
    ck_assert_uint_ge(receipt.wait_ns, 20000000);
    ck_assert_int_eq(world_info(a).state, TG_TAG_AWAKE);
    ck_assert_ok(tg_memory_wake(world.memory, "a", 0, NULL));
    note.is_starting = 0;
    tg_tenant_note(peer, &note);
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, NULL));
    note.is_starting = 1;
    tg_tenant_note(peer, &note);
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 0, NULL));
    ck_assert_says(tg_memory_wake(world.memory, "a", 0, &receipt), TG_ESTARTING,
                   "peer is starting up");
    ck_assert_int_eq(world_info(a).state, TG_TAG_ASLEEP);
    tg_tenant_leave(peer);
    ck_assert_ok(tg_memory_wake(world.memory, "a", 0, NULL));
    check_filled(in_a);
}
END_TEST

START_TEST(an_unknown_tag_is_told_and_nothing_changes) {
    struct tg_tag *a = world_tag(&world, "a", host);

    ck_assert_says(tg_memory_sleep(world.memory, "a,kv", 0, NULL), -ENOENT,
                   "no tag 'kv'; there are: a");
    world_tag(&world, "b", host);
    ck_assert_says(tg_memory_wake(world.memory, "aa", 0, NULL), -ENOENT,
                   "no tag 'aa'; there are: a, b");
    ck_assert_says(tg_memory_sleep(world.memory, "a,,b", 0, NULL), -EINVAL, "empty name");
    ck_assert_says(tg_memory_sleep(world.memory, "", 0, NULL), -EINVAL, "empty name");
    ck_assert_int_eq(world_info(a).state, TG_TAG_AWAKE);
}
END_TEST

START_TEST(nothing_is_allocated_in_a_sleeping_tag) {
    struct tg_tag *tag = world_tag(&world, "a", none);
    void *block = NULL;

    ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, NULL));
    ck_assert_says(tg_tag_alloc(tag, 1, &block), TG_EASLEEP, "tag 'a' is asleep");
    ck_assert_ok(tg_memory_wake(world.memory, "a", 0, NULL));
    world_alloc(tag, 1);
}
END_TEST

/* Of the whole pages inside. */
static size_t resident_pages(const void *memory, uint64_t size_bytes) {
    uintptr_t begin = ((uintptr_t)memory + 4095) / 4096 * 4096;
    size_t count = ((uintptr_t)memory + size_bytes - begin) / 4096, resident = 0;
    unsigned char pages[2 * GRANULE / 4096];

    ck_assert_uint_le(count, sizeof pages);
    ck_assert_int_eq(mincore((void *)begin, count * 4096, pages), 0);
    for (size_t i = 0; i < count; i++)
        resident += pages[i] & 1;
    return resident;
}

START_TEST(a_sleeping_block_can_be_read_and_freed) {
    struct tg_tag *tag = world_tag(&world, "a", _i ? packed : host);
    struct tg_tag *plain = world_tag(&world, "plain", none);
    void *blocks[BLOCKS], *other = world_alloc(plain, 5);
    const void *copy = NULL, *freed = NULL;
    uint64_t size_bytes, host_bytes;

    fill(tag, blocks);
    ck_assert_says(tg_memory_hostcopy(world.memory, blocks[0], &copy, &size_bytes), -ENODATA,
                   "does not sleep");
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    for (int i = 0; i < BLOCKS; i++) {
        ck_assert_ok(tg_memory_hostcopy(world.memory, blocks[i], &copy, &size_bytes));
        ck_assert_uint_eq(size_bytes, block_bytes[i]);
        ck_assert_uint_eq((uintptr_t)copy % 64, 0);
        ck_assert(content_is(copy, size_bytes, (uint64_t)i));
    }
    ck_assert_says(tg_memory_hostcopy(world.memory, other, &copy, &size_bytes), -ENODATA,
                   "no host backup");
    ck_assert_says(tg_memory_hostcopy(world.memory, (char *)blocks[1] + 1, &copy, &size_bytes),
                   -EINVAL, "no block");
    host_bytes = world_info(tag).host_bytes;
    ck_assert_ok(tg_memory_hostcopy(world.memory, blocks[3], &freed, &size_bytes));
    ck_assert_uint_ge(resident_pages(freed, size_bytes), 2 * GRANULE / 4096 - 1);
    ck_assert_ok(tg_memory_free(world.memory, blocks[3], NULL));
    ck_assert_uint_le(world_info(tag).host_bytes, host_bytes - 2 * GRANULE + 4096);
    ck_assert_uint_eq(resident_pages(freed, 2 * GRANULE), 0);
    ck_assert_uint_eq(world_view(&world).host_bytes, world_info(tag).host_bytes);
    ck_assert_says(tg_memory_hostcopy(world.memory, blocks[3], &copy, &size_bytes), -EINVAL,
                   "no block");
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    for (int i = 0; i < BLOCKS; i++)
        ck_assert(i == 3 || content_is(blocks[i], block_bytes[i], (uint64_t)i));
    ck_assert_says(tg_memory_free(world.memory, blocks[3], NULL), -EINVAL, "no block");
}
END_TEST

START_TEST(host_memory_is_exact) {
    struct tg_tag *tag = world_tag(&world, "a", packed);
    uint64_t size_bytes = 0;

    for (uint64_t i = 1; i <= 40; i++) {
        world_alloc(tag, i * 40000 + 1);
        size_bytes += i * 40000 + 1;
    }
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_uint_ge(world_info(tag).host_bytes, size_bytes);
    ck_assert_uint_le(world_info(tag).host_bytes, size_bytes + size_bytes / 50);
    ck_assert_uint_eq(world_view(&world).host_bytes, world_info(tag).host_bytes);
}
END_TEST

START_TEST(neighbours_are_copied_as_one) {
    struct tg_tag *tag = world_tag(&world, "a", packed);

    for (int i = 0; i < 16; i++)
        world_alloc(tag, 2 * GRANULE);
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_uint_eq(world_calls(&world, TG__OP_copy), 1);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    ck_assert_uint_eq(world_calls(&world, TG__OP_copy), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fill), 0);
}
END_TEST

START_TEST(success_leaves_the_last_error_alone) {
    struct tg_tag *tag = world_tag(&world, "a", packed);
    void *block = world_alloc(tag, 5);

    ck_assert_int_lt(tg_tag_alloc(tag, 0, &block), 0);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "0 bytes"));
}
END_TEST

/* ---- what has not ended in time -------------------------------------------------------------- */

/* The same world on a device that is slower, or smaller. */
static void reopen(const char *options) {
    world_close(&world);
    world_open(&world, options, true);
}

static void wait_for_device(void) {
    const struct tg_device_ops *ops = tg_device_ops(world.spy);
    struct tg_fence fence;

    ck_assert_ok(ops->fence(world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(world.spy, &fence, 30000));
}

START_TEST(a_stuck_save_keeps_the_chunks_that_it_reads) {
    const struct tg_device_ops *ops;
    struct tg_queue *queue;
    struct tg_tag *tag;
    void *block;

    reopen("capacity=64MiB,lag=2000");
    ops = tg_device_ops(world.spy);
    tag = world_tag(&world, "a", _i ? packed : host);
    block = world_alloc(tag, GRANULE);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
    /* The first wait is for the device's work so far, the second for the copies. */
    world_arm(&world, TG__OP_wait, TG__FAULT_ONCE, 2, TG_EBUSY);
    ck_assert_int_eq(tg_memory_sleep(world.memory, NULL, 1000, NULL), TG_EBUSY);
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_ok(tg_memory_free(world.memory, block, queue));
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 0);
    wait_for_device();
    world_alloc(world_tag(&world, "b", none), 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 1);
    ck_assert_ok(ops->queue_close(world.spy, queue));
}
END_TEST

static void *alloc_one(void *tag) {
    return world_alloc(tag, GRANULE);
}

START_TEST(closing_waits_for_what_a_stuck_save_uses) {
    struct tg_queue *queue;
    struct tg_tag *tag;
    void *block;

    reopen("capacity=64MiB,lag=300");
    tag = world_tag(&world, "a", host);
    block = world_alloc(tag, GRANULE);
    ck_assert_ok(tg_device_ops(world.spy)->queue_open(world.spy, &queue));
    world_arm(&world, TG__OP_wait, TG__FAULT_ONCE, 2, TG_EBUSY);
    ck_assert_int_eq(tg_memory_sleep(world.memory, NULL, 1000, NULL), TG_EBUSY);
    world_disarm(&world);
    ck_assert_ok(tg_memory_free(world.memory, block, queue));
    ck_assert_ok(tg_device_ops(world.spy)->queue_close(world.spy, queue));
    /* world_close sees that neither the chunk nor the host copy is left. */
}
END_TEST

START_TEST(a_sleep_does_not_wait_longer_for_an_alloc_than_it_may) {
    struct tg_tag *tag;
    pthread_t thread;
    void *block;

    reopen("capacity=256MiB,lag=2000");
    tag = world_tag(&world, "a", packed);
    world_alloc(tag, GRANULE);
    ck_assert_ok(tg_memory_free(world.memory, world_alloc(tag, GRANULE), NULL));
    world_arm(&world, TG__OP_ANY, TG__FAULT_NONE, 0, 0);
    /* What was used is zeroed, which takes the device's lag. */
    ck_assert_int_eq(pthread_create(&thread, NULL, alloc_one, tag), 0);
    while (tg__fault_calls(world.fault, TG__OP_fill) == 0)
        sched_yield();
    ck_assert_says(tg_memory_sleep(world.memory, "a", 1, NULL), TG_EBUSY,
                   "tag 'a': allocations that did not end in time: 1");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_int_eq(pthread_join(thread, &block), 0);
    ck_assert(content_is_zero(block, GRANULE));
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 10000, NULL));
}
END_TEST

/* ---- after a fork ---------------------------------------------------------------------------- */

START_TEST(a_forked_child_learns_nothing_and_does_not_hang) {
    struct tg_tag *tag = world_tag(&world, "a", none);
    int status;
    pid_t child;

    world_alloc(tag, 1);
    pthread_mutex_lock(&world.memory->lock); /* as another thread may at the fork */
    child = fork();
    if (child == 0) {
        struct tg_tag_info info;

        alarm(20);
        memset(&info, 0xff, sizeof info);
        tg_tag_info(tag, &info);
        _exit(info.state == 0 && info.block_count + info.size_bytes + info.device_bytes +
                                         info.host_bytes + info.limbo_bytes == 0 ? 0 : 1);
    }
    pthread_mutex_unlock(&world.memory->lock);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_forked_child_gets_a_receipt_with_the_status_alone) {
    struct tg_receipt nothing = {.status = TG_EFORKED}, receipt;
    int status;
    pid_t child = fork();

    if (child == 0) {
        bool is_right;

        memset(&receipt, 0xff, sizeof receipt);
        is_right = tg_memory_sleep(world.memory, NULL, 0, &receipt) == TG_EFORKED;
        receipt.all_ns = 0;
        is_right = is_right && memcmp(&receipt, &nothing, sizeof receipt) == 0;
        memset(&receipt, 0xff, sizeof receipt);
        is_right = is_right &&
                   tg_memory_wake(world.memory, NULL, 0, &receipt) == TG_EFORKED;
        receipt.all_ns = 0;
        _exit(is_right && memcmp(&receipt, &nothing, sizeof receipt) == 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* ---- manners --------------------------------------------------------------------------------- */

/* Every call of the device leaves another errno, as a driver may. */
static struct tg_device_ops rude;
static const struct tg_device_ops *polite;

static int rude_fence(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence) {
    int rc = polite->fence(device, queue, fence);

    errno = EXFULL;
    return rc;
}

static int rude_memory(struct tg_device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    int rc = polite->memory(device, free_bytes, total_bytes);

    errno = EXFULL;
    return rc;
}

static int rude_map(struct tg_device *device, uint64_t addr, uint64_t chunk, uint64_t devices) {
    int rc = polite->map(device, addr, chunk, devices);

    errno = EXFULL;
    return rc;
}

static int rude_pin(struct tg_device *device, void *bytes, uint64_t size_bytes, int on) {
    int rc = polite->pin(device, bytes, size_bytes, on);

    errno = EXFULL;
    return rc;
}

static int rude_queue_close(struct tg_device *device, struct tg_queue *queue) {
    int rc = polite->queue_close(device, queue);

    errno = EXFULL;
    return rc;
}

#define ck_assert_keeps_errno(call)     \
    do {                                \
        errno = ENOTTY;                 \
        call;                           \
        ck_assert_int_eq(errno, ENOTTY); \
    } while (0)

START_TEST(errno_is_left_alone) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    struct tg_receipt receipt;
    const void *copy;
    uint64_t size_bytes;
    void *block;
    int rc;

    polite = world.memory->ops;
    rude = *polite;
    rude.fence = rude_fence;
    rude.memory = rude_memory;
    rude.map = rude_map;
    rude.pin = rude_pin;
    rude.queue_close = rude_queue_close;
    world.memory->ops = &rude;
    ck_assert_keeps_errno(rc = tg_tag_alloc(tag, 5, &block));
    ck_assert_int_eq(rc, 0);
    ck_assert_keeps_errno(rc = tg_memory_sleep(world.memory, NULL, 1000, &receipt));
    ck_assert_int_eq(rc, 0);
    ck_assert_keeps_errno(rc = tg_memory_hostcopy(world.memory, block, &copy, &size_bytes));
    ck_assert_int_eq(rc, 0);
    ck_assert_keeps_errno(rc = tg_memory_wake_try(world.memory, NULL, 1000, &receipt));
    ck_assert_int_eq(rc, 0);
    ck_assert_keeps_errno(tg_memory_wake_end(world.memory, 1));
    ck_assert_keeps_errno(rc = tg_memory_free(world.memory, block, NULL));
    ck_assert_int_eq(rc, 0);
    world_alloc(tag, 5);
    ck_assert_keeps_errno(tg_memory_close(world.memory));
    world.memory = NULL;
}
END_TEST

static int unpins_without_lock;

static int watching_pin(struct tg_device *device, void *bytes, uint64_t size_bytes, int on) {
    if (!on && pthread_mutex_trylock(&world.memory->lock) == 0) {
        unpins_without_lock++;
        pthread_mutex_unlock(&world.memory->lock);
    }
    return polite->pin(device, bytes, size_bytes, on);
}

START_TEST(a_wake_gives_host_memory_back_without_the_lock) {
    struct tg_tag *tag = world_tag(&world, "a", host);

    world_alloc(tag, GRANULE);
    polite = world.memory->ops;
    rude = *polite;
    rude.pin = watching_pin;
    world.memory->ops = &rude;
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    ck_assert_int_eq(unpins_without_lock, 1);
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    /* What cannot be given back then is tried again. */
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    world.memory->ops = polite;
    world_arm(&world, TG__OP_pin, TG__FAULT_ONCE, 2, TG_EDEVICE);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    world_disarm(&world);
    world_alloc(tag, 1);
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    ck_assert_uint_eq(world_view(&world).host_bytes, 0);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("memory");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_tag_is_the_same_by_its_name);
    tcase_add_test(tcase, a_wrong_name_is_told);
    tcase_add_test(tcase, a_block_is_zero_and_on_a_granule);
    tcase_add_loop_test(tcase, what_is_used_again_is_zeroed_unless_the_tag_says_no, 0, 2);
    tcase_add_test(tcase, a_wrong_size_is_told);
    tcase_add_test(tcase, small_packed_blocks_share_a_chunk);
    tcase_add_test(tcase, a_chunk_falls_back_to_what_is_asked);
    tcase_add_test(tcase, what_is_no_block_is_told);
    tcase_add_loop_test(tcase, content_is_there_after_wake_and_else_zero, 0, 8);
    tcase_add_test(tcase, sleep_and_wake_are_idempotent_in_any_order);
    tcase_add_loop_test(tcase, what_a_sleep_drops_is_zero_and_the_rest_is_there, 0, 4);
    tcase_add_test(tcase, only_what_goes_to_sleep_can_be_dropped);
    tcase_add_test(tcase, nothing_sleeps_or_wakes_while_a_peer_starts_up);
    tcase_add_test(tcase, an_unknown_tag_is_told_and_nothing_changes);
    tcase_add_test(tcase, nothing_is_allocated_in_a_sleeping_tag);
    tcase_add_loop_test(tcase, a_sleeping_block_can_be_read_and_freed, 0, 2);
    tcase_add_test(tcase, host_memory_is_exact);
    tcase_add_test(tcase, neighbours_are_copied_as_one);
    tcase_add_test(tcase, success_leaves_the_last_error_alone);
    tcase_add_loop_test(tcase, a_stuck_save_keeps_the_chunks_that_it_reads, 0, 2);
    tcase_add_test(tcase, closing_waits_for_what_a_stuck_save_uses);
    tcase_add_test(tcase, a_sleep_does_not_wait_longer_for_an_alloc_than_it_may);
    tcase_add_test(tcase, a_forked_child_learns_nothing_and_does_not_hang);
    tcase_add_test(tcase, a_forked_child_gets_a_receipt_with_the_status_alone);
    tcase_add_test(tcase, errno_is_left_alone);
    tcase_add_test(tcase, a_wake_gives_host_memory_back_without_the_lock);
    return suite_run("memory", tcase);
}
