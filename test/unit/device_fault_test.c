/* SPDX-License-Identifier: Apache-2.0 */
/* The fault device without a plan changes nothing; with one, exactly the planned calls fail, and
 * the device behind it never hears of them. */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "children.h"
#include "device/fault.h"
#include "device/spy.h"
#include "device_suite.h"

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static int open_fault(struct tg_device **device) {
    struct tg_device *inner;
    int rc = tg_device_open("host:capacity=64MiB", &inner);

    if (rc == 0)
        rc = tg__fault_wrap(inner, device);
    return rc;
}

static uint64_t base, handle;
static struct tg_queue *queue;
static int descriptor;
static struct tg_fence fence;

/* Calls one entry in a way that succeeds. */
static int call(struct tg_device *device, enum tg__op op) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    static char memory[4096];
    struct tg_device_info info;
    uint64_t a, b;

    switch (op) {
    case TG__OP_info: return ops->info(device, &info);
    case TG__OP_memory: return ops->memory(device, &a, &b);
    case TG__OP_process: return ops->process(device, &a);
    case TG__OP_reserve: return ops->reserve(device, GRANULE, &base);
    case TG__OP_unreserve: return ops->unreserve(device, base, GRANULE);
    case TG__OP_create: return ops->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &handle);
    case TG__OP_release: return ops->release(device, handle);
    case TG__OP_map: return ops->map(device, base, handle, 0);
    case TG__OP_unmap: return ops->unmap(device, base, GRANULE);
    case TG__OP_access: return ops->access(device, base, GRANULE, 0);
    case TG__OP_copy: return ops->copy(device, memory, (void *)(uintptr_t)base, 5, queue);
    case TG__OP_fill: return ops->fill(device, base, 5, 5, queue);
    case TG__OP_fence: return ops->fence(device, NULL, &fence);
    case TG__OP_wait: return ops->wait(device, &fence, 20000);
    case TG__OP_pin: return ops->pin(device, memory, sizeof memory, 1);
    case TG__OP_export_fd: return ops->export_fd(device, handle, &descriptor);
    case TG__OP_import_fd: return ops->import_fd(device, descriptor, GRANULE, &a);
    case TG__OP_queue_open: return ops->queue_open(device, &queue);
    case TG__OP_queue_close: return ops->queue_close(device, queue);
    case TG__OP_unpool: return ops->unpool(device, &a);
    case TG__OP_COUNT: break;
    }
    return 1;
}

/* Every entry once, in an order that works. */
static const enum tg__op story[] = {
    TG__OP_info, TG__OP_memory, TG__OP_process, TG__OP_reserve, TG__OP_create, TG__OP_map,
    TG__OP_queue_open, TG__OP_fill, TG__OP_copy, TG__OP_fence, TG__OP_wait, TG__OP_pin,
    TG__OP_export_fd, TG__OP_import_fd, TG__OP_queue_close, TG__OP_access, TG__OP_unmap,
    TG__OP_release, TG__OP_unreserve, TG__OP_unpool};
enum { STORY = sizeof story / sizeof *story, ASKED = 3 }; /* the first three are left out of ANY */

_Static_assert((int)STORY == (int)TG__OP_COUNT, "the story has every entry");

/* Each call fails first and then succeeds; what has failed did not reach the device. */
static void fail_then_succeed(struct tg_device *device, struct tg_device *spy, enum tg__op op,
                              const struct tg__fault_plan *plan) {
    size_t before, after;
    int wanted = plan->status != 0 ? plan->status
                 : op == TG__OP_create ? TG_EDEVICEMEMORY : TG_EDEVICE;

    tg__fault_arm(device, plan);
    tg__spy_calls(spy, &before);
    ck_assert_fails(call(device, op), wanted);
    tg__spy_calls(spy, &after);
    ck_assert_uint_eq(before, after);
    ck_assert_uint_eq(tg__fault_calls(device, op), 1);
    ck_assert_uint_eq(tg__fault_failed(device, op), 1);
    if (plan->mode != TG__FAULT_ONCE) {
        ck_assert_fails(call(device, op), wanted);
        ck_assert_uint_eq(tg__fault_failed(device, op), 2);
        tg__fault_arm(device, &(struct tg__fault_plan){.op = TG__OP_ANY});
    }
    ck_assert_ok(call(device, op));
    if (op == TG__OP_fill || op == TG__OP_copy)
        device_settle(device);
    tg__spy_calls(spy, &after);
    ck_assert_uint_gt(after, before);
}

START_TEST(every_entry_fails_in_every_way) {
    static const enum tg__fault_mode modes[] = {TG__FAULT_ONCE, TG__FAULT_EVERY, TG__FAULT_AFTER};

    for (int i = 0; i < 3 * 2; i++) {
        struct tg_device *inner, *spy, *device;

        ck_assert_ok(tg_device_open("host:capacity=64MiB", &inner));
        ck_assert_ok(tg__spy_wrap(inner, &spy));
        ck_assert_ok(tg__fault_wrap(spy, &device));
        for (int at = 0; at < STORY; at++) {
            struct tg__fault_plan plan = {story[at], modes[i / 2], 1, i % 2 == 0 ? 0 : -EIO, 0};

            fail_then_succeed(device, spy, story[at], &plan);
        }
        tg_device_close(device);
        close(descriptor);
    }
}
END_TEST

/* Runs the story as far as it goes; how many calls were right. */
static int run_story(struct tg_device *device) {
    for (int at = 0; at < STORY; at++) {
        if (call(device, story[at]) != 0)
            return at;
    }
    return STORY;
}

START_TEST(the_nth_call_of_any_entry_fails) {
    for (uint64_t nth = 1; nth <= STORY - ASKED; nth++) {
        struct tg_device *device;

        ck_assert_ok(open_fault(&device));
        tg__fault_arm(device, &(struct tg__fault_plan){TG__OP_ANY, TG__FAULT_ONCE, nth, 0, 0});
        ck_assert_int_eq(run_story(device), (int)nth + ASKED - 1);
        ck_assert_uint_eq(tg__fault_calls(device, TG__OP_ANY), nth);
        ck_assert_uint_eq(tg__fault_failed(device, TG__OP_ANY), 1);
        ck_assert_uint_eq(tg__fault_calls(device, TG__OP_info), 1);
        tg_device_close(device);
    }
}
END_TEST

static int die_in_story(int in, int out, void *argument) {
    struct tg_device *device;

    (void)in;
    ck_assert_ok(open_fault(&device));
    tg__fault_arm(device, argument);
    tell(out, (unsigned)run_story(device));
    return 0;
}

START_TEST(a_call_can_be_the_last) {
    static const enum tg__fault_mode modes[] = {TG__FAULT_KILL_BEFORE, TG__FAULT_KILL_AFTER};

    for (unsigned i = 0; i < 2 * (STORY + 1); i++) {
        struct tg__fault_plan plan = {TG__OP_ANY, modes[i % 2], i / 2 + 1, 0, 0};
        struct child child = start(die_in_story, &plan);
        unsigned heard = hear(child.in);
        int status = finish(&child);

        if (i / 2 < STORY - ASKED) {
            ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
            ck_assert_uint_eq(heard, 0xffffffffu);
        } else {
            ck_assert_int_eq(status, 0);
            ck_assert_uint_eq(heard, STORY);
        }
    }
}
END_TEST

START_TEST(plans_come_by_uri) {
    struct tg_device *device;
    uint64_t chunk;

    ck_assert_ok(tg_device_open("fault:nth=2,op=create,status=-5/host:capacity=64MiB", &device));
    ck_assert_str_eq(tg_device_uri(device), "fault:nth=2,op=create,status=-5/host:capacity=64MiB");
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunk));
    ck_assert_fails(tg_device_ops(device)->create(device, GRANULE, 0, &chunk), -5);
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunk));
    tg_device_close(device);
    ck_assert_ok(tg_device_open("fault:mode=every,op=map,status=TG_EBROKEN/host:capacity=64MiB",
                                &device));
    ck_assert_fails(tg_device_ops(device)->map(device, 0, 0, 0), TG_EBROKEN);
    tg_device_close(device);
    ck_assert_ok(tg_device_open("fault:nth=2,mode=after/host:capacity=64MiB", &device));
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunk));
    ck_assert_fails(tg_device_ops(device)->create(device, GRANULE, 0, &chunk), TG_EDEVICEMEMORY);
    ck_assert_fails(tg_device_ops(device)->release(device, chunk), TG_EDEVICE);
    tg_device_close(device);
}
END_TEST

START_TEST(bad_plans_are_said) {
    static const char *const uris[] = {
        "fault:", "fault:/", "fault:nth=1", "fault:/host:capacity=64MiB",
        "fault:nth=0/host:capacity=64MiB", "fault:nth=x/host:capacity=64MiB",
        "fault:nth=1,op=destroy/host:capacity=64MiB", "fault:nth=1,mode=never/host:capacity=64MiB",
        "fault:nth=1,status=5/host:capacity=64MiB", "fault:nth=1,status=TG_/host:capacity=64MiB",
        "fault:nth=1,nth=2/host:capacity=64MiB", "fault:nth=1/", "fault:nth=1/fault:nth=1/auto",
        "fault:mode=once/auto", "fault:nth=1,/auto"};

    for (size_t i = 0; i < sizeof uris / sizeof *uris; i++) {
        struct tg_device *device = NULL;

        ck_assert_fails(tg_device_open(uris[i], &device), -EINVAL);
        ck_assert_ptr_null(device);
    }
}
END_TEST

int main(void) {
    TCase *own = tcase_create("fault");
    const struct device_suite fault = {"device_fault", open_fault, set_up, tear_down, own, 0};

    tcase_set_timeout(own, 60);
    tcase_add_test(own, every_entry_fails_in_every_way);
    tcase_add_test(own, the_nth_call_of_any_entry_fails);
    tcase_add_test(own, a_call_can_be_the_last);
    tcase_add_test(own, plans_come_by_uri);
    tcase_add_test(own, bad_plans_are_said);
    return device_suite_run(&fault);
}
