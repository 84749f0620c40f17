/* SPDX-License-Identifier: Apache-2.0 */
/* What threads of ours have in common: they wait on the monotonic clock, and take no signals. */
#ifndef TG_BASE_THREADS_H
#define TG_BASE_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/clock.h"

/* A condition whose deadlines are tg__clock_ns's. */
static inline void tg__condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static inline struct timespec tg__deadline_after(uint64_t ms) {
    return tg__timespec(tg__clock_ns() + ms * TG__NS_PER_MS);
}

/* A thread of ours must not be the one that handles the program's signals. Returns 0, or the code
 * of pthread_create. */
static inline int tg__thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

#endif
