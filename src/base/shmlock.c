/* SPDX-License-Identifier: Apache-2.0 */
/* The lock: a word with its owner's ticket, 0 when free. Threads of one open share a ticket, so
 * they first settle among themselves; then one of them tries for the word.
 *
 * Nothing is handed over and nobody is relied on: an unlock that dies before it wakes, a waiter
 * that dies after it was woken, a stopped one, each costs the others one slice of sleep. An owner
 * that died is seen by its ticket, and the compare-and-swap that takes over succeeds for one alone,
 * since a dead ticket never comes back into the word by itself. If that one dies too before it has
 * mended, the word again holds a dead ticket, and the next one inherits. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/shmhead.h"

/* Waiting ends a little early, so that the caller has its answer within TG__LOCK_WAIT_MS. */
enum { SPINS = 200, SLICE_MS = 2 };
#define GIVE_UP_NS ((TG__LOCK_WAIT_MS - 5) * TG__NS_PER_MS)
#define HAS_WAITERS UINT32_C(0x80000000)

/* Not FUTEX_PRIVATE_FLAG: the word is found by its page, in whatever process. */
void tg__shm_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns) {
    const struct timespec timeout = tg__timespec(timeout_ns);
    int saved = errno;

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
    errno = saved;
}

static void wake(_Atomic uint32_t *word, int count) {
    int saved = errno;

    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
    errno = saved;
}

void tg__shm_wake(_Atomic uint32_t *word) {
    wake(word, INT_MAX);
}

void tg__shm_wake_one(_Atomic uint32_t *word) {
    wake(word, 1);
}

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool swap(_Atomic uint32_t *word, uint32_t seen, uint32_t next) {
    return atomic_compare_exchange_strong_explicit(word, &seen, next, memory_order_acquire,
                                                   memory_order_relaxed);
}

static uint32_t owner_of(uint32_t seen) {
    return seen & ~HAS_WAITERS;
}

static bool spin_for(struct tg__shmfile *file) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&file->head->lock, memory_order_relaxed) == 0 &&
            swap(&file->head->lock, 0, file->ticket))
            return true;
        pause_briefly();
    }
    return false;
}

/* One try of a waiter's: the word is free, or its owner dead. A waiter that gets it keeps the
 * waiters' bit: it cannot know whether it was the only one. Its own ticket in the word is garbage
 * (its threads are locked out), and so the same as a dead one's. */
static bool try_word(struct tg__shmfile *file, uint32_t seen, bool *has_inherited) {
    uint32_t owner = owner_of(seen);

    if (owner != 0 && owner != file->ticket && tg__shmfile_is_alive(file, owner))
        return false;
    if (!swap(&file->head->lock, seen, file->ticket | HAS_WAITERS))
        return false;
    *has_inherited = owner != 0;
    return true;
}

static int refuse(struct tg__shmfile *file, uint64_t wait_ns) {
    uint32_t owner = owner_of(atomic_load_explicit(&file->head->lock, memory_order_relaxed));
    char name[96];

    tg__shmfile_name(file, owner == 0 ? file->ticket : owner, name, sizeof name);
    return tg__fail(TG_EHELD, "waited %u ms for the lock of %s/%s, held by %s: is it stopped?",
                    (unsigned)(wait_ns / TG__NS_PER_MS), file->dir, file->name, name);
}

/* False: not in time. */
static bool wait_for_word(struct tg__shmfile *file, uint64_t deadline_ns, bool *has_inherited) {
    _Atomic uint32_t *word = &file->head->lock;

    for (;;) {
        uint32_t seen = atomic_load_explicit(word, memory_order_relaxed);
        uint64_t now_ns, slice_ns = SLICE_MS * TG__NS_PER_MS;

        if (try_word(file, seen, has_inherited))
            return true;
        now_ns = tg__clock_ns();
        if (now_ns >= deadline_ns)
            return false;
        if (slice_ns > deadline_ns - now_ns)
            slice_ns = deadline_ns - now_ns;
        if (owner_of(seen) != 0 && ((seen & HAS_WAITERS) != 0 ||
                                    swap(word, seen, seen | HAS_WAITERS)))
            tg__shm_wait(word, seen | HAS_WAITERS, slice_ns);
    }
}

/* Beyond the first try of both. */
static bool lock_slowly(struct tg__shmfile *file, bool has_threads, uint64_t wait_ns,
                        bool *has_inherited) {
    uint64_t deadline_ns = tg__clock_ns() + wait_ns;

    if (!has_threads && !tg__turn_take(&file->threads, deadline_ns))
        return false;
    if (spin_for(file) || wait_for_word(file, deadline_ns, has_inherited))
        return true;
    tg__turn_end(&file->threads);
    return false;
}

int tg__shmfile_lock(struct tg__shmfile *file, bool *has_inherited) {
    return tg__shmfile_lock_within(file, GIVE_UP_NS, has_inherited);
}

int tg__shmfile_lock_within(struct tg__shmfile *file, uint64_t wait_ns, bool *has_inherited) {
    bool has_threads, inherited = false;
    int rc = tg__shmfile_check(file, false);

    if (rc != 0)
        return rc;
    if (file->ticket == 0)
        return tg__fail(-EINVAL, "%s/%s is open for reading: only one that joins may lock it",
                        file->dir, file->name);
    has_threads = tg__turn_try(&file->threads);
    if (!has_threads || !swap(&file->head->lock, 0, file->ticket)) {
        wait_ns = wait_ns < GIVE_UP_NS ? wait_ns : GIVE_UP_NS;
        if (!lock_slowly(file, has_threads, wait_ns, &inherited))
            return refuse(file, wait_ns);
    }
    /* It may have been poisoned by the last owner, while we waited. */
    rc = tg__shmfile_check(file, false);
    if (rc != 0) {
        tg__shmfile_unlock(file);
        return rc;
    }
    *has_inherited = inherited;
    return 0;
}

/* A word that does not hold this ticket any more was overwritten with garbage: it is another's now,
 * and left alone. */
void tg__shmfile_unlock(struct tg__shmfile *file) {
    uint32_t seen = file->ticket;

    if (tg__forkguard_is_forked(&file->guard))
        return;
    while (owner_of(seen) == file->ticket &&
           !atomic_compare_exchange_weak_explicit(&file->head->lock, &seen, 0,
                                                  memory_order_release, memory_order_relaxed)) {
    }
    if (seen == (file->ticket | HAS_WAITERS))
        tg__shm_wake_one(&file->head->lock);
    tg__turn_end(&file->threads);
}
