/* SPDX-License-Identifier: Apache-2.0 */
/* An alloc that the device refuses: what of this process's own comes free for one more try, who is
 * asked for the next, and that nobody is waited for. */
#include "base/clock.h"
#include "memory/state.h"
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

/* Frees a block that queued work still uses. */
static void free_in_use(void *block) {
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)block, 1, 100, queue));
    ck_assert_ok(tg_memory_free(world.memory, block, queue));
}

static int refused(struct tg_tag *tag, uint64_t size_bytes) {
    void *block = &world;
    int rc = tg_tag_alloc(tag, size_bytes, &block);

    ck_assert_int_ne(rc, 0);
    ck_assert_ptr_eq(block, &world);
    return rc;
}

/* ---- what is our own ------------------------------------------------------------------------- */

START_TEST(without_anything_to_give_there_is_one_try) {
    struct tg_tag *tag;

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", general);
    world_arm(&world, TG__OP_create, TG__FAULT_EVERY, 0, TG_EDEVICEMEMORY);
    tg__spy_clear(world.spy);
    ck_assert_int_eq(refused(tag, 8 * MIB), TG_EDEVICEMEMORY);
    world_disarm(&world);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_unpool), 1);
    ck_assert_uint_eq(world_calls(&world, TG__OP_wait), 0);
    world_close(&world);
}
END_TEST

START_TEST(what_has_settled_is_tried_once) {
    struct tg_tag *tag;

    open_world("capacity=64MiB,lag=50");
    tag = world_tag(&world, "a", general);
    free_in_use(world_alloc(tag, 8 * MIB));
    world_arm(&world, TG__OP_create, TG__FAULT_EVERY, 0, TG_EDEVICEMEMORY);
    tg__spy_clear(world.spy);
    ck_assert_int_eq(refused(tag, 8 * MIB), TG_EDEVICEMEMORY);
    world_disarm(&world);
    ck_assert_uint_eq(world_info(tag).limbo_bytes, 0);
    ck_assert_uint_eq(world_calls(&world, TG__OP_create), 2);
    world_close(&world);
}
END_TEST

/* The sentence is that of the refusal, whatever failed on the way. */
START_TEST(a_pool_that_cannot_be_emptied_hides_nothing) {
    struct tg_tag *tag;

    open_world("capacity=64MiB");
    tag = world_tag(&world, "a", general);
    world_alloc(tag, 60 * MIB);
    world_arm(&world, TG__OP_unpool, TG__FAULT_EVERY, 0, 0);
    ck_assert_int_eq(refused(tag, 8 * MIB), TG_ENEVERFITS);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "a needs 8.0 MiB, more than"));
    world_disarm(&world);
    world_close(&world);
}
END_TEST

/* Spare memory that is too small by itself, and what is in limbo beside it. */
START_TEST(what_settles_beside_spare_memory_is_one_piece) {
    struct tg_tag *tag;
    void *blocks[3];

    open_world("capacity=64MiB,lag=50");
    tag = world_tag(&world, "a", packed);
    for (int i = 0; i < 3; i++)
        blocks[i] = world_alloc(tag, 20 * MIB);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 10000, NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 10000, NULL)); /* one chunk */
    ck_assert_ok(tg_memory_free(world.memory, blocks[0], NULL));
    ck_assert_uint_eq(world_info(tag).limbo_bytes, 0);
    free_in_use(blocks[1]);
    ck_assert_ptr_eq(world_alloc(tag, 30 * MIB), blocks[0]);
    ck_assert(content_is_zero(blocks[0], 30 * MIB));
    world_close(&world);
}
END_TEST

/* ---- nobody is waited for -------------------------------------------------------------------- */

START_TEST(in_a_capture_nothing_waits) {
    struct tg_tag *tag;

    open_world("capacity=64MiB,lag=20");
    tag = world_tag(&world, "a", general);
    world_arm(&world, TG__OP_fence, TG__FAULT_EVERY, 0, TG_ECAPTURE);
    ck_assert_ok(tg_memory_free(world.memory, world_alloc(tag, 60 * MIB), NULL));
    tg__spy_clear(world.spy);
    ck_assert_int_eq(refused(tag, 8 * MIB), TG_ENEVERFITS);
    ck_assert_uint_eq(world_calls(&world, TG__OP_wait), 0);
    world_disarm(&world);
    world_alloc(tag, 8 * MIB);
    world_close(&world);
}
END_TEST

START_TEST(work_that_never_ends_keeps_nobody) {
    struct tg_tag *tag;
    uint64_t began_ns;

    open_world("capacity=64MiB,hang=1");
    tag = world_tag(&world, "a", general);
    free_in_use(world_alloc(tag, 60 * MIB));
    began_ns = tg__clock_ns();
    ck_assert_int_eq(refused(tag, 8 * MIB), TG_ENEVERFITS);
    ck_assert_uint_lt(tg__clock_ns() - began_ns, 10000 * TG__NS_PER_MS);
    tg_memory_close(world.memory); /* what is stuck stays */
    tg_tenant_leave(world.tenant);
    tg_ledger_close(world.ledger);
    tg_device_close(world.spy);
}
END_TEST

/* ---- who is asked ---------------------------------------------------------------------------- */

static struct tg_tenant *peer;
static uint64_t cache;

/* A peer whose allocator keeps 40 MiB of 64 that nobody uses. */
static struct tg_tag *with_peer(void) {
    open_world("capacity=64MiB");
    peer = world_peer(&world, "trainer");
    ck_assert_ok(ops->create(world.spy, 40 * MIB, 0, &cache));
    tg_tenant_declare(peer, "cached", 40 * MIB, 40 * MIB);
    return world_tag(&world, "a", general);
}

static void peer_gives(void) {
    ck_assert_ok(ops->release(world.spy, cache));
    tg_tenant_declare(peer, "cached", 0, 0);
}

static void peer_leaves(void) {
    tg_tenant_leave(peer);
    world_close(&world);
}

START_TEST(an_idle_cache_is_asked_for_the_next_attempt) {
    struct tg_tag *tag = with_peer();

    world_alloc(tag, 20 * MIB);
    ck_assert_uint_eq(tg_tenant_asked(peer), 0);
    ck_assert_int_eq(refused(tag, 20 * MIB), TG_ENOFIT);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "trainer cached 40.0 MiB"));
    ck_assert_uint_eq(tg_tenant_asked(peer), 16 * MIB);
    peer_gives();
    world_alloc(tag, 20 * MIB);
    ck_assert_uint_eq(tg_tenant_asked(peer), 0);
    peer_leaves();
}
END_TEST

/* Where the ledger would have let it in: what the device lacks. */
START_TEST(a_device_that_is_full_asks_for_what_it_lacks) {
    struct tg_tag *tag = with_peer();

    world_arm(&world, TG__OP_create, TG__FAULT_EVERY, 0, TG_EDEVICEMEMORY);
    ck_assert_int_eq(refused(tag, 20 * MIB), TG_EDEVICEMEMORY);
    world_disarm(&world);
    ck_assert_uint_eq(tg_tenant_asked(peer), 20 * MIB);
    peer_gives();
    peer_leaves();
}
END_TEST

START_TEST(what_never_fits_asks_nobody) {
    struct tg_tag *tag = with_peer();

    world_alloc(tag, 20 * MIB);
    ck_assert_int_eq(refused(tag, 50 * MIB), TG_ENEVERFITS);
    ck_assert_uint_eq(tg_tenant_asked(peer), 0);
    peer_gives();
    peer_leaves();
}
END_TEST

START_TEST(nobody_is_asked_while_a_peer_starts_up) {
    struct tg_tag *tag = with_peer();
    struct tg_tenant *engine = world_peer(&world, "engine");

    tg_tenant_note(engine, &(struct tg_tenant_note){.is_starting = TG_START_UP});
    ck_assert_int_eq(refused(tag, 30 * MIB), TG_ENOFIT);
    ck_assert_uint_eq(tg_tenant_asked(peer), 0);
    tg_tenant_note(engine, &(struct tg_tenant_note){.is_starting = TG_START_NONE});
    ck_assert_int_eq(refused(tag, 30 * MIB), TG_ENOFIT);
    ck_assert_uint_eq(tg_tenant_asked(peer), 6 * MIB);
    tg_tenant_leave(engine);
    peer_gives();
    peer_leaves();
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("shortage");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, without_anything_to_give_there_is_one_try);
    tcase_add_test(tcase, what_has_settled_is_tried_once);
    tcase_add_test(tcase, a_pool_that_cannot_be_emptied_hides_nothing);
    tcase_add_test(tcase, what_settles_beside_spare_memory_is_one_piece);
    tcase_add_test(tcase, in_a_capture_nothing_waits);
    tcase_add_test(tcase, work_that_never_ends_keeps_nobody);
    tcase_add_test(tcase, an_idle_cache_is_asked_for_the_next_attempt);
    tcase_add_test(tcase, a_device_that_is_full_asks_for_what_it_lacks);
    tcase_add_test(tcase, what_never_fits_asks_nobody);
    tcase_add_test(tcase, nobody_is_asked_while_a_peer_starts_up);
    return suite_run("shortage", tcase);
}
