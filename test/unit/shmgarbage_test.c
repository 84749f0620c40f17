/* SPDX-License-Identifier: Apache-2.0 */
/* A process that writes garbage into the shared file while others work with it: their functions
 * fail or succeed, and nobody gets a signal. And: a fork at any moment leaves the child nothing. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/shmhead.h"
#include "children.h"
#include "suite.h"

enum { WORKERS = 3, WORK_MS = 1500, RECORD_BYTES = 256, FORKS = 300 };

static char *dir;

struct body {
    uint64_t count;
    struct tg__record record;
    uint64_t copies[2][RECORD_BYTES / 8];
    uint64_t rest[512];
};

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static const struct tg__shmfile_params usual = {.name = "file",
                                                .body_bytes = sizeof(struct body)};

static void use(struct tg__shmfile *file) {
    struct body *body = tg__shmfile_body(file);
    unsigned char copy[RECORD_BYTES] = {0};
    bool has_inherited = false;

    if (tg__shmfile_lock(file, &has_inherited) == 0) {
        body->count++;
        tg__record_publish(&body->record, copy, sizeof copy);
        tg__shmfile_unlock(file);
    }
    (void)!tg__record_read(&body->record, copy, sizeof copy);
    if (tg__shmfile_check(file, true) == 0)
        tg__shmfile_is_alive(file, (uint32_t)body->count);
}

/* What is opened in between meets garbage in the head, too. */
static int work(int in, int out, void *argument) {
    uint64_t end_ns = tg__clock_ns() + WORK_MS * TG__NS_PER_MS;
    struct tg__shmfile *file, *other;

    (void)in;
    (void)argument;
    if (tg__shmfile_open(&usual, &file) != 0)
        return 1;
    tell(out, 0);
    for (int i = 0; tg__clock_ns() < end_ns; i++) {
        use(file);
        if (i % 8 == 0 && tg__shmfile_open(&usual, &other) == 0) {
            use(other);
            tg__shmfile_close(other);
        }
    }
    tg__shmfile_close(file);
    return 0;
}

/* Mostly into the head and the record. Every other round spares what makes the file known and
 * what poisons it, and puts it right: so that new ones come in and all go on working. */
static void scribble(unsigned char *bytes, size_t count, int round, uint32_t *state) {
    const size_t known = offsetof(struct tg__shmhead, lock);
    static unsigned char before[offsetof(struct tg__shmhead, lock)];

    if (round == 0)
        memcpy(before, bytes, known);
    if (round % 64 == 1)
        memset(bytes, 0, count);
    if (round % 2 == 0)
        memcpy(bytes, before, known);
    for (int i = 0; i < 64; i++) {
        size_t at;

        *state = *state * 1664525u + 1013904223u;
        at = (*state >> 8) % (i % 8 == 0 ? count : 512);
        if (round % 2 == 1 || at >= known)
            bytes[at] = (unsigned char)(*state >> 24);
    }
}

START_TEST(garbage_ends_nobody) {
    struct child workers[WORKERS];
    uint32_t seed = (uint32_t)tg__clock_ns(), state = seed;
    struct stat info;
    unsigned char *bytes;
    char path[128];
    int fd;

    for (int i = 0; i < WORKERS; i++) {
        workers[i] = start(work, NULL);
        ck_assert_uint_eq(hear(workers[i].in), 0);
    }
    snprintf(path, sizeof path, "%s/file", dir);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &info), 0);
    bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(bytes, MAP_FAILED);
    for (int left = WORKERS, round = 0; left > 0; round++) {
        scribble(bytes, (size_t)info.st_size, round, &state);
        usleep(100);
        for (int i = 0; i < WORKERS; i++) {
            int status;

            if (workers[i].pid != 0 && waitpid(workers[i].pid, &status, WNOHANG) > 0) {
                ck_assert_msg(status == 0, "wait status %d; seed %u", status, seed);
                workers[i].pid = 0;
                left--;
            }
        }
    }
    munmap(bytes, (size_t)info.st_size);
    close(fd);
}
END_TEST

/* ---- forks ----------------------------------------------------------------------------------- */

static _Atomic bool is_over;

static void *open_and_close(void *argument) {
    struct tg__shmfile *file;

    (void)argument;
    while (!atomic_load(&is_over)) {
        if (tg__shmfile_open(&usual, &file) == 0)
            tg__shmfile_close(file);
    }
    return NULL;
}

/* How many descriptors lead to the directory or a file in it; safe in a forked child. */
static int count_ours(dev_t device, ino_t directory) {
    struct stat info;
    int count = 0;

    for (int fd = 3; fd < 64; fd++) {
        if (fstat(fd, &info) == 0 && info.st_dev == device &&
            (info.st_ino == directory || S_ISREG(info.st_mode)))
            count++;
    }
    return count;
}

START_TEST(a_fork_at_any_moment_leaves_nothing) {
    pthread_t threads[2];
    struct tg__shmfile *file;
    struct stat info;

    ck_assert_int_eq(stat(dir, &info), 0);
    ck_assert_int_eq(tg__shmfile_open(&usual, &file), 0);
    ck_assert_int_eq(count_ours(info.st_dev, info.st_ino), 2);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_and_close, NULL), 0);
    for (int i = 0; i < FORKS; i++) {
        int status;
        pid_t pid = fork();

        if (pid == 0) {
            status = count_ours(info.st_dev, info.st_ino);
            tg__shmfile_close(file);
            _exit(status);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(status == 0, "fork %d: wait status %d", i, status);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(tg__shmfile_check(file, true), 0);
    tg__shmfile_close(file);
    ck_assert_int_eq(count_ours(info.st_dev, info.st_ino), 0);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shmgarbage");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, garbage_ends_nobody);
    tcase_add_test(cases, a_fork_at_any_moment_leaves_nothing);
    return suite_run("shmgarbage", cases);
}
