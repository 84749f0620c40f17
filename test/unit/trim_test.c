/* SPDX-License-Identifier: Apache-2.0 */
/* Granules of blocks that nobody wants the content of go back to the device and come again; the
 * rest of the block stays, byte by byte, where it is: awake, asleep, freed, and whatever fails. */
#include <stdlib.h>

#include <tidegate/process.h>

#include "memory/page.h"
#include "memory_world.h"
#include "suite.h"

enum { SIZE = 20 * MIB, CAPACITY = 128 };

static struct world world;
static const struct tg_tag_params saved = {.backup = TG_BACKUP_HOST, .fill_none = 1};
static struct tg_tag *tag;
static char *block;

/* One segment of torch's: 20 MiB, as the preload's usual tag has it. */
static void open_block(const char *options, struct tg_tag_params params) {
    world_open(&world, options, true);
    tag = world_tag(&world, "a", params);
    block = world_alloc(tag, SIZE);
    content_write(block, SIZE, 7);
}

static void set_up(void) {
    open_block("capacity=128MiB", saved);
}

static void tear_down(void) {
    world_close(&world);
}

static struct tg_range piece(uint64_t from_mib, uint64_t size_mib) {
    return (struct tg_range){(uintptr_t)block + from_mib * MIB, size_mib * MIB};
}

/* Live are 0 to 3 and 9 to 11 MiB: of granules the first two, and that from 8 to 12. */
static const uint64_t usual[][2] = {{3, 6}, {11, 9}};
enum { USUAL_LIVE = 8, USUAL_HOLES = 12 };

static struct tg_receipt trim_usual(void) {
    struct tg_range ranges[] = {piece(usual[0][0], usual[0][1]), piece(usual[1][0], usual[1][1])};
    struct tg_receipt receipt;

    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_trim(world.memory, ranges, 2, 10000, &receipt));
    ck_assert_int_eq(receipt.status, 0);
    return receipt;
}

static struct tg_receipt refill(void) {
    struct tg_receipt receipt;

    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_refill(world.memory, 1000, &receipt));
    ck_assert_int_eq(receipt.status, 0);
    return receipt;
}

static bool is_at(uint64_t from_mib, uint64_t size_mib) {
    return content_is(block + from_mib * MIB, size_mib * MIB, 7 + from_mib * MIB);
}

static void check_live(void) {
    ck_assert(is_at(0, 4));
    ck_assert(is_at(8, 4));
}

static void check_whole(void) {
    check_live();
    ck_assert(content_is_zero(block + 4 * MIB, 4 * MIB));
    ck_assert(content_is_zero(block + 12 * MIB, 8 * MIB));
}

static void check_books(uint64_t device_mib, uint64_t asleep_mib) {
    ck_assert_uint_eq(world_info(tag).device_bytes, device_mib * MIB);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, device_mib * MIB);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, asleep_mib * MIB);
    ck_assert_uint_eq(world_view(&world).reserved_bytes, 0);
    ck_assert_uint_eq(world_free_bytes(&world), (CAPACITY - device_mib) * MIB);
}

/* ---- there and back -------------------------------------------------------------------------- */

START_TEST(what_is_free_in_a_block_goes_back_and_comes_again) {
    struct tg_receipt receipt = trim_usual();

    ck_assert_uint_eq(receipt.asked_bytes, USUAL_HOLES * MIB);
    ck_assert_uint_eq(receipt.gained_bytes, USUAL_HOLES * MIB);
    ck_assert_uint_eq(receipt.driver_bytes, USUAL_HOLES * MIB);
    ck_assert_uint_eq(receipt.copied_bytes, USUAL_LIVE * MIB);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "a");
    check_books(USUAL_LIVE, 0);
    check_live();
    ck_assert_uint_eq(world_info(tag).size_bytes, SIZE);
    ck_assert_uint_eq(world_info(tag).trimmed_bytes, USUAL_HOLES * MIB);
    receipt = refill();
    ck_assert_uint_eq(receipt.gained_bytes, USUAL_HOLES * MIB);
    ck_assert_uint_eq(receipt.copied_bytes, 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_copy), 0);
    check_books(20, 0);
    ck_assert_uint_eq(world_info(tag).trimmed_bytes, 0);
    check_whole();
    ck_assert_uint_eq(refill().gained_bytes, 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 0);
}
END_TEST

/* What a card is asked for is by the live run, whatever lies between. */
START_TEST(each_live_run_costs_so_many_calls) {
    trim_usual();
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_map), 2 * 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_copy), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 2 + 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_reserve), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unreserve), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_release), 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fence), 2); /* the drain, the copies */
}
END_TEST

static size_t all_calls(void) {
    size_t count;

    tg__spy_calls(world.spy, &count);
    return count;
}

START_TEST(the_tenth_trim_is_as_the_first) {
    size_t calls = 0;

    for (int i = 0; i < 10; i++) {
        struct tg_receipt receipt = trim_usual();

        ck_assert_uint_eq(receipt.gained_bytes, USUAL_HOLES * MIB);
        ck_assert_uint_eq(receipt.copied_bytes, i == 0 ? USUAL_LIVE * MIB : 0);
        if (i == 0)
            calls = all_calls();
        ck_assert_uint_le(all_calls(), calls);
        check_books(USUAL_LIVE, 0);
        check_live();
        ck_assert_uint_eq(refill().gained_bytes, USUAL_HOLES * MIB);
        check_whole();
    }
}
END_TEST

START_TEST(a_trimmed_block_is_trimmed_further) {
    struct tg_range more = piece(0, 3), all = piece(0, 20);
    struct tg_receipt receipt;

    trim_usual();
    ck_assert_uint_eq(trim_usual().gained_bytes, 0);
    ck_assert_ok(tg_memory_trim(world.memory, &more, 1, 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, 2 * MIB);
    check_books(USUAL_LIVE - 2, 0);
    ck_assert(is_at(2, 2));
    ck_assert(is_at(8, 4));
    ck_assert_ok(tg_memory_trim(world.memory, &all, 1, 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, 6 * MIB);
    ck_assert_uint_eq(receipt.copied_bytes, 0);
    check_books(0, 0);
    ck_assert_uint_eq(refill().gained_bytes, 20 * MIB);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 1);
    ck_assert(content_is_zero(block, SIZE));
}
END_TEST

START_TEST(nothing_is_moved_that_gains_too_little) {
    struct tg_range little = piece(4, 2), enough = piece(4, 4);
    struct tg_receipt receipt;

    ck_assert_ok(tg_memory_trim(world.memory, &little, 1, 1000, &receipt)); /* for 18 */
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    check_books(20, 0);
    ck_assert_ok(tg_memory_trim(world.memory, &enough, 1, 1000, &receipt)); /* for 16 */
    ck_assert_uint_eq(receipt.gained_bytes, 4 * MIB);
    ck_assert(is_at(0, 4));
    ck_assert(is_at(8, 12));
}
END_TEST

/* ---- which ranges ---------------------------------------------------------------------------- */

START_TEST(what_is_not_inside_a_block_changes_nothing) {
    char *other = world_alloc(tag, 3 * MIB);
    struct tg_range beyond[] = {piece(3, 6), piece(11, 10)}, order[] = {piece(11, 9), piece(3, 6)},
                    overlap[] = {piece(3, 6), piece(8, 10)}, empty = {(uintptr_t)block, 0},
                    nowhere = {GRANULE, GRANULE}, huge = {(uintptr_t)block, UINT64_MAX},
                    slack = {(uintptr_t)other, 4 * MIB}; /* of them 1 MiB is nobody's */
    struct {
        const struct tg_range *ranges;
        size_t count;
        const char *words;
    } bad[] = {{beyond, 2, "has 9437184"},     {order, 2, "begins before"},
               {overlap, 2, "begins before"},  {&empty, 1, "0 bytes"},
               {&nowhere, 1, "in no block"},   {&huge, 1, "not inside"},
               {&slack, 1, "not inside"},      {NULL, 3, "NULL"}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tg__spy_clear(world.spy);
        ck_assert_says(tg_memory_trim(world.memory, bad[i].ranges, bad[i].count, 0, NULL), -EINVAL,
                       bad[i].words);
        ck_assert_uint_eq(world_calls(&world, TG__OP_fence), 0);
    }
    ck_assert_int_eq(tg_memory_trim(NULL, beyond, 1, 0, NULL), -EINVAL);
    ck_assert_int_eq(tg_memory_refill(NULL, 0, NULL), -EINVAL);
    ck_assert_ok(tg_memory_trim(world.memory, NULL, 0, 0, NULL));
    check_books(24, 0);
    ck_assert(is_at(0, 20));
}
END_TEST

static void check_left(uint64_t addr, uint64_t size_bytes) {
    struct tg_range range = {addr, size_bytes};
    struct tg_receipt receipt;

    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_trim(world.memory, &range, 1, 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_uint_eq(receipt.item_count, 1);
    ck_assert_str_eq(receipt.items[0].name, "stays: cannot be trimmed");
    ck_assert_uint_eq(receipt.items[0].size_bytes, size_bytes);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 0);
}

START_TEST(packed_blocks_pages_and_sleepers_are_left_alone) {
    struct tg_tag *packed = world_tag(&world, "p", (struct tg_tag_params){.packed = 1});
    char *other = world_alloc(packed, 8 * MIB);
    uint64_t estate, page;

    ck_assert_ok(tg__estate_reserve(world.memory, 8 * GRANULE, &estate));
    ck_assert_ok(tg__page_create(tag, 4 * GRANULE, 0, &page));
    ck_assert_ok(tg__page_map(world.memory, page, (struct tg__range){estate, 4 * GRANULE}));
    check_left((uintptr_t)other, 4 * MIB);
    check_left(estate, 2 * GRANULE);
    ck_assert_ok(tg_memory_sleep(world.memory, "a", 1000, NULL));
    check_left((uintptr_t)block, 6 * MIB);
    ck_assert_ok(tg_memory_wake_try(world.memory, "a", 0, NULL));
    ck_assert_says(tg_memory_trim(world.memory, NULL, 0, 0, NULL), -EALREADY, "waits for its end");
    ck_assert_says(tg_memory_refill(world.memory, 0, NULL), -EALREADY, "waits for its end");
    tg_memory_wake_end(world.memory, 1);
    ck_assert(is_at(0, 20));
}
END_TEST

/* ---- a trimmed block in every state ---------------------------------------------------------- */

START_TEST(a_sleep_saves_what_is_left_and_the_wake_brings_all_back) {
    const void *copy;
    uint64_t size_bytes;
    char *other = world_alloc(tag, 6 * MIB);

    content_write(other, 6 * MIB, 9);
    trim_usual();
    check_books(USUAL_LIVE + 6, 0);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    check_books(0, 26);
    ck_assert_uint_eq(world_info(tag).host_bytes, (USUAL_LIVE + 6) * MIB);
    ck_assert_says(tg_memory_hostcopy(world.memory, block, &copy, &size_bytes), -ENODATA,
                   "trimmed");
    ck_assert_ok(tg_memory_hostcopy(world.memory, other, &copy, &size_bytes));
    ck_assert(content_is(copy, 6 * MIB, 9));
    ck_assert_says(tg_memory_refill(world.memory, 0, NULL), TG_EASLEEP,
                   "'a' was trimmed and sleeps");
    tg__spy_clear(world.spy);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 2); /* one for each block again */
    check_books(26, 0);
    check_whole();
    ck_assert(content_is(other, 6 * MIB, 9));
    ck_assert_uint_eq(refill().gained_bytes, 0);
    ck_assert_uint_eq(trim_usual().gained_bytes, USUAL_HOLES * MIB);
}
END_TEST

START_TEST(a_wake_that_goes_back_leaves_it_trimmed_and_saved) {
    trim_usual();
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 0, NULL));
    tg_memory_wake_end(world.memory, 0);
    check_books(0, 20);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_whole();
}
END_TEST

/* Host memory is for what a block has at its sleep, whenever it was made. */
START_TEST(prepared_kept_and_checked_copies_follow) {
    struct tg_tag_params params = saved;

    tear_down();
    params.keep_host = params.checked = 1;
    open_block("capacity=128MiB", params);
    for (int round = 0; round < 2; round++) {
        ck_assert_ok(tg_memory_prepare(world.memory, NULL, NULL));
        ck_assert_uint_eq(world_info(tag).host_bytes, 20 * MIB);
        trim_usual();
        ck_assert_uint_eq(world_info(tag).host_bytes, 0);
        ck_assert_ok(tg_memory_prepare(world.memory, NULL, NULL));
        ck_assert_uint_eq(world_info(tag).host_bytes, USUAL_LIVE * MIB);
        ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
        ck_assert_uint_eq(world_info(tag).host_bytes, USUAL_LIVE * MIB);
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
        ck_assert_uint_eq(world_info(tag).host_bytes, 0);
        check_whole();
    }
    trim_usual();
    ck_assert_ok(tg_memory_prepare(world.memory, NULL, NULL));
    refill();
    ck_assert_uint_eq(world_info(tag).host_bytes, 0);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_uint_eq(world_info(tag).host_bytes, 20 * MIB);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_whole();
}
END_TEST

START_TEST(a_trimmed_block_is_freed_in_every_state) {
    for (int state = 0; state < 3; state++) {
        if (state == 1) { /* where it begins there is no chunk */
            struct tg_range all = piece(0, 20);

            ck_assert_ok(tg_memory_trim(world.memory, &all, 1, 1000, NULL));
        }
        trim_usual();
        if (state == 2)
            ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
        tg__spy_clear(world.spy);
        ck_assert_ok(tg_memory_free(world.memory, block, NULL));
        check_books(0, 0);
        ck_assert_uint_eq(world_calls(&world, TG__OP_unreserve), 1);
        ck_assert_uint_eq(world_info(tag).trimmed_bytes, 0);
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
        ck_assert_uint_eq(refill().gained_bytes, 0);
        block = world_alloc(tag, SIZE);
        content_write(block, SIZE, 7);
    }
}
END_TEST

START_TEST(addresses_go_when_the_last_chunk_has) {
    trim_usual();
    world_arm(&world, TG__OP_unmap, TG__FAULT_ONCE, 2, TG_EDEVICE);
    ck_assert_ok(tg_memory_free(world.memory, block, NULL)); /* which tidies, so all has gone */
    world_disarm(&world);
    world_alloc(tag, GRANULE);
    check_books(2, 0);
    ck_assert_ptr_null(world.memory->limbo);
    ck_assert_ptr_null(world.memory->leaving);
}
END_TEST

/* ---- memory that is wanted ------------------------------------------------------------------- */

START_TEST(a_refill_that_lacks_memory_changes_nothing) {
    struct tg_tenant *peer = world_peer(&world, "peer");
    uint64_t others = (CAPACITY - USUAL_LIVE - USUAL_HOLES + 2) * MIB;
    struct tg_memory *theirs;
    struct tg_tag *their_tag;
    void *their_block;

    trim_usual();
    ck_assert_ok(tg_memory_open(world.spy, peer, &theirs));
    ck_assert_ok(tg_tag_open(theirs, "cache", NULL, &their_tag));
    ck_assert_ok(tg_tag_alloc(their_tag, others, &their_block));
    ck_assert_says(tg_memory_refill(world.memory, 0, NULL), TG_ENOFIT, "peer");
    ck_assert_uint_eq(world_info(tag).device_bytes, USUAL_LIVE * MIB);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_live();
    ck_assert_ok(tg_memory_sleep(theirs, NULL, 1000, NULL));
    ck_assert_uint_eq(refill().gained_bytes, USUAL_HOLES * MIB);
    check_whole();
    tg_memory_close(theirs);
    tg_tenant_leave(peer);
}
END_TEST

/* A move needs as much free memory as lives in the chunk, which another chunk may give. */
START_TEST(without_room_a_chunk_stays) {
    struct tg_range both[3];
    struct tg_receipt receipt;
    char *full;

    /* Mostly later addresses are lower: then the one without room comes first. */
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    full = world_alloc(tag, (CAPACITY - 20 - USUAL_LIVE + 2) * MIB);
    block = world_alloc(tag, SIZE);
    content_write(block, SIZE, 7);
    both[0] = piece(3, 6);
    both[1] = piece(11, 9);
    both[2] = (struct tg_range){(uintptr_t)full, world_info(tag).size_bytes - SIZE};
    receipt = trim_usual();
    ck_assert_uint_eq(receipt.gained_bytes, 0);
    ck_assert_str_eq(receipt.items[0].name, "stays: no room to move");
    ck_assert_uint_eq(receipt.items[0].size_bytes, USUAL_HOLES * MIB);
    ck_assert(is_at(0, 20));
    if (full < block) {
        struct tg_range last = both[2];

        both[2] = both[1];
        both[1] = both[0];
        both[0] = last;
    }
    ck_assert_ok(tg_memory_trim(world.memory, both, 3, 1000, &receipt));
    ck_assert_uint_eq(receipt.gained_bytes, (CAPACITY - 2 * USUAL_LIVE + 2) * MIB);
    check_live();
}
END_TEST

START_TEST(work_is_waited_for_and_else_nothing_changes) {
    struct tg_range range = piece(4, 16);
    const struct tg_device_ops *ops;
    struct tg_queue *queue;

    tear_down();
    open_block("capacity=128MiB,lag=40", saved);
    ops = tg_device_ops(world.spy);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)block, 1, 5, queue));
    ck_assert_int_eq(tg_memory_trim(world.memory, &range, 1, 5, NULL), TG_EBUSY);
    check_books(20, 0);
    ck_assert_ok(tg_memory_trim(world.memory, &range, 1, 10000, NULL));
    check_books(4, 0);
    ck_assert(block[0] == 1 && block[4] == 1);
    world_arm(&world, TG__OP_fence, TG__FAULT_ONCE, 1, TG_ECAPTURE);
    ck_assert_int_eq(tg_memory_trim(world.memory, &range, 1, 1000, NULL), TG_ECAPTURE);
    world_disarm(&world);
    check_books(4, 0);
    ck_assert_ok(ops->queue_close(world.spy, queue));
}
END_TEST

/* Known before anything is asked of the device, which would end the capture. */
START_TEST(a_capture_is_told_and_not_harmed) {
    static int captures = 1;
    struct tg_range range = piece(4, 16);

    tg_process_captures(&captures);
    tg__spy_clear(world.spy);
    ck_assert_int_eq(tg_memory_trim(world.memory, &range, 1, 1000, NULL), TG_ECAPTURE);
    ck_assert_int_eq(tg_memory_trim(world.memory, NULL, 0, 1000, NULL), TG_ECAPTURE);
    ck_assert_uint_eq(world_calls(&world, TG__OP_fence), 0);
    captures = 0;
    ck_assert_ok(tg_memory_trim(world.memory, &range, 1, 1000, NULL));
    tg_process_captures(NULL);
    check_books(4, 0);
}
END_TEST

/* ---- beside others --------------------------------------------------------------------------- */

static const struct tg_device_ops *real;
static char *freed;

static int beside_others(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                         struct tg_queue *queue) {
    void *none;

    ck_assert_int_eq(tg_tag_alloc(tag, 1, &none), TG_EASLEEP);
    if (freed != NULL)
        ck_assert_ok(tg_memory_free(world.memory, freed, NULL));
    freed = NULL;
    return real->copy(device, to, from, size_bytes, queue);
}

START_TEST(what_is_freed_meanwhile_goes_afterwards) {
    struct tg_device_ops ops;

    freed = block;
    real = world.memory->ops;
    ops = *real;
    ops.copy = beside_others;
    world.memory->ops = &ops;
    trim_usual();
    world.memory->ops = real;
    check_books(0, 0);
    ck_assert_uint_eq(tag->hole_bytes, 0);
}
END_TEST

/* Freed, and its addresses given to another, between the call's beginning and the still tags. */
static int exchange_it(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence) {
    int rc = real->fence(device, queue, fence);

    if (freed != NULL) {
        void *gone = freed;

        freed = NULL;
        ck_assert_ok(tg_memory_free(world.memory, gone, NULL));
    }
    return rc;
}

START_TEST(a_block_that_goes_before_the_tags_are_still_is_an_error) {
    struct tg_range range = piece(4, 16);
    struct tg_device_ops ops;

    freed = block;
    real = world.memory->ops;
    ops = *real;
    ops.fence = exchange_it;
    world.memory->ops = &ops;
    ck_assert_says(tg_memory_trim(world.memory, &range, 1, 1000, NULL), -EINVAL, "no block");
    world.memory->ops = real;
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_books(0, 0);
}
END_TEST

/* ---- what fails ------------------------------------------------------------------------------ */

/* Small chunks are mapped twice, first at addresses of their own. */
START_TEST(where_small_chunks_are_not_mapped_the_large_one_is) {
    struct tg_range ranges[] = {piece(3, 6), piece(11, 9)};

    world_arm(&world, TG__OP_map, TG__FAULT_ONCE, 3 + (uint64_t)_i, TG_EDEVICE);
    ck_assert_int_eq(tg_memory_trim(world.memory, ranges, 2, 1000, NULL), TG_EDEVICE);
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_books(20, 0);
    ck_assert(is_at(0, 20));
    ck_assert_uint_eq(trim_usual().gained_bytes, USUAL_HOLES * MIB);
    check_live();
}
END_TEST

START_TEST(a_half_sleeper_keeps_its_holes) {
    struct tg_range more = piece(0, 2);
    struct tg_receipt receipt;

    trim_usual();
    world_arm(&world, TG__OP_map, TG__FAULT_AFTER, 2, TG_EDEVICE);
    ck_assert_int_eq(tg_memory_trim(world.memory, &more, 1, 1000, &receipt), TG_EDEVICE);
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_str_eq(receipt.items[receipt.item_count - 1].name, "stays: not mapped again");
    check_books(USUAL_LIVE, 0);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_books(USUAL_LIVE, 0);
    check_live();
    ck_assert_uint_eq(refill().gained_bytes, USUAL_HOLES * MIB);
    check_whole();
}
END_TEST

/* What a failed refill could not unmap is where the next one must map. */
START_TEST(a_refill_waits_for_what_is_in_its_way) {
    trim_usual();
    world_arm(&world, TG__OP_map, TG__FAULT_ONCE, 2, TG_EDEVICE);
    ck_assert_int_eq(tg_memory_refill(world.memory, 0, NULL), TG_EDEVICE);
    check_books(USUAL_LIVE, 0);
    world_arm(&world, TG__OP_ANY, TG__FAULT_AFTER, 4, TG_EDEVICE); /* after the first map */
    ck_assert_int_eq(tg_memory_refill(world.memory, 0, NULL), TG_EDEVICE);
    ck_assert_uint_eq(tag->leaving_mapped, 1);
    world_arm(&world, TG__OP_unmap, TG__FAULT_EVERY, 1, TG_EDEVICE);
    ck_assert_says(tg_memory_refill(world.memory, 0, NULL), TG_EBUSY, "still uses");
    world_disarm(&world);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_live();
    ck_assert_uint_eq(refill().gained_bytes, USUAL_HOLES * MIB);
    check_books(20, 0);
    check_whole();
}
END_TEST

/* ---- death ----------------------------------------------------------------------------------- */

static void die_while_trimming(enum tg__fault_mode mode, uint64_t nth) {
    struct tg_range ranges[2];

    world_enter(&world, "capacity=128MiB");
    tag = world_tag(&world, "a", saved);
    block = world_alloc(tag, SIZE);
    ranges[0] = piece(3, 6);
    ranges[1] = piece(11, 9);
    world_arm(&world, TG__OP_ANY, mode, nth, 0);
    ck_assert_ok(tg_memory_trim(world.memory, ranges, 2, 1000, NULL));
    ck_assert_ok(tg_memory_refill(world.memory, 1000, NULL));
}

START_TEST(a_death_leaves_nothing) {
    enum tg__fault_mode mode = _i == 0 ? TG__FAULT_KILL_BEFORE : TG__FAULT_KILL_AFTER;
    int deaths;

    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    deaths = world_deaths(&world, tag, CAPACITY * MIB, mode, die_while_trimming);
    ck_assert_int_ge(deaths, 22); /* 4 creates, 6 maps, 3 unmaps, 2 copies, … */
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("trim");

    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, what_is_free_in_a_block_goes_back_and_comes_again);
    tcase_add_test(tcase, each_live_run_costs_so_many_calls);
    tcase_add_test(tcase, the_tenth_trim_is_as_the_first);
    tcase_add_test(tcase, a_trimmed_block_is_trimmed_further);
    tcase_add_test(tcase, nothing_is_moved_that_gains_too_little);
    tcase_add_test(tcase, what_is_not_inside_a_block_changes_nothing);
    tcase_add_test(tcase, packed_blocks_pages_and_sleepers_are_left_alone);
    tcase_add_test(tcase, a_sleep_saves_what_is_left_and_the_wake_brings_all_back);
    tcase_add_test(tcase, a_wake_that_goes_back_leaves_it_trimmed_and_saved);
    tcase_add_test(tcase, prepared_kept_and_checked_copies_follow);
    tcase_add_test(tcase, a_trimmed_block_is_freed_in_every_state);
    tcase_add_test(tcase, addresses_go_when_the_last_chunk_has);
    tcase_add_test(tcase, a_refill_that_lacks_memory_changes_nothing);
    tcase_add_test(tcase, without_room_a_chunk_stays);
    tcase_add_test(tcase, work_is_waited_for_and_else_nothing_changes);
    tcase_add_test(tcase, a_capture_is_told_and_not_harmed);
    tcase_add_test(tcase, what_is_freed_meanwhile_goes_afterwards);
    tcase_add_test(tcase, a_block_that_goes_before_the_tags_are_still_is_an_error);
    tcase_add_loop_test(tcase, where_small_chunks_are_not_mapped_the_large_one_is, 0, 2);
    tcase_add_test(tcase, a_half_sleeper_keeps_its_holes);
    tcase_add_test(tcase, a_refill_waits_for_what_is_in_its_way);
    if (getenv("TIDEGATE_TEST_STANDIN") == NULL) /* a driver is no use after a fork */
        tcase_add_loop_test(tcase, a_death_leaves_nothing, 0, 2);
    return suite_run("trim", tcase);
}
