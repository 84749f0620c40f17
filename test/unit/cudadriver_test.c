/* SPDX-License-Identifier: Apache-2.0 */
/* What the cuda device makes of its driver: one that is not there, too old, without an event of the
 * whole context, failing for good, late, or counting processes by other ids; and which device
 * `auto` is. Each test asks the stand-in driver for what it wants. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "children.h"
#include "device_suite.h"
#include "suite.h"

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static void ask_for(const char *driver) {
    ck_assert_int_eq(setenv("TIDEGATE_STANDIN", driver, 1), 0);
}

/* The call answers `wanted` with these words, and with the driver's code behind it. */
static void check_said(int status, int wanted, int native, const char *words) {
    ck_assert_msg(status == wanted, "%d instead of %d: %s", status, wanted, tg_last_error()->text);
    ck_assert_int_eq(tg_last_error()->status, wanted);
    ck_assert_int_eq(tg_last_error()->native, native);
    ck_assert_msg(strstr(tg_last_error()->text, words) != NULL, "\"%s\" lacks \"%s\"",
                  tg_last_error()->text, words);
}

/* ---- no driver ------------------------------------------------------------------------------- */

static const struct {
    const char *driver, *uri;
    int status, native;
    const char *words;
} refusals[] = {
    {"", "cuda:0", -ENODEV, 100, "shows no GPU to this process"},
    {"capacity=64MiB,init=999", "cuda:0", -ENODEV, 999, "cuInit: CUDA_ERROR_UNKNOWN (999)"},
    {"capacity=64MiB,driver=10010", "cuda:0", -ENODEV, 19, "too old: it lacks"},
    {"capacity=64MiB,driver=11030", "cuda:0", -ENODEV, 19, "cuDeviceGetUuid_v2 of CUDA 11.4"},
    {"capacity=64MiB", "cuda:1", -ENODEV, 19, "the driver shows 1 GPU to this process"},
    {"capacity=64MiB,devices=2", "cuda:2", -ENODEV, 19, "the driver shows 2 GPUs"},
};

START_TEST(a_driver_that_will_not_do_is_said) {
    struct tg_device *device = NULL;

    ask_for(refusals[_i].driver);
    errno = 99;
    check_said(tg_device_open(refusals[_i].uri, &device), refusals[_i].status, refusals[_i].native,
               refusals[_i].words);
    ck_assert_int_eq(errno, 99);
    ck_assert_ptr_null(device);
}
END_TEST

START_TEST(what_memory_is_missing_is_said) {
    struct tg_device *device;
    uint64_t chunk;

    ask_for("capacity=64MiB,context=0");
    device = device_open("cuda:0");
    check_said(tg_device_ops(device)->create(device, 66 * MIB, 0, &chunk), TG_EDEVICEMEMORY, 2,
               "64 MiB free of 64, 66 are asked for");
    check_said(tg_device_ops(device)->create(device, GRANULE, TG_CHUNK_RDMA, &chunk), -EINVAL,
               EINVAL, "flags 0x2");
    tg_device_close(device);
}
END_TEST

/* By the driver and without a context by its management library. */
START_TEST(more_memory_than_32_bits_hold_is_said_whole) {
    struct tg_device *device;
    struct tg_queue *queue;

    ask_for("capacity=6GiB,context=0");
    device = device_open("cuda:0");
    ck_assert_uint_eq(device_free_bytes(device), 6144 * MIB);
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    ck_assert_uint_eq(device_free_bytes(device), 6144 * MIB);
    tg_device_close(device);
}
END_TEST

/* ---- access ---------------------------------------------------------------------------------- */

START_TEST(access_is_of_all_devices_or_of_none) {
    struct tg_device *device;
    uint64_t addr, chunk;

    ask_for("capacity=64MiB,devices=2");
    device = device_open("cuda:1");
    ck_assert_ok(tg_device_ops(device)->reserve(device, GRANULE, &addr));
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunk));
    check_said(tg_device_ops(device)->map(device, addr, chunk, 1 << 3), TG_EDEVICE, 101,
               "cuMemSetAccess: CUDA_ERROR_INVALID_DEVICE");
    ck_assert_ok(tg_device_ops(device)->map(device, addr, chunk, 1));
    ck_assert(device_is_all(device, addr, 0, GRANULE));
    tg_device_close(device);
}
END_TEST

/* ---- late, hanging, broken ------------------------------------------------------------------- */

static const char *const late[] = {"capacity=64MiB,lag=150", "capacity=64MiB,lag=150,driver=12040"};

START_TEST(a_fence_waits_for_all_and_no_longer) {
    struct tg_device *device;
    struct tg_queue *queue;
    struct tg_fence all, own;
    uint64_t addr, chunk;

    ask_for(late[_i]);
    device = device_open("cuda:0");
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, GRANULE, queue));
    ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &all));
    ck_assert_ok(tg_device_ops(device)->fence(device, queue, &own));
    ck_assert_fails(tg_device_ops(device)->wait(device, &all, 0), TG_EBUSY);
    ck_assert_fails(tg_device_ops(device)->wait(device, &own, 5), TG_EBUSY);
    ck_assert_ok(tg_device_ops(device)->wait(device, &all, 20000));
    ck_assert(device_is_all(device, addr, 1, GRANULE));
    ck_assert_ok(tg_device_ops(device)->wait(device, &own, 20000));
    tg_device_close(device);
}
END_TEST

/* Points that follow each other are two: that the first is passed says nothing of the second. */
START_TEST(a_fence_is_not_passed_with_the_one_before) {
    volatile unsigned char seen[2] = {0};
    struct tg_fence fences[2];
    struct tg_device *device;
    struct tg_queue *queue;
    uint64_t addr, chunk;
    int rc;

    ask_for("capacity=64MiB,lag=100");
    device = device_open("cuda:0");
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, GRANULE, queue));
        ck_assert_ok(tg_device_ops(device)->copy(device, (void *)&seen[i],
                                                 (void *)(uintptr_t)addr, 1, queue));
        ck_assert_ok(tg_device_ops(device)->fence(device, queue, &fences[i]));
    }
    while (seen[0] == 0)
        poll(NULL, 0, 1);
    rc = tg_device_ops(device)->wait(device, &fences[1], 0);
    ck_assert(rc == TG_EBUSY || (rc == 0 && seen[1] == 1));
    ck_assert_ok(tg_device_ops(device)->wait(device, &fences[1], 20000));
    ck_assert_uint_eq(seen[1], 1);
    ck_assert_ok(tg_device_ops(device)->wait(device, &fences[0], 0));
    tg_device_close(device);
}
END_TEST

enum { LATE_JOBS = 300 };

/* The work is so slow that the chains are full again and again: no fence is passed before its work
 * is done, and each one is. */
START_TEST(fences_outnumber_their_events) {
    struct tg_fence fences[2 * LATE_JOBS];
    unsigned char seen[LATE_JOBS] = {0};
    struct tg_device *device;
    struct tg_queue *queue;
    uint64_t addr, chunk;

    ask_for("capacity=64MiB,lag=1");
    device = device_open("cuda:0");
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->queue_open(device, &queue));
    for (int i = 0; i < LATE_JOBS; i++) {
        ck_assert_ok(tg_device_ops(device)->fill(device, addr, i % 250 + 1, 64, queue));
        ck_assert_ok(tg_device_ops(device)->copy(device, seen + i, (void *)(uintptr_t)addr, 1,
                                                 queue));
        ck_assert_ok(tg_device_ops(device)->fence(device, queue, &fences[2 * i]));
        ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &fences[2 * i + 1]));
    }
    for (int i = 0; i < 2 * LATE_JOBS; i += 7) {
        ck_assert_ok(tg_device_ops(device)->wait(device, &fences[i], 20000));
        ck_assert_uint_eq(seen[i / 2], (unsigned)(i / 2 % 250 + 1));
    }
    ck_assert_ok(tg_device_ops(device)->wait(device, &fences[2 * LATE_JOBS - 1], 20000));
    for (int i = 0; i < 2 * LATE_JOBS; i++)
        ck_assert_ok(tg_device_ops(device)->wait(device, &fences[i], 0));
    tg_device_close(device);
}
END_TEST

static const char *const hanging[] = {"capacity=64MiB,hang=1",
                                      "capacity=64MiB,hang=1,driver=12040"};

/* Closing ends, too: what is given up is the driver's to clean. */
START_TEST(waiting_ends_where_the_work_does_not) {
    struct tg_device *device;
    struct tg_fence fence;
    uint64_t addr, chunk;

    ask_for(hanging[_i]);
    device = device_open("cuda:0");
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, GRANULE, NULL));
    ck_assert_ok(tg_device_ops(device)->fence(device, NULL, &fence));
    ck_assert_fails(tg_device_ops(device)->wait(device, &fence, 50), TG_EBUSY);
    tg_device_close(device);
}
END_TEST

/* Every entry answers the same from then on. */
static void check_broken(struct tg_device *device, uint64_t addr, uint64_t chunk) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    static char memory[4096];
    struct tg_device_info info;
    struct tg_queue *queue;
    struct tg_fence fence;
    uint64_t a, b;
    int fd;

    ck_assert_fails(ops->info(device, &info), TG_EBROKEN);
    ck_assert_fails(ops->memory(device, &a, &b), TG_EBROKEN);
    ck_assert_fails(ops->process(device, &a), TG_EBROKEN);
    ck_assert_fails(ops->reserve(device, GRANULE, &a), TG_EBROKEN);
    ck_assert_fails(ops->unreserve(device, addr, GRANULE), TG_EBROKEN);
    ck_assert_fails(ops->create(device, GRANULE, 0, &a), TG_EBROKEN);
    ck_assert_fails(ops->release(device, chunk), TG_EBROKEN);
    ck_assert_fails(ops->map(device, addr, chunk, 0), TG_EBROKEN);
    ck_assert_fails(ops->unmap(device, addr, GRANULE), TG_EBROKEN);
    ck_assert_fails(ops->copy(device, memory, (void *)(uintptr_t)addr, 1, NULL), TG_EBROKEN);
    ck_assert_fails(ops->fill(device, addr, 1, 1, NULL), TG_EBROKEN);
    ck_assert_fails(ops->fence(device, NULL, &fence), TG_EBROKEN);
    ck_assert_fails(ops->wait(device, &(struct tg_fence){{0, 0}}, 0), TG_EBROKEN);
    ck_assert_fails(ops->pin(device, memory, sizeof memory, 1), TG_EBROKEN);
    ck_assert_fails(ops->export_fd(device, chunk, &fd), TG_EBROKEN);
    ck_assert_fails(ops->import_fd(device, 0, GRANULE, &a), TG_EBROKEN);
    ck_assert_fails(ops->queue_open(device, &queue), TG_EBROKEN);
    ck_assert_int_eq(tg_last_error()->native, 700);
}

START_TEST(a_sticky_failure_stays) {
    struct tg_device *device;
    uint64_t addr, chunk;
    int rc = 0;

    ask_for("capacity=64MiB,sticky=40");
    device = device_open("cuda:0");
    addr = device_make(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk);
    for (int i = 0; i < 40 && rc == 0; i++)
        rc = tg_device_ops(device)->fill(device, addr, 1, 1, NULL);
    check_said(rc, TG_EBROKEN, 700, "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    check_broken(device, addr, chunk);
    tg_device_close(device);
}
END_TEST

/* ---- processes ------------------------------------------------------------------------------- */

/* Computes on a GPU until it is told to stop. */
static int compute(int in, int out, void *argument) {
    struct tg_device *device = device_open("cuda:0");

    (void)argument;
    device_settle(device);
    tell(out, 1);
    hear(in);
    tg_device_close(device);
    return 0;
}

START_TEST(other_ids_are_not_taken_for_ours) {
    struct tg_device *device;
    uint64_t own_bytes = 5;

    ask_for("capacity=64MiB,pids=hidden");
    device = device_open("cuda:0");
    ck_assert_ok(tg_device_ops(device)->process(device, &own_bytes));
    ck_assert_uint_eq(own_bytes, 0);
    device_settle(device);
    own_bytes = 5;
    check_said(tg_device_ops(device)->process(device, &own_bytes), -ENOTSUP, ENOTSUP,
               "by another id");
    ck_assert_uint_eq(own_bytes, 5);
    tg_device_close(device);
}
END_TEST

/* The driver's id of another process is our own here. */
START_TEST(an_id_that_happens_to_be_ours_is_not) {
    struct tg_device *device;
    struct child child;
    uint64_t own_bytes;

    ask_for("capacity=64MiB,pids=hidden");
    child = start(compute, NULL);
    ck_assert_uint_eq(hear(child.in), 1);
    device = device_open("cuda:0");
    device_settle(device);
    check_said(tg_device_ops(device)->process(device, &own_bytes), -ENOTSUP, ENOTSUP,
               "by another id");
    tg_device_close(device);
    ck_assert_int_eq(finish(&child), 0);
}
END_TEST

START_TEST(the_context_is_charged_too) {
    struct tg_device *device;
    uint64_t own_bytes;

    ask_for("capacity=64MiB,context=6");
    device = device_open("cuda:0");
    device_settle(device);
    ck_assert_ok(tg_device_ops(device)->process(device, &own_bytes));
    ck_assert_uint_eq(own_bytes, 6 * MIB);
    tg_device_close(device);
}
END_TEST

/* ---- auto ------------------------------------------------------------------------------------ */

static char *catch_stderr(void) {
    static char path[96];

    snprintf(path, sizeof path, "%s/said", dir);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    return path;
}

/* The device that auto is, and what it has said: nothing, or one line with these words. */
static void check_auto(const char *begins, const char *words) {
    struct tg_device *device, *again;
    const char *path = catch_stderr();
    char said[512] = "";
    FILE *file;

    device = device_open("auto");
    ck_assert_msg(strncmp(tg_device_uri(device), begins, strlen(begins)) == 0, "%s",
                  tg_device_uri(device));
    again = device_open("auto");
    tg_device_close(again);
    tg_device_close(device);
    file = fopen(path, "r");
    ck_assert_uint_lt(fread(said, 1, sizeof said - 1, file), sizeof said);
    fclose(file);
    if (words == NULL) {
        ck_assert_str_eq(said, "");
        return;
    }
    ck_assert_msg(strstr(said, words) != NULL, "\"%s\" lacks \"%s\"", said, words);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "more than one line: %s", said);
}

START_TEST(auto_is_a_gpu_that_nobody_uses) {
    ask_for("capacity=64MiB");
    check_auto("cuda:0", NULL);
}
END_TEST

START_TEST(auto_says_why_it_is_no_gpu) {
    ask_for("");
    check_auto("host:", "shows no GPU to this process");
}
END_TEST

START_TEST(auto_leaves_gpus_that_others_use) {
    struct child child;

    ask_for("capacity=64MiB");
    child = start(compute, NULL);
    ck_assert_uint_eq(hear(child.in), 1);
    check_auto("host:", "cuda:0: 1 other program computes on it");
    ck_assert_int_eq(finish(&child), 0);
}
END_TEST

START_TEST(auto_takes_the_next_gpu) {
    struct child child;

    ask_for("capacity=64MiB,devices=3");
    child = start(compute, NULL);
    ck_assert_uint_eq(hear(child.in), 1);
    check_auto("cuda:1", NULL);
    ck_assert_int_eq(finish(&child), 0);
}
END_TEST

/* The same program's other device does not make it foreign, but takes memory. */
START_TEST(auto_wants_most_of_the_memory) {
    struct tg_device *device;
    uint64_t addr, chunk;

    ask_for("capacity=64MiB,context=0");
    device = device_open("cuda:0");
    addr = device_make(device, 12 * MIB, 0, &chunk);
    check_auto("cuda:0", NULL);
    device_unmake(device, addr, 12 * MIB, chunk);
    device_make(device, 14 * MIB, 0, &chunk);
    check_auto("host:", "50 of 64 MiB are free, less than 80 %");
    tg_device_close(device);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("driver");

    tcase_set_timeout(cases, 60);
    tcase_add_unchecked_fixture(cases, set_up, tear_down);
    tcase_add_loop_test(cases, a_driver_that_will_not_do_is_said, 0,
                        (int)(sizeof refusals / sizeof *refusals));
    tcase_add_test(cases, what_memory_is_missing_is_said);
    tcase_add_test(cases, more_memory_than_32_bits_hold_is_said_whole);
    tcase_add_test(cases, access_is_of_all_devices_or_of_none);
    tcase_add_loop_test(cases, a_fence_waits_for_all_and_no_longer, 0, 2);
    tcase_add_test(cases, a_fence_is_not_passed_with_the_one_before);
    tcase_add_test(cases, fences_outnumber_their_events);
    tcase_add_loop_test(cases, waiting_ends_where_the_work_does_not, 0, 2);
    tcase_add_test(cases, a_sticky_failure_stays);
    tcase_add_test(cases, other_ids_are_not_taken_for_ours);
    tcase_add_test(cases, an_id_that_happens_to_be_ours_is_not);
    tcase_add_test(cases, the_context_is_charged_too);
    tcase_add_test(cases, auto_is_a_gpu_that_nobody_uses);
    tcase_add_test(cases, auto_says_why_it_is_no_gpu);
    tcase_add_test(cases, auto_leaves_gpus_that_others_use);
    tcase_add_test(cases, auto_takes_the_next_gpu);
    tcase_add_test(cases, auto_wants_most_of_the_memory);
    return suite_run("cudadriver", cases);
}
