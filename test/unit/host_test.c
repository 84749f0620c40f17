/* SPDX-License-Identifier: Apache-2.0 */
/* What the host device alone promises: its URIs, its queues' lag and hang, and what of it a forked
 * child has. What it does between processes is in hostshare_test.c. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/clock.h"
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

/* ---- URIs ------------------------------------------------------------------------------------ */

static const struct {
    const char *uri;
    int status;
    const char *words; /* in the sentence */
} bad_uris[] = {
    {"", -EINVAL, "a device is cuda:N, host:capacity=SIZE"},
    {"host", -EINVAL, "a device is cuda:N, host:capacity=SIZE"},
    {"gpu:0", -EINVAL, "\"gpu:0\""},
    {" host:capacity=4GiB", -EINVAL, "a device is"},
    {"auto:", -EINVAL, "a device is"},
    {"cuda:", -EINVAL, "a GPU is named by its number"},
    {"cuda:-1", -EINVAL, "a GPU is named by its number"},
    {"cuda:0,lag=5", -EINVAL, "a GPU is named by its number"},
    {"cuda:64", -EINVAL, "a GPU is named by its number"},
    {"host:", -EINVAL, "the capacity is missing"},
    {"host:name=x", -EINVAL, "the capacity is missing"},
    {"host:capacity", -EINVAL, "needs a value"},
    {"host:capacity=", -EINVAL, "digits and a unit"},
    {"host:capacity=4", -EINVAL, "the unit is missing"},
    {"host:capacity=4GB", -EINVAL, "KiB, MiB, GiB or TiB"},
    {"host:capacity=4gib", -EINVAL, "KiB, MiB, GiB or TiB"},
    {"host:capacity=4GiBx", -EINVAL, "nothing more"},
    {"host:capacity=4GiB ", -EINVAL, "nothing more"},
    {"host:capacity=1.5GiB", -EINVAL, "nothing more"},
    {"host:capacity=-4GiB", -EINVAL, "digits"},
    {"host:capacity=0GiB", -EINVAL, "more than 0"},
    {"host:capacity=3MiB", -EINVAL, "multiple of 2 MiB"},
    {"host:capacity=1KiB", -EINVAL, "multiple of 2 MiB"},
    {"host:capacity=1025GiB", -EINVAL, "at most 1 TiB"},
    {"host:capacity=18446744073709551615TiB", -EINVAL, "at most 1 TiB"},
    {"host:capacity=18446744073709551616KiB", -EINVAL, "at most 1 TiB"},
    {"host:capacity=99999999999999999999999999MiB", -EINVAL, "at most 1 TiB"},
    {"host:capacity=4GiB,", -EINVAL, "empty"},
    {"host:,capacity=4GiB", -EINVAL, "empty"},
    {"host:capacity=4GiB,,lag=1", -EINVAL, "empty"},
    {"host:capacity=4GiB,capacity=4GiB", -EINVAL, "twice"},
    {"host:capacity=4GiB,colour=red", -EINVAL, "no option \"colour\""},
    {"host:Capacity=4GiB", -EINVAL, "capacity, name, lag, hang, straggler"},
    {"host:capacity=4GiB,name=", -EINVAL, "letters"},
    {"host:capacity=4GiB,name=a/b", -EINVAL, "letters"},
    {"host:capacity=4GiB,name=a\tb", -EINVAL, "letters"},
    {"host:capacity=4GiB,name=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", -EINVAL, "1 to 31"},
    {"host:capacity=4GiB,lag=", -EINVAL, "from 0 to 60000"},
    {"host:capacity=4GiB,lag=5ms", -EINVAL, "from 0 to 60000"},
    {"host:capacity=4GiB,lag=60001", -EINVAL, "from 0 to 60000"},
    {"host:capacity=4GiB,hang=2", -EINVAL, "from 0 to 1"},
    {"host:capacity=4GiB,hang=yes", -EINVAL, "from 0 to 1"},
    {"host:capacity=4GiB,straggler=99999999999999999999", -EINVAL, "from 0 to 60000"},
};

START_TEST(bad_uris_are_said) {
    struct tg_device *device = NULL;
    struct tg_error last;

    errno = 99;
    ck_assert_fails(tg_device_open(bad_uris[_i].uri, &device), bad_uris[_i].status);
    last = *tg_last_error();
    ck_assert_int_eq(errno, 99);
    ck_assert_ptr_null(device);
    ck_assert_msg(strstr(last.text, bad_uris[_i].words) != NULL, "%s: %s", bad_uris[_i].uri,
                  last.text);
    /* And nothing was made for it. */
    ck_assert_int_eq(rmdir(dir), 0);
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}
END_TEST

START_TEST(uris_that_are_none_or_long_are_said) {
    struct tg_device *device = NULL;
    char uri[400];

    memset(uri, 'x', sizeof uri - 1);
    uri[sizeof uri - 1] = '\0';
    memcpy(uri, "host:", 5);
    ck_assert_fails(tg_device_open(uri, &device), -EINVAL);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "at most 255"));
    ck_assert_fails(tg_device_open(NULL, &device), -EINVAL);
    ck_assert_fails(tg_device_open("auto", NULL), -EINVAL);
    ck_assert_ptr_null(device);
    tg_device_close(NULL);
}
END_TEST

START_TEST(sizes_are_read_as_written) {
    static const struct {
        const char *uri;
        uint64_t bytes;
    } good[] = {
        {"host:capacity=2048KiB", GRANULE},
        {"host:capacity=2MiB,name=a", GRANULE},
        {"host:name=a.b-c_9,lag=0,capacity=1GiB,hang=0,straggler=0", UINT64_C(1) << 30},
        {"host:capacity=1TiB", UINT64_C(1) << 40},
        {"host:capacity=0000006MiB", 6 * MIB},
    };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct tg_device *device = device_open(good[i].uri);

        ck_assert_uint_eq(device_free_bytes(device), good[i].bytes);
        ck_assert_str_eq(tg_device_uri(device), good[i].uri);
        tg_device_close(device);
    }
}
END_TEST

/* And makes nothing: who asks may want a device of his own. */
START_TEST(choosing_opens_nothing) {
    char uri[256] = "as it was";
    struct tg_device *named;

    ck_assert_int_eq(tg_device_choose(uri, sizeof uri), 0);
    ck_assert_ptr_eq(strstr(uri, "host:capacity="), uri);
    named = device_open("host:capacity=64MiB"); /* as large as it likes: nobody was first */
    tg_device_close(named);
    strcpy(uri, "as it was");
    ck_assert_fails(tg_device_choose(uri, 8), -ENOSPC);
    ck_assert_str_eq(uri, "as it was");
    ck_assert_fails(tg_device_choose(NULL, 8), -EINVAL);
}
END_TEST

START_TEST(auto_is_one_device_for_all) {
    struct tg_device *first = device_open("auto"), *second, *named;
    uint64_t bytes = device_free_bytes(first), chunk;

    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_le(bytes, UINT64_C(1) << 30);
    ck_assert_uint_eq(bytes % GRANULE, 0);
    named = device_open(tg_device_uri(first));
    ck_assert_ok(tg_device_ops(named)->create(named, GRANULE, 0, &chunk));
    ck_assert_uint_eq(device_free_bytes(first), bytes - GRANULE);
    tg_device_close(first);
    tg_device_close(named);
    named = device_open("host:capacity=6MiB");
    second = device_open("auto");
    ck_assert_str_eq(tg_device_uri(second), "host:capacity=6MiB");
    tg_device_close(second);
    tg_device_close(named);
}
END_TEST

/* ---- queues ---------------------------------------------------------------------------------- */

START_TEST(lag_delays_each_operation) {
    struct tg_device *device = device_open("host:capacity=8MiB,lag=100");
    const struct tg_device_ops *ops = tg_device_ops(device);
    static char memory[2][16];
    struct tg_queue *other;
    struct tg_fence all, empty;
    uint64_t began = tg__clock_ns();

    ck_assert_ok(ops->queue_open(device, &other));
    ck_assert_ok(ops->copy(device, memory[0], "123456789012345", 16, NULL));
    ck_assert_ok(ops->copy(device, memory[1], "123456789012345", 16, NULL));
    ck_assert_ok(ops->fence(device, NULL, &all));
    ck_assert_ok(ops->fence(device, other, &empty));
    ck_assert_ok(ops->wait(device, &empty, 0));
    ck_assert_fails(ops->wait(device, &all, 0), TG_EBUSY);
    ck_assert_fails(ops->wait(device, &all, 20), TG_EBUSY);
    ck_assert_ok(ops->wait(device, &all, 20000));
    ck_assert_uint_ge(tg__clock_ns() - began, 200 * TG__NS_PER_MS);
    ck_assert_str_eq(memory[1], "123456789012345");
    tg_device_close(device);
}
END_TEST

START_TEST(closing_waits_for_what_was_given) {
    struct tg_device *device = device_open("host:capacity=8MiB,lag=60");
    const struct tg_device_ops *ops = tg_device_ops(device);
    static char memory[2];
    struct tg_queue *queue;

    ck_assert_ok(ops->queue_open(device, &queue));
    ck_assert_ok(ops->copy(device, &memory[0], "a", 1, NULL));
    ck_assert_ok(ops->copy(device, &memory[1], "b", 1, queue));
    ck_assert_ok(ops->queue_close(device, queue));
    tg_device_close(device);
    ck_assert_int_eq(memory[0], 'a');
    ck_assert_int_eq(memory[1], 'b');
}
END_TEST

START_TEST(closing_does_not_wait_for_ever) {
    static const char *const uris[] = {"host:capacity=8MiB,lag=60000", "host:capacity=8MiB,hang=1"};
    struct tg_device *device = device_open(uris[_i]);
    static char memory[1];
    uint64_t began;

    ck_assert_ok(tg_device_ops(device)->copy(device, memory, "a", 1, NULL));
    began = tg__clock_ns();
    tg_device_close(device);
    ck_assert_uint_lt(tg__clock_ns() - began, 10000 * TG__NS_PER_MS);
    ck_assert_int_eq(memory[0], 0);
}
END_TEST

START_TEST(what_hangs_is_never_done) {
    struct tg_device *device = device_open("host:capacity=8MiB,hang=1");
    const struct tg_device_ops *ops = tg_device_ops(device);
    static char memory[1];
    struct tg_fence fence;
    int rc = 0, given = 0;

    ck_assert_ok(ops->copy(device, memory, "a", 1, NULL));
    ck_assert_ok(ops->fence(device, NULL, &fence));
    ck_assert_fails(ops->wait(device, &fence, 50), TG_EBUSY);
    for (; rc == 0 && given < 100000; given++)
        rc = ops->copy(device, memory, "a", 1, NULL);
    ck_assert_int_eq(rc, TG_EBUSY);
    ck_assert_int_eq(memory[0], 0);
    tg_device_close(device);
}
END_TEST

/* The first line of a file in /proc that begins so. */
static uint64_t blocked_signals(const char *task) {
    char path[300], line[256];
    uint64_t mask = 0;
    FILE *status;

    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    status = fopen(path, "r");
    ck_assert_ptr_nonnull(status);
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "SigBlk: %lx", &mask) != 1)
        continue;
    fclose(status);
    return mask;
}

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count - 2; /* "." and ".." */
}

START_TEST(threads_come_late_and_take_no_signals) {
    struct tg_device *device = device_open("host:capacity=8MiB");
    static char memory[1];
    const struct dirent *task;
    DIR *tasks;
    int before = count_threads(), count = 0; /* a sanitizer has one of its own */

    ck_assert_ok(tg_device_ops(device)->copy(device, memory, "a", 1, NULL));
    device_settle(device);
    tasks = opendir("/proc/self/task");
    while ((task = readdir(tasks)) != NULL) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
            continue;
        for (int number = 1; number < 32; number++) {
            if (number != SIGKILL && number != SIGSTOP)
                ck_assert((blocked_signals(task->d_name) >> (number - 1) & 1) != 0);
        }
        count++;
    }
    ck_assert_int_eq(count, before);
    closedir(tasks);
    tg_device_close(device);
}
END_TEST

START_TEST(closed_queues_leave_no_threads) {
    struct tg_device *device = device_open("host:capacity=8MiB");
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_queue *queues[8];
    static char memory[8];
    int before = count_threads();

    for (int i = 0; i < 8; i++) {
        ck_assert_ok(ops->queue_open(device, &queues[i]));
        ck_assert_ok(ops->copy(device, &memory[i], "a", 1, queues[i]));
    }
    device_settle(device);
    ck_assert_int_eq(count_threads(), before + 8);
    for (int i = 0; i < 8; i++)
        ck_assert_ok(ops->queue_close(device, queues[i]));
    for (int i = 0; i < 5000 && count_threads() > before; i++)
        poll(NULL, 0, 1);
    ck_assert_int_eq(count_threads(), before);
    tg_device_close(device);
}
END_TEST

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Neither a descriptor for each, nor a search through all. */
START_TEST(ten_thousand_chunks) {
    enum { MANY = 10000 };
    struct tg_device *device = device_open("host:capacity=64GiB");
    const struct tg_device_ops *ops = tg_device_ops(device);
    static uint64_t chunks[MANY];
    struct rlimit few = {64, 64};
    uint64_t addr, before = device_free_bytes(device);

    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_assert_ok(ops->reserve(device, (uint64_t)MANY * GRANULE, &addr));
    for (uint64_t i = 0; i < MANY; i++) {
        ck_assert_ok(ops->create(device, GRANULE, 0, &chunks[i]));
        ck_assert_ok(ops->map(device, addr + i * GRANULE, chunks[i], 0));
    }
    ck_assert_uint_eq(device_free_bytes(device), before - (uint64_t)MANY * GRANULE);
    ck_assert_ok(ops->fill(device, addr + GRANULE - 1, 7, 2, NULL));
    ck_assert(device_is_all(device, addr + GRANULE - 1, 7, 2));
    for (uint64_t i = 0; i < MANY; i++)
        ck_assert_ok(ops->release(device, chunks[(i * 7919) % MANY]));
    ck_assert_ok(ops->unmap(device, addr, (uint64_t)MANY * GRANULE));
    ck_assert_uint_eq(device_free_bytes(device), before);
    tg_device_close(device);
}
END_TEST

/* Beyond the limit of its files a process would be ended by SIGXFSZ. */
START_TEST(the_limit_of_files_is_no_signal) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct rlimit before, small = {.rlim_cur = GRANULE};
    uint64_t chunk = 7, free_bytes = device_free_bytes(device);

    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(ops->create(device, 2 * GRANULE, 0, &chunk), -EFBIG);
    ck_assert_uint_eq(chunk, 7);
    ck_assert_uint_eq(device_free_bytes(device), free_bytes);
    ck_assert_ok(ops->create(device, GRANULE, 0, &chunk));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    tg_device_close(device);
}
END_TEST

START_TEST(an_own_chunk_can_come_back) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t before = device_free_bytes(device), chunk, again;
    uint64_t addr = device_make(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk), other;
    int fd;

    ck_assert_ok(ops->fill(device, addr, 6, GRANULE, NULL));
    ck_assert_ok(ops->export_fd(device, chunk, &fd));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->import_fd(device, fd, GRANULE, &again));
    ck_assert_uint_ne(again, chunk);
    ck_assert_uint_eq(device_free_bytes(device), before - GRANULE);
    ck_assert_ok(ops->reserve(device, GRANULE, &other));
    ck_assert_ok(ops->map(device, other, again, 0));
    ck_assert(device_is_all(device, other, 6, GRANULE));
    ck_assert_ok(ops->unmap(device, addr, GRANULE));
    ck_assert_ok(ops->unmap(device, other, GRANULE));
    ck_assert_ok(ops->release(device, again));
    ck_assert_uint_eq(device_free_bytes(device), before);
    /* The descriptor has kept the memory: it is counted again when it comes back. */
    ck_assert_ok(ops->import_fd(device, fd, GRANULE, &again));
    ck_assert_uint_eq(device_free_bytes(device), before - GRANULE);
    close(fd);
    tg_device_close(device);
}
END_TEST

START_TEST(a_chunk_of_another_device_is_refused) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    struct tg_device *other = device_open("host:capacity=64MiB,name=other");
    uint64_t chunk, imported = 5;
    int fd;

    ck_assert_ok(tg_device_ops(other)->create(other, GRANULE, TG_CHUNK_EXPORTABLE, &chunk));
    ck_assert_ok(tg_device_ops(other)->export_fd(other, chunk, &fd));
    ck_assert_fails(tg_device_ops(device)->import_fd(device, fd, GRANULE, &imported), -EINVAL);
    ck_assert_uint_eq(imported, 5);
    ck_assert_int_eq(ftruncate(fd, 0), -1); /* no holder can pull it from under the others */
    close(fd);
    tg_device_close(other);
    tg_device_close(device);
}
END_TEST

START_TEST(closing_gives_everything_back) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    struct tg_device *other = device_open("host:capacity=64MiB");
    uint64_t chunk;

    for (int i = 0; i < 3; i++)
        device_make(device, GRANULE, i == 0 ? 0 : TG_CHUNK_EXPORTABLE, &chunk);
    ck_assert_ok(tg_device_ops(device)->release(device, chunk));
    ck_assert_uint_eq(device_free_bytes(other), 58 * MIB);
    tg_device_close(device);
    ck_assert_uint_eq(device_free_bytes(other), 64 * MIB);
    tg_device_close(other);
}
END_TEST

/* ---- forks ----------------------------------------------------------------------------------- */

/* Mappings and descriptors of chunks in this process. */
static int count_chunks(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    DIR *fds = opendir("/proc/self/fd");
    const struct dirent *fd;
    char line[512], path[300];
    int count = 0;

    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "tidegate-chunk") != NULL;
    while ((fd = readdir(fds)) != NULL) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%s", fd->d_name);
        length = readlink(path, line, sizeof line - 1);
        line[length < 0 ? 0 : length] = '\0';
        count += strstr(line, "tidegate-chunk") != NULL;
    }
    fclose(maps);
    closedir(fds);
    return count;
}

static int try_everything(struct tg_device *device) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_device_info info;
    struct tg_queue *queue;
    struct tg_fence fence = {{0, 0}};
    uint64_t a = 0, b = 0;
    char memory[16] = "";
    int fd;
    const int answers[] = {
        ops->info(device, &info), ops->memory(device, &a, &b), ops->reserve(device, GRANULE, &a),
        ops->unreserve(device, GRANULE, GRANULE), ops->create(device, GRANULE, 0, &a),
        ops->release(device, 1), ops->map(device, GRANULE, 1, 0),
        ops->unmap(device, GRANULE, GRANULE), ops->copy(device, memory, "a", 1, NULL),
        ops->fill(device, GRANULE, 1, 1, NULL), ops->fence(device, NULL, &fence),
        ops->wait(device, &fence, 0), ops->pin(device, memory, 1, 1),
        ops->export_fd(device, 1, &fd), ops->import_fd(device, 0, GRANULE, &a),
        ops->queue_open(device, &queue), ops->queue_close(device, NULL)};

    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        if (answers[i] != TG_EFORKED)
            return (int)i + 1;
    }
    return 0;
}

static int live_as_child(int in, int out, void *argument) {
    struct tg_device *device = argument, *own;
    int rc = try_everything(device);

    (void)in;
    (void)out;
    if (rc != 0 || count_chunks() != 0)
        return rc != 0 ? rc : 100;
    tg_device_close(device);
    own = device_open("host:capacity=64MiB");
    if (device_free_bytes(own) != 60 * MIB)
        return 101;
    tg_device_close(own);
    return 0;
}

START_TEST(a_forked_child_has_nothing_of_it) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    uint64_t plain, exported, addr = device_make(device, GRANULE, 0, &plain);
    struct child child;

    device_make(device, GRANULE, TG_CHUNK_EXPORTABLE, &exported);
    ck_assert_ok(tg_device_ops(device)->fill(device, addr, 8, GRANULE, NULL));
    device_settle(device);
    ck_assert_int_gt(count_chunks(), 3);
    child = start(live_as_child, device);
    ck_assert_int_eq(finish(&child), 0);
    ck_assert_uint_eq(device_free_bytes(device), 60 * MIB);
    ck_assert(device_is_all(device, addr, 8, GRANULE));
    tg_device_close(device);
}
END_TEST

static _Atomic int stop;

/* Without Check's macros: a fork may come while this thread holds their lock. */
static void *make_and_release(void *argument) {
    struct tg_device *device = argument;
    const struct tg_device_ops *ops = tg_device_ops(device);
    intptr_t failed = 0;

    while (!stop) {
        uint64_t chunk;

        if (ops->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk) != 0 ||
            ops->release(device, chunk) != 0)
            failed++;
    }
    return (void *)failed;
}

static int count_and_end(int in, int out, void *argument) {
    (void)in;
    (void)out;
    (void)argument;
    return count_chunks();
}

START_TEST(no_moment_of_create_is_inherited) {
    struct tg_device *device = device_open("host:capacity=64MiB");
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_release, device), 0);
    for (int i = 0; i < 300; i++) {
        struct child child = start(count_and_end, NULL);
        ck_assert_int_eq(finish(&child), 0);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) {
        void *failed;

        pthread_join(threads[i], &failed);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(device_free_bytes(device), 64 * MIB);
    tg_device_close(device);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("host");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_loop_test(cases, bad_uris_are_said, 0,
                        (int)(sizeof bad_uris / sizeof *bad_uris));
    tcase_add_test(cases, uris_that_are_none_or_long_are_said);
    tcase_add_test(cases, sizes_are_read_as_written);
    tcase_add_test(cases, choosing_opens_nothing);
    tcase_add_test(cases, auto_is_one_device_for_all);
    tcase_add_test(cases, lag_delays_each_operation);
    tcase_add_test(cases, closing_waits_for_what_was_given);
    tcase_add_loop_test(cases, closing_does_not_wait_for_ever, 0, 2);
    tcase_add_test(cases, what_hangs_is_never_done);
    tcase_add_test(cases, threads_come_late_and_take_no_signals);
    tcase_add_test(cases, closed_queues_leave_no_threads);
    tcase_add_test(cases, ten_thousand_chunks);
    tcase_add_test(cases, the_limit_of_files_is_no_signal);
    tcase_add_test(cases, an_own_chunk_can_come_back);
    tcase_add_test(cases, a_chunk_of_another_device_is_refused);
    tcase_add_test(cases, closing_gives_everything_back);
    tcase_add_test(cases, a_forked_child_has_nothing_of_it);
    tcase_add_test(cases, no_moment_of_create_is_inherited);
    return suite_run("host", cases);
}
