/* SPDX-License-Identifier: Apache-2.0 */
/* The time, where a decision needs none as an argument. */
#ifndef TG_BASE_CLOCK_H
#define TG_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define TG__NS_PER_MS UINT64_C(1000000)
#define TG__NS_PER_S UINT64_C(1000000000)

/* CLOCK_MONOTONIC: the same in all processes of the node. */
static inline uint64_t tg__clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * TG__NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline struct timespec tg__timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / TG__NS_PER_S),
                             .tv_nsec = (long)(ns % TG__NS_PER_S)};
}

#endif
