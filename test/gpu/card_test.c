/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, sleep and wake on a device that the host cannot reach into: content is written and read
 * by copies alone. Processes take turns through the ledger, and one dies. Sizes are shares of the
 * card, so that the same tests run on the stand-in driver. */
#include <stdio.h>
#include <stdlib.h>

#include "card_side.h"
#include "children.h"

enum { SKIPPED = 77, BLOCKS = 12, TURNS = 4 };

/* ---- sleep and wake -------------------------------------------------------------------------- */

static const struct tg_tag_params kinds[] = {
    {.backup = TG_BACKUP_HOST},
    {.backup = TG_BACKUP_HOST, .packed = 1},
    {.backup = TG_BACKUP_HOST, .packed = 1, .keep_host = 1},
    {.backup = TG_BACKUP_NONE},
    {.backup = TG_BACKUP_NONE, .packed = 1},
};

START_TEST(content_sleeps_and_wakes) {
    struct tg_tag_params params = kinds[_i];
    struct tg_receipt receipt;
    struct tg_tag_info info;
    struct tg_tag *tag;
    void *blocks[BLOCKS];
    struct side side;
    uint64_t awake;

    side_open(&side, "alone");
    tag = open_tag(&side, "weights", params);
    for (int i = 0; i < BLOCKS; i++) {
        ck_assert_ok(tg_tag_alloc(tag, block_bytes(&side, i), &blocks[i]));
        ck_assert(is_pattern(&side, blocks[i], block_bytes(&side, i), 0));
        write_pattern(&side, blocks[i], block_bytes(&side, i), (uint64_t)i + 1);
    }
    for (int round = 0; round < 3; round++) {
        tg_tag_info(tag, &info);
        awake = device_free_bytes(side.device);
        ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, &receipt));
        ck_assert_uint_eq(receipt.gained_bytes, info.device_bytes);
        device_check_free(side.device, awake + info.device_bytes);
        ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
        for (int i = 0; i < BLOCKS; i++)
            ck_assert(is_pattern(&side, blocks[i], block_bytes(&side, i),
                                 params.backup == TG_BACKUP_HOST ? (uint64_t)i + 1 : 0));
    }
    for (int i = 0; i < BLOCKS; i++)
        ck_assert_ok(tg_memory_free(side.memory, blocks[i], NULL));
    side_close(&side);
}
END_TEST

START_TEST(a_checked_tag_notices_another_content) {
    struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .checked = 1};
    struct side side;
    struct tg_tag *tag;
    const void *copy;
    uint64_t size_bytes;
    void *block;
    int rc;

    side_open(&side, "alone");
    rc = tg_tag_open(side.memory, "weights", &params, &tag);
    if (rc == -ENOTSUP) {
        fprintf(stderr, "skipped: %s\n", tg_last_error()->text);
        _exit(SKIPPED);
    }
    ck_assert_ok(rc);
    ck_assert_ok(tg_tag_alloc(tag, 5 * MIB, &block));
    write_pattern(&side, block, 5 * MIB, 1);
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    ck_assert_ok(tg_memory_hostcopy(side.memory, block, &copy, &size_bytes));
    ((unsigned char *)(uintptr_t)copy)[77] ^= 1;
    ck_assert_fails(tg_memory_wake(side.memory, NULL, LONG_MS, NULL), TG_ECONTENT);
    ((unsigned char *)(uintptr_t)copy)[77] ^= 1;
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    ck_assert(is_pattern(&side, block, 5 * MIB, 1));
    side_close(&side);
}
END_TEST

/* ---- turns ----------------------------------------------------------------------------------- */

enum { SLEEP = 1, WAKE, LEAVE };

/* Does as it is told with three fifths of the card, of which one block has content. */
static int take_turns(int in, int out, void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument, most;
    struct tg_tag *weights, *cache;
    struct side side;
    void *small, *large;

    side_open(&side, seed == 1 ? "first" : "second");
    weights = open_tag(&side, "weights", (struct tg_tag_params){.backup = TG_BACKUP_HOST});
    cache = open_tag(&side, "cache", (struct tg_tag_params){.packed = 1});
    most = side.total_bytes / 5 * 3 / GRANULE * GRANULE;
    ck_assert_ok(tg_tag_alloc(weights, block_bytes(&side, 0), &small));
    write_pattern(&side, small, block_bytes(&side, 0), seed);
    ck_assert_ok(tg_tag_alloc(cache, most - 2 * block_bytes(&side, 0), &large));
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    tell(out, 1);
    for (;;) {
        switch (hear(in)) {
        case SLEEP:
            ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
            break;
        case WAKE:
            ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
            ck_assert(is_pattern(&side, small, block_bytes(&side, 0), seed));
            break;
        default:
            side_close(&side);
            return 0;
        }
        tell(out, 1);
    }
}

static struct child start_side(uint64_t seed) {
    struct child child = start(take_turns, (void *)(uintptr_t)seed);

    ck_assert_uint_eq(hear(child.in), 1);
    return child;
}

/* Both together want more than there is. The second is told to wake before the first is told to
 * sleep: it waits in the ledger. */
START_TEST(two_processes_take_turns) {
    struct child sides[2] = {start_side(1), start_side(2)};

    tell(sides[0].out, WAKE);
    ck_assert_uint_eq(hear(sides[0].in), 1);
    for (int turn = 0; turn < TURNS; turn++) {
        struct child *awake = &sides[turn % 2], *asleep = &sides[1 - turn % 2];

        tell(asleep->out, WAKE);
        tell(awake->out, SLEEP);
        ck_assert_uint_eq(hear(awake->in), 1);
        ck_assert_uint_eq(hear(asleep->in), 1);
    }
    ck_assert_int_eq(finish(&sides[0]), 0);
    ck_assert_int_eq(finish(&sides[1]), 0);
}
END_TEST

START_TEST(a_killed_process_leaves_its_turn) {
    struct child sides[2] = {start_side(1), start_side(2)};

    tell(sides[0].out, WAKE);
    ck_assert_uint_eq(hear(sides[0].in), 1);
    tell(sides[1].out, WAKE);
    kill_and_finish(&sides[0]);
    ck_assert_uint_eq(hear(sides[1].in), 1);
    ck_assert_int_eq(finish(&sides[1]), 0);
}
END_TEST

/* ---------------------------------------------------------------------------------------------- */

static int run_all(void) {
    TCase *cases = tcase_create("card");

    tcase_add_loop_test(cases, content_sleeps_and_wakes, 0, (int)(sizeof kinds / sizeof *kinds));
    tcase_add_test(cases, a_checked_tag_notices_another_content);
    tcase_add_test(cases, two_processes_take_turns);
    tcase_add_test(cases, a_killed_process_leaves_its_turn);
    return side_run("card", cases);
}

int main(void) {
    int status = device_no_gpu();

    return status != 0 ? status : run_all();
}
