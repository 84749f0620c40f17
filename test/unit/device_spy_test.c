/* SPDX-License-Identifier: Apache-2.0 */
/* The spy around a host device: it changes nothing, and it has seen everything. */
#include <pthread.h>
#include <stdatomic.h>

#include "children.h"
#include "device/spy.h"
#include "device_suite.h"

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static int open_spy(struct tg_device **device) {
    struct tg_device *inner;
    int rc = tg_device_open("host:capacity=64MiB", &inner);

    if (rc == 0)
        rc = tg__spy_wrap(inner, device);
    return rc;
}

static void check_call(const struct tg__spy_call *call, enum tg__op op, int status, uint64_t addr,
                       uint64_t size_bytes) {
    ck_assert_str_eq(tg__op_name(call->op), tg__op_name(op));
    ck_assert_int_eq(call->status, status);
    ck_assert_uint_eq(call->addr, addr);
    ck_assert_uint_eq(call->size_bytes, size_bytes);
}

START_TEST(calls_are_recorded_in_order) {
    const struct tg__spy_call *calls;
    struct tg_device *device;
    uint64_t addr, chunk;
    size_t count;

    ck_assert_ok(open_spy(&device));
    addr = device_make(device, GRANULE, 0, &chunk);
    ck_assert_int_ne(tg_device_ops(device)->map(device, addr, chunk, 0), 0);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 1, 5, NULL));
    device_settle(device);
    device_unmake(device, addr, GRANULE, chunk);
    calls = tg__spy_calls(device, &count);
    ck_assert_uint_eq(count, 10);
    check_call(&calls[0], TG__OP_reserve, 0, addr, GRANULE);
    check_call(&calls[1], TG__OP_create, 0, 0, GRANULE);
    ck_assert_uint_eq(calls[1].chunk, chunk);
    check_call(&calls[2], TG__OP_map, 0, addr, 0);
    ck_assert_uint_eq(calls[2].chunk, chunk);
    check_call(&calls[3], TG__OP_map, -22, addr, 0);
    check_call(&calls[4], TG__OP_fill, 0, addr, 5);
    check_call(&calls[5], TG__OP_fence, 0, 0, 0);
    check_call(&calls[6], TG__OP_wait, 0, 0, 0);
    check_call(&calls[7], TG__OP_unmap, 0, addr, GRANULE);
    check_call(&calls[8], TG__OP_release, 0, 0, 0);
    check_call(&calls[9], TG__OP_unreserve, 0, addr, GRANULE);
    tg__spy_clear(device);
    tg__spy_calls(device, &count);
    ck_assert_uint_eq(count, 0);
    ck_assert_str_eq(tg_device_uri(device), "host:capacity=64MiB");
    tg_device_close(device);
}
END_TEST

/* ---- forks while another thread calls -------------------------------------------------------- */

enum { FORKS = 200 };

static atomic_bool is_over;

static void *call_on(void *argument) {
    struct tg_device *device = argument;
    struct tg_device_info info;

    while (!atomic_load(&is_over))
        (void)!tg_device_ops(device)->info(device, &info);
    return NULL;
}

/* Whatever a thread of the parent held at the fork, the child is refused, and at once. Without
 * Check's macros: the child's heap and locks are those of the moment. */
START_TEST(a_child_forked_in_the_middle_is_refused) {
    struct tg_device *device;
    pthread_t caller;

    ck_assert_ok(open_spy(&device));
    ck_assert_int_eq(pthread_create(&caller, NULL, call_on, device), 0);
    for (int i = 0; i < FORKS; i++) {
        int status;
        pid_t child = fork();

        ck_assert_int_ge(child, 0);
        if (child == 0) {
            alarm(10);
            _exit(tg_device_ops(device)->release(device, 1) == TG_EFORKED ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(status == 0, "fork %d: status %#x", i, (unsigned)status);
    }
    atomic_store(&is_over, true);
    pthread_join(caller, NULL);
    tg_device_close(device);
}
END_TEST

int main(void) {
    TCase *own = tcase_create("spy");
    const struct device_suite spy = {"device_spy", open_spy, set_up, tear_down, own, 0};

    tcase_set_timeout(own, 60);
    tcase_add_test(own, calls_are_recorded_in_order);
    tcase_add_test(own, a_child_forked_in_the_middle_is_refused);
    return device_suite_run(&spy);
}
