/* SPDX-License-Identifier: Apache-2.0 */
/* What a training step does to memory, where work really is under way: temporaries freed under
 * their kernels, sleeps in the middle of them, captures and graphs, threads without a context;
 * and what must hold when memory is short or a call fails. Content is seen by copies alone; sizes
 * are shares of the card. The stand-in driver has no graphs: there a replay is left out. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "anonymous.h"
#include "card_side.h"
#include "device/captures.h"
#include "device/cuda_load.h"
#include "device/fault.h"
#include "memory/state.h"

enum { TEMPORARIES = 200, WRITES = 8, BLOCKS = 12, PIECES = 64, ORDERS = 256 };

static const struct tg_tag_params host = {.backup = TG_BACKUP_HOST};
static const struct tg_tag_params packed = {.backup = TG_BACKUP_HOST, .packed = 1};

static void *alloc(struct side *side, struct tg_tag *tag, int i) {
    void *block;

    ck_assert_ok(tg_tag_alloc(tag, block_bytes(side, i), &block));
    return block;
}

/* The last of them writes `byte`. */
static void launch(struct side *side, void *block, uint64_t size_bytes, int byte,
                   struct tg_queue *queue) {
    for (int i = 1; i <= WRITES; i++)
        ck_assert_ok(tg_device_ops(side->device)->fill(side->device, (uintptr_t)block,
                                                       byte + WRITES - i, size_bytes, queue));
}

static struct tg_queue *open_queue(struct side *side) {
    struct tg_queue *queue;

    ck_assert_ok(tg_device_ops(side->device)->queue_open(side->device, &queue));
    return queue;
}

/* ---- under kernels --------------------------------------------------------------------------- */

START_TEST(temporaries_are_freed_under_their_kernels) {
    struct side side;
    struct tg_tag *tag, *kept;
    struct tg_tag_info info;
    struct tg_queue *queue;
    void *weights;

    side_open(&side, "alone");
    queue = open_queue(&side);
    tag = open_tag(&side, "temporaries", _i ? packed : host);
    kept = open_tag(&side, "weights", host);
    weights = alloc(&side, kept, 0);
    write_pattern(&side, weights, block_bytes(&side, 0), 1);
    for (int i = 0; i < TEMPORARIES; i++) {
        uint64_t size_bytes = block_bytes(&side, i % BLOCKS);
        void *block;
        int rc = tg_tag_alloc(tag, size_bytes, &block);

        if (tg__is_short(rc)) { /* all of the card is under kernels */
            device_settle(side.device);
            rc = tg_tag_alloc(tag, size_bytes, &block);
        }
        ck_assert_ok(rc);
        launch(&side, block, size_bytes, 1, queue);
        ck_assert_ok(tg_memory_free(side.memory, block, queue));
    }
    device_settle(side.device);
    ck_assert_ok(tg_memory_sleep(side.memory, "temporaries", LONG_MS, NULL));
    tg_tag_info(tag, &info);
    ck_assert_uint_eq(info.device_bytes, 0);
    ck_assert(is_pattern(&side, weights, block_bytes(&side, 0), 1));
    side_close(&side);
}
END_TEST

START_TEST(a_sleep_has_what_was_launched_before_it) {
    struct side side;
    struct tg_tag *tag;
    void *blocks[BLOCKS];

    side_open(&side, "alone");
    tag = open_tag(&side, "weights", _i ? packed : host);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = alloc(&side, tag, i);
        launch(&side, blocks[i], block_bytes(&side, i), i + 1, open_queue(&side));
    }
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    for (int i = 0; i < BLOCKS; i++)
        ck_assert(device_is_all(side.device, (uintptr_t)blocks[i], i + 1, block_bytes(&side, i)));
    side_close(&side);
}
END_TEST

/* ---- captures -------------------------------------------------------------------------------- */

static struct tg__cuda_calls calls;

/* NULL: this driver has it not. */
static void *find(const char *name) {
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static int end_capture(struct tg__custream *stream, void **graph) {
    void *found = find("cuStreamEndCapture");
    int (*end)(struct tg__custream *on, void **made);

    ck_assert_ptr_nonnull(found);
    memcpy(&end, &found, sizeof end);
    return end(stream, graph);
}

static void begin_capture(struct tg__custream *stream) {
    void *found = find("cuStreamBeginCapture_v2");
    int (*begin)(struct tg__custream *on, int mode);

    ck_assert_ptr_nonnull(found);
    memcpy(&begin, &found, sizeof begin);
    ck_assert_int_eq(begin(stream, TG__CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
}

/* In the card's own context, which is this thread's until the stream is closed. */
static struct tg__custream *open_stream(unsigned flags) {
    struct tg__custream *stream;
    struct tg__cuctx *own;

    ck_assert_ok(tg__cuda_load(&calls));
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRetain(&own, 0), 0);
    ck_assert_int_eq(calls.cuCtxPushCurrent(own), 0);
    ck_assert_int_eq(calls.cuStreamCreate(&stream, flags), 0);
    return stream;
}

static void close_stream(struct tg__custream *stream) {
    struct tg__cuctx *own;

    ck_assert_int_eq(calls.cuStreamDestroy(stream), 0);
    ck_assert_int_eq(calls.cuCtxPopCurrent(&own), 0);
    ck_assert_int_eq(calls.cuDevicePrimaryCtxRelease(0), 0);
}

/* Whether there is a replay to look at. */
static int replay(void *graph, struct tg__custream *stream) {
    void *found[2] = {find("cuGraphInstantiateWithFlags"), find("cuGraphLaunch")}, *ready;
    int (*instantiate)(void **made, void *of, unsigned long long flags);
    int (*start_graph)(void *made, struct tg__custream *on);

    if (graph == NULL || found[0] == NULL || found[1] == NULL)
        return 0;
    memcpy(&instantiate, &found[0], sizeof instantiate);
    memcpy(&start_graph, &found[1], sizeof start_graph);
    ck_assert_int_eq(instantiate(&ready, graph, 0), 0);
    ck_assert_int_eq(start_graph(ready, stream), 0);
    return 1;
}

/* Where captures are counted a sleep is refused at once and the capture stays whole; what was
 * captured is replayed at the same addresses after a sleep. */
START_TEST(a_capture_is_left_whole_and_replays_after_a_sleep) {
    struct tg__custream *stream;
    struct side side;
    struct tg_tag *tag;
    void *block, *graph = NULL;
    int open = 0;

    side_open(&side, "alone");
    tag = open_tag(&side, "graph", host);
    block = alloc(&side, tag, 0);
    write_pattern(&side, block, block_bytes(&side, 0), 1);
    stream = open_stream(_i ? TG__CU_STREAM_NON_BLOCKING : 0);
    tg__captures_watch(&open);
    begin_capture(stream);
    open = 1;
    ck_assert_int_eq(calls.cuMemsetD8Async((uintptr_t)block, 5, GRANULE, stream), 0);
    ck_assert_fails(tg_memory_sleep(side.memory, NULL, 1000, NULL), TG_ECAPTURE);
    open = 0;
    ck_assert_int_eq(end_capture(stream, &graph), 0);
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    ck_assert(is_pattern(&side, block, block_bytes(&side, 0), 1));
    if (replay(graph, stream)) {
        device_settle(side.device);
        ck_assert(device_is_all(side.device, (uintptr_t)block, 5, GRANULE));
    }
    tg__captures_watch(NULL);
    close_stream(stream);
    side_close(&side);
}
END_TEST

/* Host copies go back behind a wake while a stream is captured in the strictest mode. */
START_TEST(what_goes_back_meanwhile_leaves_a_capture_whole) {
    struct tg__custream *stream;
    struct side side;
    struct tg_tag *tag;
    struct tg_tag_info info;
    void *graph;

    side_open(&side, "alone");
    side.memory->handback.least_bytes = 1;
    tag = open_tag(&side, "weights", host);
    write_pattern(&side, alloc(&side, tag, 0), block_bytes(&side, 0), 1);
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    stream = open_stream(TG__CU_STREAM_NON_BLOCKING);
    begin_capture(stream);
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    tg__handback_end(side.memory);
    tg_tag_info(tag, &info);
    ck_assert_uint_eq(info.host_bytes, 0);
    ck_assert_int_eq(end_capture(stream, &graph), 0);
    close_stream(stream);
    side_close(&side);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static struct tg__cuctx *current(void) {
    void *found = find("cuCtxGetCurrent");
    int (*get_current)(struct tg__cuctx **context);
    struct tg__cuctx *context = NULL;

    ck_assert_ptr_nonnull(found);
    memcpy(&get_current, &found, sizeof get_current);
    ck_assert_int_eq(get_current(&context), 0);
    return context;
}

static void *live_a_day(void *argument) {
    struct side *side = argument;
    struct tg_tag *tag = open_tag(side, "others", packed);
    void *block = alloc(side, tag, 3), *none;

    ck_assert_ptr_null(current());
    write_pattern(side, block, block_bytes(side, 3), 9);
    ck_assert_fails(tg_tag_alloc(tag, 0, &none), -EINVAL);
    ck_assert_fails(tg_memory_free(side->memory, NULL, NULL), -EINVAL);
    ck_assert_ok(tg_memory_sleep(side->memory, "others", LONG_MS, NULL));
    ck_assert_ok(tg_memory_wake(side->memory, "others", LONG_MS, NULL));
    ck_assert(is_pattern(side, block, block_bytes(side, 3), 9));
    ck_assert_ok(tg_memory_free(side->memory, block, NULL));
    ck_assert_ptr_null(current());
    return side;
}

START_TEST(a_thread_without_a_context_can_do_all) {
    struct side side;
    pthread_t thread;
    void *answer;

    side_open(&side, "alone");
    ck_assert_int_eq(pthread_create(&thread, NULL, live_a_day, &side), 0);
    ck_assert_int_eq(pthread_join(thread, &answer), 0);
    ck_assert_ptr_eq(answer, &side);
    side_close(&side);
}
END_TEST

/* ---- short of memory, and calls that fail ---------------------------------------------------- */

/* Three tags sleep, something else takes their memory but for two: the third stays as it is until
 * there is room. */
START_TEST(a_wake_that_does_not_fit_loses_nothing) {
    static const char *const names[3] = {"a", "b", "c"};
    struct side side;
    struct tg_tag *other;
    void *blocks[3], *large;
    uint64_t half, rest;

    side_open(&side, "alone");
    for (int i = 0; i < 3; i++) {
        blocks[i] = alloc(&side, open_tag(&side, names[i], host), 0);
        write_pattern(&side, blocks[i], block_bytes(&side, 0), (uint64_t)i + 1);
    }
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    other = open_tag(&side, "other", (struct tg_tag_params){0});
    half = (block_bytes(&side, 0) + GRANULE - 1) / GRANULE * GRANULE / 2;
    rest = device_free_bytes(side.device) - 5 * half;
    ck_assert_ok(tg_tag_alloc(other, rest / GRANULE * GRANULE, &large));
    ck_assert_ok(tg_memory_wake(side.memory, "a", 0, NULL));
    ck_assert_ok(tg_memory_wake(side.memory, "b", 0, NULL));
    ck_assert(tg__is_short(tg_memory_wake(side.memory, "c", 0, NULL)));
    for (int i = 0; i < 2; i++)
        ck_assert(is_pattern(&side, blocks[i], block_bytes(&side, 0), (uint64_t)i + 1));
    ck_assert_ok(tg_memory_free(side.memory, large, NULL));
    ck_assert_ok(tg_memory_wake(side.memory, "c", LONG_MS, NULL));
    ck_assert(is_pattern(&side, blocks[2], block_bytes(&side, 0), 3));
    side_close(&side);
}
END_TEST

/* Every order of four calls, of one tag or of all. */
START_TEST(tags_sleep_and_wake_in_any_order) {
    struct side side;
    void *blocks[2];
    struct tg_tag *tags[2];

    side_open(&side, "alone");
    tags[0] = open_tag(&side, "a", host);
    tags[1] = open_tag(&side, "b", packed);
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(tg_tag_alloc(tags[i], 3 * MIB, &blocks[i]));
        write_pattern(&side, blocks[i], 3 * MIB, (uint64_t)i + 1);
    }
    for (int order = 0; order < ORDERS; order++) {
        for (int call = order + ORDERS; call > 1; call /= 4) {
            const char *names = call % 2 == 0 ? "a" : NULL;

            if (call / 2 % 2 == 0)
                ck_assert_ok(tg_memory_sleep(side.memory, names, LONG_MS, NULL));
            else
                ck_assert_ok(tg_memory_wake(side.memory, names, LONG_MS, NULL));
        }
        ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
        for (int i = 0; i < 2; i++)
            ck_assert(is_pattern(&side, blocks[i], 3 * MIB, (uint64_t)i + 1));
    }
    side_close(&side);
}
END_TEST

START_TEST(what_is_freed_asleep_stays_away) {
    struct side side;
    struct tg_tag *tag;
    void *blocks[BLOCKS];
    uint64_t asleep;

    side_open(&side, "alone");
    tag = open_tag(&side, "weights", _i ? packed : host);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = alloc(&side, tag, i);
        write_pattern(&side, blocks[i], block_bytes(&side, i), (uint64_t)i + 1);
    }
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    asleep = device_free_bytes(side.device);
    for (int i = 0; i < BLOCKS; i += 2)
        ck_assert_ok(tg_memory_free(side.memory, blocks[i], NULL));
    device_check_free(side.device, asleep);
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    for (int i = 1; i < BLOCKS; i += 2)
        ck_assert(is_pattern(&side, blocks[i], block_bytes(&side, i), (uint64_t)i + 1));
    side_close(&side);
}
END_TEST

/* One piece in sixteen is kept: a repack gives back all but the granules in which those lie. */
START_TEST(what_is_mostly_freed_goes_back) {
    struct side side;
    struct tg_tag *tag;
    struct tg_tag_info info;
    struct tg_receipt receipt;
    void *pieces[PIECES];
    uint64_t before;

    side_open(&side, "alone");
    tag = open_tag(&side, "mixed", packed);
    for (int i = 0; i < PIECES; i++) {
        ck_assert_ok(tg_tag_alloc(tag, GRANULE, &pieces[i]));
        write_pattern(&side, pieces[i], GRANULE, (uint64_t)i + 1);
    }
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    for (int i = 0; i < PIECES; i++) {
        if (i % 16 != 3)
            ck_assert_ok(tg_memory_free(side.memory, pieces[i], NULL));
    }
    device_settle(side.device);
    before = device_free_bytes(side.device);
    ck_assert_ok(tg_memory_repack(side.memory, NULL, LONG_MS, &receipt));
    tg_tag_info(tag, &info);
    ck_assert_uint_eq(info.device_bytes, PIECES / 16 * GRANULE);
    device_check_free(side.device, before + receipt.gained_bytes);
    for (int i = 3; i < PIECES; i += 16)
        ck_assert(is_pattern(&side, pieces[i], GRANULE, (uint64_t)i + 1));
    side_close(&side);
}
END_TEST

static int sleep_and_wake(struct side *side) {
    int rc = tg_memory_sleep(side->memory, NULL, LONG_MS, NULL);

    return rc != 0 ? rc : tg_memory_wake(side->memory, NULL, 0, NULL);
}

/* The n-th call of a round fails, for every n. */
START_TEST(any_call_of_a_round_may_fail) {
    struct tg__fault_plan plan = {.op = TG__OP_ANY, .mode = TG__FAULT_ONCE};
    struct tg__fault_plan none = {.mode = TG__FAULT_NONE};
    struct tg_device *device;
    struct side side;
    uint64_t awake;
    void *blocks[2];
    int has_failed = 1;

    ck_assert_ok(tg__fault_wrap(device_open("cuda:0"), &device));
    side_open_on(&side, "alone", device);
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(tg_tag_alloc(open_tag(&side, i ? "b" : "a", i ? packed : host), 5 * MIB,
                                  &blocks[i]));
        write_pattern(&side, blocks[i], 5 * MIB, (uint64_t)i + 1);
    }
    ck_assert_ok(sleep_and_wake(&side));
    awake = device_free_bytes(device);
    while (has_failed) {
        int rc;

        plan.nth++;
        tg__fault_arm(device, &plan);
        rc = sleep_and_wake(&side);
        has_failed = tg__fault_failed(device, TG__OP_ANY) > 0;
        tg__fault_arm(device, &none);
        ck_assert(rc == 0 || has_failed);
        ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
        for (int i = 0; i < 2; i++)
            ck_assert(is_pattern(&side, blocks[i], 5 * MIB, (uint64_t)i + 1));
        device_check_free(device, awake);
    }
    ck_assert_uint_gt(plan.nth, 10);
    side_close(&side);
}
END_TEST

/* ---- host memory ----------------------------------------------------------------------------- */

START_TEST(host_memory_is_a_fiftieth_more_than_content_at_most) {
    uint64_t content_bytes = 0, before, asleep;
    struct side side;
    struct tg_tag *tag;

    side_open(&side, "alone");
    tag = open_tag(&side, "weights", packed);
    for (int i = 0; i < BLOCKS; i++) {
        write_pattern(&side, alloc(&side, tag, i), block_bytes(&side, i), (uint64_t)i + 1);
        content_bytes += block_bytes(&side, i);
    }
    before = anonymous_bytes();
    ck_assert_ok(tg_memory_sleep(side.memory, NULL, LONG_MS, NULL));
    asleep = anonymous_bytes();
    ck_assert_uint_ge(asleep, before + content_bytes);
    ck_assert_uint_le(asleep, before + content_bytes / 50 * 51);
    ck_assert_ok(tg_memory_wake(side.memory, NULL, LONG_MS, NULL));
    tg__handback_end(side.memory);
    ck_assert_uint_le(anonymous_bytes(), before + content_bytes / 50);
    side_close(&side);
}
END_TEST

/* ---------------------------------------------------------------------------------------------- */

static int run_all(void) {
    TCase *cases = tcase_create("kernels");

    tcase_add_loop_test(cases, temporaries_are_freed_under_their_kernels, 0, 2);
    tcase_add_loop_test(cases, a_sleep_has_what_was_launched_before_it, 0, 2);
    tcase_add_loop_test(cases, a_capture_is_left_whole_and_replays_after_a_sleep, 0, 2);
    tcase_add_test(cases, what_goes_back_meanwhile_leaves_a_capture_whole);
    tcase_add_test(cases, a_thread_without_a_context_can_do_all);
    tcase_add_test(cases, a_wake_that_does_not_fit_loses_nothing);
    tcase_add_test(cases, tags_sleep_and_wake_in_any_order);
    tcase_add_loop_test(cases, what_is_freed_asleep_stays_away, 0, 2);
    tcase_add_test(cases, what_is_mostly_freed_goes_back);
    tcase_add_test(cases, any_call_of_a_round_may_fail);
    tcase_add_test(cases, host_memory_is_a_fiftieth_more_than_content_at_most);
    return side_run("kernels", cases);
}

int main(void) {
    int status = device_no_gpu();

    return status != 0 ? status : run_all();
}
