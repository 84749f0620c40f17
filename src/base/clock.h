/* SPDX-License-Identifier: Apache-2.0 */
/* The time, where a decision needs none as an argument. */
#ifndef TG_BASE_CLOCK_H
#define TG_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define TG__NS_PER_MS UINT64_C(1000000)

/* CLOCK_MONOTONIC: the same in all processes of the node. */
static inline uint64_t tg__clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
