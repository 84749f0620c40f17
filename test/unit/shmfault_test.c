/* SPDX-License-Identifier: Apache-2.0 */
/* Every system call of the shared file fails once, each in turn: the open then fails with a
 * sentence, leaves neither descriptor nor mapping nor a strange name behind, and succeeds when it
 * is asked again. The linker puts the functions below between the library and the system. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/shmfile.h"
#include "children.h"
#include "suite.h"

/* ---- what fails ------------------------------------------------------------------------------ */

static struct {
    bool is_armed;    /* only the library's calls count, not those of Check */
    int calls;        /* so far */
    int at, code;     /* the one that fails, and with what; 0: none */
    const char *name; /* of the one that failed */
    int no_tmpfile;   /* O_TMPFILE fails with this */
    int unlink_at;    /* the openat before which the file is removed */
    int no_proc;      /* a link from /proc/self/fd fails with this */
} faults;

static char file_path[128];

static bool fails(const char *name) {
    if (!faults.is_armed || ++faults.calls != faults.at)
        return false;
    faults.name = name;
    errno = faults.code;
    return true;
}

/* meson defines _FILE_OFFSET_BITS=64, so the library asks for the *64 names where there are any. */
int __real_openat64(int at, const char *path, int flags, ...);
int __wrap_openat64(int at, const char *path, int flags, ...);
int __real_mkdirat(int at, const char *path, mode_t mode);
int __wrap_mkdirat(int at, const char *path, mode_t mode);
void *__real_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset);
int __real_posix_fallocate64(int fd, off_t offset, off_t size);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t size);
int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __real_linkat(int at, const char *path, int to, const char *name, int flags);
int __wrap_linkat(int at, const char *path, int to, const char *name, int flags);
int __real_fstat64(int fd, struct stat *info);
int __wrap_fstat64(int fd, struct stat *info);
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __real_fchmodat(int at, const char *path, mode_t mode, int flags);
int __wrap_fchmodat(int at, const char *path, mode_t mode, int flags);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
int __real_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

int __wrap_openat64(int at, const char *path, int flags, ...) {
    if ((flags & O_TMPFILE) == O_TMPFILE && faults.no_tmpfile != 0) {
        errno = faults.no_tmpfile;
        return -1;
    }
    if (faults.is_armed && --faults.unlink_at == 0)
        unlink(file_path);
    return fails("openat") ? -1 : __real_openat64(at, path, flags, 0600);
}

int __wrap_mkdirat(int at, const char *path, mode_t mode) {
    return fails("mkdirat") ? -1 : __real_mkdirat(at, path, mode);
}

void *__wrap_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
    return fails("mmap") ? MAP_FAILED : __real_mmap64(addr, size, protection, flags, fd, offset);
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t size) {
    int saved = errno;

    if (!fails("posix_fallocate"))
        return __real_posix_fallocate64(fd, offset, size);
    errno = saved;
    return faults.code;
}

int __wrap_fcntl64(int fd, int command, ...) {
    va_list args;
    void *argument;

    va_start(args, command);
    argument = va_arg(args, void *);
    va_end(args);
    return fails("fcntl") ? -1 : __real_fcntl64(fd, command, argument);
}

int __wrap_linkat(int at, const char *path, int to, const char *name, int flags) {
    if (flags != 0 && faults.no_proc != 0) {
        errno = faults.no_proc;
        return -1;
    }
    return fails("linkat") ? -1 : __real_linkat(at, path, to, name, flags);
}

int __wrap_fstat64(int fd, struct stat *info) {
    return fails("fstat") ? -1 : __real_fstat64(fd, info);
}

int __wrap_fchmod(int fd, mode_t mode) {
    return fails("fchmod") ? -1 : __real_fchmod(fd, mode);
}

int __wrap_fchmodat(int at, const char *path, mode_t mode, int flags) {
    return fails("fchmodat") ? -1 : __real_fchmodat(at, path, mode, flags);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails("calloc") ? NULL : __real_calloc(count, size);
}

char *__wrap_strdup(const char *text) {
    return fails("strdup") ? NULL : __real_strdup(text);
}

int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return fails("pthread_atfork") ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static char *dir;
static char inside[96]; /* a directory in it that is made anew each time */

static void set_up(void) {
    dir = make_directory();
    snprintf(inside, sizeof inside, "%s/made", dir);
    snprintf(file_path, sizeof file_path, "%s/file", inside);
}

static void tear_down(void) {
    memset(&faults, 0, sizeof faults);
    remove_directory(dir);
}

static int count_names(const char *path) {
    DIR *names = opendir(path);
    int count = 0;

    if (names == NULL)
        return 0;
    while (readdir(names) != NULL)
        count++;
    closedir(names);
    return count;
}

static int count_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;

    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, dir) != NULL || strstr(line, "/dev/shm/#") != NULL;
    fclose(maps);
    return count;
}

static struct tg__shmfile_params usual(void) {
    return (struct tg__shmfile_params){.dir = inside, .name = "file", .body_bytes = 4096};
}

static int open_and_close(bool is_reader) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file = NULL;
    int rc;

    params.is_reader = is_reader;
    faults.is_armed = true;
    errno = 99;
    rc = tg__shmfile_open(&params, &file);
    faults.is_armed = false;
    ck_assert_int_eq(errno, 99);
    ck_assert((rc == 0) == (file != NULL));
    tg__shmfile_close(file);
    return rc;
}

/* The one call that may fail without harm: the mode is right without it under a usual umask. */
static bool is_harmless(void) {
    return strcmp(faults.name, "fchmodat") == 0;
}

/* What is there before each try: nothing, what the last one left, or another build's file. */
enum before { NOTHING, AS_IT_IS, ANOTHER };

static void set_scene(enum before before) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    if (before != AS_IT_IS)
        remove_directory(inside);
    params.format = 1;
    if (before == ANOTHER) {
        ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
        tg__shmfile_close(file);
    }
}

/* Every call of the scenario fails in turn; how many there were. */
static int sweep(enum before before, bool is_reader) {
    int failed = 0, fds = count_names("/proc/self/fd");

    for (int at = 1;; at++) {
        int rc;

        set_scene(before);
        faults.calls = 0;
        faults.at = at;
        faults.code = EIO;
        faults.name = NULL;
        rc = open_and_close(is_reader);
        faults.at = 0;
        if (faults.name == NULL) {
            ck_assert_int_eq(rc, 0);
            return failed;
        }
        ck_assert_msg(rc < 0 || is_harmless(), "call %d, %s, was not missed", at, faults.name);
        if (rc < 0)
            ck_assert_int_eq(tg_last_error()->status, rc);
        failed++;
        ck_assert_msg(count_names("/proc/self/fd") == fds, "descriptor left: %s", faults.name);
        ck_assert_msg(count_mappings() == 0, "mapping left: %s", faults.name);
        ck_assert_int_le(count_names(inside), 3); /* ".", ".." and the file */
        ck_assert_int_eq(open_and_close(is_reader && before == AS_IT_IS), 0);
    }
}

START_TEST(each_call_of_making_fails) {
    ck_assert_int_ge(sweep(NOTHING, false), 20);
}
END_TEST

START_TEST(each_call_of_opening_fails) {
    ck_assert_int_eq(open_and_close(false), 0);
    ck_assert_int_ge(sweep(AS_IT_IS, false), 12);
    ck_assert_int_ge(sweep(AS_IT_IS, true), 10);
}
END_TEST

START_TEST(each_call_of_replacing_fails) {
    ck_assert_int_ge(sweep(ANOTHER, false), 25);
}
END_TEST

START_TEST(each_call_of_the_other_way_fails) {
    faults.no_tmpfile = EOPNOTSUPP;
    ck_assert_int_ge(sweep(NOTHING, false), 20);
    faults.no_tmpfile = 0;
    faults.no_proc = ENOENT;
    ck_assert_int_ge(sweep(NOTHING, false), 20);
}
END_TEST

START_TEST(no_space_is_said) {
    int rc = 0;

    for (int at = 1; faults.name == NULL || strcmp(faults.name, "posix_fallocate") != 0; at++) {
        remove_directory(inside);
        faults.calls = 0;
        faults.at = at;
        faults.code = ENOSPC;
        rc = open_and_close(false);
        ck_assert_int_lt(at, 40);
    }
    ck_assert_int_eq(rc, -ENOSPC);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "no space for the 4352 bytes of file"));
}
END_TEST

/* It is opened twice, to map it and to lock it: both must be the same file. */
START_TEST(a_file_removed_in_between_is_made_anew) {
    int fds = count_names("/proc/self/fd");

    ck_assert_int_eq(open_and_close(false), 0);
    for (int at = 1; at <= 8; at++) {
        faults.unlink_at = at;
        ck_assert_int_eq(open_and_close(false), 0);
        ck_assert_int_eq(count_names("/proc/self/fd"), fds);
        ck_assert_int_eq(count_mappings(), 0);
    }
}
END_TEST

START_TEST(a_refused_file_leaves_no_mapping) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file, *other;

    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    params.format = 1;
    ck_assert_int_eq(tg__shmfile_open(&params, &other), TG_ELAYOUT);
    tg__shmfile_close(file);
    ck_assert_int_eq(count_mappings(), 0);
}
END_TEST

/* The kernel cannot be asked: nobody is called dead for that. */
START_TEST(who_cannot_be_asked_about_lives) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    ck_assert(!tg__shmfile_is_alive(file, 50));
    faults.calls = 0;
    faults.at = 1;
    faults.code = ENOLCK;
    faults.is_armed = true;
    ck_assert(tg__shmfile_is_alive(file, 50));
    faults.is_armed = false;
    ck_assert_str_eq(faults.name, "fcntl");
    tg__shmfile_close(file);
}
END_TEST

/* A program without standard streams: what it prints must not land in the file. */
START_TEST(the_streams_numbers_are_not_taken) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;
    int streams[3];

    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        streams[i] = dup(i);
        ck_assert_int_gt(streams[i], 2);
    }
    for (int i = 0; i < 3; i++)
        close(i);
    int rc = tg__shmfile_open(&params, &file);
    bool is_free = fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0;
    for (int i = 0; i < 3; i++)
        dup2(streams[i], i);
    ck_assert_int_eq(rc, 0);
    ck_assert(is_free);
    for (int i = 0; i < 3; i++)
        close(streams[i]);
    tg__shmfile_close(file);
}
END_TEST

static int count_inherited(void) {
    int count = 0;

    for (int fd = 0; fd < 64; fd++)
        count += fcntl(fd, F_GETFD) == 0; /* open, and without FD_CLOEXEC */
    return count;
}

START_TEST(every_descriptor_goes_at_exec) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;
    int before = count_inherited();

    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    ck_assert_int_eq(count_inherited(), before);
    tg__shmfile_close(file);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shmfault");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, each_call_of_making_fails);
    tcase_add_test(cases, each_call_of_opening_fails);
    tcase_add_test(cases, each_call_of_replacing_fails);
    tcase_add_test(cases, each_call_of_the_other_way_fails);
    tcase_add_test(cases, no_space_is_said);
    tcase_add_test(cases, a_file_removed_in_between_is_made_anew);
    tcase_add_test(cases, a_refused_file_leaves_no_mapping);
    tcase_add_test(cases, who_cannot_be_asked_about_lives);
    tcase_add_test(cases, the_streams_numbers_are_not_taken);
    tcase_add_test(cases, every_descriptor_goes_at_exec);
    return suite_run("shmfault", cases);
}
