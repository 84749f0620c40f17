/* SPDX-License-Identifier: Apache-2.0 */
/* The crash points of the host device's capacity: a process is killed before, and after, each store
 * to the shared file that a life on the device makes. Those who live on find exactly their own
 * bytes taken, wait for nobody, and can have the rest. */
#include "children.h"
#include "device_suite.h"
#include "storetrap.h"
#include "suite.h"

/* Twice n - 1: before the n-th store of a child that is forked from here on; twice n: after it. */
static void trap_at(int point) {
    store_trap((uint64_t)(point + 1) / 2, point % 2 == 0, SIGKILL);
}

static const char uri[] = "host:capacity=64MiB";
static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

/* A whole life; `argument`: a descriptor of the survivor's chunk, of one granule. Without Check's
 * macros: it may die anywhere. */
static int live(int in, int out, void *argument) {
    int fd = *(int *)argument, own_fd;
    struct tg_device *device;
    const struct tg_device_ops *ops;
    uint64_t plain, exported, imported;

    (void)in;
    (void)out;
    if (tg_device_open(uri, &device) != 0)
        return 1;
    ops = tg_device_ops(device);
    if (ops->create(device, 2 * GRANULE, 0, &plain) != 0 ||
        ops->create(device, 3 * GRANULE, TG_CHUNK_EXPORTABLE, &exported) != 0 ||
        ops->import_fd(device, fd, GRANULE, &imported) != 0 ||
        ops->export_fd(device, exported, &own_fd) != 0)
        return 2;
    if (ops->release(device, plain) != 0 || ops->release(device, exported) != 0 ||
        ops->release(device, imported) != 0)
        return 3;
    tg_device_close(device);
    return 0;
}

/* What the survivor holds: a granule that travels and two that do not. */
static void check_survivor(struct tg_device *device) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t rest = 64 * MIB - 3 * GRANULE, chunk, exported;

    ck_assert_uint_eq(device_free_bytes(device), rest);
    ck_assert_fails(ops->create(device, rest + GRANULE, 0, &chunk), TG_EDEVICEMEMORY);
    ck_assert_ok(ops->create(device, rest - GRANULE, 0, &chunk));
    ck_assert_ok(ops->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &exported));
    ck_assert_uint_eq(device_free_bytes(device), 0);
    ck_assert_ok(ops->release(device, exported));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_uint_eq(device_free_bytes(device), rest);
}

START_TEST(death_at_every_store) {
    struct tg_device *device;
    uint64_t shared, plain;
    int fd, status, killed = 0;

    ck_assert_ok(tg_device_open(uri, &device));
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &shared));
    ck_assert_ok(tg_device_ops(device)->create(device, 2 * GRANULE, 0, &plain));
    ck_assert_ok(tg_device_ops(device)->export_fd(device, shared, &fd));
    do {
        struct child child;

        trap_at(++killed);
        child = start(live, &fd);
        trap_at(0);
        status = finish(&child);
        ck_assert_msg((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) || status == 0,
                      "point %d: %d", killed, status);
        check_survivor(device);
    } while (status != 0);
    fprintf(stderr, "%d crash points\n", killed - 1);
    ck_assert_int_gt(killed - 1, 20);
    close(fd);
    tg_device_close(device);
}
END_TEST

/* The same, with nobody else: who comes next has everything, and another capacity if he wants. */
START_TEST(who_comes_next_has_all) {
    static const char *const next[] = {"host:capacity=64MiB", "host:capacity=62MiB"};
    int fd = -1, status, killed = 0;

    do {
        struct tg_device *device;
        struct child child;
        uint64_t total, chunk;

        trap_at(++killed);
        child = start(live, &fd);
        trap_at(0);
        status = finish(&child);
        ck_assert_ok(tg_device_open(next[killed % 2], &device));
        total = device_free_bytes(device);
        ck_assert_uint_eq(total, killed % 2 == 0 ? 64 * MIB : 62 * MIB);
        ck_assert_ok(tg_device_ops(device)->create(device, total, 0, &chunk));
        tg_device_close(device);
    } while (WIFSIGNALED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 2); /* it has no descriptor to import */
    ck_assert_int_gt(killed, 10);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hostcrash");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, death_at_every_store);
    tcase_add_test(cases, who_comes_next_has_all);
    return suite_run("hostcrash", cases);
}
