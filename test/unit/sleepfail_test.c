/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep and wake where something is in the way: what fails leaves all as it was, what stays is
 * named, and what is kept is exact. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory_world.h"
#include "suite.h"

enum { SIZE = 3 * MIB + 77 };

static struct world world;
static const struct tg_tag_params host = {.backup = TG_BACKUP_HOST};
static const struct tg_tag_params none = {0};

static void set_up(void) {
    world_open(&world, "capacity=64MiB", true);
}

static void tear_down(void) {
    world_close(&world);
}

static void *written(struct tg_tag *tag, uint64_t size_bytes, uint64_t seed) {
    void *block = world_alloc(tag, size_bytes);

    content_write(block, size_bytes, seed);
    return block;
}

static int go_to_sleep(struct tg_receipt *receipt) {
    return tg_memory_sleep(world.memory, NULL, 1000, receipt);
}

static int wake(struct tg_receipt *receipt) {
    return tg_memory_wake(world.memory, NULL, 0, receipt);
}

static const void *copy_of(void *block) {
    const void *copy;
    uint64_t size_bytes;

    ck_assert_ok(tg_memory_hostcopy(world.memory, block, &copy, &size_bytes));
    return copy;
}

/* ---- what stays ------------------------------------------------------------------------------ */

static uint64_t item(const struct tg_receipt *receipt, const char *name) {
    for (uint32_t i = 0; i < receipt->item_count; i++) {
        if (strcmp(receipt->items[i].name, name) == 0)
            return receipt->items[i].size_bytes;
    }
    return 0;
}

START_TEST(a_chunk_that_is_not_released_stays_named_and_counted) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    void *block = written(tag, SIZE, 1);
    struct tg_receipt receipt;

    world_arm(&world, TG__OP_release, TG__FAULT_EVERY, 1, 0);
    ck_assert_ok(go_to_sleep(&receipt));
    ck_assert_uint_eq(item(&receipt, "stays: not released"), 4 * MIB);
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_uint_eq(receipt.asked_bytes, 4 * MIB);
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * MIB);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    /* It wakes beside what stays, too. */
    world_disarm(&world);
    ck_assert_ok(wake(&receipt));
    ck_assert(content_is(block, SIZE, 1));
    ck_assert_uint_eq(world_info(tag).device_bytes, 4 * MIB);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
}
END_TEST

START_TEST(what_cannot_be_mapped_again_is_not_lost) {
    struct tg_tag *tags[] = {world_tag(&world, "a", host), world_tag(&world, "b", none)};
    void *blocks[] = {written(tags[0], SIZE, 1), written(tags[1], SIZE, 2)};
    struct tg_receipt receipt;
    void *block;

    /* Drain takes a fence and a wait, saving a pin, a copy, a fence and a wait; the first unmap
     * is the last call that succeeds. */
    world_arm(&world, TG__OP_ANY, TG__FAULT_AFTER, 8, 0);
    ck_assert_says(go_to_sleep(&receipt), TG_EDEVICE, "");
    world_disarm(&world);
    ck_assert_uint_eq(item(&receipt, "stays: not mapped again"), 4 * MIB);
    ck_assert_int_eq(world_info(tags[0]).state, TG_TAG_ASLEEP);
    ck_assert_int_eq(world_info(tags[1]).state, TG_TAG_AWAKE);
    ck_assert(content_is(blocks[1], SIZE, 2));
    ck_assert(content_is(copy_of(blocks[0]), SIZE, 1));
    ck_assert_says(tg_tag_alloc(tags[0], 1, &block), TG_EASLEEP, "");
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 8 * MIB);
    if (_i == 0) { /* wake brings it back */
        ck_assert_ok(wake(&receipt));
        ck_assert_uint_eq(receipt.copied_bytes, 0);
    } else if (_i == 1) { /* sleep completes it */
        ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, &receipt));
        ck_assert_uint_eq(world_info(tags[0]).device_bytes, 0);
        ck_assert_ok(wake(NULL));
    } else { /* free lets it go */
        ck_assert_ok(tg_memory_free(world.memory, blocks[0], NULL));
        ck_assert_uint_eq(world_info(tags[0]).device_bytes, 0);
        ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
        return;
    }
    ck_assert_int_eq(world_info(tags[0]).state, TG_TAG_AWAKE);
    ck_assert(content_is(blocks[0], SIZE, 1));
    ck_assert_uint_eq(world_info(tags[0]).host_bytes, 0);
}
END_TEST

/* It was to be dropped, and is half asleep: no copy was made, the content is in the chunks. The
 * next sleep may want it; one that drops it drops the copy of a failed one that saved it, too. */
START_TEST(what_was_to_be_dropped_and_stayed_can_still_be_saved) {
    static const char *const first[] = {"a,b", NULL};
    static const char *const then[] = {NULL, "a,b"};
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .packed = _i & 2, .keep_host = _i & 4};
    struct tg_tag *tags[] = {world_tag(&world, "a", params), world_tag(&world, "b", host)};
    void *blocks[] = {written(tags[0], SIZE, 1), written(tags[1], SIZE, 2)};
    int way = _i & 1;

    /* Drain takes a fence and a wait, saving two pins, two copies, a fence and a wait. */
    world_arm(&world, TG__OP_ANY, TG__FAULT_AFTER, way == 0 ? 4 : 10, 0);
    ck_assert_says(tg_memory_sleep_drop(world.memory, NULL, first[way], 1000, NULL), TG_EDEVICE,
                   "");
    world_disarm(&world);
    ck_assert_int_eq(world_info(tags[0]).state, TG_TAG_ASLEEP);
    ck_assert_uint_gt(world_info(tags[0]).device_bytes, 0);
    ck_assert_int_eq(world_info(tags[1]).state, TG_TAG_AWAKE);
    ck_assert_ok(tg_memory_sleep_drop(world.memory, NULL, then[way], 1000, NULL));
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
    ck_assert_uint_eq(world_info(tags[0]).host_bytes > 0, way == 0 || params.keep_host);
    ck_assert_ok(wake(NULL));
    for (int i = 0; i < 2; i++)
        ck_assert(way == 0 ? content_is(blocks[i], SIZE, (uint64_t)i + 1)
                           : content_is_zero(blocks[i], SIZE));
    ck_assert_uint_eq(world_view(&world).host_bytes > 0, params.keep_host != 0);
}
END_TEST

START_TEST(a_broken_device_leaves_what_was_saved_to_be_read) {
    struct tg_tag *asleep = world_tag(&world, "a", host), *awake = world_tag(&world, "b", host);
    void *blocks[] = {written(asleep, SIZE, 1), NULL}, *block;

    ck_assert_ok(go_to_sleep(NULL));
    ck_assert_ok(tg_memory_wake(world.memory, "b", 0, NULL));
    blocks[1] = written(awake, SIZE, 2);
    world_arm(&world, TG__OP_ANY, TG__FAULT_EVERY, 1, TG_EBROKEN);
    ck_assert_says(tg_memory_sleep(world.memory, "b", 1000, NULL), TG_EBROKEN, "");
    ck_assert_int_eq(world_info(awake).state, TG_TAG_BROKEN);
    ck_assert_int_eq(world_info(asleep).state, TG_TAG_BROKEN);
    ck_assert_says(tg_memory_wake(world.memory, NULL, 0, NULL), TG_EBROKEN, "failed for good");
    ck_assert_says(tg_tag_alloc(awake, 1, &block), TG_EBROKEN, "failed for good");
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
    ck_assert(content_is(copy_of(blocks[0]), SIZE, 1));
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    ck_assert_uint_eq(world_info(awake).block_count, 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
    world_disarm(&world);
}
END_TEST

/* ---- host memory ----------------------------------------------------------------------------- */

START_TEST(no_budget_leaves_all_awake) {
    struct tg_tag *tag = world_tag(&world, "a", host), *plain = world_tag(&world, "b", none);
    void *blocks[] = {written(tag, SIZE, 1), written(plain, SIZE, 2)};

    setenv("TIDEGATE_HOST_BYTES", "4096", 1);
    ck_assert_says(go_to_sleep(NULL), TG_EHOSTMEMORY, "");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    ck_assert_int_eq(world_info(plain).state, TG_TAG_AWAKE);
    ck_assert_uint_eq(world_view(&world).host_bytes, 0);
    ck_assert(content_is(blocks[0], SIZE, 1));
    ck_assert(content_is(blocks[1], SIZE, 2));
    unsetenv("TIDEGATE_HOST_BYTES");
    ck_assert_ok(go_to_sleep(NULL));
}
END_TEST

START_TEST(kept_copies_are_used_again_and_stay_exact) {
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .keep_host = 1, .packed = _i};
    struct tg_tag *tag = world_tag(&world, "a", params);
    void *blocks[4];
    const void *copies[4];
    uint64_t bytes = 0;

    for (int i = 0; i < 4; i++)
        blocks[i] = written(tag, SIZE, (uint64_t)i);
    ck_assert_ok(go_to_sleep(NULL));
    for (int i = 0; i < 4; i++)
        copies[i] = copy_of(blocks[i]);
    ck_assert_ok(wake(NULL));
    ck_assert_uint_ge(world_info(tag).host_bytes, 4 * SIZE);
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    ck_assert_uint_le(world_info(tag).host_bytes, 3 * SIZE + 3 * 4096);
    blocks[1] = written(tag, 5, 7);
    content_write(blocks[2], SIZE, 9);
    ck_assert_ok(go_to_sleep(NULL));
    ck_assert_ptr_eq(copy_of(blocks[0]), copies[0]);
    ck_assert_ptr_eq(copy_of(blocks[2]), copies[2]);
    ck_assert_ptr_eq(copy_of(blocks[3]), copies[3]);
    ck_assert(content_is(copies[2], SIZE, 9));
    ck_assert(content_is(copy_of(blocks[1]), 5, 7));
    bytes = 3 * SIZE + 5;
    ck_assert_uint_le(world_info(tag).host_bytes, bytes + bytes / 50);
    ck_assert_uint_eq(world_view(&world).host_bytes, world_info(tag).host_bytes);
    ck_assert_ok(wake(NULL));
    ck_assert(content_is(blocks[0], SIZE, 0));
    ck_assert(content_is(blocks[1], 5, 7));
    ck_assert(content_is(blocks[2], SIZE, 9));
    for (int i = 0; i < 4; i++)
        ck_assert_ok(tg_memory_free(world.memory, blocks[i], NULL));
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
}
END_TEST

START_TEST(a_wrong_byte_in_a_checked_copy_is_found) {
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .checked = 1, .packed = _i};
    struct tg_tag *tag = world_tag(&world, "a", params), *other = world_tag(&world, "b", host);
    void *blocks[] = {written(tag, SIZE, 1), written(tag, SIZE, 2), written(other, SIZE, 3)};
    unsigned char *copy;

    ck_assert_ok(go_to_sleep(NULL));
    copy = (unsigned char *)copy_of(blocks[1]);
    copy[SIZE - 1] ^= 1;
    ck_assert_says(wake(NULL), TG_ECONTENT, "tag 'a'");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_int_eq(world_info(other).state, TG_TAG_ASLEEP);
    ck_assert_uint_eq(world_free_bytes(&world), 64 * MIB);
    ck_assert(content_is(copy_of(blocks[0]), SIZE, 1));
    ck_assert(content_is(copy_of(blocks[2]), SIZE, 3));
    copy[SIZE - 1] ^= 1;
    ck_assert_ok(wake(NULL));
    for (int i = 0; i < 3; i++)
        ck_assert(content_is(blocks[i], SIZE, (uint64_t)i + 1));
}
END_TEST

/* ---- try and end ----------------------------------------------------------------------------- */

START_TEST(between_try_and_end_nothing_else_begins) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    void *block = written(tag, SIZE, 1), *other = written(tag, SIZE, 2);
    int publish = _i;

    ck_assert_ok(go_to_sleep(NULL));
    tg_memory_wake_end(world.memory, 1); /* without a try before it */
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 0, NULL));
    ck_assert_int_eq(world_info(tag).state, TG_TAG_FILLING);
    ck_assert_says(go_to_sleep(NULL), -EALREADY, "");
    ck_assert_says(wake(NULL), -EALREADY, "");
    ck_assert_says(tg_memory_wake_try(world.memory, NULL, 0, NULL), -EALREADY, "");
    ck_assert_ok(tg_memory_free(world.memory, other, NULL));
    ck_assert_says(tg_memory_free(world.memory, other, NULL), -EINVAL, "freed already");
    ck_assert_uint_eq(world_free_bytes(&world), 56 * MIB);
    tg_memory_wake_end(world.memory, publish);
    ck_assert_uint_eq(world_info(tag).block_count, 1);
    if (publish) {
        ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
        ck_assert_uint_eq(world_view(&world).asleep_bytes, 0);
        ck_assert_uint_eq(world_view(&world).occupied_bytes, 4 * MIB);
    } else {
        ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
        ck_assert_uint_eq(world_view(&world).asleep_bytes, 4 * MIB);
        ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
        ck_assert_ok(wake(NULL));
    }
    ck_assert(content_is(block, SIZE, 1));
}
END_TEST

START_TEST(a_wake_waits_for_a_foreign_program) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    void *block = written(tag, SIZE, 1);
    struct tg_receipt receipt;

    ck_assert_ok(go_to_sleep(NULL));
    world_arm(&world, TG__OP_create, TG__FAULT_ONCE, 1, 0);
    ck_assert_says(wake(&receipt), TG_EDEVICEMEMORY, "");
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    world_arm(&world, TG__OP_create, TG__FAULT_ONCE, 1, 0);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 2000, &receipt));
    ck_assert_uint_gt(receipt.wait_ns, 0);
    ck_assert(content_is(block, SIZE, 1));
}
END_TEST

/* ---- ledger, fork ---------------------------------------------------------------------------- */

START_TEST(a_lost_ledger_is_said_once_and_gone_without) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    void *block = written(tag, SIZE, 1);
    char path[128], said[512];
    int pipe_ends[2], saved = dup(2);
    ssize_t length;

    ck_assert_ok(go_to_sleep(NULL));
    snprintf(path, sizeof path, "%s/ledger", world.dir);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(pipe(pipe_ends), 0);
    dup2(pipe_ends[1], 2);
    ck_assert_ok(wake(NULL));
    ck_assert_ok(go_to_sleep(NULL));
    ck_assert_ok(wake(NULL));
    dup2(saved, 2);
    close(pipe_ends[1]);
    length = read(pipe_ends[0], said, sizeof said - 1);
    ck_assert_int_gt(length, 0);
    said[length] = 0;
    ck_assert_ptr_eq(strstr(said, "tidegate: "), said);
    ck_assert_ptr_eq(strchr(said, '\n'), said + length - 1);
    ck_assert(content_is(block, SIZE, 1));
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_uint_eq(world_free_bytes(&world), 64 * MIB);
    /* What the lost file says is nobody's business any more. */
    tg_memory_close(world.memory);
    tg_tenant_leave(world.tenant);
    tg_ledger_close(world.ledger);
    world.tenant = NULL;
    world.ledger = NULL;
    ck_assert_ok(tg_memory_open(world.spy, NULL, &world.memory));
}
END_TEST

START_TEST(a_forked_child_has_no_memory) {
    struct tg_tag *tag = world_tag(&world, "a", host);
    void *block = written(tag, SIZE, 1);
    pid_t child;
    int status;

    child = fork();
    if (child == 0) {
        void *other;
        int right = tg_tag_alloc(tag, 1, &other) == TG_EFORKED &&
                    tg_memory_free(world.memory, block, NULL) == TG_EFORKED &&
                    tg_memory_sleep(world.memory, NULL, 0, NULL) == TG_EFORKED &&
                    tg_memory_wake(world.memory, NULL, 0, NULL) == TG_EFORKED &&
                    tg_memory_wake_try(world.memory, NULL, 0, NULL) == TG_EFORKED &&
                    tg_last_error()->status == TG_EFORKED;

        tg_memory_wake_end(world.memory, 1);
        tg_memory_close(world.memory);
        _exit(right ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(go_to_sleep(NULL));
    ck_assert_ok(wake(NULL));
    ck_assert(content_is(block, SIZE, 1));
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("sleepfail");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_chunk_that_is_not_released_stays_named_and_counted);
    tcase_add_loop_test(tcase, what_cannot_be_mapped_again_is_not_lost, 0, 3);
    tcase_add_loop_test(tcase, what_was_to_be_dropped_and_stayed_can_still_be_saved, 0, 8);
    tcase_add_test(tcase, a_broken_device_leaves_what_was_saved_to_be_read);
    tcase_add_test(tcase, no_budget_leaves_all_awake);
    tcase_add_loop_test(tcase, kept_copies_are_used_again_and_stay_exact, 0, 2);
    tcase_add_loop_test(tcase, a_wrong_byte_in_a_checked_copy_is_found, 0, 2);
    tcase_add_loop_test(tcase, between_try_and_end_nothing_else_begins, 0, 2);
    tcase_add_test(tcase, a_wake_waits_for_a_foreign_program);
    tcase_add_test(tcase, a_lost_ledger_is_said_once_and_gone_without);
    tcase_add_test(tcase, a_forked_child_has_no_memory);
    return suite_run("sleepfail", tcase);
}
