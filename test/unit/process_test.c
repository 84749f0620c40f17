/* SPDX-License-Identifier: Apache-2.0 */
/* The process's own memories on the driver that stands in, allocation for code that knows no tags,
 * and what an open capture forbids. */
#include <tidegate/process.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/scope.h>

#include "device/device.h"
#include "memory_world.h"
#include "suite.h"

static char dir[] = "/tmp/tidegate-process-XXXXXX";
static const struct tg_tag_params packed = {.packed = 1};

static void set_up(void) {
    ck_assert_ptr_nonnull(mkdtemp(dir));
    setenv("TIDEGATE_DIR", dir, 1);
    setenv("TIDEGATE_STANDIN", "capacity=64MiB,context=0,devices=2", 1);
}

static void tear_down(void) {
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct tg_memory *own(int device) {
    struct tg_memory *memory = NULL;

    ck_assert_ok(tg_process_memory(device, &memory));
    return memory;
}

static void *usual(int device, uint64_t size_bytes, const char *tag) {
    const struct tg_process_request request = {size_bytes, device, tag};
    void *block = &dir;

    ck_assert_ok(tg_process_alloc(&request, &block));
    return block;
}

/* Of the tag in which the block lies; it is the one of this name. */
static struct tg_tag_info info_of(struct tg_memory *memory, const void *block, const char *name) {
    static const struct tg_tag_params usual_params = {.backup = TG_BACKUP_HOST, .fill_none = 1};
    struct tg_tag *tag, *named;

    ck_assert_ok(tg_memory_find(memory, block, &tag, NULL, NULL));
    ck_assert_ok(tg_tag_open(memory, name, &usual_params, &named));
    ck_assert_ptr_eq(tag, named);
    return world_info(tag);
}

START_TEST(a_gpu_has_one_memory_and_the_process_is_a_tenant) {
    struct tg_memory *memory = own(1);
    struct tg_ledger *ledger;
    struct tg_node_view *view = calloc(1, sizeof *view);

    ck_assert_ptr_eq(own(1), memory);
    ck_assert_ptr_ne(own(0), memory);
    ck_assert_ptr_nonnull(usual(1, 4 * MIB, "a"));
    ck_assert_ok(tg_ledger_open_reader(NULL, &ledger));
    ck_assert_ok(tg_ledger_read(ledger, view));
    ck_assert_uint_eq(view->tenant_count, 2);
    ck_assert_str_eq(view->tenants[0].name, "actor?");
    ck_assert_str_eq(view->tenants[0].role, "");
    ck_assert_int_eq(view->tenants[0].rank, 3);
    ck_assert_uint_eq(view->tenants[0].tags[0].occupied_bytes, 4 * MIB);
    tg_ledger_close(ledger);
    free(view);
}
END_TEST

START_TEST(without_scope_the_usual_tag_serves_or_none) {
    void *block = usual(0, MIB, "a");

    ck_assert_uint_eq(info_of(own(0), block, "a").block_count, 1);
    ck_assert_ptr_null(usual(0, MIB, NULL));
    ck_assert_ptr_null(usual(0, MIB - 1, "a"));
    ck_assert_ptr_null(usual(0, 0, "a"));
    ck_assert_ptr_null(usual(0, 65 * MIB, "a"));
    ck_assert_ok(tg_process_free(block));
    ck_assert_int_eq(tg_process_free(block), -EINVAL);
}
END_TEST

START_TEST(while_it_does_not_serve_no_tag_has_a_say) {
    void *block = usual(0, MIB, "a");

    tg_process_serve(0);
    ck_assert_ptr_null(usual(0, MIB, "a"));
    ck_assert_uint_eq(info_of(own(0), block, "a").block_count, 1);
    ck_assert_ok(tg_process_free(block));
    tg_process_serve(1);
    block = usual(0, MIB, "a");
    ck_assert_ptr_nonnull(block);
    ck_assert_ok(tg_process_free(block));
}
END_TEST

START_TEST(a_block_is_found_by_its_beginning) {
    char *block = usual(1, 2 * MIB, "a");
    int device = 7;

    ck_assert_int_eq(tg_process_find(block + 1, &device), -EINVAL);
    ck_assert_int_eq(tg_process_find(NULL, &device), -EINVAL);
    ck_assert_int_eq(tg_process_find(&block, &device), -EINVAL);
    ck_assert_int_eq(tg_last_error()->status, 0);
    ck_assert_int_eq(device, 7);
    ck_assert_ok(tg_process_find(block, &device));
    ck_assert_int_eq(device, 1);
    ck_assert_says(tg_process_find(block, NULL), -EINVAL, "not NULL");
    ck_assert_ok(tg_process_free(block));
    ck_assert_int_eq(tg_process_find(block, &device), -EINVAL);
}
END_TEST

START_TEST(a_scope_on_the_gpu_goes_first) {
    struct tg_tag *tag;

    ck_assert_ok(tg_tag_open(own(1), "scoped", &packed, &tag));
    ck_assert_ok(tg_scope_push(tag));
    ck_assert_ptr_nonnull(usual(1, 5, "a"));
    ck_assert_ptr_nonnull(usual(1, 2 * MIB, NULL));
    ck_assert_uint_eq(world_info(tag).block_count, 2);
    ck_assert_ptr_null(usual(0, 2 * MIB, NULL));
    ck_assert_ptr_nonnull(usual(0, 2 * MIB, "a"));
    ck_assert_uint_eq(world_info(tag).block_count, 2);
    ck_assert_ok(tg_scope_pop());
}
END_TEST

START_TEST(wrong_calls_are_told) {
    const struct tg_process_request bad_name = {MIB, 0, "a b"}, bad_device = {MIB, 2, "a"};
    struct tg_memory *memory = NULL;
    void *block = &dir;

    ck_assert_int_eq(tg_process_free(&block), -EINVAL);
    ck_assert_int_eq(tg_process_free(NULL), -EINVAL);
    ck_assert_int_eq(tg_last_error()->status, 0);
    ck_assert_says(tg_process_memory(-1, &memory), -EINVAL, "not on -1");
    ck_assert_says(tg_process_memory(16, &memory), -EINVAL, "not on 16");
    ck_assert_says(tg_process_memory(0, NULL), -EINVAL, "");
    ck_assert_says(tg_process_alloc(NULL, &block), -EINVAL, "not NULL");
    ck_assert_says(tg_process_alloc(&bad_name, NULL), -EINVAL, "not NULL");
    ck_assert_says(tg_process_alloc(&bad_name, &block), -EINVAL, "a b");
    ck_assert_int_lt(tg_process_alloc(&bad_device, &block), 0);
    ck_assert_ptr_eq(block, &dir);
    ck_assert_int_eq(tg_process_free(&block), -EINVAL);
}
END_TEST

/* The answer stays, although a driver could be there by now. */
START_TEST(what_could_not_be_opened_is_not_tried_again) {
    struct tg_memory *memory = NULL;
    struct tg_error first;
    int rc;

    setenv("TIDEGATE_STANDIN", "capacity=64MiB,init=100", 1);
    rc = tg_process_memory(0, &memory);
    ck_assert_int_eq(rc, -ENODEV);
    first = *tg_last_error();
    setenv("TIDEGATE_STANDIN", "capacity=64MiB", 1);
    ck_assert_says(tg_process_memory(0, &memory), rc, first.text);
    ck_assert_ptr_null(memory);
}
END_TEST

START_TEST(a_child_has_none_of_them) {
    void *block = usual(0, MIB, "a");
    pid_t child = fork();
    int status;

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct tg_process_request request = {MIB, 0, "a"};
        struct tg_memory *memory;

        _exit(tg_process_memory(0, &memory) == TG_EFORKED &&
              tg_process_memory(1, &memory) == TG_EFORKED &&
              tg_process_alloc(&request, &block) == TG_EFORKED &&
              tg_process_free(block) == TG_EFORKED ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(tg_process_free(block));
}
END_TEST

START_TEST(while_a_capture_is_open_freed_memory_rests) {
    int open = 0;
    void *block;

    tg_process_captures(&open);
    block = usual(0, 40 * MIB, "a");
    open = 1;
    ck_assert_ok(tg_process_free(block));
    block = usual(0, 16 * MIB, "a"); /* new memory beside what rests */
    ck_assert_uint_eq(info_of(own(0), block, "a").limbo_bytes, 40 * MIB);
    ck_assert_says(tg_memory_sleep(own(0), NULL, 100, NULL), TG_ECAPTURE, "captured");
    open = 0;
    block = usual(0, 16 * MIB, "a");
    ck_assert_uint_eq(info_of(own(0), block, "a").limbo_bytes, 0);
    ck_assert_ok(tg_memory_sleep(own(0), NULL, 1000, NULL));
    tg_process_captures(NULL);
}
END_TEST

enum { THREADS = 8 };

static pthread_barrier_t barrier;

static void *open_at_once(void *memory) {
    pthread_barrier_wait(&barrier);
    *(struct tg_memory **)memory = own(0);
    return NULL;
}

START_TEST(threads_that_ask_at_once_get_the_same) {
    struct tg_memory *memories[THREADS] = {0};
    pthread_t threads[THREADS];

    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_at_once, &memories[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert_ptr_eq(memories[i], own(0));
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("process");

    setenv("TIDEGATE_NAME", "actor\n", 1);
    setenv("LOCAL_RANK", "3", 1);
    setenv("RANK", "x", 1);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, a_gpu_has_one_memory_and_the_process_is_a_tenant);
    tcase_add_test(cases, without_scope_the_usual_tag_serves_or_none);
    tcase_add_test(cases, while_it_does_not_serve_no_tag_has_a_say);
    tcase_add_test(cases, a_block_is_found_by_its_beginning);
    tcase_add_test(cases, a_scope_on_the_gpu_goes_first);
    tcase_add_test(cases, wrong_calls_are_told);
    tcase_add_test(cases, what_could_not_be_opened_is_not_tried_again);
    tcase_add_test(cases, a_child_has_none_of_them);
    tcase_add_test(cases, while_a_capture_is_open_freed_memory_rests);
    tcase_add_test(cases, threads_that_ask_at_once_get_the_same);
    return suite_run("process", cases);
}
