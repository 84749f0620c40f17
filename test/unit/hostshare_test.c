/* SPDX-License-Identifier: Apache-2.0 */
/* The host device between processes: one capacity, kept on real bytes; deaths; the straggler; a
 * file full of garbage. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "children.h"
#include "device_suite.h"
#include "suite.h"

#define CAPACITY (UINT64_C(64) << 20)

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

/* ---- one capacity ---------------------------------------------------------------------------- */

static int hold(int in, int out, void *argument) {
    struct tg_device *device = device_open(argument);
    uint64_t chunk;

    device_make(device, 4 * GRANULE, 0, &chunk);
    tell(out, 1);
    hear(in);
    tg_device_close(device);
    return 0;
}

START_TEST(capacity_is_the_first_ones) {
    static char uri[] = "host:capacity=64MiB";
    struct child child = start(hold, uri);
    struct tg_device *device = NULL;

    ck_assert_uint_eq(hear(child.in), 1);
    ck_assert_fails(tg_device_open("host:capacity=62MiB", &device), -EINVAL);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "64 MiB"));
    ck_assert_fails(tg_device_open("host:capacity=66MiB", &device), -EINVAL);
    ck_assert_ptr_null(device);
    device = device_open("host:capacity=62MiB,name=other");
    ck_assert_uint_eq(device_free_bytes(device), 62 * MIB);
    tg_device_close(device);
    if (_i == 0)
        ck_assert_int_eq(finish(&child), 0);
    else
        kill_and_finish(&child);
    device = device_open("host:capacity=62MiB");
    ck_assert_uint_eq(device_free_bytes(device), 62 * MIB);
    tg_device_close(device);
}
END_TEST

START_TEST(no_more_processes_than_slots) {
    enum { SLOTS = 64 };
    struct tg_device *devices[SLOTS], *one_more = NULL;

    for (int i = 0; i < SLOTS; i++)
        devices[i] = device_open("host:capacity=64MiB");
    ck_assert_fails(tg_device_open("host:capacity=64MiB", &one_more), TG_EFULL);
    tg_device_close(devices[17]);
    one_more = device_open("host:capacity=64MiB");
    tg_device_close(one_more);
    for (int i = 0; i < SLOTS; i++) {
        if (i != 17)
            tg_device_close(devices[i]);
    }
}
END_TEST

/* ---- real bytes ------------------------------------------------------------------------------ */

/* Makes and drops chunks of any size as fast as it can, for ever. Without Check's macros: killed
 * while it writes to Check, it would spoil what the others say. */
static int struggle(int in, int out, void *argument) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t random = (uint64_t)(intptr_t)argument * 77777 + 1, chunks[8] = {0};
    const unsigned word = 1;

    (void)in;
    if (write(out, &word, sizeof word) != (ssize_t)sizeof word)
        return 1;
    for (;;) {
        uint64_t *chunk = &chunks[(random >> 20) % 8];
        uint32_t flags = (random >> 30) % 2 == 0 ? 0 : TG_CHUNK_EXPORTABLE;
        int rc;

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        if (*chunk != 0) {
            if (ops->release(device, *chunk) != 0)
                return 1;
            *chunk = 0;
            continue;
        }
        rc = ops->create(device, (1 + (random >> 40) % 8) * GRANULE, flags, chunk);
        if (rc != 0 && rc != TG_EDEVICEMEMORY && rc != TG_EHELD)
            return 1;
    }
}

/* Bytes of distinct chunks that these processes map: what the system says, not our table. */
static uint64_t mapped_bytes(const struct child *children, int count) {
    static struct {
        uint64_t inode, bytes;
    } seen[4096];
    size_t seen_count = 0;
    uint64_t total = 0;

    for (int i = 0; i < count; i++) {
        char path[64], line[512];
        FILE *maps;

        snprintf(path, sizeof path, "/proc/%d/maps", children[i].pid);
        maps = fopen(path, "r");
        while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
            unsigned long begin, end, inode;
            size_t at = 0;

            if (strstr(line, "tidegate-chunk") == NULL ||
                sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) != 3)
                continue;
            while (at < seen_count && seen[at].inode != inode)
                at++;
            if (at == seen_count) {
                ck_assert_uint_lt(seen_count, 4096);
                seen[seen_count].inode = inode;
                seen[seen_count++].bytes = end - begin;
                total += end - begin;
            }
        }
        if (maps != NULL)
            fclose(maps);
    }
    return total;
}

static void resume(const struct child *children, int count, int signal) {
    for (int i = 0; i < count; i++)
        kill(children[i].pid, signal);
}

/* All are stopped while their maps are read, so that the sum is of one moment. */
START_TEST(there_is_never_more_memory_than_capacity) {
    enum { CHILDREN = 3, LOOKS = 60 };
    struct child children[CHILDREN];
    struct tg_device *device;
    uint64_t most = 0;

    for (int i = 0; i < CHILDREN; i++) {
        children[i] = start(struggle, (void *)(intptr_t)(i + 1));
        ck_assert_uint_eq(hear(children[i].in), 1);
    }
    for (int i = 0; i < LOOKS; i++) {
        uint64_t bytes;
        int status;

        resume(children, CHILDREN, SIGSTOP);
        for (int child = 0; child < CHILDREN; child++) {
            ck_assert_int_eq(waitpid(children[child].pid, &status, WUNTRACED),
                             children[child].pid);
            ck_assert(WIFSTOPPED(status));
        }
        bytes = mapped_bytes(children, CHILDREN);
        ck_assert_uint_le(bytes, CAPACITY);
        most = bytes > most ? bytes : most;
        resume(children, CHILDREN, SIGCONT);
        poll(NULL, 0, 3);
    }
    ck_assert_uint_gt(most, CAPACITY / 2);
    for (int i = 0; i < CHILDREN; i++)
        kill_and_finish(&children[i]);
    device = device_open("host:capacity=64MiB");
    device_wait_for_free(device, CAPACITY);
    tg_device_close(device);
}
END_TEST

START_TEST(death_at_any_moment_leaves_nothing) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    uint64_t chunk;

    for (int i = 0; i < 60; i++) {
        struct child child = start(struggle, (void *)(intptr_t)i);
        int status;

        ck_assert_uint_eq(hear(child.in), 1);
        poll(NULL, 0, i % 7);
        kill(child.pid, SIGKILL);
        status = finish(&child);
        ck_assert(WIFSIGNALED(status));
        device_wait_for_free(device, CAPACITY);
        ck_assert_ok(tg_device_ops(device)->create(device, CAPACITY, 0, &chunk));
        ck_assert_ok(tg_device_ops(device)->release(device, chunk));
    }
    tg_device_close(device);
}
END_TEST

/* ---- the straggler --------------------------------------------------------------------------- */

static int hold_with_straggler(int in, int out, void *argument) {
    struct tg_device *device = device_open("host:capacity=64MiB,straggler=300");
    uint64_t chunk, plain;
    int fd;

    device_make(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk);
    device_make(device, GRANULE, 0, &plain);
    ck_assert_ok(tg_device_ops(device)->export_fd(device, chunk, &fd));
    device_send_descriptor(*(int *)argument, fd);
    close(fd);
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        return 1;
    tell(out, 1);
    hear(in);
    tg_device_close(device);
    return 0;
}

/* A holder with a straggler, and a chunk of its that we map raw. */
struct straggling {
    struct child child;
    struct tg_device *device;
    volatile uint64_t *memory;
};

static struct straggling start_straggling(void) {
    struct straggling it;
    int sockets[2], fd;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    it.child = start(hold_with_straggler, &sockets[1]);
    fd = device_receive_descriptor(sockets[0]);
    ck_assert_uint_eq(hear(it.child.in), 1);
    it.memory = mmap(NULL, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne((void *)(uintptr_t)it.memory, MAP_FAILED);
    close(fd);
    close(sockets[0]);
    close(sockets[1]);
    it.device = device_open("host:capacity=64MiB");
    ck_assert_uint_eq(device_free_bytes(it.device), CAPACITY - 2 * GRANULE);
    ck_assert_uint_eq(it.memory[0], 0);
    return it;
}

START_TEST(the_straggler_writes_on_after_a_death) {
    struct straggling it = start_straggling();
    uint64_t died, freed, chunk;

    kill_and_finish(&it.child);
    died = tg__clock_ns();
    for (int i = 0; i < 5000 && it.memory[0] == 0; i++)
        poll(NULL, 0, 1);
    ck_assert_uint_ne(it.memory[0], 0);
    ck_assert_uint_eq(device_free_bytes(it.device), CAPACITY - 2 * GRANULE);
    ck_assert_fails(tg_device_ops(it.device)->create(it.device, CAPACITY, 0, &chunk),
                    TG_EDEVICEMEMORY);
    device_wait_for_free(it.device, CAPACITY);
    freed = tg__clock_ns();
    ck_assert_uint_ge(freed - died, 200 * TG__NS_PER_MS);
    it.memory[0] = 5;
    poll(NULL, 0, 50);
    ck_assert_uint_eq(it.memory[0], 5);
    ck_assert_ok(tg_device_ops(it.device)->create(it.device, CAPACITY, 0, &chunk));
    tg_device_close(it.device);
}
END_TEST

START_TEST(the_straggler_ends_with_a_clean_close) {
    struct straggling it = start_straggling();
    int status;

    /* Orphans become ours, so that the straggler's end can be seen. */
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    ck_assert_int_eq(finish(&it.child), 0);
    ck_assert_uint_eq(device_free_bytes(it.device), CAPACITY);
    ck_assert_uint_eq(it.memory[0], 0);
    tg_device_close(it.device);
    while (waitpid(-1, &status, 0) > 0)
        ck_assert_int_eq(status, 0);
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

/* The only child of ours that there is, 0: none. */
static int only_child(void) {
    char path[64];
    FILE *children;
    int pid = 0;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    children = fopen(path, "r");
    ck_assert_ptr_nonnull(children);
    if (fscanf(children, "%d", &pid) != 1)
        pid = 0;
    fclose(children);
    return pid;
}

/* Not its accounts alone: the memory is gone when release returns. */
START_TEST(what_is_released_the_straggler_drops) {
    struct tg_device *device;
    struct child straggler = {0};
    uint64_t chunks[4];

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* it is nobody's: we adopt it */
    device = device_open("host:capacity=64MiB,straggler=60000");
    straggler.pid = only_child();
    ck_assert_int_gt(straggler.pid, 0);
    for (int i = 0; i < 4; i++)
        ck_assert_ok(tg_device_ops(device)->create(device, GRANULE,
                                                   i % 2 == 0 ? 0 : TG_CHUNK_EXPORTABLE,
                                                   &chunks[i]));
    for (int i = 0; i < 5000 && mapped_bytes(&straggler, 1) != 4 * GRANULE; i++)
        poll(NULL, 0, 1);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(mapped_bytes(&straggler, 1), (uint64_t)(4 - i) * GRANULE);
        ck_assert_ok(tg_device_ops(device)->release(device, chunks[i]));
    }
    ck_assert_uint_eq(mapped_bytes(&straggler, 1), 0);
    ck_assert_uint_eq(device_free_bytes(device), CAPACITY);
    tg_device_close(device);
    ck_assert_int_eq(waitpid(straggler.pid, NULL, 0), straggler.pid);
}
END_TEST

/* Somebody may kill it: then its parent has none, and nothing else changes. */
START_TEST(a_killed_straggler_is_not_missed) {
    struct tg_device *device, *other;
    uint64_t chunks[2];
    int pid;

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    device = device_open("host:capacity=64MiB,straggler=60000");
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunks[0]));
    pid = only_child();
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_ok(tg_device_ops(device)->create(device, GRANULE, 0, &chunks[1]));
    ck_assert_ok(tg_device_ops(device)->release(device, chunks[0]));
    other = device_open("host:capacity=64MiB");
    ck_assert_uint_eq(device_free_bytes(other), CAPACITY - GRANULE);
    tg_device_close(device);
    ck_assert_uint_eq(device_free_bytes(other), CAPACITY);
    tg_device_close(other);
}
END_TEST

/* ---- garbage --------------------------------------------------------------------------------- */

START_TEST(garbage_in_the_file_does_no_harm) {
    struct tg_device *device = device_open("host:capacity=64MiB"), *other;
    const struct tg_device_ops *ops = tg_device_ops(device);
    char path[128];
    struct stat info;
    unsigned char *bytes;
    uint64_t random = 88172645463325252u, a, b;
    int fd;

    snprintf(path, sizeof path, "%s/host-host", dir);
    fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &info), 0);
    bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(bytes, MAP_FAILED);
    for (int round = 0; round < 300; round++) {
        uint64_t chunk = 0;

        for (int i = 0; i < 400; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes[256 + (random >> 16) % ((uint64_t)info.st_size - 256)] = (unsigned char)random;
        }
        if (ops->memory(device, &a, &b) == 0)
            ck_assert_uint_le(a, b);
        if (ops->create(device, GRANULE, round % 2 == 0 ? 0 : TG_CHUNK_EXPORTABLE, &chunk) == 0)
            ck_assert_ok(ops->release(device, chunk));
        if (tg_device_open("host:capacity=64MiB", &other) == 0)
            tg_device_close(other);
    }
    tg_device_close(device);
    munmap(bytes, (size_t)info.st_size);
    close(fd);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hostshare");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_loop_test(cases, capacity_is_the_first_ones, 0, 2);
    tcase_add_test(cases, no_more_processes_than_slots);
    tcase_add_test(cases, there_is_never_more_memory_than_capacity);
    tcase_add_test(cases, death_at_any_moment_leaves_nothing);
    tcase_add_test(cases, the_straggler_writes_on_after_a_death);
    tcase_add_test(cases, the_straggler_ends_with_a_clean_close);
    tcase_add_test(cases, what_is_released_the_straggler_drops);
    tcase_add_test(cases, a_killed_straggler_is_not_missed);
    tcase_add_test(cases, garbage_in_the_file_does_no_harm);
    return suite_run("hostshare", cases);
}
