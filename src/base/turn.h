/* SPDX-License-Identifier: Apache-2.0 */
/* A turn that threads of one process take: a mutex of one word whose waiting ends in time and which
 * ThreadSanitizer understands (pthread_mutex_clocklock it does not). Zero: free. */
#ifndef TG_BASE_TURN_H
#define TG_BASE_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tg__turn {
    _Atomic uint32_t word; /* 0: free; 1: taken; 2: taken, and somebody may sleep on it */
};

/* Only tries. */
static inline bool tg__turn_try(struct tg__turn *turn) {
    uint32_t seen = 0;

    return atomic_compare_exchange_strong_explicit(&turn->word, &seen, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* Waits up to the deadline (CLOCK_MONOTONIC). False: not in time. */
bool tg__turn_take(struct tg__turn *turn, uint64_t deadline_ns);
void tg__turn_end(struct tg__turn *turn);

#endif
