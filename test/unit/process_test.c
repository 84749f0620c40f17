/* SPDX-License-Identifier: Apache-2.0 */
/* The process's own memories on the driver that stands in, allocation for code that knows no tags,
 * and what an open capture forbids. */
#include <tidegate/ipc.h>
#include <tidegate/process.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/scope.h>

#include "device/device.h"
#include "memory/state.h"
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

/* How often the process is in the ledger; *first: of them, if there is one. */
static uint32_t tenants(struct tg_tenant_view *first) {
    struct tg_node_view *view = calloc(1, sizeof *view);
    struct tg_ledger *ledger;
    uint32_t count;

    ck_assert_ok(tg_ledger_open_reader(NULL, &ledger));
    ck_assert_ok(tg_ledger_read(ledger, view));
    count = view->tenant_count;
    *first = view->tenants[0];
    tg_ledger_close(ledger);
    free(view);
    return count;
}

START_TEST(a_gpu_has_one_memory_and_the_process_is_a_tenant) {
    struct tg_memory *memory = own(1);
    struct tg_tenant_view view;

    ck_assert_ptr_eq(own(1), memory);
    ck_assert_ptr_ne(own(0), memory);
    ck_assert_ptr_nonnull(usual(1, 4 * MIB, "a"));
    ck_assert_uint_eq(tenants(&view), 2);
    ck_assert_str_eq(view.name, "actor?");
    ck_assert_str_eq(view.role, "");
    ck_assert_int_eq(view.rank, 3);
    ck_assert_uint_eq(view.tags[0].occupied_bytes, 4 * MIB);
}
END_TEST

START_TEST(whoever_asks_first_it_is_one_tenant_on_one_device) {
    struct tg_tenant *tenant = NULL, *again = NULL;
    struct tg_device *device = NULL;
    struct tg_tenant_view view;

    ck_assert_uint_eq(tg_process_gpus(), 0);
    ck_assert_ok(tg_process_tenant(1, &tenant));
    ck_assert_uint_eq(tg_process_gpus(), 0);
    ck_assert_ptr_nonnull(usual(1, 4 * MIB, "a"));
    ck_assert_uint_eq(tg_process_gpus(), 2);
    ck_assert_ok(tg_process_tenant(1, &again));
    ck_assert_ptr_eq(again, tenant);
    ck_assert_ok(tg_process_device(1, &device));
    ck_assert_ptr_eq(device, own(1)->device);
    ck_assert_ptr_eq(tenant, own(1)->tenant);
    ck_assert_uint_eq(tenants(&view), 1);
    ck_assert_uint_eq(view.id, tg_tenant_id(tenant));
    ck_assert_uint_eq(view.tags[0].occupied_bytes, 4 * MIB);
    own(0);
    ck_assert_uint_eq(tg_process_gpus(), 3);
    ck_assert_uint_eq(tenants(&view), 2);
}
END_TEST

START_TEST(who_holds_a_gpu_is_told_as_the_driver_has_it_now) {
    struct tg_process_node *node = calloc(1, sizeof *node);
    struct tg_device_view *device;
    uint64_t chunk;

    ck_assert_ptr_nonnull(usual(0, 4 * MIB, "a"));
    ck_assert_ptr_nonnull(usual(1, 6 * MIB, "a"));
    ck_assert_ok(own(1)->ops->create(own(1)->device, 10 * MIB, 0, &chunk)); /* nobody's */
    ck_assert_ok(tg_process_look(1, node));
    device = &node->view.devices[node->place];
    ck_assert_uint_eq(node->view.device_count, 2);
    ck_assert_uint_eq(device->total_bytes, 64 * MIB);
    ck_assert_uint_eq(device->free_bytes, 48 * MIB);
    ck_assert_uint_eq(device->unattributed_bytes, 10 * MIB);
    ck_assert_uint_eq(node->self, node->view.tenants[0].id);
    ck_assert_int_eq(node->rank, 3);
    ck_assert_ok(own(1)->ops->release(own(1)->device, chunk));
    ck_assert_says(tg_process_look(1, NULL), -EINVAL, "");
    ck_assert_says(tg_process_look(99, node), -EINVAL, "not on 99");
    free(node);
}
END_TEST

/* The ledger's place is taken by a folder. */
START_TEST(without_the_ledger_the_driver_alone_tells) {
    struct tg_process_node *node = calloc(1, sizeof *node);
    char place[64];

    snprintf(place, sizeof place, "%s/ledger", dir);
    ck_assert_int_eq(mkdir(place, 0700), 0);
    ck_assert_ptr_nonnull(usual(1, 6 * MIB, "a"));
    ck_assert_ok(tg_process_look(1, node));
    ck_assert_uint_eq(node->self, 0);
    ck_assert_uint_eq(node->view.tenant_count, 0);
    ck_assert_uint_eq(node->view.device_count, 1);
    ck_assert_uint_eq(node->view.devices[node->place].free_bytes, 58 * MIB);
    ck_assert_uint_eq(node->view.devices[node->place].unattributed_bytes, 6 * MIB);
    free(node);
}
END_TEST

START_TEST(the_usual_tag_can_be_opened_before_it_serves) {
    struct tg_tag *tag = NULL, *other = NULL;
    void *block;

    ck_assert_ok(tg_process_tag(0, "a", &tag));
    block = usual(0, MIB, "a");
    ck_assert_uint_eq(info_of(own(0), block, "a").block_count, 1);
    ck_assert_uint_eq(world_info(tag).block_count, 1);
    ck_assert_ok(tg_tag_open(own(0), "b", &packed, &other));
    ck_assert_ptr_eq(tg_memory_tag(own(0), 0), tag);
    ck_assert_ptr_eq(tg_memory_tag(own(0), 1), other);
    ck_assert_ptr_null(tg_memory_tag(own(0), 2));
    ck_assert_ptr_null(tg_memory_tag(own(1), 0));
    ck_assert_ptr_null(tg_memory_tag(NULL, 0));
    ck_assert_str_eq(tg_tag_name(tag), "a");
    ck_assert_str_eq(tg_tag_name(other), "b");
    ck_assert_says(tg_process_tag(0, "b", &tag), -EEXIST, "'b'");
}
END_TEST

START_TEST(the_usual_tag_keeps_host_memory_where_the_environment_says_so) {
    static const char *const said[] = {NULL, "", "0", "1", "on"};
    bool is_kept = _i == 3;
    struct tg_tag *tag;

    if (said[_i] != NULL)
        ck_assert_int_eq(setenv("TIDEGATE_DEFAULT_KEEP_HOST", said[_i], 1), 0);
    ck_assert_ok(tg_process_tag(0, "a", &tag));
    usual(0, MIB, "a");
    ck_assert_int_eq(setenv("TIDEGATE_DEFAULT_KEEP_HOST", is_kept ? "0" : "1", 1), 0);
    usual(0, MIB, "a"); /* of the same tag: what was read stands */
    ck_assert_ok(tg_memory_sleep(own(0), "a", 10000, NULL));
    ck_assert_uint_gt(world_info(tag).host_bytes, 0);
    ck_assert_ok(tg_memory_wake(own(0), "a", 10000, NULL));
    ck_assert_int_eq(world_info(tag).host_bytes > 0, is_kept);
}
END_TEST

START_TEST(a_process_says_who_it_is_until_it_has_joined) {
    struct tg_tenant_view view;
    char longest[TG_TENANT_NAME_BYTES + 1];

    memset(longest, 'n', sizeof longest);
    longest[TG_TENANT_NAME_BYTES] = '\0';
    ck_assert_says(tg_process_introduce(longest, NULL), -EINVAL, "1 to 47 printable");
    ck_assert_says(tg_process_introduce("", NULL), -EINVAL, "1 to 47 printable");
    ck_assert_says(tg_process_introduce(NULL, NULL), -EINVAL, "1 to 47 printable");
    ck_assert_says(tg_process_introduce("a\n", NULL), -EINVAL, "1 to 47 printable");
    ck_assert_says(tg_process_introduce("a", "sixteen letters!"), -EINVAL, "up to 15");
    ck_assert_ok(tg_process_introduce("server", "rollout"));
    ck_assert_ok(tg_process_introduce("vllm server", NULL));
    own(0);
    ck_assert_says(tg_process_introduce("server", "rollout"), -EALREADY,
                   "as 'vllm server' (role ''), and stays that: it was called 'server' "
                   "(role 'rollout') too late");
    ck_assert_says(tg_process_introduce("vllm server", "rollout"), -EALREADY, "too late");
    ck_assert_ok(tg_process_introduce("vllm server", ""));
    own(1);
    ck_assert_uint_eq(tenants(&view), 2);
    ck_assert_str_eq(view.name, "vllm server");
    ck_assert_str_eq(view.role, "");
}
END_TEST

/* As the package reads them, so that it does not call the process otherwise. */
START_TEST(the_environments_words_are_made_printable) {
    struct tg_tenant_view view;

    setenv("TIDEGATE_NAME", "  b\xc3\xa4r\n ", 1);
    setenv("TIDEGATE_ROLE", "  ", 1);
    own(0);
    ck_assert_uint_eq(tenants(&view), 1);
    ck_assert_str_eq(view.name, "b?r?");
    ck_assert_str_eq(view.role, "");
    ck_assert_ok(tg_process_introduce("b?r?", NULL));
}
END_TEST

START_TEST(a_process_without_a_name_is_a_trainer) {
    struct tg_tenant_view view;

    setenv("TIDEGATE_NAME", " ", 1);
    own(0);
    ck_assert_uint_eq(tenants(&view), 1);
    ck_assert_str_eq(view.name, "trainer");
    ck_assert_str_eq(view.role, "trainer");
}
END_TEST

START_TEST(without_the_ledger_there_is_a_memory_alone) {
    struct tg_tenant *tenant = NULL;
    char path[96];

    snprintf(path, sizeof path, "%s/ledger", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_lt(tg_process_tenant(0, &tenant), 0);
    ck_assert_ptr_nonnull(usual(0, MIB, "a"));
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_lt(tg_process_tenant(0, &tenant), 0);
    ck_assert_ptr_null(tenant);
    ck_assert_ptr_null(own(0)->tenant);
    ck_assert_ok(tg_process_tenant(1, &tenant));
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

/* What waits for the GPU's work rests for ever on one that hangs. */
START_TEST(what_nothing_uses_is_the_gpus_at_once) {
    void *waits, *idle, *kept;
    uint64_t free_bytes, total_bytes;

    setenv("TIDEGATE_STANDIN", "capacity=64MiB,context=0,hang=1", 1);
    waits = usual(0, 4 * MIB, "a");
    idle = usual(0, 8 * MIB, "a");
    kept = usual(0, 2 * MIB, "a");
    ck_assert_ok(own(0)->ops->fill(own(0)->device, (uint64_t)(uintptr_t)waits, 1, 4 * MIB,
                                   own(0)->queue));
    ck_assert_ok(tg_process_free(waits));
    ck_assert_ok(tg_process_free_idle(idle));
    ck_assert_uint_eq(info_of(own(0), kept, "a").limbo_bytes, 4 * MIB);
    ck_assert_uint_eq(info_of(own(0), kept, "a").device_bytes, 6 * MIB);
    ck_assert_ok(own(0)->ops->memory(own(0)->device, &free_bytes, &total_bytes));
    ck_assert_uint_eq(total_bytes - free_bytes, 6 * MIB);
    ck_assert_int_eq(tg_process_free_idle(idle), -EINVAL);
    ck_assert_int_eq(tg_process_free_idle(NULL), -EINVAL);
    ck_assert_int_eq(tg_last_error()->status, 0);
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
    const unsigned char token[TG_IPC_TOKEN_BYTES] = TG_IPC_MAGIC;
    struct tg_memory *memory = NULL;
    void *block = &dir;

    ck_assert_int_eq(tg_process_free(&block), -EINVAL);
    ck_assert_int_eq(tg_process_free(NULL), -EINVAL);
    ck_assert_int_eq(tg_last_error()->status, 0);
    ck_assert_says(tg_process_memory(-1, &memory), -EINVAL, "not on -1");
    ck_assert_says(tg_process_memory(16, &memory), -EINVAL, "not on 16");
    ck_assert_says(tg_process_memory(0, NULL), -EINVAL, "");
    ck_assert_says(tg_process_tenant(16, &(struct tg_tenant *){NULL}), -EINVAL, "not on 16");
    ck_assert_says(tg_process_device(0, NULL), -EINVAL, "");
    ck_assert_int_lt(tg_process_device(2, &(struct tg_device *){NULL}), 0);
    ck_assert_says(tg_process_tag(0, "a", NULL), -EINVAL, "not into NULL");
    ck_assert_says(tg_process_alloc(NULL, &block), -EINVAL, "not NULL");
    ck_assert_says(tg_process_alloc(&bad_name, NULL), -EINVAL, "not NULL");
    ck_assert_says(tg_process_alloc(&bad_name, &block), -EINVAL, "a b");
    ck_assert_int_lt(tg_process_alloc(&bad_device, &block), 0);
    ck_assert_ptr_eq(block, &dir);
    ck_assert_int_eq(tg_process_free(&block), -EINVAL);
    ck_assert_says(tg_ipc_token(&dir, NULL), -EINVAL, "not NULL");
    ck_assert_says(tg_ipc_open(0, NULL, &block), -EINVAL, "not NULL");
    ck_assert_says(tg_ipc_open(0, token, NULL), -EINVAL, "not NULL");
    ck_assert_says(tg_ipc_find(&dir, NULL), -EINVAL, "not NULL");
    ck_assert_int_eq(tg_ipc_close(NULL), -ENOENT);
    ck_assert_int_eq(tg_ipc_close_idle(NULL), -ENOENT);
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
    struct tg_memory *parents = own(0);
    pid_t child = fork();
    int status;

    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct tg_process_request request = {MIB, 0, "a"};
        struct tg_memory *memory;
        struct tg_device *device;
        struct tg_tenant *tenant;

        _exit(tg_process_memory(0, &memory) == TG_EFORKED &&
              tg_process_device(0, &device) == TG_EFORKED &&
              tg_process_tenant(0, &tenant) == TG_EFORKED &&
              tg_process_introduce("child", NULL) == TG_EFORKED && tg_process_gpus() == 0 &&
              tg_memory_tag(parents, 0) == NULL &&
              tg_process_memory(1, &memory) == TG_EFORKED &&
              tg_process_alloc(&request, &block) == TG_EFORKED &&
              tg_process_free(block) == TG_EFORKED &&
              tg_process_free_idle(block) == TG_EFORKED ? 0 : 1);
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
    tcase_add_test(cases, whoever_asks_first_it_is_one_tenant_on_one_device);
    tcase_add_test(cases, who_holds_a_gpu_is_told_as_the_driver_has_it_now);
    tcase_add_test(cases, without_the_ledger_the_driver_alone_tells);
    tcase_add_test(cases, the_usual_tag_can_be_opened_before_it_serves);
    tcase_add_loop_test(cases, the_usual_tag_keeps_host_memory_where_the_environment_says_so, 0, 5);
    tcase_add_test(cases, a_process_says_who_it_is_until_it_has_joined);
    tcase_add_test(cases, the_environments_words_are_made_printable);
    tcase_add_test(cases, a_process_without_a_name_is_a_trainer);
    tcase_add_test(cases, without_the_ledger_there_is_a_memory_alone);
    tcase_add_test(cases, without_scope_the_usual_tag_serves_or_none);
    tcase_add_test(cases, while_it_does_not_serve_no_tag_has_a_say);
    tcase_add_test(cases, a_block_is_found_by_its_beginning);
    tcase_add_test(cases, what_nothing_uses_is_the_gpus_at_once);
    tcase_add_test(cases, a_scope_on_the_gpu_goes_first);
    tcase_add_test(cases, wrong_calls_are_told);
    tcase_add_test(cases, what_could_not_be_opened_is_not_tried_again);
    tcase_add_test(cases, a_child_has_none_of_them);
    tcase_add_test(cases, while_a_capture_is_open_freed_memory_rests);
    tcase_add_test(cases, threads_that_ask_at_once_get_the_same);
    return suite_run("process", cases);
}
