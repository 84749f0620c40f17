/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is made, touched and pinned ahead of the first sleep, while its tag is awake. */
#include "memory_world.h"

#include <stdlib.h>

#include "memory/state.h"
#include "suite.h"

static struct world world;
static const struct tg_tag_params kinds[] = {
    {.backup = TG_BACKUP_HOST},
    {.backup = TG_BACKUP_HOST, .packed = 1},
    {.backup = TG_BACKUP_HOST, .packed = 1, .keep_host = 1},
    {.backup = TG_BACKUP_HOST, .keep_host = 1, .checked = 1}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static const uint64_t sizes[] = {5, 2 * MIB, 4 * MIB + 3, 7 * MIB};

enum { BLOCKS = sizeof sizes / sizeof *sizes, ALL_BYTES = 13 * MIB + 4096 };

static void *blocks[BLOCKS];

static void write_block(struct tg_tag *tag, int number) {
    blocks[number] = world_alloc(tag, sizes[number]);
    content_write(blocks[number], sizes[number], (uint64_t)number + 1);
}

static struct tg_tag *fill(int kind) {
    struct tg_tag *tag = world_tag(&world, "a", kinds[kind]);

    for (int i = 0; i < BLOCKS; i++)
        write_block(tag, i);
    return tag;
}

static void check_content(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL)
            ck_assert(content_is(blocks[i], sizes[i], (uint64_t)i + 1));
    }
}

static void free_block(int number) {
    ck_assert_ok(tg_memory_free(world.memory, blocks[number], NULL));
    blocks[number] = NULL;
}

static int prepare(void) {
    return tg_memory_prepare(world.memory, NULL, NULL);
}

static int go_to_sleep(void) {
    return tg_memory_sleep(world.memory, NULL, 10000, NULL);
}

static void check_round(void) {
    ck_assert_ok(go_to_sleep());
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_content();
}

static void check_host_bytes(struct tg_tag *tag, uint64_t host_bytes) {
    ck_assert_uint_eq(world_info(tag).host_bytes, host_bytes);
    ck_assert_uint_eq(world_view(&world).host_bytes, host_bytes);
}

static void set_up(void) {
    content_step = 64;
    world_open(&world, "capacity=256MiB", true);
    world.memory->step_bytes = 3 * MIB;
}

static void tear_down(void) {
    world_close(&world);
}

/* ---- ahead of the sleep ---------------------------------------------------------------------- */

START_TEST(a_prepared_tag_sleeps_into_what_is_there) {
    struct tg_tag *tag = fill(_i);
    struct tg_receipt receipt;
    uint64_t size_bytes;
    const void *copy;

    ck_assert_ok(tg_memory_prepare(world.memory, "a", &receipt));
    ck_assert_uint_eq(receipt.asked_bytes, ALL_BYTES);
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_uint_eq(receipt.copied_bytes, 0);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "a");
    ck_assert_uint_eq(receipt.items[0].size_bytes, ALL_BYTES);
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 5);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_host_bytes(tag, ALL_BYTES);
    ck_assert_says(tg_memory_hostcopy(world.memory, blocks[1], &copy, &size_bytes), -ENODATA,
                   "does not sleep");
    /* What is written now is what the sleep saves. */
    content_write(blocks[3], sizes[3], 4);
    tg__spy_clear(world.spy);
    ck_assert_ok(go_to_sleep());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 0);
    check_host_bytes(tag, ALL_BYTES);
    ck_assert_ok(tg_memory_hostcopy(world.memory, blocks[3], &copy, &size_bytes));
    ck_assert(content_is(copy, size_bytes, 4));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_content();
    check_host_bytes(tag, kinds[_i].keep_host ? ALL_BYTES : 0);
}
END_TEST

START_TEST(preparing_twice_is_preparing_once) {
    struct tg_tag *tag = fill(_i);

    ck_assert_ok(prepare());
    tg__spy_clear(world.spy);
    ck_assert_ok(prepare());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 0);
    check_host_bytes(tag, ALL_BYTES);
    check_round();
    check_round();
}
END_TEST

START_TEST(what_sleeps_and_what_is_not_saved_is_passed_over) {
    struct tg_tag *tag = fill(_i), *none = world_tag(&world, "b", (struct tg_tag_params){0});
    struct tg_receipt receipt;

    world_alloc(none, GRANULE);
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 10000, NULL));
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_prepare(world.memory, NULL, &receipt));
    ck_assert_uint_eq(receipt.item_count, 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 0);
    check_host_bytes(tag, ALL_BYTES);
    ck_assert_uint_eq(world_info(none).host_bytes, 0);
    ck_assert_ok(tg_memory_wake(world.memory, "a", 0, NULL));
    check_content();
}
END_TEST

START_TEST(a_wrong_moment_or_name_is_told) {
    fill(0);
    ck_assert_int_eq(tg_memory_prepare(NULL, NULL, NULL), -EINVAL);
    ck_assert_says(tg_memory_prepare(world.memory, "a,c", NULL), -ENOENT, "c");
    ck_assert_ok(go_to_sleep());
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 0, NULL));
    ck_assert_says(prepare(), -EALREADY, "waits for its end");
    tg_memory_wake_end(world.memory, 1);
    check_content();
}
END_TEST

/* ---- blocks that come and go ----------------------------------------------------------------- */

START_TEST(freed_blocks_give_theirs_back_and_later_ones_get_it_at_the_sleep) {
    struct tg_tag *tag = fill(_i);

    ck_assert_ok(prepare());
    free_block(3);
    ck_assert_uint_le(world_info(tag).host_bytes, ALL_BYTES - 7 * MIB + 8192);
    check_host_bytes(tag, world_info(tag).host_bytes);
    write_block(tag, 3);
    check_round();
    ck_assert_ok(prepare());
    for (int i = 0; i < BLOCKS; i++)
        free_block(i);
    check_host_bytes(tag, 0);
}
END_TEST

static struct tg_device_ops meddling;
static const struct tg_device_ops *honest;
static void (*meddle)(void);

static int meddling_pin(struct tg_device *device, void *bytes, uint64_t size_bytes, int on) {
    if (on && meddle != NULL) {
        void (*now)(void) = meddle;

        meddle = NULL;
        now();
    }
    return honest->pin(device, bytes, size_bytes, on);
}

static void prepare_while(void (*what)(void)) {
    honest = world.memory->ops;
    meddling = *honest;
    meddling.pin = meddling_pin;
    meddle = what;
    world.memory->ops = &meddling;
    ck_assert_ok(prepare());
    ck_assert(meddle == NULL);
    world.memory->ops = honest;
}

static void free_most(void) {
    free_block(1);
    free_block(3);
}

static void free_all(void) {
    for (int i = 0; i < BLOCKS; i++)
        free_block(i);
}

static struct tg_tag *filled;

static void free_and_alloc(void) {
    free_block(3);
    write_block(filled, 3);
    free_block(0);
    write_block(filled, 0);
}

START_TEST(blocks_come_and_go_while_it_is_made) {
    filled = fill(_i);
    prepare_while(free_most);
    /* What two blocks left over is given back: two remain. */
    ck_assert_uint_ge(world_info(filled).host_bytes, 4 * MIB + 3);
    ck_assert_uint_le(world_info(filled).host_bytes, 4 * MIB + 8192);
    check_host_bytes(filled, world_info(filled).host_bytes);
    write_block(filled, 1);
    write_block(filled, 3);
    check_round();
    if (kinds[_i].keep_host)
        return; /* all have theirs now */
    prepare_while(free_and_alloc);
    check_round();
    prepare_while(free_all);
    check_host_bytes(filled, 0);
    ck_assert_ptr_null(filled->segments);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(what_the_node_has_not_changes_nothing) {
    struct tg_tag *tag = fill(0), *large = world_tag(&world, "b", kinds[1]);

    write_block(large, 0);
    setenv("TIDEGATE_HOST_BYTES", _i == 0 ? "1MiB" : "14MiB", 1);
    world_alloc(large, 12 * MIB);
    ck_assert_int_eq(prepare(), TG_EHOSTMEMORY);
    check_host_bytes(tag, 0);
    ck_assert_uint_eq(world_info(large).host_bytes, 0);
    unsetenv("TIDEGATE_HOST_BYTES");
    ck_assert_ok(prepare());
    check_round();
}
END_TEST

START_TEST(a_failed_sleep_keeps_what_was_prepared) {
    struct tg_tag *tag = fill(_i);

    ck_assert_ok(prepare());
    world_arm(&world, TG__OP_copy, TG__FAULT_ONCE, 2, 0);
    ck_assert_says(go_to_sleep(), TG_EDEVICE, "");
    world_disarm(&world);
    check_host_bytes(tag, ALL_BYTES);
    check_content();
    tg__spy_clear(world.spy);
    ck_assert_ok(go_to_sleep());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 0);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_content();
}
END_TEST

START_TEST(what_another_tag_does_leaves_it_alone) {
    struct tg_tag *tag = fill(_i), *other = world_tag(&world, "b", kinds[0]);

    world_alloc(other, GRANULE);
    ck_assert_ok(tg_memory_prepare(world.memory, "a", NULL));
    ck_assert_ok(tg_memory_sleep(world.memory, "b", 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_host_bytes(tag, ALL_BYTES);
    check_round();
}
END_TEST

START_TEST(a_sleep_that_drops_the_content_drops_what_was_prepared) {
    struct tg_tag *tag = fill(_i);

    ck_assert_ok(prepare());
    ck_assert_ok(tg_memory_sleep_drop(world.memory, "a", "a", 10000, NULL));
    check_host_bytes(tag, kinds[_i].keep_host ? ALL_BYTES : 0);
    ck_assert_ok(prepare()); /* it sleeps: nothing is to be made for it */
    check_host_bytes(tag, kinds[_i].keep_host ? ALL_BYTES : 0);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert(content_is_zero(blocks[3], sizes[3]));
}
END_TEST

START_TEST(what_cannot_be_pinned_is_prepared_all_the_same) {
    struct tg_tag *tag = fill(_i);

    world_arm(&world, TG__OP_pin, TG__FAULT_ONCE, 2, TG_EDEVICE);
    ck_assert_ok(prepare());
    world_disarm(&world);
    check_host_bytes(tag, ALL_BYTES);
    tg__spy_clear(world.spy);
    ck_assert_ok(go_to_sleep());
    ck_assert_uint_eq(world_calls(&world, TG__OP_pin), 1);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_content();
}
END_TEST

START_TEST(a_broken_device_prepares_nothing) {
    fill(0);
    world_arm(&world, TG__OP_pin, TG__FAULT_ONCE, 3, TG_EBROKEN);
    ck_assert_says(prepare(), TG_EBROKEN, "");
    world_disarm(&world);
    ck_assert_says(prepare(), TG_EBROKEN, "");
    check_content();
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("prepare");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, a_prepared_tag_sleeps_into_what_is_there, 0, KINDS);
    tcase_add_loop_test(tcase, preparing_twice_is_preparing_once, 0, KINDS);
    tcase_add_loop_test(tcase, what_sleeps_and_what_is_not_saved_is_passed_over, 0, KINDS);
    tcase_add_test(tcase, a_wrong_moment_or_name_is_told);
    tcase_add_loop_test(tcase, freed_blocks_give_theirs_back_and_later_ones_get_it_at_the_sleep, 0,
                        KINDS);
    tcase_add_loop_test(tcase, blocks_come_and_go_while_it_is_made, 0, KINDS);
    tcase_add_loop_test(tcase, what_the_node_has_not_changes_nothing, 0, 2);
    tcase_add_loop_test(tcase, a_failed_sleep_keeps_what_was_prepared, 0, KINDS);
    tcase_add_loop_test(tcase, what_another_tag_does_leaves_it_alone, 0, KINDS);
    tcase_add_loop_test(tcase, a_sleep_that_drops_the_content_drops_what_was_prepared, 0, KINDS);
    tcase_add_loop_test(tcase, what_cannot_be_pinned_is_prepared_all_the_same, 0, KINDS);
    tcase_add_test(tcase, a_broken_device_prepares_nothing);
    return suite_run("prepare", tcase);
}
