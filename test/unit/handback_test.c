/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies that go back after their wake: who waits for that, who sees them meanwhile, and what
 * happens where it cannot be. The kernel's unmapping is held up as long as a test likes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../api/tested_device.h"
#include "children.h"
#include "device/captures.h"
#include "device/cuda_load.h"
#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

enum { BLOCK_BYTES = 5 * MIB, BLOCKS = 3, ALL_BYTES = BLOCKS * BLOCK_BYTES };

static struct world world;
static struct tg_tag *tag;
static void *blocks[BLOCKS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t caller;
static bool is_held, is_refused;
static int behind, before; /* unmapped by another thread; by the caller */

int __real_munmap(void *addr, size_t size);
int __wrap_munmap(void *addr, size_t size);
int __wrap_munmap(void *addr, size_t size) {
    bool is_ours = size >= ALL_BYTES, is_refusal;

    if (!is_ours)
        return __real_munmap(addr, size);
    pthread_mutex_lock(&lock);
    if (pthread_equal(pthread_self(), caller)) {
        before++;
    } else {
        while (is_held)
            pthread_cond_wait(&changed, &lock);
        behind++;
    }
    is_refusal = is_refused;
    is_refused = false;
    pthread_mutex_unlock(&lock);
    if (is_refusal) {
        errno = ENOMEM;
        return -1;
    }
    return __real_munmap(addr, size);
}

static void hold(bool is_on) {
    pthread_mutex_lock(&lock);
    is_held = is_on;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static uint64_t going_back(const struct tg_receipt *receipt) {
    for (uint32_t i = 0; i < receipt->item_count; i++) {
        if (strcmp(receipt->items[i].name, "stays: host copies, going back") == 0)
            return receipt->items[i].size_bytes;
    }
    return 0;
}

static void check_host_bytes(uint64_t host_bytes) {
    ck_assert_uint_eq(world_info(tag).host_bytes, host_bytes);
    ck_assert_uint_eq(world_view(&world).host_bytes, host_bytes);
}

static void check_content(void) {
    for (int i = 0; i < BLOCKS; i++)
        ck_assert(content_is(blocks[i], BLOCK_BYTES, (uint64_t)i + 1));
}

static int go_to_sleep(void) {
    return tg_memory_sleep(world.memory, NULL, 10000, NULL);
}

/* Awake again after a sleep; the host copies are as they are. */
static uint64_t wake(void) {
    struct tg_receipt receipt;

    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, &receipt));
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
    check_content();
    return going_back(&receipt);
}

static void set_up(void) {
    content_step = 64;
    caller = pthread_self();
    world_open(&world, "capacity=64MiB", true);
    world.memory->handback.least_bytes = ALL_BYTES;
    tag = world_tag(&world, "a", (struct tg_tag_params){.backup = TG_BACKUP_HOST, .packed = 1});
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = world_alloc(tag, BLOCK_BYTES);
        content_write(blocks[i], BLOCK_BYTES, (uint64_t)i + 1);
    }
    ck_assert_ok(go_to_sleep());
}

static void tear_down(void) {
    world_close(&world);
}

/* ---- behind the caller ----------------------------------------------------------------------- */

START_TEST(a_wake_does_not_wait_for_its_host_copies_to_go) {
    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    ck_assert_int_eq(before + behind, 0);
    check_host_bytes(ALL_BYTES);
    hold(false);
    tg__handback_end(world.memory);
    ck_assert_int_eq(behind, 1);
    check_host_bytes(0);
}
END_TEST

START_TEST(blocks_come_and_go_meanwhile) {
    void *more;

    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    more = world_alloc(tag, BLOCK_BYTES);
    ck_assert_ok(tg_memory_free(world.memory, more, NULL));
    ck_assert_ok(tg_memory_free(world.memory, blocks[1], NULL));
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    check_host_bytes(ALL_BYTES);
    hold(false);
    tg__handback_end(world.memory);
    check_host_bytes(0);
}
END_TEST

static void *let_go(void *unused) {
    hold(false);
    return unused;
}

/* All of the act is done when nothing is on its way back any more. */
static void check_waits(int (*act)(void)) {
    pthread_t other;

    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    ck_assert_int_eq(pthread_create(&other, NULL, let_go, NULL), 0);
    ck_assert_ok(act());
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert(!world.memory->handback.is_begun);
    ck_assert_int_eq(behind, 1);
    check_host_bytes(ALL_BYTES);
}

static int prepare(void) {
    return tg_memory_prepare(world.memory, NULL, NULL);
}

START_TEST(a_sleep_waits_for_them) {
    check_waits(go_to_sleep);
    ck_assert_uint_eq(wake(), ALL_BYTES);
}
END_TEST

START_TEST(a_prepare_waits_for_them) {
    check_waits(prepare);
}
END_TEST

/* The tear-down finds nothing left in the ledger. */
START_TEST(a_close_waits_for_them) {
    pthread_t other;

    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    ck_assert_int_eq(pthread_create(&other, NULL, let_go, NULL), 0);
    world_close(&world);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert_int_eq(behind, 1);
    set_up();
}
END_TEST

START_TEST(what_the_kernel_keeps_is_tried_again) {
    is_refused = true;
    ck_assert_uint_eq(wake(), ALL_BYTES);
    tg__handback_end(world.memory);
    check_host_bytes(ALL_BYTES);
    ck_assert_uint_eq(wake(), 0);
    ck_assert_int_eq(before, 1);
    check_host_bytes(0);
}
END_TEST

/* Two halves: the second one publishes, and nobody waits either. */
START_TEST(a_wake_in_two_halves_does_not_wait) {
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 0, NULL));
    hold(true);
    tg_memory_wake_end(world.memory, 1);
    check_content();
    check_host_bytes(ALL_BYTES);
    hold(false);
}
END_TEST

/* ---- a capture is open ----------------------------------------------------------------------- */

/* The driver's own calls. */
static struct tg__cuda_calls calls;
static struct tg__cuctx *context;
static struct tg__custream *stream;

static int call_on_stream(const char *name, int mode, void **graph) {
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    int (*begin)(struct tg__custream *on, int mode);
    int (*end)(struct tg__custream *on, void **graph);

    ck_assert_ptr_nonnull(found);
    memcpy(&begin, &found, sizeof begin);
    memcpy(&end, &found, sizeof end);
    return graph == NULL ? begin(stream, mode) : end(stream, graph);
}

static void begin_capture(unsigned flags) {
    ck_assert_ok(tg__cuda_load(&calls));
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(context), 0);
    ck_assert_int_eq(calls.cuStreamCreate(&stream, flags), 0);
    ck_assert_int_eq(call_on_stream("cuStreamBeginCapture_v2", TG__CU_STREAM_CAPTURE_MODE_GLOBAL,
                                    NULL), 0);
}

static void end_capture(void) {
    void *graph;

    ck_assert_int_eq(call_on_stream("cuStreamEndCapture", 0, &graph), 0); /* it was left whole */
    ck_assert_int_eq(calls.cuStreamDestroy(stream), 0);
    ck_assert_int_eq(calls.cuCtxPopCurrent(&context), 0);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
}

/* What goes back needs nothing of the device that a capture forbids, in the strictest mode either.
 * A sleep meanwhile is refused, and changes nothing. */
START_TEST(a_capture_that_begins_meanwhile_is_left_whole) {
    int open = 1;

    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    begin_capture(_i ? TG__CU_STREAM_NON_BLOCKING : 0);
    tg__captures_watch(&open);
    hold(false);
    ck_assert_int_eq(go_to_sleep(), TG_ECAPTURE);
    ck_assert_int_eq(behind, 1);
    check_host_bytes(0);
    check_content();
    open = 0;
    end_capture();
    ck_assert_ok(go_to_sleep());
    tg__captures_watch(NULL);
}
END_TEST

/* ---- the process ends meanwhile -------------------------------------------------------------- */

enum { BY_EXIT, BY_EXIT_AT_ONCE, BY_SIGNAL, ENDS };

static int end_while_they_go(int in, int out, void *how) {
    set_up();
    hold(true);
    ck_assert_uint_eq(wake(), ALL_BYTES);
    ck_assert_int_eq(write(out, world.dir, sizeof world.dir), (int)sizeof world.dir);
    hear(in);
    if ((intptr_t)how == BY_EXIT)
        exit(0);
    if ((intptr_t)how == BY_SIGNAL)
        kill(getpid(), SIGKILL);
    return 0;
}

/* Of a process that has opened nothing before. */
static int look_at_what_is_left(int in, int out, void *unused) {
    struct tg_node_view *node = calloc(1, sizeof *node);
    struct tg_device *device;
    struct tg_ledger *ledger;
    uint64_t free_bytes, total_bytes, host_bytes = 0;

    (void)in;
    (void)unused;
    ck_assert_ok(tg_device_open(tested_uri("", "capacity=64MiB"), &device));
    ck_assert_ok(tg_device_ops(device)->memory(device, &free_bytes, &total_bytes));
    ck_assert_ok(tg_ledger_open(NULL, &ledger));
    ck_assert_ok(tg_ledger_read(ledger, node));
    for (uint32_t i = 0; i < node->tenant_count; i++) {
        for (uint32_t j = 0; j < node->tenants[i].tag_count && !node->tenants[i].is_dead; j++)
            host_bytes += node->tenants[i].tags[j].host_bytes;
    }
    tell(out, free_bytes == total_bytes && host_bytes == 0);
    tg_ledger_close(ledger);
    tg_device_close(device);
    free(node);
    return 0;
}

/* The thread stands inside munmap: the process ends all the same, and the kernel takes all back. */
START_TEST(a_process_may_end_meanwhile) {
    struct child child = start(end_while_they_go, (void *)(intptr_t)_i), looker;
    char dir[sizeof world.dir];
    int status;

    ck_assert_int_eq(read(child.in, dir, sizeof dir), (int)sizeof dir);
    setenv("TIDEGATE_DIR", dir, 1);
    status = finish(&child);
    ck_assert(_i == BY_SIGNAL ? WIFSIGNALED(status) : status == 0);
    looker = start(look_at_what_is_left, NULL);
    ck_assert_uint_eq(hear(looker.in), 1);
    ck_assert_int_eq(finish(&looker), 0);
    remove_directory(dir);
}
END_TEST

/* ---- before the call returns ----------------------------------------------------------------- */

START_TEST(little_goes_at_once) {
    world.memory->handback.least_bytes = ALL_BYTES + 1;
    ck_assert_uint_eq(wake(), 0);
    ck_assert_int_eq(before, 1);
    check_host_bytes(0);
}
END_TEST

START_TEST(where_host_memory_is_short_all_goes_at_once) {
    setenv("TIDEGATE_HOST_BYTES", "29MiB", 1); /* 15 are held */
    ck_assert_uint_eq(wake(), 0);
    ck_assert_int_eq(before, 1);
    check_host_bytes(0);
    setenv("TIDEGATE_HOST_BYTES", "30MiB", 1);
    ck_assert_ok(go_to_sleep());
    ck_assert_uint_eq(wake(), ALL_BYTES);
    tg__handback_end(world.memory);
    ck_assert_int_eq(behind, 1);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("handback"), *ends = tcase_create("ends");
    int status;

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_wake_does_not_wait_for_its_host_copies_to_go);
    tcase_add_test(tcase, blocks_come_and_go_meanwhile);
    tcase_add_test(tcase, a_sleep_waits_for_them);
    tcase_add_test(tcase, a_prepare_waits_for_them);
    tcase_add_test(tcase, a_close_waits_for_them);
    tcase_add_test(tcase, what_the_kernel_keeps_is_tried_again);
    tcase_add_test(tcase, a_wake_in_two_halves_does_not_wait);
    if (getenv("TIDEGATE_TEST_STANDIN") != NULL) /* the host device has no captures */
        tcase_add_loop_test(tcase, a_capture_that_begins_meanwhile_is_left_whole, 0, 2);
    tcase_add_test(tcase, little_goes_at_once);
    tcase_add_test(tcase, where_host_memory_is_short_all_goes_at_once);
    tcase_set_timeout(ends, 30);
    tcase_add_loop_test(ends, a_process_may_end_meanwhile, 0, ENDS);
    status = suite_run("handback", tcase);
    return suite_run("ends", ends) + status;
}
