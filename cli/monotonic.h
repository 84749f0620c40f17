/* SPDX-License-Identifier: Apache-2.0 */
/* The clock that all of the command's durations and deadlines are of. */
#ifndef CLI_MONOTONIC_H
#define CLI_MONOTONIC_H

#include <stdint.h>
#include <time.h>

static inline uint64_t monotonic_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
