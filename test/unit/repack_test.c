/* SPDX-License-Identifier: Apache-2.0 */
/* Freed pieces of large chunks go back to the device; what is live stays, byte by byte, where it
 * is. */
#include <stdlib.h>

#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

enum { BLOCKS = 16, SIZE = 4 * MIB };

static struct world world;
static const struct tg_tag_params packed = {.backup = TG_BACKUP_HOST, .packed = 1};
static const struct tg_tag_params general = {.backup = TG_BACKUP_HOST};
static void *blocks[BLOCKS];

/* One chunk of 64 MiB with 16 blocks, as after a wake. */
static struct tg_tag *one_chunk(const char *name) {
    struct tg_tag *tag = world_tag(&world, name, packed);

    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = world_alloc(tag, SIZE);
    ck_assert_ok(tg_memory_sleep(world.memory, name, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, name, 0, NULL));
    ck_assert_uint_eq(tag->chunks.count, 1);
    for (int i = 0; i < BLOCKS; i++)
        content_write(blocks[i], SIZE, (uint64_t)i + 1);
    return tag;
}

static void free_block(int i) {
    ck_assert_ok(tg_memory_free(world.memory, blocks[i], NULL));
    blocks[i] = NULL;
}

static void keep_some(unsigned mask) {
    for (int i = 0; i < BLOCKS; i++) {
        if (!(mask >> i & 1))
            free_block(i);
    }
}

static void check_content(void) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL)
            ck_assert(content_is(blocks[i], SIZE, (uint64_t)i + 1));
    }
}

static void check_books(struct tg_tag *tag, uint64_t size_bytes) {
    ck_assert_uint_eq(world_info(tag).device_bytes, size_bytes);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, size_bytes);
    ck_assert_uint_eq(world_view(&world).reserved_bytes, 0);
}

static struct tg_receipt repack(const char *names) {
    struct tg_receipt receipt;

    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_repack(world.memory, names, 10000, &receipt));
    ck_assert_int_eq(receipt.status, 0);
    return receipt;
}

START_TEST(freed_pieces_go_back_and_the_rest_stays) {
    struct tg_tag *tag;
    struct tg_receipt receipt;
    void *again;

    world_open(&world, "capacity=256MiB", true);
    tag = one_chunk("a");
    keep_some(0x8182); /* blocks 1, 7 and 8, 15 */
    check_books(tag, 64 * MIB);
    receipt = repack(NULL);
    ck_assert_uint_eq(receipt.asked_bytes, 48 * MIB);
    ck_assert_uint_eq(receipt.gained_bytes, 48 * MIB);
    ck_assert_uint_eq(receipt.driver_bytes, 48 * MIB);
    ck_assert_uint_eq(receipt.copied_bytes, 16 * MIB);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "a");
    ck_assert_uint_eq(receipt.items[0].size_bytes, 48 * MIB);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 3); /* one for each run */
    ck_assert_uint_eq(world_calls(&world, TG__OP_reserve), 0);
    check_books(tag, 16 * MIB);
    ck_assert_uint_eq(world_free_bytes(&world), 240 * MIB);
    ck_assert_uint_eq(tag->spare.size_bytes, 0);
    ck_assert_uint_eq(tag->vacant.size_bytes, tag->spans.size_bytes - 16 * MIB);
    check_content();
    receipt = repack("a");
    ck_assert_uint_eq(receipt.asked_bytes + receipt.gained_bytes + receipt.copied_bytes, 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 0);
    again = world_alloc(tag, 5 * SIZE);
    ck_assert_ptr_eq(again, (char *)blocks[1] + SIZE); /* the hole between 1 and 7 */
    ck_assert(content_is_zero(again, 5 * SIZE));
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_content();
    world_close(&world);
}
END_TEST

START_TEST(nothing_is_moved_that_gains_too_little) {
    struct tg_tag *tag;

    world_open(&world, "capacity=256MiB", true);
    tag = one_chunk("a");
    for (int i = 1; i <= 3; i++) {
        free_block(i); /* 12 MiB for 52 */
        ck_assert_uint_eq(repack("a").gained_bytes, 0);
    }
    check_books(tag, 64 * MIB);
    free_block(9); /* 16 MiB for 48 */
    ck_assert_uint_eq(repack("a").gained_bytes, 16 * MIB);
    check_content();
    check_books(tag, 48 * MIB);
    world_close(&world);
}
END_TEST

START_TEST(what_sleeps_or_is_general_is_left_alone) {
    struct tg_tag *tag, *other;

    world_open(&world, "capacity=256MiB", true);
    tag = one_chunk("a");
    other = world_tag(&world, "b", general);
    world_alloc(other, SIZE);
    keep_some(1);
    ck_assert_says(tg_memory_repack(world.memory, "c", 0, NULL), -ENOENT, "no tag 'c'");
    ck_assert_int_eq(tg_memory_repack(NULL, NULL, 0, NULL), -EINVAL);
    ck_assert_uint_eq(repack("b").gained_bytes, 0);
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, NULL));
    ck_assert_uint_eq(repack(NULL).gained_bytes, 0);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_ok(tg_memory_wake_try(world.memory, "a", 0, NULL));
    ck_assert_says(tg_memory_repack(world.memory, NULL, 0, NULL), -EALREADY, "waits for its end");
    tg_memory_wake_end(world.memory, 1);
    ck_assert_uint_eq(repack(NULL).gained_bytes, 0);
    check_content();
    world_close(&world);
}
END_TEST

/* What is live in a chunk needs as much free memory for a moment; what one gives, the next has. */
START_TEST(without_room_a_chunk_stays) {
    struct tg_tag *tag, *full;
    struct tg_receipt receipt;
    void *kept, *large;

    world_open(&world, "capacity=256MiB", true);
    full = world_tag(&world, "full", general);
    tag = world_tag(&world, "a", packed);
    world.memory->least_chunk_bytes = 64 * MIB;
    large = world_alloc(tag, 20 * MIB);
    kept = world_alloc(tag, 24 * MIB);
    world_alloc(tag, 20 * MIB);
    world_alloc(tag, SIZE);
    ck_assert_ok(tg_memory_free(world.memory, large, NULL));
    content_write(kept, 24 * MIB, 3);
    world_alloc(full, (256 - 128 - 2) * MIB);
    receipt = repack(NULL);
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "stays: no room to move");
    ck_assert_uint_eq(receipt.items[0].size_bytes, 80 * MIB);
    ck_assert_uint_eq(world_info(tag).device_bytes, 128 * MIB);
    ck_assert(content_is(kept, 24 * MIB, 3));
    ck_assert_ok(tg_memory_sleep(world.memory, "full", 1000, NULL));
    world_alloc(world_tag(&world, "more", general), (256 - 128 - 4) * MIB);
    /* Room for the second chunk's 4 MiB first, whose 60 are then room for the first one's 44. */
    receipt = repack(NULL);
    ck_assert_uint_eq(receipt.gained_bytes, 80 * MIB);
    ck_assert_uint_eq(receipt.copied_bytes, 48 * MIB);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_uint_eq(tag->blank.size_bytes, 0);
    ck_assert(content_is(kept, 24 * MIB, 3));
    world_close(&world);
}
END_TEST

START_TEST(work_is_waited_for_and_else_nothing_changes) {
    const struct tg_device_ops *ops;
    struct tg_queue *queue;
    struct tg_tag *tag;

    world_open(&world, "capacity=256MiB,lag=40", true);
    ops = tg_device_ops(world.spy);
    tag = one_chunk("a");
    keep_some(1);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)blocks[0], 1, 5, queue));
    ck_assert_int_eq(tg_memory_repack(world.memory, "a", 5, NULL), TG_EBUSY);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_books(tag, 64 * MIB);
    ck_assert_uint_eq(repack("a").gained_bytes, 60 * MIB);
    content_write(blocks[0], 5, 1);
    check_content();
    ck_assert_ok(ops->queue_close(world.spy, queue));
    world_close(&world);
}
END_TEST

/* ---- what fails ------------------------------------------------------------------------------ */

START_TEST(where_small_chunks_are_not_mapped_the_large_one_is) {
    struct tg_tag *tag;

    world_open(&world, "capacity=256MiB", true);
    tag = one_chunk("a");
    keep_some(0x8182);
    world_arm(&world, TG__OP_map, TG__FAULT_ONCE, 4 + (uint64_t)_i, TG_EDEVICE);
    ck_assert_int_eq(tg_memory_repack(world.memory, NULL, 1000, NULL), TG_EDEVICE);
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_books(tag, 64 * MIB);
    check_content();
    ck_assert_uint_eq(repack(NULL).gained_bytes, 48 * MIB);
    check_content();
    world_close(&world);
}
END_TEST

START_TEST(where_nothing_is_mapped_again_the_tag_is_half_asleep) {
    struct tg_receipt receipt;
    struct tg_tag *tag;

    world_open(&world, "capacity=256MiB", true);
    tag = one_chunk("a");
    keep_some(0x8182);
    world_arm(&world, TG__OP_map, TG__FAULT_AFTER, 4 + (uint64_t)_i, TG_EDEVICE);
    ck_assert_int_eq(tg_memory_repack(world.memory, NULL, 1000, &receipt), TG_EDEVICE);
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_str_eq(receipt.items[receipt.item_count - 1].name, "stays: not mapped again");
    ck_assert_uint_eq(receipt.items[receipt.item_count - 1].size_bytes, 64 * MIB);
    check_books(tag, 64 * MIB);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_books(tag, 64 * MIB);
    check_content();
    world_close(&world);
}
END_TEST

/* ---- beside others --------------------------------------------------------------------------- */

static const struct tg_device_ops *real;
static struct tg_tag *packing;

static int copy_beside_others(struct tg_device *device, void *to, const void *from,
                              uint64_t size_bytes, struct tg_queue *queue) {
    void *block;

    ck_assert_int_eq(tg_tag_alloc(packing, 1, &block), TG_EASLEEP);
    if (blocks[7] != NULL)
        free_block(7);
    return real->copy(device, to, from, size_bytes, queue);
}

START_TEST(what_is_freed_meanwhile_goes_afterwards) {
    struct tg_device_ops ops;

    world_open(&world, "capacity=256MiB", true);
    packing = one_chunk("a");
    keep_some(0x8082);
    real = world.memory->ops;
    ops = *real;
    ops.copy = copy_beside_others;
    world.memory->ops = &ops;
    repack(NULL);
    world.memory->ops = real;
    check_books(packing, 8 * MIB);
    check_content();
    world_close(&world);
}
END_TEST

/* ---- death ----------------------------------------------------------------------------------- */

static void die_while_repacking(enum tg__fault_mode mode, uint64_t nth) {
    world_enter(&world, "capacity=256MiB");
    one_chunk("a");
    keep_some(0x8182);
    world_arm(&world, TG__OP_ANY, mode, nth, 0);
    ck_assert_ok(tg_memory_repack(world.memory, NULL, 1000, NULL));
}

START_TEST(a_death_leaves_nothing) {
    enum tg__fault_mode mode = _i == 0 ? TG__FAULT_KILL_BEFORE : TG__FAULT_KILL_AFTER;
    int deaths;

    world_open(&world, "capacity=256MiB", true);
    deaths = world_deaths(&world, world_tag(&world, "a", packed), 256 * MIB, mode,
                          die_while_repacking);
    ck_assert_int_ge(deaths, 19); /* 3 creates, copies, 6 maps, 4 unmaps, a release, fences */
    world_close(&world);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("repack");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, freed_pieces_go_back_and_the_rest_stays);
    tcase_add_test(tcase, nothing_is_moved_that_gains_too_little);
    tcase_add_test(tcase, what_sleeps_or_is_general_is_left_alone);
    tcase_add_test(tcase, without_room_a_chunk_stays);
    tcase_add_test(tcase, work_is_waited_for_and_else_nothing_changes);
    tcase_add_loop_test(tcase, where_small_chunks_are_not_mapped_the_large_one_is, 0, 3);
    tcase_add_loop_test(tcase, where_nothing_is_mapped_again_the_tag_is_half_asleep, 0, 3);
    tcase_add_test(tcase, what_is_freed_meanwhile_goes_afterwards);
    if (getenv("TIDEGATE_TEST_STANDIN") == NULL) /* a driver is no use after a fork */
        tcase_add_loop_test(tcase, a_death_leaves_nothing, 0, 2);
    return suite_run("repack", tcase);
}
