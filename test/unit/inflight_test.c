/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is under way while memory comes and goes, as kernels of a training step are:
 * temporaries freed under it, what it writes after a free, a sleep in the middle of it, and another
 * tag that gets the memory next. */
#include "anonymous.h"
#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

enum { TEMPORARIES = 200, LONG_MS = 20000 };

static struct world world;
static struct tg_queue *queue;
static const struct tg_device_ops *ops;
static const struct tg_tag_params host = {.backup = TG_BACKUP_HOST};
static const struct tg_tag_params host_packed = {.backup = TG_BACKUP_HOST, .packed = 1};

static void open_world(const char *options) {
    world_open(&world, options, true);
    content_step = 64;
    ops = tg_device_ops(world.spy);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
}

/* A kernel that writes the whole block. */
static void launch(void *block, int byte, uint64_t size_bytes) {
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)block, byte, size_bytes, queue));
}

static void wait_for_all(void) {
    struct tg_fence fence;

    ck_assert_ok(ops->fence(world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(world.spy, &fence, LONG_MS));
}

static bool is_all(const unsigned char *bytes, int byte, uint64_t size_bytes) {
    return bytes[0] == byte && memcmp(bytes, bytes + 1, size_bytes - 1) == 0;
}

/* ---- freed under it -------------------------------------------------------------------------- */

static struct tg_device_ops watching;
static size_t fences_of_all, waits;

static int watching_fence(struct tg_device *device, struct tg_queue *of, struct tg_fence *fence) {
    fences_of_all += of == NULL;
    return ops->fence(device, of, fence);
}

static int watching_wait(struct tg_device *device, const struct tg_fence *fence,
                         uint32_t timeout_ms) {
    waits += timeout_ms > 0;
    return ops->wait(device, fence, timeout_ms);
}

/* Each free names the stream of its users: nobody waits, and nothing is said of other streams. */
START_TEST(two_hundred_temporaries_wait_for_no_device) {
    struct tg_tag *tag;

    open_world("capacity=512MiB,lag=2");
    tag = world_tag(&world, "temporaries", host);
    watching = *ops;
    watching.fence = watching_fence;
    watching.wait = watching_wait;
    world.memory->ops = &watching;
    for (int i = 0; i < TEMPORARIES; i++) {
        void *block = world_alloc(tag, GRANULE);

        launch(block, 1 + i % 100, GRANULE);
        ck_assert_ok(tg_memory_free(world.memory, block, queue));
    }
    ck_assert_uint_eq(fences_of_all, 0);
    ck_assert_uint_eq(waits, 0);
    world.memory->ops = ops;
    wait_for_all();
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    world_close(&world);
}
END_TEST

static const struct tg_tag_params kinds[] = {{0}, {.packed = 1}, {.packed = 1, .fill_none = 1}};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* A kernel goes on writing into a block that was freed under it. Whoever is given memory meanwhile
 * finds it zero (unless the tag does without) and keeps what it writes there. */
START_TEST(what_is_written_after_a_free_is_in_nobodys_block) {
    struct tg_tag *tag;
    void *blocks[3], *fresh[3];

    open_world("capacity=64MiB,lag=40");
    tag = world_tag(&world, "a", kinds[_i % KINDS]);
    for (int i = 0; i < 3; i++)
        blocks[i] = world_alloc(tag, 3 * MIB);
    for (int i = 0; i < 3; i++) {
        launch(blocks[i], 0xAB, 3 * MIB);
        ck_assert_ok(tg_memory_free(world.memory, blocks[i], _i < KINDS ? queue : NULL));
    }
    for (int i = 0; i < 3; i++) {
        fresh[i] = world_alloc(tag, 3 * MIB);
        ck_assert(kinds[_i % KINDS].fill_none || content_is_zero(fresh[i], 3 * MIB));
        content_write(fresh[i], 3 * MIB, (uint64_t)i);
    }
    wait_for_all();
    for (int i = 0; i < 3; i++)
        ck_assert(content_is(fresh[i], 3 * MIB, (uint64_t)i));
    world_close(&world);
}
END_TEST

/* ---- a sleep in the middle ------------------------------------------------------------------- */

START_TEST(a_sleep_under_a_kernel_that_does_not_end_is_refused) {
    struct tg_tag *tag;
    unsigned char *block;

    open_world("capacity=64MiB,hang=1");
    tag = world_tag(&world, "a", _i ? host_packed : host);
    block = world_alloc(tag, 3 * MIB);
    launch(block, 7, 3 * MIB);
    tg__spy_clear(world.spy);
    ck_assert_says(tg_memory_sleep(world.memory, NULL, 50, NULL), TG_EBUSY, "50 ms");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap) + world_calls(&world, TG__OP_copy), 0);
    block[3 * MIB - 1] = 9; /* mapped still */
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    tg_memory_close(world.memory);
    tg_tenant_leave(world.tenant);
    tg_ledger_close(world.ledger);
    tg_device_close(world.spy);
}
END_TEST

/* All that was launched before it is in the copy. */
START_TEST(a_sleep_under_a_kernel_waits_for_it) {
    struct tg_tag *tag;
    const void *copy;
    uint64_t size_bytes;
    void *block;

    open_world("capacity=64MiB,lag=50");
    tag = world_tag(&world, "a", _i ? host_packed : host);
    block = world_alloc(tag, 3 * MIB);
    for (int i = 1; i <= 4; i++)
        launch(block, i, 3 * MIB);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, LONG_MS, NULL));
    ck_assert_ok(tg_memory_hostcopy(world.memory, block, &copy, &size_bytes));
    ck_assert(is_all(copy, 4, size_bytes));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert(is_all(block, 4, 3 * MIB));
    world_close(&world);
}
END_TEST

/* ---- who gets it next ------------------------------------------------------------------------ */

/* A cache is freed under its kernels, the weights are allocated next, and then the cache's tag
 * sleeps with what is left of it: no byte of the weights goes with it. */
START_TEST(weights_that_follow_a_cache_are_not_the_caches) {
    struct tg_tag *cache, *weights;
    void *old, *rest, *block;
    int rc;

    open_world("capacity=64MiB,lag=20");
    cache = world_tag(&world, "kv_cache", kinds[0]);
    weights = world_tag(&world, "weights", _i ? host_packed : host);
    old = world_alloc(cache, 20 * MIB);
    rest = world_alloc(cache, 20 * MIB);
    launch(old, 1, 20 * MIB);
    launch(rest, 1, 20 * MIB);
    ck_assert_ok(tg_memory_free(world.memory, old, NULL));
    /* There is not so much before the cache's users have ended. */
    while (tg__is_short(rc = tg_tag_alloc(weights, 40 * MIB, &block)))
        continue;
    ck_assert_ok(rc);
    content_write(block, 40 * MIB, 5);
    ck_assert_ok(tg_memory_sleep(world.memory, "kv_cache", LONG_MS, NULL));
    ck_assert_uint_eq(world_info(cache).device_bytes, 0);
    ck_assert_int_eq(world_info(weights).state, TG_TAG_AWAKE);
    ck_assert(content_is(block, 40 * MIB, 5));
    ck_assert_ok(tg_memory_sleep(world.memory, "weights", LONG_MS, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert(content_is(block, 40 * MIB, 5));
    ck_assert(content_is_zero(rest, 20 * MIB));
    world_close(&world);
}
END_TEST

/* ---- host memory ----------------------------------------------------------------------------- */

/* By the system's own figure, over blocks that are no round numbers; and it goes with the wake. */
START_TEST(host_memory_is_a_fiftieth_more_than_content_at_most) {
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .packed = _i % 2, .keep_host = _i / 2};
    uint64_t content_bytes = 0, before, asleep, after;
    struct tg_tag *tag;

    open_world("capacity=512MiB");
    tag = world_tag(&world, "a", params);
    for (uint64_t i = 0; i < 60; i++) {
        uint64_t size_bytes = MIB + i * 37000 + 13;

        content_write(world_alloc(tag, size_bytes), size_bytes, i);
        content_bytes += size_bytes;
    }
    before = anonymous_bytes();
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, LONG_MS, NULL));
    asleep = anonymous_bytes();
    ck_assert_uint_ge(asleep - before, content_bytes);
    ck_assert_uint_le(asleep - before, content_bytes / 50 * 51);
    ck_assert_uint_le(world_info(tag).host_bytes, content_bytes / 50 * 51);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    after = anonymous_bytes();
    if (params.keep_host)
        ck_assert_uint_ge(after - before, content_bytes);
    else
        ck_assert_uint_le(after, before + content_bytes / 50);
    world_close(&world);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("inflight");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, two_hundred_temporaries_wait_for_no_device);
    tcase_add_loop_test(tcase, what_is_written_after_a_free_is_in_nobodys_block, 0, 2 * KINDS);
    tcase_add_loop_test(tcase, a_sleep_under_a_kernel_that_does_not_end_is_refused, 0, 2);
    tcase_add_loop_test(tcase, a_sleep_under_a_kernel_waits_for_it, 0, 2);
    tcase_add_loop_test(tcase, weights_that_follow_a_cache_are_not_the_caches, 0, 2);
    tcase_add_loop_test(tcase, host_memory_is_a_fiftieth_more_than_content_at_most, 0, 4);
    return suite_run("inflight", tcase);
}
