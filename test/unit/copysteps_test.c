/* SPDX-License-Identifier: Apache-2.0 */
/* What overlaps: host memory is touched, pinned and copied in steps, a wake maps and copies. Any of
 * it may be refused, and what is copied is always all. The system's madvise is between (see --wrap
 * in meson.build). */
#include "memory_world.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/error.h"
#include "memory/state.h"
#include "suite.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { STEP = 3 * MIB };

static struct world world;
static const struct tg_tag_params kinds[] = {
    {.backup = TG_BACKUP_HOST},
    {.backup = TG_BACKUP_HOST, .packed = 1},
    {.backup = TG_BACKUP_HOST, .packed = 1, .keep_host = 1},
    {.backup = TG_BACKUP_HOST, .keep_host = 1, .checked = 1}};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- pages ----------------------------------------------------------------------------------- */

static atomic_size_t touched_bytes, touches, touch_to_fail;

int __real_madvise(void *addr, size_t size, int advice);
int __wrap_madvise(void *addr, size_t size, int advice);
int __wrap_madvise(void *addr, size_t size, int advice) {
    if (advice != MADV_POPULATE_WRITE)
        return __real_madvise(addr, size, advice);
    if (atomic_fetch_add(&touches, 1) + 1 == atomic_load(&touch_to_fail)) {
        errno = ENOMEM;
        return -1;
    }
    atomic_fetch_add(&touched_bytes, size);
    return __real_madvise(addr, size, advice);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Small ones, one over several steps, and such as end inside a step. */
static const uint64_t sizes[] = {5, 2 * MIB, 4 * MIB + 3, 10 * MIB, 100, 2 * MIB - 64};

enum { BLOCKS = sizeof sizes / sizeof *sizes };

static void *blocks[BLOCKS];

static struct tg_tag *fill(int kind) {
    struct tg_tag *tag = world_tag(&world, "a", kinds[kind]);

    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = world_alloc(tag, sizes[i]);
        content_write(blocks[i], sizes[i], (uint64_t)i + 1);
    }
    return tag;
}

static void check_content(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL)
            ck_assert(content_is(blocks[i], sizes[i], (uint64_t)i + 1));
    }
}

static int go_to_sleep(void) {
    return tg_memory_sleep(world.memory, NULL, 10000, NULL);
}

static int wake(void) {
    return tg_memory_wake(world.memory, NULL, 0, NULL);
}

static void set_up(void) {
    content_step = 256;
    world_open(&world, "capacity=512MiB", true);
    world.memory->step_bytes = STEP;
    atomic_store(&touched_bytes, 0);
    atomic_store(&touches, 0);
    atomic_store(&touch_to_fail, 0);
}

static void tear_down(void) {
    world_close(&world);
}

/* ---- what overlaps --------------------------------------------------------------------------- */

static struct tg_device_ops watching;
static const struct tg_device_ops *watched;
static size_t touched_at_copy[2]; /* the first and the last */

static int watching_copy(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                         struct tg_queue *queue) {
    size_t now = atomic_load(&touched_bytes);

    touched_at_copy[0] = touched_at_copy[0] == 0 ? now : touched_at_copy[0];
    touched_at_copy[1] = now;
    return watched->copy(device, to, from, size_bytes, queue);
}

/* So little that there is no thread but the caller's: it touches no further than the next copy
 * needs. */
START_TEST(a_first_sleep_copies_before_all_is_touched) {
    struct tg_tag *tag = world_tag(&world, "a", kinds[_i]);
    void *block = world_alloc(tag, 60 * MIB);

    content_write(block, 60 * MIB, 3);
    world.memory->step_bytes = 20 * MIB;
    watched = world.memory->ops;
    watching = *watched;
    watching.copy = watching_copy;
    touched_at_copy[0] = 0;
    world.memory->ops = &watching;
    ck_assert_ok(go_to_sleep());
    world.memory->ops = watched;
    ck_assert_uint_ge(touched_at_copy[0], 20 * MIB);
    ck_assert_uint_lt(touched_at_copy[0], 60 * MIB);
    ck_assert_uint_eq(touched_at_copy[1], 60 * MIB);
    ck_assert_uint_eq(world_info(tag).host_bytes, 60 * MIB);
    ck_assert_ok(wake());
    ck_assert(content_is(block, 60 * MIB, 3));
}
END_TEST

/* Pinned and copied one step after the other, each once, none over a step's end. */
START_TEST(each_step_is_pinned_before_its_copies) {
    size_t count, pins = 0, copies = 0;
    const struct tg__spy_call *calls;

    fill(_i);
    tg__spy_clear(world.spy);
    ck_assert_ok(go_to_sleep());
    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count; i++) {
        if (calls[i].op == TG__OP_pin)
            pins++;
        if (calls[i].op != TG__OP_copy)
            continue;
        copies++;
        ck_assert_uint_ge(pins, copies == 1);
        ck_assert_uint_le(calls[i].size_bytes, STEP);
    }
    ck_assert_uint_eq(pins, (18 * MIB + STEP) / STEP);
    ck_assert_uint_gt(copies, pins - 1);
    tg__spy_clear(world.spy);
    ck_assert_ok(wake());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), kinds[_i].keep_host ? 0 : pins);
    check_content();
    ck_assert_ok(go_to_sleep());
    ck_assert_ok(wake());
    check_content();
}
END_TEST

/* Much enough for threads, where there are several processors. */
START_TEST(threads_touch_what_is_copied_meanwhile) {
    struct tg_tag *tag = world_tag(&world, "a", kinds[_i]);
    void *block = world_alloc(tag, 200 * MIB + 7);

    content_write(block, 200 * MIB + 7, 5);
    ck_assert_ok(go_to_sleep());
    ck_assert_ok(wake());
    ck_assert(content_is(block, 200 * MIB + 7, 5));
}
END_TEST

/* ---- a wake maps and copies ------------------------------------------------------------------ */

/* A hole among them: packed ones need two chunks then. Returns how many chunks it sleeps from. */
static uint64_t fall_asleep(struct tg_tag *tag) {
    ck_assert_ok(tg_memory_free(world.memory, blocks[2], NULL));
    blocks[2] = NULL;
    ck_assert_ok(go_to_sleep());
    return tag->params.packed ? 2 : BLOCKS - 1;
}

/* In order of address, and none into what is not mapped yet. */
START_TEST(a_wake_copies_before_all_is_mapped) {
    struct tg_tag *tag = fill(_i);
    uint64_t chunks = fall_asleep(tag), copied_end = 0;
    size_t count, maps = 0, copies_before_last_map = 0;
    const struct tg__spy_call *calls;

    tg__spy_clear(world.spy);
    ck_assert_ok(wake());
    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count; i++) {
        if (calls[i].op == TG__OP_copy) {
            copied_end = calls[i].addr + calls[i].size_bytes;
            copies_before_last_map += maps < chunks;
        }
        if (calls[i].op != TG__OP_map)
            continue;
        maps++;
        ck_assert_uint_ge(calls[i].addr, copied_end);
    }
    ck_assert_uint_eq(maps, chunks);
    ck_assert_uint_gt(copies_before_last_map, 0);
    check_content();
}
END_TEST

/* Of the spy's calls, whether the copies were waited for before anything was unmapped. */
static bool waits_before_it_unmaps(void) {
    const struct tg__spy_call *calls;
    size_t count;
    bool is_waiting = false;

    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count; i++) {
        if (calls[i].op == TG__OP_copy)
            is_waiting = true;
        if (calls[i].op == TG__OP_wait && calls[i].status == 0)
            is_waiting = false;
        if (calls[i].op == TG__OP_unmap && is_waiting)
            return false;
    }
    return true;
}

START_TEST(a_wake_that_lacks_its_last_chunk_waits_for_its_copies) {
    struct tg_tag *tag = fill(_i);
    uint64_t chunks = fall_asleep(tag), host_bytes = world_info(tag).host_bytes;

    tg__spy_clear(world.spy);
    world_arm(&world, TG__OP_create, TG__FAULT_ONCE, chunks, TG_EDEVICEMEMORY);
    ck_assert_says(wake(), TG_EDEVICEMEMORY, "create");
    world_disarm(&world);
    ck_assert_uint_gt(world_calls(&world, TG__OP_copy), 0);
    ck_assert(waits_before_it_unmaps());
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
    ck_assert_uint_eq(world_info(tag).host_bytes, host_bytes);
    ck_assert_ok(wake());
    check_content();
}
END_TEST

/* Whether, from the last unmap on, everything is mapped before anything is copied. */
static bool maps_all_before_it_copies(void) {
    const struct tg__spy_call *calls;
    size_t count, last_map = 0, first_copy = SIZE_MAX;

    calls = tg__spy_calls(world.spy, &count);
    for (size_t i = 0; i < count; i++) {
        if (calls[i].op == TG__OP_unmap)
            first_copy = SIZE_MAX;
        if (calls[i].op == TG__OP_map)
            last_map = i;
        if (calls[i].op == TG__OP_copy && first_copy == SIZE_MAX)
            first_copy = i;
    }
    return first_copy != SIZE_MAX && last_map < first_copy;
}

/* A foreign program had it: the first try copied for nothing, which the second does not risk. */
START_TEST(a_wake_that_is_tried_again_copies_all) {
    struct tg_tag *tag = fill(_i);
    uint64_t chunks = fall_asleep(tag);
    struct tg_receipt receipt;
    size_t copies;

    tg__spy_clear(world.spy);
    world_arm(&world, TG__OP_create, TG__FAULT_ONCE, chunks, TG_EDEVICEMEMORY);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 10000, &receipt));
    ck_assert_uint_eq(tg__fault_failed(world.fault, TG__OP_create), 1);
    world_disarm(&world);
    ck_assert(waits_before_it_unmaps());
    ck_assert(maps_all_before_it_copies());
    ck_assert_uint_eq(receipt.copied_bytes, world_info(tag).size_bytes);
    copies = world_calls(&world, TG__OP_copy);
    check_content();
    ck_assert_ok(go_to_sleep());
    tg__spy_clear(world.spy);
    ck_assert_ok(wake());
    ck_assert_uint_gt(copies, world_calls(&world, TG__OP_copy));
}
END_TEST

static uint64_t creates_left;
static bool is_stuck;

static int few_create(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                      uint64_t *chunk) {
    if (creates_left == 0)
        return tg__fail(TG_EDEVICEMEMORY, "no chunk is left");
    creates_left--;
    return watched->create(device, size_bytes, flags, chunk);
}

static int stuck_wait(struct tg_device *device, const struct tg_fence *fence, uint32_t wait_ms) {
    return is_stuck ? tg__fail(TG_EBUSY, "stuck") : watched->wait(device, fence, wait_ms);
}

START_TEST(a_stuck_copy_of_a_wake_keeps_its_chunks) {
    struct tg_tag *tag = fill(_i);
    uint64_t chunks = fall_asleep(tag);
    struct tg_fence fence;

    watched = world.memory->ops;
    watching = *watched;
    watching.create = few_create;
    watching.wait = stuck_wait;
    world.memory->ops = &watching;
    creates_left = chunks - 1;
    is_stuck = true;
    tg__spy_clear(world.spy);
    ck_assert_says(tg_memory_wake(world.memory, NULL, 1000, NULL), TG_EDEVICEMEMORY, "no chunk");
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 0);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, world_info(tag).device_bytes);
    ck_assert_uint_gt(world_info(tag).device_bytes, 0);
    creates_left = UINT64_MAX;
    ck_assert_says(wake(), TG_EBUSY, "an earlier wake");
    is_stuck = false;
    ck_assert_ok(watched->fence(world.spy, NULL, &fence));
    ck_assert_ok(watched->wait(world.spy, &fence, 10000));
    ck_assert_ok(wake());
    check_content();
    world.memory->ops = watched;
}
END_TEST

/* ---- what is given back ---------------------------------------------------------------------- */

/* Only the steps in which it lies lose their pins, and get them again at the next sleep. */
START_TEST(a_freed_block_gives_its_steps_back) {
    struct tg_tag *tag = fill(2);
    uint64_t host_bytes;

    ck_assert_ok(go_to_sleep());
    ck_assert_ok(wake());
    host_bytes = world_info(tag).host_bytes;
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    blocks[1] = NULL;
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 1);
    ck_assert_uint_lt(world_info(tag).host_bytes, host_bytes);
    ck_assert_uint_ge(world_info(tag).host_bytes, host_bytes - 2 * MIB);
    ck_assert_uint_eq(world_view(&world).host_bytes, world_info(tag).host_bytes);
    tg__spy_clear(world.spy);
    ck_assert_ok(go_to_sleep());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 1);
    ck_assert_ok(wake());
    check_content();
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static void check_awake_as_before(struct tg_tag *tag) {
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    ck_assert_uint_eq(world_view(&world).host_bytes, 0);
    check_content();
}

static void check_round(void) {
    ck_assert_ok(go_to_sleep());
    ck_assert_ok(wake());
    check_content();
}

/* Seven pieces, or more where threads share them; the last is of no step that was not asked for. */
START_TEST(a_kernel_without_pages_fails_the_sleep) {
    struct tg_tag *tag = fill(_i);
    void *large = world_alloc(tag, 150 * MIB);

    content_write(large, 150 * MIB, 9);
    for (size_t nth = 1; nth <= 11; nth++) {
        atomic_store(&touches, 0);
        atomic_store(&touch_to_fail, nth);
        ck_assert_says(go_to_sleep(), -ENOMEM, "the kernel gives no pages");
        ck_assert_uint_ge(atomic_load(&touches), nth);
        check_awake_as_before(tag);
    }
    atomic_store(&touch_to_fail, 0);
    check_round();
    ck_assert(content_is(large, 150 * MIB, 9));
}
END_TEST

START_TEST(a_step_that_is_not_pinned_is_copied_all_the_same) {
    uint64_t steps = 7;

    fill(_i);
    for (uint64_t nth = 1; nth <= steps; nth++) {
        world_arm(&world, TG__OP_pin, TG__FAULT_ONCE, nth, TG_EDEVICE);
        ck_assert_ok(go_to_sleep());
        ck_assert_uint_eq(tg__fault_failed(world.fault, TG__OP_pin), 1);
        world_disarm(&world);
        ck_assert_ok(wake());
        check_content();
        steps = kinds[_i].keep_host ? 1 : 7; /* the rest are pinned by now */
    }
}
END_TEST

START_TEST(a_broken_device_fails_at_any_step) {
    fill(0);
    world_arm(&world, TG__OP_pin, TG__FAULT_ONCE, (uint64_t)_i, TG_EBROKEN);
    ck_assert_says(go_to_sleep(), TG_EBROKEN, "");
    world_disarm(&world);
    check_content();
}
END_TEST

START_TEST(a_copy_that_fails_at_any_step_changes_nothing) {
    struct tg_tag *tag = fill(_i);
    size_t copies;

    tg__spy_clear(world.spy);
    check_round();
    copies = world_calls(&world, TG__OP_copy) / 2;
    if (kinds[_i].keep_host)
        return;
    for (size_t nth = 1; nth <= copies; nth++) {
        world_arm(&world, TG__OP_copy, TG__FAULT_ONCE, nth, 0);
        ck_assert_says(go_to_sleep(), TG_EDEVICE, "");
        world_disarm(&world);
        check_awake_as_before(tag);
        ck_assert_ok(go_to_sleep());
        world_arm(&world, TG__OP_copy, TG__FAULT_ONCE, nth, 0);
        ck_assert_says(wake(), TG_EDEVICE, "");
        world_disarm(&world);
        ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
        ck_assert_uint_eq(world_info(tag).device_bytes, 0);
        ck_assert_ok(wake());
        check_content();
    }
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("copysteps");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, a_first_sleep_copies_before_all_is_touched, 0, KINDS);
    tcase_add_loop_test(tcase, each_step_is_pinned_before_its_copies, 0, KINDS);
    tcase_add_loop_test(tcase, threads_touch_what_is_copied_meanwhile, 0, KINDS);
    tcase_add_loop_test(tcase, a_wake_copies_before_all_is_mapped, 0, KINDS);
    tcase_add_loop_test(tcase, a_wake_that_lacks_its_last_chunk_waits_for_its_copies, 0, KINDS);
    tcase_add_loop_test(tcase, a_wake_that_is_tried_again_copies_all, 0, KINDS);
    tcase_add_loop_test(tcase, a_stuck_copy_of_a_wake_keeps_its_chunks, 0, KINDS);
    tcase_add_test(tcase, a_freed_block_gives_its_steps_back);
    tcase_add_loop_test(tcase, a_kernel_without_pages_fails_the_sleep, 0, KINDS);
    tcase_add_loop_test(tcase, a_step_that_is_not_pinned_is_copied_all_the_same, 0, KINDS);
    tcase_add_loop_test(tcase, a_broken_device_fails_at_any_step, 1, 8);
    tcase_add_loop_test(tcase, a_copy_that_fails_at_any_step_changes_nothing, 0, KINDS);
    return suite_run("copysteps", tcase);
}
