/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device under the contract's tests, on the stand-in driver and on a card; and what it
 * owes to the program around it, seen with the driver's own calls. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "children.h"
#include "device/cuda_load.h"
#include "device_suite.h"

/* Contexts come and go with the processes of the tests; on the stand-in they cost nothing. */
#define CARD_SLACK_BYTES (UINT64_C(2) << 30)

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

/* With its context: what that costs is no part of the figures that the tests compare. */
static int open_cuda(struct tg_device **device) {
    struct tg_queue *queue;
    int rc = tg_device_open("cuda:0", device);

    if (rc == 0)
        rc = tg_device_ops(*device)->queue_open(*device, &queue);
    if (rc == 0)
        rc = tg_device_ops(*device)->queue_close(*device, queue);
    return rc;
}

/* ---- the program's side ---------------------------------------------------------------------- */

/* The driver as the program around us has it, and what we do not use of it. */
static struct tg__cuda_calls calls;
static int (*get_current)(struct tg__cuctx **context);
static int (*begin_capture)(struct tg__custream *stream, int mode);
static int (*end_capture)(struct tg__custream *stream, void **graph);

static void find(const char *name, void *function) {
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

    ck_assert_msg(found != NULL, "the driver has no %s", name);
    memcpy(function, &found, sizeof found);
}

static void load_driver(void) {
    ck_assert_ok(tg__cuda_load(&calls));
    find("cuCtxGetCurrent", &get_current);
    find("cuStreamBeginCapture_v2", &begin_capture);
    find("cuStreamEndCapture", &end_capture);
}

/* What cudaMallocAsync is made of: its pool keeps all, as torch's does. */
static void fill_pool(uint64_t size_bytes) {
    int (*alloc)(unsigned long long *addr, size_t size_bytes, struct tg__custream *stream);
    int (*free_later)(unsigned long long addr, struct tg__custream *stream);
    int (*set)(struct tg__cupool *pool, int attribute, void *value);
    enum { RELEASE_THRESHOLD = 4 };
    uint64_t most = UINT64_MAX;
    struct tg__cupool *pool;
    unsigned long long addr;

    find("cuMemAllocAsync", &alloc);
    find("cuMemFreeAsync", &free_later);
    find("cuMemPoolSetAttribute", &set);
    ck_assert_int_eq(calls.cuDeviceGetDefaultMemPool(&pool, 0), 0);
    ck_assert_int_eq(set(pool, RELEASE_THRESHOLD, &most), 0);
    ck_assert_int_eq(alloc(&addr, size_bytes, NULL), 0);
    ck_assert_int_eq(free_later(addr, NULL), 0);
    ck_assert_int_eq(calls.cuCtxSynchronize(), 0);
}

static struct tg__cuctx *current(void) {
    struct tg__cuctx *context = NULL;

    ck_assert_int_eq(get_current(&context), 0);
    return context;
}

static int is_active(void) {
    unsigned flags;
    int active = -1;

    ck_assert_int_eq(calls.cuDevicePrimaryCtxGetState(0, &flags, &active), 0);
    return active;
}

/* Who only asks pays no context. */
START_TEST(asking_makes_no_context) {
    struct tg_device *device = device_open("cuda:0");
    struct tg_device_info info;
    uint64_t free_bytes, total_bytes, own_bytes;
    int rc;

    load_driver();
    ck_assert_ok(tg_device_ops(device)->info(device, &info));
    ck_assert_ok(tg_device_ops(device)->memory(device, &free_bytes, &total_bytes));
    rc = tg_device_ops(device)->process(device, &own_bytes);
    ck_assert(rc == 0 || rc == -ENOTSUP);
    ck_assert(rc != 0 || own_bytes == 0);
    ck_assert_int_eq(is_active(), 0);
    tg_device_close(device);
    ck_assert_int_eq(is_active(), 0);
}
END_TEST

/* The two sources of the figure agree, but for what the context itself takes. */
START_TEST(free_memory_is_the_same_with_and_without_a_context) {
    struct tg_device *device = device_open("cuda:0");
    uint64_t before = device_free_bytes(device), after;
    struct tg_queue *queue;

    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    after = device_free_bytes(device);
    ck_assert_uint_le(after, before + 64 * MIB);
    ck_assert_uint_ge(after + device_slack_bytes, before);
    tg_device_close(device);
}
END_TEST

START_TEST(the_programs_context_stays_current) {
    struct tg__cuctx *own = NULL;
    struct tg_device *device;
    uint64_t chunk, addr;

    load_driver();
    ck_assert_ptr_null(current());
    ck_assert_ok(open_cuda(&device));
    ck_assert_ptr_null(current());
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(own), 0);
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, GRANULE, NULL));
    device_settle(device);
    ck_assert_ptr_eq(current(), own);
    device_unmake(device, addr, GRANULE, chunk);
    tg_device_close(device);
    ck_assert_ptr_eq(current(), own);
    ck_assert_int_eq(is_active(), 1);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
}
END_TEST

/* What is not given back is, at the close; the program's own context keeps the figure steady. */
START_TEST(closing_gives_back_what_is_left) {
    static _Alignas(4096) unsigned char pinned[2][4096];
    struct tg_device *device;
    struct tg__cuctx *own;
    uint64_t before, chunks[3], addr;

    load_driver();
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    for (int round = 0; round < 2; round++) {
        struct tg_queue *queue;
        struct tg_fence fence;

        ck_assert_ok(open_cuda(&device));
        before = device_free_bytes(device);
        ck_assert_ok(tg_device_ops(device)->reserve(device, 8 * GRANULE, &addr));
        for (int i = 0; i < 3; i++) {
            ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunks[i]));
            ck_assert_ok(tg_device_ops(device)->map(
                device, addr + (uint64_t)(i == 2 ? 6 : i) * GRANULE, chunks[i], 0));
        }
        ck_assert_ok(tg_device_ops(device)->release(device, chunks[0]));
        ck_assert_ok(tg_device_ops(device)->pin(device, pinned[round], sizeof *pinned, 1));
        ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
        ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, 2 * GRANULE, queue));
        ck_assert_ok(tg_device_ops(device)->fence(device, queue, &fence));
        tg_device_close(device);
    }
    device = device_open("cuda:0");
    ck_assert_ok(tg_device_ops(device)->pin(device, pinned[0], sizeof *pinned, 1));
    device_check_free(device, before);
    tg_device_close(device);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
}
END_TEST

/* What the program has registered by itself is its own; a refusal leaves nothing in our book. */
START_TEST(pinning_what_the_program_has_pinned_is_refused) {
    static _Alignas(4096) unsigned char memory[2 * 4096];
    struct tg_device *device;
    struct tg__cuctx *own;

    load_driver();
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(own), 0);
    ck_assert_ok(open_cuda(&device));
    ck_assert_int_eq(calls.cuMemHostRegister(memory, sizeof memory, 0), 0);
    ck_assert_fails(tg_device_ops(device)->pin(device, memory, sizeof memory, 1), TG_EDEVICE);
    ck_assert_int_eq(tg_last_error()->native, TG__CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    ck_assert_int_eq(calls.cuMemHostUnregister(memory), 0);
    ck_assert_ok(tg_device_ops(device)->pin(device, memory, sizeof memory, 1));
    ck_assert_ok(tg_device_ops(device)->pin(device, memory, sizeof memory, 0));
    tg_device_close(device);
    ck_assert_int_eq(calls.cuCtxPopCurrent(&own), 0);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
}
END_TEST

/* ---- captures -------------------------------------------------------------------------------- */

static struct tg__custream *start_capture(unsigned flags, int mode) {
    struct tg__custream *stream;
    struct tg__cuctx *own;

    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(own), 0);
    ck_assert_int_eq(calls.cuStreamCreate(&stream, flags), 0);
    ck_assert_int_eq(begin_capture(stream, mode), 0);
    return stream;
}

/* What ending it answered; the stream and the context go, too. */
static int finish_capture(struct tg__custream *stream) {
    struct tg__cuctx *own;
    void *graph = NULL;
    int result = end_capture(stream, &graph);

    ck_assert_int_eq(calls.cuStreamDestroy(stream), 0);
    ck_assert_int_eq(calls.cuCtxPopCurrent(&own), 0);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
    return result;
}

/* Where the driver can say so without harm, the capture lives on. */
START_TEST(a_capture_forbids_a_fence_and_lives_on) {
    struct tg_device *device;
    struct tg__custream *stream;
    struct tg_fence fence = {{5, 5}};

    load_driver();
    ck_assert_ok(open_cuda(&device));
    stream = start_capture(0, TG__CU_STREAM_CAPTURE_MODE_GLOBAL);
    ck_assert_fails(tg_device_ops(device)->fence(device, NULL, &fence), TG_ECAPTURE);
    ck_assert_uint_eq(fence.word[0], 5);
    ck_assert_int_eq(tg_last_error()->native, TG__CU_ERROR_STREAM_CAPTURE_IMPLICIT);
    ck_assert_int_eq(finish_capture(stream), 0);
    ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &fence));
    ck_assert_ok(tg_device_ops(device)->wait(device, &fence, 20000));
    tg_device_close(device);
}
END_TEST

/* A stream that the null stream does not wait for is seen only when it is too late for it. */
START_TEST(a_hidden_capture_forbids_a_fence_too) {
    struct tg_device *device;
    struct tg__custream *stream;
    struct tg_fence fence;
    int rc, ended;

    load_driver();
    ck_assert_ok(open_cuda(&device));
    stream = start_capture(TG__CU_STREAM_NON_BLOCKING, TG__CU_STREAM_CAPTURE_MODE_GLOBAL);
    rc = tg_device_ops(device)->fence(device, NULL, &fence);
    if (rc == 0) /* a driver without an event of the context: the wait tells */
        rc = tg_device_ops(device)->wait(device, &fence, 20000);
    ck_assert_int_eq(rc, TG_ECAPTURE);
    ended = finish_capture(stream);
    printf("a capture on a non-blocking stream ends with %d after a refused fence\n", ended);
    ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &fence));
    ck_assert_ok(tg_device_ops(device)->wait(device, &fence, 20000));
    tg_device_close(device);
}
END_TEST

START_TEST(what_the_drivers_pool_keeps_goes_back) {
    struct tg_device *device;
    const struct tg_device_ops *ops;
    struct tg__custream *stream;
    struct tg__cuctx *own;
    uint64_t gained_bytes = 7, free_bytes;

    load_driver();
    ck_assert_ok(open_cuda(&device));
    ops = tg_device_ops(device);
    ck_assert_ok(ops->unpool(device, &gained_bytes));
    ck_assert_uint_eq(gained_bytes, 0);
    stream = start_capture(0, TG__CU_STREAM_CAPTURE_MODE_GLOBAL);
    gained_bytes = 7;
    ck_assert_fails(ops->unpool(device, &gained_bytes), TG_ECAPTURE);
    ck_assert_uint_eq(gained_bytes, 7);
    ck_assert_int_eq(finish_capture(stream), 0);
    free_bytes = device_free_bytes(device);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(own), 0);
    fill_pool(32 * MIB);
    device_check_free(device, free_bytes - 32 * MIB);
    ck_assert_ok(ops->unpool(device, &gained_bytes));
    ck_assert_uint_ge(gained_bytes, 32 * MIB);
    device_check_free(device, free_bytes);
    ck_assert_int_eq(calls.cuCtxPopCurrent(&own), 0);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
    tg_device_close(device);
}
END_TEST

/* Memory, copies of ours and waiting for them are no harm to a capture, not in the strictest mode
 * either. */
START_TEST(work_of_ours_does_not_end_a_capture) {
    struct tg_device *device;
    struct tg__custream *stream;
    struct tg_queue *queue;
    struct tg_fence fence;
    uint64_t chunk, addr;

    load_driver();
    ck_assert_ok(open_cuda(&device));
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    stream = start_capture(TG__CU_STREAM_NON_BLOCKING, TG__CU_STREAM_CAPTURE_MODE_GLOBAL);
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 7, GRANULE, queue));
    ck_assert_ok(tg_device_ops(device)->fence(device, queue, &fence));
    ck_assert_ok(tg_device_ops(device)->wait(device, &fence, 20000));
    device_unmake(device, addr, GRANULE, chunk);
    ck_assert_int_eq(finish_capture(stream), 0);
    tg_device_close(device);
}
END_TEST

/* ---- forks, threads, many fences ------------------------------------------------------------- */

START_TEST(a_forked_child_is_refused) {
    struct tg_device *device;
    int status;
    pid_t child;

    ck_assert_ok(open_cuda(&device));
    child = fork();
    if (child == 0) {
        struct tg_device *other;
        uint64_t chunk;
        int rc = tg_device_ops(device)->create(device, GRANULE, 0, &chunk);

        tg_device_close(device);
        _exit(rc == TG_EFORKED && tg_device_open("cuda:0", &other) == TG_EFORKED ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    device_settle(device);
    tg_device_close(device);
}
END_TEST

enum { FENCES = 1000 };

/* Far more than there are events for: each is passed when its work is, none before. */
START_TEST(any_number_of_fences_is_kept_apart) {
    struct tg_fence fences[FENCES], all[FENCES];
    struct tg_device *device;
    struct tg_queue *queue;
    unsigned char *seen = malloc(FENCES);
    uint64_t chunk, addr;

    ck_assert_ok(open_cuda(&device));
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    for (int i = 0; i < FENCES; i++) {
        ck_assert_ok(tg_device_ops(device)->fill(device, addr, i + 1, GRANULE, queue));
        ck_assert_ok(tg_device_ops(device)->copy(device, seen + i, (void *)(uintptr_t)addr, 1,
                                                 queue));
        ck_assert_ok(tg_device_ops(device)->fence(device, queue, &fences[i]));
        ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &all[i]));
    }
    for (int i = 0; i < FENCES; i += 37) {
        ck_assert_ok(tg_device_ops(device)->wait(device, i % 2 == 0 ? &fences[i] : &all[i], 20000));
        ck_assert_uint_eq(seen[i], (unsigned char)(i + 1));
    }
    ck_assert_ok(tg_device_ops(device)->queue_close(device, queue));
    for (int i = 0; i < FENCES; i++)
        ck_assert_ok(tg_device_ops(device)->wait(device, &all[i], 20000));
    for (int i = 0; i < FENCES; i++)
        ck_assert_ok(tg_device_ops(device)->wait(device, &fences[i], 0));
    free(seen);
    device_unmake(device, addr, GRANULE, chunk);
    tg_device_close(device);
}
END_TEST

static void *fence_on(void *argument) {
    struct tg_device *device = argument;

    for (int i = 0; i < 200; i++) {
        struct tg_queue *queue;
        struct tg_fence fence;

        ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
        ck_assert_ok(tg_device_ops(device)->fence(device, i % 2 == 0 ? queue : NULL, &fence));
        ck_assert_ok(tg_device_ops(device)->queue_close(device, queue));
        ck_assert_ok(tg_device_ops(device)->wait(device, &fence, 20000));
    }
    return NULL;
}

START_TEST(threads_share_queues_and_fences) {
    struct tg_device *device;
    pthread_t threads[4];

    ck_assert_ok(open_cuda(&device));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, fence_on, device), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    tg_device_close(device);
}
END_TEST

START_TEST(what_is_no_fence_is_refused) {
    const struct tg_fence wrong[] = {{{0, 1000000}}, {{1000000, 1}}};
    struct tg_device *device;

    ck_assert_ok(open_cuda(&device));
    device_settle(device);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_fails(tg_device_ops(device)->wait(device, &wrong[i], 0), -EINVAL);
    tg_device_close(device);
}
END_TEST

/* ---------------------------------------------------------------------------------------------- */

static int run_all(void) {
    uint64_t slack_bytes = getenv("TIDEGATE_STANDIN") != NULL ? 0 : CARD_SLACK_BYTES;
    TCase *own = tcase_create("cuda");
    const struct device_suite cuda = {"device_cuda", open_cuda, set_up, tear_down, own,
                                      slack_bytes};
    tcase_set_timeout(own, 60);
    tcase_add_test(own, asking_makes_no_context);
    tcase_add_test(own, free_memory_is_the_same_with_and_without_a_context);
    tcase_add_test(own, the_programs_context_stays_current);
    tcase_add_test(own, closing_gives_back_what_is_left);
    tcase_add_test(own, pinning_what_the_program_has_pinned_is_refused);
    tcase_add_test(own, a_capture_forbids_a_fence_and_lives_on);
    tcase_add_test(own, a_hidden_capture_forbids_a_fence_too);
    tcase_add_test(own, what_the_drivers_pool_keeps_goes_back);
    tcase_add_test(own, work_of_ours_does_not_end_a_capture);
    tcase_add_test(own, a_forked_child_is_refused);
    tcase_add_test(own, any_number_of_fences_is_kept_apart);
    tcase_add_test(own, threads_share_queues_and_fences);
    tcase_add_test(own, what_is_no_fence_is_refused);
    return device_suite_run(&cuda);
}

int main(void) {
    int status = device_no_gpu();

    return status != 0 ? status : run_all();
}
