/* SPDX-License-Identifier: Apache-2.0 */
/* What is allocated without naming a tag, and freed by its address alone. */
#include <tidegate/scope.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/forkguard.h"
#include "memory_world.h"
#include "suite.h"

static struct world world;
static const struct tg_tag_params none = {0};
static const struct tg_tag_params host = {.backup = TG_BACKUP_HOST};
static const struct tg_tag_params packed = {.backup = TG_BACKUP_HOST, .packed = 1};
static const struct tg_tag_params packed_dirty = {.packed = 1, .fill_none = 1};

static void set_up(void) {
    world_open(&world, "capacity=128MiB", true);
}

static void tear_down(void) {
    world_close(&world);
}

static void *torch_alloc(ssize_t size_bytes) {
    return tg_torch_alloc(size_bytes, 0, NULL);
}

static void torch_free(void *block) {
    tg_torch_free(block, 1, 0, NULL);
}

static uint64_t blocks_of(struct tg_tag *tag) {
    return world_info(tag).block_count;
}

START_TEST(the_innermost_scope_says_the_tag) {
    struct tg_tag *outer = world_tag(&world, "outer", none);
    struct tg_tag *inner = world_tag(&world, "inner", packed);

    ck_assert_ptr_null(torch_alloc(1));
    ck_assert_ok(tg_scope_push(outer));
    ck_assert_ptr_nonnull(torch_alloc(3 * MIB));
    ck_assert_ok(tg_scope_push(inner));
    ck_assert_ptr_nonnull(torch_alloc(5));
    ck_assert_uint_eq(blocks_of(inner), 1);
    ck_assert_ok(tg_scope_push(outer)); /* the same one inside another */
    ck_assert_ptr_nonnull(torch_alloc(7));
    ck_assert_ok(tg_scope_pop());
    ck_assert_ptr_nonnull(torch_alloc(5));
    ck_assert_uint_eq(blocks_of(inner), 2);
    ck_assert_ok(tg_scope_pop());
    ck_assert_ptr_nonnull(torch_alloc(11));
    ck_assert_uint_eq(blocks_of(outer), 3);
    ck_assert_uint_eq(world_info(outer).size_bytes, 3 * MIB + 7 + 11);
    ck_assert_ok(tg_scope_pop());
    ck_assert_ptr_null(torch_alloc(1));
}
END_TEST

START_TEST(wrong_calls_are_told_and_change_nothing) {
    struct tg_tag *tag = world_tag(&world, "a", none);

    ck_assert_says(tg_scope_push(NULL), -EINVAL, "NULL was given");
    ck_assert_says(tg_scope_pop(), -EINVAL, "in no scope");
    ck_assert_ptr_null(torch_alloc(1));
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "in no scope"));
    for (int i = 0; i < TG_SCOPE_DEPTH; i++)
        ck_assert_ok(tg_scope_push(tag));
    ck_assert_says(tg_scope_push(tag), TG_EFULL, "64 scopes");
    ck_assert_ptr_null(tg_torch_alloc(-1, 0, NULL));
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "-1 bytes"));
    ck_assert_ptr_null(tg_torch_alloc(1, 1, NULL));
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "is on device 0"));
    ck_assert_ptr_null(tg_torch_alloc(1, -1, NULL));
    ck_assert_ptr_null(torch_alloc(129 * MIB));
    ck_assert_uint_eq(blocks_of(tag), 0);
    for (int i = 0; i < TG_SCOPE_DEPTH; i++)
        ck_assert_ok(tg_scope_pop());
    ck_assert_says(tg_scope_pop(), -EINVAL, "in no scope");
}
END_TEST

START_TEST(nothing_of_nothing_is_no_failure) {
    struct tg_tag *tag = world_tag(&world, "a", none);

    ck_assert_ok(tg_scope_push(tag));
    ck_assert_says(tg_scope_push(NULL), -EINVAL, "NULL was given");
    errno = 77;
    ck_assert_ptr_null(torch_alloc(0));
    torch_free(NULL);
    torch_free(torch_alloc(1));
    ck_assert_int_eq(errno, 77);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "NULL was given")); /* of the push */
    ck_assert_uint_eq(blocks_of(tag), 0);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

START_TEST(a_free_of_what_is_no_block_does_nothing) {
    struct tg_tag *tag = world_tag(&world, "a", none);
    char *block;

    torch_free(&world); /* before any scope: there is no list yet */
    ck_assert_ok(tg_scope_push(tag));
    block = torch_alloc(3 * MIB);
    torch_free(&world);
    torch_free(block + 1);
    ck_assert_uint_eq(blocks_of(tag), 1);
    torch_free(block);
    torch_free(block);
    ck_assert_uint_eq(blocks_of(tag), 0);
    ck_assert_uint_eq(world_free_bytes(&world), 128 * MIB);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

static void *sleep_all(void *memory) {
    ck_assert_ok(tg_memory_sleep(memory, NULL, 20000, NULL));
    return NULL;
}

START_TEST(a_block_is_freed_in_every_state_of_its_tag) {
    struct tg_tag *tag;
    void *blocks[4];
    pthread_t thread;

    tear_down();
    world_open(&world, "capacity=128MiB,lag=300", true);
    tag = world_tag(&world, "a", _i ? packed : host);
    ck_assert_ok(tg_scope_push(tag));
    for (int i = 0; i < 4; i++) {
        blocks[i] = torch_alloc(3 * MIB);
        ck_assert_ptr_nonnull(blocks[i]);
        content_write(blocks[i], 3 * MIB, (uint64_t)i);
    }
    torch_free(blocks[0]);
    ck_assert_uint_eq(blocks_of(tag), 3);
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_all, world.memory), 0);
    while (world_info(tag).state != TG_TAG_SAVING)
        sched_yield();
    torch_free(blocks[1]);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
    ck_assert_uint_eq(blocks_of(tag), 2);
    ck_assert_ptr_null(torch_alloc(1));
    ck_assert_int_eq(tg_last_error()->status, TG_EASLEEP);
    torch_free(blocks[2]);
    ck_assert_uint_eq(blocks_of(tag), 1);
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 10000, NULL));
    torch_free(blocks[3]); /* filled, not published: it goes when the wake has ended */
    tg_memory_wake_end(world.memory, 1);
    ck_assert_uint_eq(blocks_of(tag), 0);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

START_TEST(freed_memory_is_used_again_after_all_streams_alone) {
    const struct tg_device_ops *ops = tg_device_ops(world.spy);
    struct tg_tag *tag;
    struct tg_queue *queue;
    struct tg_fence fence;
    void *block, *next;

    tear_down();
    world_open(&world, "capacity=128MiB,lag=500", true);
    ck_assert_ok(ops->queue_open(world.spy, &queue));
    tag = world_tag(&world, "a", packed_dirty);
    ck_assert_ok(tg_scope_push(tag));
    ck_assert_ptr_nonnull(torch_alloc(GRANULE)); /* keeps the chunk */
    block = torch_alloc(GRANULE);
    ck_assert_ok(ops->fill(world.spy, (uintptr_t)block, 1, 100, queue));
    torch_free(block); /* as of another stream: NULL */
    ck_assert_uint_eq(world_info(tag).limbo_bytes, GRANULE);
    next = torch_alloc(GRANULE);
    ck_assert_ptr_nonnull(next);
    ck_assert_ptr_ne(next, block);
    ck_assert_ok(ops->fence(world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(world.spy, &fence, 10000));
    ck_assert_ptr_eq(torch_alloc(GRANULE), block);
    ck_assert_ok(tg_scope_pop());
    ck_assert_ok(ops->queue_close(world.spy, queue));
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 200 };

static _Atomic(void *) handed[THREADS];

static void *trade(void *argument) {
    int number = *(const int *)argument;
    char name[] = {'t', (char)('0' + number), 0};
    struct tg_tag *tag = world_tag(&world, name, number % 2 ? packed_dirty : none);

    for (int i = 0; i < ROUNDS; i++) {
        void *block, *other;

        ck_assert_ptr_null(torch_alloc(1)); /* nobody else's scope is seen */
        ck_assert_ok(tg_scope_push(tag));
        block = torch_alloc(1 + i % 3 * MIB);
        ck_assert_ptr_nonnull(block);
        ck_assert_ok(tg_scope_pop());
        memset(block, number, 1);
        other = atomic_exchange(&handed[i % THREADS], block); /* another thread frees it */
        torch_free(other);
    }
    return NULL;
}

START_TEST(scopes_are_each_thread_s_own_and_frees_anybody_s) {
    pthread_t threads[THREADS];
    int numbers[THREADS];

    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, trade, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        torch_free(handed[i]);
    for (int i = 0; i < THREADS; i++) {
        char name[] = {'t', (char)('0' + i), 0};

        ck_assert_uint_eq(blocks_of(world_tag(&world, name, i % 2 ? packed_dirty : none)), 0);
    }
}
END_TEST

/* ---- several memories, their end, and forks -------------------------------------------------- */

START_TEST(a_free_finds_the_memory_and_ignores_one_that_is_closed) {
    struct tg_memory *second;
    struct tg_tag *first_tag = world_tag(&world, "a", none), *tag;
    void *of_first, *of_second;

    ck_assert_ok(tg_memory_open(world.spy, NULL, &second));
    ck_assert_ok(tg_tag_open(second, "b", NULL, &tag));
    ck_assert_ok(tg_scope_push(first_tag));
    of_first = torch_alloc(GRANULE);
    ck_assert_ok(tg_scope_push(tag));
    of_second = torch_alloc(GRANULE);
    ck_assert_ok(tg_scope_pop());
    torch_free(of_first);
    ck_assert_uint_eq(blocks_of(first_tag), 0);
    ck_assert_uint_eq(blocks_of(tag), 1);
    torch_free(of_second);
    ck_assert_uint_eq(blocks_of(tag), 0);
    ck_assert_ok(tg_scope_push(tag));
    of_second = torch_alloc(GRANULE);
    ck_assert_ok(tg_scope_pop());
    tg_memory_close(second);
    torch_free(of_second);
    of_first = torch_alloc(GRANULE);
    torch_free(of_first);
    ck_assert_uint_eq(blocks_of(first_tag), 0);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

static _Atomic bool is_over;

static void *free_nothing(void *argument) {
    (void)argument;
    while (!atomic_load(&is_over))
        torch_free(&is_over);
    return NULL;
}

START_TEST(a_memory_is_closed_under_frees) {
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, free_nothing, NULL), 0);
    for (int i = 0; i < 100; i++) {
        struct tg_memory *memory;
        struct tg_tag *tag;

        ck_assert_ok(tg_memory_open(world.spy, NULL, &memory));
        ck_assert_ok(tg_tag_open(memory, "a", NULL, &tag));
        ck_assert_ok(tg_scope_push(tag));
        torch_free(torch_alloc(1));
        ck_assert_ok(tg_scope_pop());
        tg_memory_close(memory);
    }
    atomic_store(&is_over, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

static _Atomic bool is_held;

static void *hold_forks(void *argument) {
    (void)argument;
    tg__fork_hold();
    atomic_store(&is_held, true);
    usleep(100000); /* long enough that the fork finds it held */
    tg__fork_release();
    return NULL;
}

START_TEST(a_forked_child_has_nothing_and_does_not_hang) {
    struct tg_tag *tag;
    pthread_t thread;
    int status;
    void *block;
    pid_t child;

    tear_down();
    world_open(&world, "capacity=128MiB", false); /* a ledger would hold off forks by itself */
    tag = world_tag(&world, "a", none);
    ck_assert_ok(tg_scope_push(tag));
    block = torch_alloc(GRANULE);
    ck_assert_int_eq(pthread_create(&thread, NULL, hold_forks, NULL), 0);
    while (!atomic_load(&is_held))
        sched_yield();
    child = fork();
    if (child == 0) {
        alarm(20);
        torch_free(block);
        if (torch_alloc(1) != NULL || tg_last_error()->status != TG_EFORKED)
            _exit(1);
        _exit(tg_scope_push(tag) == TG_EFORKED && tg_scope_pop() == 0 ? 0 : 2);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(blocks_of(tag), 1);
    torch_free(block);
    ck_assert_uint_eq(blocks_of(tag), 0);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

/* ---- what lies at an address ----------------------------------------------------------------- */

START_TEST(an_address_tells_its_block_and_tag_in_every_state) {
    struct tg_tag *tag = world_tag(&world, "a", host), *found = NULL;
    char *block = world_alloc(tag, 3 * MIB);
    void *begin = NULL;
    uint64_t size_bytes = 0;

    for (int round = 0; round < 2; round++) {
        ck_assert_ok(tg_memory_find(world.memory, block + 3 * MIB - 1, &found, &begin,
                                    &size_bytes));
        ck_assert_ptr_eq(found, tag);
        ck_assert_ptr_eq(begin, block);
        ck_assert_uint_eq(size_bytes, 3 * MIB);
        ck_assert_ok(tg_memory_find(world.memory, block, NULL, NULL, NULL));
        ck_assert_ok(tg_memory_sleep(world.memory, NULL, 1000, NULL));
    }
    ck_assert_says(tg_memory_find(world.memory, &world, &found, NULL, NULL), -EINVAL,
                   "in no block");
    ck_assert_says(tg_memory_find(NULL, block, &found, NULL, NULL), -EINVAL, "NULL was given");
    torch_free(block);
    ck_assert_ok(tg_memory_free(world.memory, block, NULL));
    ck_assert_says(tg_memory_find(world.memory, block, &found, NULL, NULL), -EINVAL,
                   "in no block");
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("scope");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, the_innermost_scope_says_the_tag);
    tcase_add_test(tcase, wrong_calls_are_told_and_change_nothing);
    tcase_add_test(tcase, nothing_of_nothing_is_no_failure);
    tcase_add_test(tcase, a_free_of_what_is_no_block_does_nothing);
    tcase_add_loop_test(tcase, a_block_is_freed_in_every_state_of_its_tag, 0, 2);
    tcase_add_test(tcase, freed_memory_is_used_again_after_all_streams_alone);
    tcase_add_test(tcase, scopes_are_each_thread_s_own_and_frees_anybody_s);
    tcase_add_test(tcase, a_free_finds_the_memory_and_ignores_one_that_is_closed);
    tcase_add_test(tcase, a_memory_is_closed_under_frees);
    tcase_add_test(tcase, a_forked_child_has_nothing_and_does_not_hang);
    tcase_add_test(tcase, an_address_tells_its_block_and_tag_in_every_state);
    return suite_run("scope", tcase);
}
