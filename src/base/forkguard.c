/* SPDX-License-Identifier: Apache-2.0 */
/* The list of guards, and the handlers of fork. The library's one piece of state of the process:
 * fork offers no other place to hang it on. The handlers stay registered as long as the library is
 * loaded; the system removes them with it. */
#include "base/forkguard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/error.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tg__forkguard *first; /* under the lock, as is the next */
static bool has_handlers;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The forking thread holds the lock, so the list is whole, whatever the threads did that are not
 * here any more. Only close and stores: nothing else is safe in a child of many threads. */
static void in_child(void) {
    int saved = errno;

    for (struct tg__forkguard *guard = first; guard != NULL; guard = guard->next) {
        for (int slot = 0; slot < TG__GUARD_FDS; slot++) {
            if (guard->fds[slot] >= 0)
                close(guard->fds[slot]);
            guard->fds[slot] = -1;
        }
        atomic_store_explicit(&guard->is_forked, true, memory_order_relaxed);
    }
    errno = saved;
    pthread_mutex_unlock(&lock);
}

int tg__forkguard_add(struct tg__forkguard *guard) {
    bool is_ready;

    for (int slot = 0; slot < TG__GUARD_FDS; slot++)
        guard->fds[slot] = -1;
    atomic_init(&guard->is_forked, false);
    pthread_mutex_lock(&lock);
    if (!has_handlers)
        has_handlers = pthread_atfork(before_fork, in_parent, in_child) == 0;
    is_ready = has_handlers;
    if (is_ready) {
        guard->previous = NULL;
        guard->next = first;
        if (first != NULL)
            first->previous = guard;
        first = guard;
    }
    pthread_mutex_unlock(&lock);
    return is_ready ? 0 : tg__fail_memory();
}

void tg__forkguard_remove(struct tg__forkguard *guard) {
    for (int slot = 0; slot < TG__GUARD_FDS; slot++)
        tg__forkguard_close(guard, slot);
    pthread_mutex_lock(&lock);
    if (guard->previous != NULL)
        guard->previous->next = guard->next;
    else
        first = guard->next;
    if (guard->next != NULL)
        guard->next->previous = guard->previous;
    pthread_mutex_unlock(&lock);
}

void tg__fork_hold(void) {
    pthread_mutex_lock(&lock);
}

void tg__fork_release(void) {
    pthread_mutex_unlock(&lock);
}

/* A program that closed its standard streams must not print into our file. */
static int above_streams(int fd) {
    int higher, code;

    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    code = errno;
    close(fd);
    errno = code;
    return higher;
}

int tg__forkguard_put(struct tg__forkguard *guard, int slot, int fd) {
    int saved = errno, kept = above_streams(fd), rc = kept < 0 ? -errno : 0;

    guard->fds[slot] = kept;
    errno = saved;
    return rc;
}

int tg__forkguard_open(struct tg__forkguard *guard, int slot, int at, const char *path, int flags) {
    int saved = errno, fd, rc;

    pthread_mutex_lock(&lock);
    fd = above_streams(openat(at, path, flags | O_CLOEXEC, 0600));
    rc = fd < 0 ? -errno : 0;
    guard->fds[slot] = fd < 0 ? -1 : fd;
    pthread_mutex_unlock(&lock);
    errno = saved;
    return rc;
}

void tg__forkguard_close(struct tg__forkguard *guard, int slot) {
    int saved = errno;

    pthread_mutex_lock(&lock);
    if (guard->fds[slot] >= 0)
        close(guard->fds[slot]);
    guard->fds[slot] = -1;
    pthread_mutex_unlock(&lock);
    errno = saved;
}
