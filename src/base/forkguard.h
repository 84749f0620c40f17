/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that a forked child must not keep. An OFD lock lives as long as any copy of its
 * descriptor; a child that kept one would keep its parent alive for all others. So every open and
 * close of such a descriptor happens under one lock of the process, which fork takes too: at a fork
 * each descriptor is either in the list, and the child closes it at once, or does not exist.
 *
 * Not caught: children made without the handlers of fork (clone, vfork, posix_spawn). Their copies
 * go at exec. */
#ifndef TG_BASE_FORKGUARD_H
#define TG_BASE_FORKGUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { TG__GUARD_FDS = 3 };

struct tg__forkguard {
    int fds[TG__GUARD_FDS];  /* -1: none */
    _Atomic bool is_forked;  /* this process is a child of the one that opened them */
    struct tg__forkguard *next, *previous; /* under the list's lock */
};

/* Begins to guard; no descriptor is open yet. Errors: -ENOMEM. */
int tg__forkguard_add(struct tg__forkguard *guard);
/* Closes what is open and guards no more. */
void tg__forkguard_remove(struct tg__forkguard *guard);
/* openat into a slot that is empty, with O_CLOEXEC; never descriptor 0, 1 or 2. 0 or -errno. */
int tg__forkguard_open(struct tg__forkguard *guard, int slot, int at, const char *path, int flags);
void tg__forkguard_close(struct tg__forkguard *guard, int slot);
/* A descriptor that was made since tg__fork_hold, into a slot that is empty; never 0, 1 or 2. 0 or
 * -errno: then it is closed. Before tg__fork_release. */
int tg__forkguard_put(struct tg__forkguard *guard, int slot, int fd);

/* Between the two no fork happens: for what is made in several steps and must not be inherited
 * half. A descriptor that stays goes into a slot of a guard that was added before; it may be stored
 * there directly. Keep it short: other threads' forks wait. Taken after every lock of the library
 * but the shared file's. */
void tg__fork_hold(void);
void tg__fork_release(void);

static inline bool tg__forkguard_is_forked(const struct tg__forkguard *guard) {
    return atomic_load_explicit(&guard->is_forked, memory_order_relaxed);
}

#endif
