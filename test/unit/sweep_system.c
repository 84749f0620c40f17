/* SPDX-License-Identifier: Apache-2.0 */
/* Between the library and the system: calls that fail as planned (see --wrap in meson.build). Calls
 * of the library's threads count too. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "sweep.h"

static atomic_int armed = SYSTEM_COUNT;
static atomic_uint_fast64_t calls, failed, wanted;
static atomic_bool is_lasting;

const char *const system_names[SYSTEM_COUNT] = {
    "mmap",      "munmap", "mremap", "mprotect", "madvise",       "memfd_create",
    "ftruncate", "fcntl",  "calloc", "realloc",  "pthread_create"};

void system_arm(enum system_call call, uint64_t nth, bool after) {
    atomic_store(&armed, SYSTEM_COUNT);
    atomic_store(&calls, 0);
    atomic_store(&failed, 0);
    atomic_store(&wanted, nth);
    atomic_store(&is_lasting, after);
    if (nth != 0)
        atomic_store(&armed, (int)call);
}

uint64_t system_calls(void) {
    return atomic_load(&calls);
}

uint64_t system_failed(void) {
    return atomic_load(&failed);
}

static bool must_fail(enum system_call call, int code) {
    uint64_t number;

    if (atomic_load(&armed) != (int)call)
        return false;
    number = atomic_fetch_add(&calls, 1) + 1;
    if (number != atomic_load(&wanted) && !(number > atomic_load(&wanted) && is_lasting))
        return false;
    atomic_fetch_add(&failed, 1);
    errno = code;
    return true;
}

/* The linker's names. */
#define WRAP(type, name, parameters) \
    type __real_##name parameters;   \
    type __wrap_##name parameters;   \
    type __wrap_##name parameters

/* Private memory that the library has mapped and not unmapped. */
enum { SEGMENTS = 64 };
static void *segments[SEGMENTS];

static void replace_segment(void *old, void *new) {
    for (int i = 0; i < SEGMENTS; i++) {
        if (segments[i] == old) {
            segments[i] = new;
            return;
        }
    }
}

size_t system_segments(void) {
    size_t count = 0;

    for (int i = 0; i < SEGMENTS; i++)
        count += segments[i] != NULL;
    return count;
}

WRAP(void *, mmap64, (void *addr, size_t size, int protection, int flags, int fd, off_t offset)) {
    void *there = MAP_FAILED;

    if (!must_fail(SYSTEM_MMAP, ENOMEM))
        there = __real_mmap64(addr, size, protection, flags, fd, offset);
    if (there != MAP_FAILED && (protection & PROT_WRITE) && (flags & MAP_PRIVATE))
        replace_segment(NULL, there);
    return there;
}

/* The kernel refuses to unmap only where it would have to split what it has merged; it never merges
 * mappings of memory files. */
static bool is_file(const void *addr) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false, is_it = false;

    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;

        found = sscanf(line, "%lx-%lx", &begin, &end) == 2 && (uintptr_t)addr >= begin &&
                (uintptr_t)addr < end;
        is_it = found && strchr(line, '/') != NULL;
    }
    if (maps != NULL)
        fclose(maps);
    return is_it;
}

WRAP(int, munmap, (void *addr, size_t size)) {
    bool may_fail = atomic_load(&armed) == SYSTEM_MUNMAP && !is_file(addr);

    if (may_fail && must_fail(SYSTEM_MUNMAP, ENOMEM))
        return -1;
    replace_segment(addr, NULL);
    return __real_munmap(addr, size);
}

void *__real_mremap(void *addr, size_t old_size, size_t new_size, int flags, ...);
void *__wrap_mremap(void *addr, size_t old_size, size_t new_size, int flags, ...);
void *__wrap_mremap(void *addr, size_t old_size, size_t new_size, int flags, ...) {
    va_list args;
    void *there;

    va_start(args, flags);
    there = va_arg(args, void *);
    va_end(args);
    return must_fail(SYSTEM_MREMAP, ENOMEM) ? MAP_FAILED
                                            : __real_mremap(addr, old_size, new_size, flags, there);
}

WRAP(int, mprotect, (void *addr, size_t size, int protection)) {
    return must_fail(SYSTEM_MPROTECT, ENOMEM) ? -1 : __real_mprotect(addr, size, protection);
}

WRAP(int, madvise, (void *addr, size_t size, int advice)) {
    return must_fail(SYSTEM_MADVISE, EINVAL) ? -1 : __real_madvise(addr, size, advice);
}

WRAP(int, memfd_create, (const char *name, unsigned flags)) {
    return must_fail(SYSTEM_MEMFD, EMFILE) ? -1 : __real_memfd_create(name, flags);
}

WRAP(int, ftruncate64, (int fd, off_t size)) {
    return must_fail(SYSTEM_FTRUNCATE, EFBIG) ? -1 : __real_ftruncate64(fd, size);
}

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...) {
    va_list args;
    void *argument;

    va_start(args, command);
    argument = va_arg(args, void *);
    va_end(args);
    return must_fail(SYSTEM_FCNTL, EINVAL) ? -1 : __real_fcntl64(fd, command, argument);
}

WRAP(void *, calloc, (size_t count, size_t size)) {
    return must_fail(SYSTEM_CALLOC, ENOMEM) ? NULL : __real_calloc(count, size);
}

WRAP(void *, realloc, (void *memory, size_t size)) {
    return must_fail(SYSTEM_REALLOC, ENOMEM) ? NULL : __real_realloc(memory, size);
}

WRAP(int, pthread_create,
     (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)) {
    return must_fail(SYSTEM_THREAD, EAGAIN)
               ? EAGAIN
               : __real_pthread_create(thread, attributes, run, argument);
}
