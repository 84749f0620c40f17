/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes on one device: who sees what, what travels, and what death gives back. The
 * children come first and open the device then: a card's driver does not outlive a fork. */
#include "device_suite.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "children.h"

#define SIZE (4 * GRANULE)

static const struct device_suite *kind;

static struct tg_device *open_device(void) {
    struct tg_device *device;

    ck_assert_ok(kind->open(&device));
    return device;
}

/* ---- children -------------------------------------------------------------------------------- */

/* Makes a chunk and tells, then lives until it is told. */
static int hold(int in, int out, void *argument) {
    struct tg_device *device = open_device();
    uint64_t chunk;

    (void)argument;
    device_make(device, SIZE, 0, &chunk);
    tell(out, 1);
    hear(in);
    tg_device_close(device);
    return 0;
}

/* Exports a chunk full of 3 to the socket, and waits. */
static int export_one(int in, int out, void *argument) {
    struct tg_device *device = open_device();
    uint64_t chunk, addr = device_make(device, SIZE, TG_CHUNK_EXPORTABLE, &chunk);
    int fd;

    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 3, SIZE, NULL));
    device_settle(device);
    ck_assert_ok(tg_device_ops(device)->export_fd(device, chunk, &fd));
    device_send_descriptor(*(int *)argument, fd);
    close(fd);
    tell(out, 1);
    hear(in);
    ck_assert(device_is_all(device, addr, 4, SIZE));
    device_unmake(device, addr, SIZE, chunk);
    tell(out, 2);
    hear(in);
    tg_device_close(device);
    return 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(memory_is_one_for_all_processes) {
    struct child child = start(hold, NULL);
    struct tg_device *device;
    uint64_t before;

    ck_assert_uint_eq(hear(child.in), 1);
    device = open_device();
    before = device_free_bytes(device);
    ck_assert_int_eq(finish(&child), 0);
    device_wait_for_free(device, before + SIZE);
    tg_device_close(device);
}
END_TEST

START_TEST(uuid_is_the_same_in_all_processes) {
    struct tg_device_info info[2];

    for (int i = 0; i < 2; i++) {
        struct tg_device *device = open_device();
        ck_assert_ok(tg_device_ops(device)->info(device, &info[i]));
        tg_device_close(device);
    }
    ck_assert_mem_eq(info[0].uuid, info[1].uuid, sizeof info[0].uuid);
}
END_TEST

START_TEST(death_gives_memory_back) {
    struct child children[4];
    struct tg_device *device;
    uint64_t before, dead_bytes = 0;

    for (int i = 0; i < 4; i++) {
        children[i] = start(hold, NULL);
        ck_assert_uint_eq(hear(children[i].in), 1);
    }
    device = open_device();
    before = device_free_bytes(device);
    for (int i = 0; i < 4; i++) {
        kill_and_finish(&children[i]);
        dead_bytes += SIZE;
        device_wait_for_free(device, before + dead_bytes);
        /* What it cost beside its chunk has come back, too. */
        dead_bytes = device_slack_bytes == 0 ? dead_bytes : device_free_bytes(device) - before;
    }
    tg_device_close(device);
}
END_TEST

/* Memory of the dead can be had, not only seen. */
START_TEST(what_the_dead_held_can_be_taken) {
    struct child child = start(hold, NULL);
    struct tg_device *device;
    uint64_t before, chunk;

    ck_assert_uint_eq(hear(child.in), 1);
    device = open_device();
    before = device_free_bytes(device);
    kill_and_finish(&child);
    device_wait_for_free(device, before + SIZE);
    ck_assert_ok(tg_device_ops(device)->create(
        device, (before + SIZE - device_slack_bytes) / GRANULE * GRANULE, 0, &chunk));
    ck_assert_ok(tg_device_ops(device)->release(device, chunk));
    tg_device_close(device);
}
END_TEST

struct imported {
    struct child child;
    struct tg_device *device;
    uint64_t before, chunk, addr; /* before: free memory while the child alone held it */
    int fd;
};

static struct imported import_one(void) {
    struct imported got;
    int sockets[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    got.child = start(export_one, &sockets[1]);
    got.fd = device_receive_descriptor(sockets[0]);
    ck_assert_uint_eq(hear(got.child.in), 1);
    close(sockets[0]);
    close(sockets[1]);
    got.device = open_device();
    got.before = device_free_bytes(got.device);
    ck_assert_fails(tg_device_ops(got.device)->import_fd(got.device, got.fd, SIZE + GRANULE,
                                                         &got.chunk), -EINVAL);
    ck_assert_ok(tg_device_ops(got.device)->import_fd(got.device, got.fd, SIZE, &got.chunk));
    close(got.fd);
    ck_assert_ok(tg_device_ops(got.device)->reserve(got.device, SIZE, &got.addr));
    ck_assert_ok(tg_device_ops(got.device)->map(got.device, got.addr, got.chunk, 0));
    device_check_free(got.device, got.before);
    ck_assert(device_is_all(got.device, got.addr, 3, SIZE));
    return got;
}

START_TEST(a_chunk_travels_and_counts_once) {
    struct imported got = import_one();
    int fd = -7;

    ck_assert_fails(tg_device_ops(got.device)->export_fd(got.device, got.chunk, &fd), -EINVAL);
    ck_assert_int_eq(fd, -7);
    ck_assert_ok(tg_device_ops(got.device)->fill(got.device, got.addr, 4, SIZE, NULL));
    device_settle(got.device);
    tell(got.child.out, 1);
    ck_assert_uint_eq(hear(got.child.in), 2);
    device_check_free(got.device, got.before);
    ck_assert(device_is_all(got.device, got.addr, 4, SIZE));
    device_unmake(got.device, got.addr, SIZE, got.chunk);
    device_check_free(got.device, got.before + SIZE);
    ck_assert_int_eq(finish(&got.child), 0);
    tg_device_close(got.device);
}
END_TEST

START_TEST(the_last_holder_keeps_what_the_dead_made) {
    struct imported got = import_one();

    kill_and_finish(&got.child);
    poll(NULL, 0, 50);
    device_check_free(got.device, got.before);
    ck_assert(device_is_all(got.device, got.addr, 3, SIZE));
    device_unmake(got.device, got.addr, SIZE, got.chunk);
    device_check_free(got.device, got.before + SIZE);
    tg_device_close(got.device);
}
END_TEST

/* Writing to what is no longer mapped. A card answers by a failed device, the host device by a
 * signal: either is a fault that is noticed, never a write to somebody else's memory. */
static int write_after_unmap(int in, int out, void *argument) {
    struct tg_device *device = open_device();
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_fence fence;
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);
    int rc;

    (void)in;
    (void)argument;
    if (ops->unmap(device, addr, GRANULE) != 0)
        return 1;
    tell(out, 1);
    rc = ops->fill(device, addr, 1, GRANULE, NULL);
    if (rc == 0)
        rc = ops->fence(device, NULL, &fence);
    if (rc == 0)
        rc = ops->wait(device, &fence, 20000);
    return rc == TG_EBROKEN || rc == TG_EDEVICE ? 0 : 2;
}

START_TEST(a_write_after_unmap_is_a_fault) {
    struct child child = start(write_after_unmap, NULL);
    int status;

    ck_assert_uint_eq(hear(child.in), 1);
    status = finish(&child);
    ck_assert((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) ||
              (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
END_TEST

TCase *device_processes(const struct device_suite *suite) {
    TCase *cases = tcase_create("processes");

    kind = suite;
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, memory_is_one_for_all_processes);
    tcase_add_test(cases, uuid_is_the_same_in_all_processes);
    tcase_add_test(cases, death_gives_memory_back);
    tcase_add_test(cases, what_the_dead_held_can_be_taken);
    tcase_add_test(cases, a_chunk_travels_and_counts_once);
    tcase_add_test(cases, the_last_holder_keeps_what_the_dead_made);
    tcase_add_test(cases, a_write_after_unmap_is_a_fault);
    return cases;
}
