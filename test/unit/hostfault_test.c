/* SPDX-License-Identifier: Apache-2.0 */
/* Every system call of the host device fails once, each in turn, all through a scenario that uses
 * every entry: the step in which it fails answers an error with a sentence, has changed nothing,
 * and succeeds when it is made again. At the end nothing is left. The linker puts the functions
 * below between the library and the system. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "children.h"
#include "device_suite.h"
#include "suite.h"

/* ---- what fails ------------------------------------------------------------------------------ */

/* Shared with the processes that the straggler's start goes through. */
static struct {
    _Atomic int is_armed; /* only the library's calls count, not the test's, */
    pid_t pid;            /* and not the straggler's own */
    int can_munmap_fail;  /* of whole mappings it cannot */
    _Atomic int calls;    /* so far */
    _Atomic int at;       /* the one that fails; 0: none */
    char name[32];        /* of the one that failed; "": none */
} *faults;

static bool fails(const char *name) {
    if (faults == NULL || !faults->is_armed ||
        (faults->pid != getpid() && strcmp(name, "clone") != 0) || ++faults->calls != faults->at)
        return false;
    snprintf(faults->name, sizeof faults->name, "%s", name);
    errno = strcmp(name, "pthread_create") == 0 ? EAGAIN : ENOMEM;
    return true;
}

/* meson defines _FILE_OFFSET_BITS=64, so the library asks for the *64 names where there are any. */
int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __real_fstat64(int fd, struct stat *info);
int __wrap_fstat64(int fd, struct stat *info);
int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
void *__real_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t size);
int __wrap_munmap(void *addr, size_t size);
int __real_madvise(void *addr, size_t size, int advice);
int __wrap_madvise(void *addr, size_t size, int advice);
void *__real_mremap(void *addr, size_t size, size_t new_size, int flags, ...);
void *__wrap_mremap(void *addr, size_t size, size_t new_size, int flags, ...);
int __real_mprotect(void *addr, size_t size, int protection);
int __wrap_mprotect(void *addr, size_t size, int protection);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
int __real_socketpair(int domain, int type, int protocol, int *ends);
int __wrap_socketpair(int domain, int type, int protocol, int *ends);
ssize_t __real_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __real_readlink(const char *path, char *link, size_t size);
ssize_t __wrap_readlink(const char *path, char *link, size_t size);
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

int __wrap_memfd_create(const char *name, unsigned flags) {
    return fails("memfd_create") ? -1 : __real_memfd_create(name, flags);
}

int __wrap_fstat64(int fd, struct stat *info) {
    return fails("fstat") ? -1 : __real_fstat64(fd, info);
}

int __wrap_ftruncate64(int fd, off_t size) {
    return fails("ftruncate") ? -1 : __real_ftruncate64(fd, size);
}

int __wrap_fcntl64(int fd, int command, ...) {
    va_list args;
    void *argument;

    va_start(args, command);
    argument = va_arg(args, void *);
    va_end(args);
    return fails("fcntl") ? -1 : __real_fcntl64(fd, command, argument);
}

void *__wrap_mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
    return fails("mmap") ? MAP_FAILED : __real_mmap64(addr, size, protection, flags, fd, offset);
}

int __wrap_munmap(void *addr, size_t size) {
    return faults != NULL && faults->can_munmap_fail && fails("munmap")
               ? -1 : __real_munmap(addr, size);
}

/* Advice on huge pages may be refused without harm. */
int __wrap_madvise(void *addr, size_t size, int advice) {
    return fails(advice == MADV_HUGEPAGE ? "madvise huge" : "madvise")
               ? -1 : __real_madvise(addr, size, advice);
}

void *__wrap_mremap(void *addr, size_t size, size_t new_size, int flags, ...) {
    va_list args;
    void *there;

    va_start(args, flags);
    there = va_arg(args, void *);
    va_end(args);
    return fails("mremap") ? MAP_FAILED : __real_mremap(addr, size, new_size, flags, there);
}

int __wrap_mprotect(void *addr, size_t size, int protection) {
    return fails("mprotect") ? -1 : __real_mprotect(addr, size, protection);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    int saved = errno;

    if (!fails("pthread_create"))
        return __real_pthread_create(thread, attributes, run, argument);
    errno = saved;
    return EAGAIN;
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails("calloc") ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return fails("realloc") ? NULL : __real_realloc(memory, size);
}

int __wrap_socketpair(int domain, int type, int protocol, int *ends) {
    return fails("socketpair") ? -1 : __real_socketpair(domain, type, protocol, ends);
}

ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags) {
    return fails("sendmsg") ? -1 : __real_sendmsg(socket, message, flags);
}

ssize_t __wrap_readlink(const char *path, char *link, size_t size) {
    return fails("readlink") ? -1 : __real_readlink(path, link, size);
}

/* The library's clone has five arguments, its futex six. */
long __wrap_syscall(long number, ...) {
    long words[6] = {0};
    va_list args;

    va_start(args, number);
    for (int i = 0; i < (number == SYS_clone ? 5 : 6); i++)
        words[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_clone && fails("clone"))
        return -1;
    return __real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* ---- what is left ---------------------------------------------------------------------------- */

struct leftovers {
    int fds, chunk_mappings, file_mappings, threads;
    long address_pages; /* about: the heap may grow a little */
    uint64_t free_bytes; /* 0: no device is open */
};

static int count_names(const char *path) {
    DIR *names = opendir(path);
    int count = 0;

    ck_assert_ptr_nonnull(names);
    while (readdir(names) != NULL)
        count++;
    closedir(names);
    return count;
}

static char *dir;

/* Less than a granule. */
enum { FEW_PAGES = 256 };

static struct leftovers look(struct tg_device *device) {
    struct leftovers left = {.fds = count_names("/proc/self/fd"),
                             .threads = count_names("/proc/self/task")};
    FILE *maps = fopen("/proc/self/maps", "r");
    FILE *statm = fopen("/proc/self/statm", "r");
    char line[512];

    ck_assert_int_eq(fscanf(statm, "%ld", &left.address_pages), 1);
    fclose(statm);
    while (fgets(line, sizeof line, maps) != NULL) {
        left.chunk_mappings += strstr(line, "tidegate-chunk") != NULL;
        left.file_mappings += strstr(line, dir) != NULL;
    }
    fclose(maps);
    if (device != NULL)
        left.free_bytes = device_free_bytes(device);
    return left;
}

static void check_same(const struct leftovers *before, const struct leftovers *after) {
    ck_assert_msg(before->fds == after->fds, "descriptors: %d, %d after %s", before->fds,
                  after->fds, faults->name);
    ck_assert_msg(before->chunk_mappings == after->chunk_mappings, "chunks: %d, %d after %s",
                  before->chunk_mappings, after->chunk_mappings, faults->name);
    ck_assert_msg(before->file_mappings == after->file_mappings, "files: %d, %d after %s",
                  before->file_mappings, after->file_mappings, faults->name);
    /* A closed queue's thread may just have ended. */
    ck_assert_msg(before->threads >= after->threads, "threads: %d, %d after %s", before->threads,
                  after->threads, faults->name);
    ck_assert_msg(labs(before->address_pages - after->address_pages) < FEW_PAGES,
                  "pages of addresses: %ld, %ld after %s", before->address_pages,
                  after->address_pages, faults->name);
    ck_assert_msg(before->free_bytes == after->free_bytes, "bytes after %s", faults->name);
}

/* ---- the scenario ---------------------------------------------------------------------------- */

struct scene {
    const char *uri;
    struct tg_device *device;
    struct tg_queue *queue;
    uint64_t addr, plain, exported, imported;
    struct tg_fence fence;
    int fd;
    char memory[4096];
};

typedef int (*step_fn)(struct scene *scene, const struct tg_device_ops *ops);

static int reserve(struct scene *s, const struct tg_device_ops *ops) {
    return ops->reserve(s->device, 4 * GRANULE, &s->addr);
}
static int create(struct scene *s, const struct tg_device_ops *ops) {
    return ops->create(s->device, 2 * GRANULE, 0, &s->plain);
}
static int create_exportable(struct scene *s, const struct tg_device_ops *ops) {
    return ops->create(s->device, GRANULE, TG_CHUNK_EXPORTABLE, &s->exported);
}
static int map(struct scene *s, const struct tg_device_ops *ops) {
    return ops->map(s->device, s->addr, s->plain, 0);
}
static int map_exported(struct scene *s, const struct tg_device_ops *ops) {
    return ops->map(s->device, s->addr + 2 * GRANULE, s->exported, 0);
}
static int fill(struct scene *s, const struct tg_device_ops *ops) {
    return ops->fill(s->device, s->addr, 7, 3 * GRANULE, NULL);
}
static int open_queue(struct scene *s, const struct tg_device_ops *ops) {
    return ops->queue_open(s->device, &s->queue);
}
static int copy(struct scene *s, const struct tg_device_ops *ops) {
    return ops->copy(s->device, s->memory, (void *)(uintptr_t)(s->addr + GRANULE), 4096, s->queue);
}
static int fence(struct scene *s, const struct tg_device_ops *ops) {
    return ops->fence(s->device, NULL, &s->fence);
}
static int wait_for_it(struct scene *s, const struct tg_device_ops *ops) {
    return ops->wait(s->device, &s->fence, 20000);
}
static int pin(struct scene *s, const struct tg_device_ops *ops) {
    return ops->pin(s->device, s->memory, sizeof s->memory, 1);
}
static int unpin(struct scene *s, const struct tg_device_ops *ops) {
    return ops->pin(s->device, s->memory, sizeof s->memory, 0);
}
static int export(struct scene *s, const struct tg_device_ops *ops) {
    return ops->export_fd(s->device, s->exported, &s->fd);
}
static int unmap_all(struct scene *s, const struct tg_device_ops *ops) {
    return ops->unmap(s->device, s->addr, 3 * GRANULE);
}
static int release_exported(struct scene *s, const struct tg_device_ops *ops) {
    return ops->release(s->device, s->exported);
}
static int import(struct scene *s, const struct tg_device_ops *ops) {
    return ops->import_fd(s->device, s->fd, GRANULE, &s->imported);
}
static int map_imported(struct scene *s, const struct tg_device_ops *ops) {
    return ops->map(s->device, s->addr, s->imported, 0);
}
static int release_imported(struct scene *s, const struct tg_device_ops *ops) {
    return ops->release(s->device, s->imported);
}
static int unmap_imported(struct scene *s, const struct tg_device_ops *ops) {
    return ops->unmap(s->device, s->addr, GRANULE);
}
static int release(struct scene *s, const struct tg_device_ops *ops) {
    return ops->release(s->device, s->plain);
}
static int close_queue(struct scene *s, const struct tg_device_ops *ops) {
    return ops->queue_close(s->device, s->queue);
}
static int unreserve(struct scene *s, const struct tg_device_ops *ops) {
    return ops->unreserve(s->device, s->addr, 4 * GRANULE);
}

/* The exported chunk comes back once when this process still has it mapped, and once anew. */
static const step_fn steps[] = {
    reserve, create, create_exportable, map, map_exported, fill, fence, wait_for_it, open_queue,
    copy, fence, wait_for_it, pin, unpin, export, release_exported, import, release_imported,
    unmap_all, import, map_imported, release_imported, unmap_imported, release, close_queue,
    unreserve};
enum { STEPS = sizeof steps / sizeof *steps };

static int armed_step(struct scene *scene, step_fn step) {
    int rc;

    errno = 99;
    faults->can_munmap_fail = step == reserve || step == unreserve;
    faults->is_armed = 1;
    rc = step == NULL ? tg_device_open(scene->uri, &scene->device)
                      : step(scene, tg_device_ops(scene->device));
    faults->is_armed = faults->can_munmap_fail = 0;
    ck_assert_int_eq(errno, 99);
    return rc;
}

/* Advice about speed; a lock that nobody could be asked about; and what the straggler could not be
 * told when memory was given back, which must not fail. */
static bool is_harmless(step_fn step) {
    bool gives = step == unmap_all || step == release || step == unmap_imported ||
                 step == release_imported;

    return strcmp(faults->name, "madvise huge") == 0 ||
           (gives && strcmp(faults->name, "sendmsg") == 0);
}

/* One step, NULL: the open; made again when a call in it fails. */
static void make_step(struct scene *scene, step_fn step) {
    struct leftovers before = look(scene->device), after;
    bool was_hit = faults->name[0] != '\0';
    int rc = armed_step(scene, step);

    if (rc == 0) {
        ck_assert_msg(was_hit || faults->name[0] == '\0' || is_harmless(step),
                      "a failing %s was not missed", faults->name);
        return;
    }
    ck_assert_msg(!was_hit && faults->name[0] != '\0', "%d, %s", rc, tg_last_error()->text);
    ck_assert_int_eq(tg_last_error()->status, rc);
    ck_assert_uint_gt(strlen(tg_last_error()->text), 10);
    after = look(scene->device);
    check_same(&before, &after);
    ck_assert_ok(armed_step(scene, step));
}

/* The whole scenario with the nth call failing; false: there are fewer. */
static bool run_with_fault(const char *uri, int nth) {
    struct leftovers before = look(NULL), after;
    struct scene scene = {.uri = uri, .fd = -1};

    faults->pid = getpid();
    faults->calls = 0;
    faults->at = nth;
    faults->name[0] = '\0';
    make_step(&scene, NULL);
    for (int i = 0; i < STEPS; i++)
        make_step(&scene, steps[i]);
    close(scene.fd);
    ck_assert_uint_eq(device_free_bytes(scene.device), 64 * MIB);
    ck_assert_int_eq(scene.memory[4095], 7);
    faults->is_armed = 1;
    tg_device_close(scene.device);
    faults->is_armed = 0;
    after = look(NULL);
    after.address_pages = before.address_pages; /* stacks of threads are kept for the next ones */
    check_same(&before, &after);
    return faults->name[0] != '\0';
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void set_up(void) {
    dir = make_directory();
    faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(faults, MAP_FAILED);
}

static void tear_down(void) {
    faults->is_armed = 0;
    remove_directory(dir);
}

START_TEST(each_call_fails_once) {
    static const struct {
        const char *uri;
        int least;
    } devices[] = {{"host:capacity=64MiB", 50}, {"host:capacity=64MiB,straggler=50", 70}};
    int nth = 1;

    while (run_with_fault(devices[_i].uri, nth))
        nth++;
    fprintf(stderr, "%s: %d failing calls\n", devices[_i].uri, nth - 1);
    ck_assert_int_ge(nth, devices[_i].least);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hostfault");

    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_loop_test(cases, each_call_fails_once, 0, 2);
    return suite_run("hostfault", cases);
}
