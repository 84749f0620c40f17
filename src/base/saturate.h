/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on figures that come from a file, a driver or another process: it stops at both ends
 * instead of wrapping. */
#ifndef TG_BASE_SATURATE_H
#define TG_BASE_SATURATE_H

#include <stdint.h>

static inline uint64_t tg__sum(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t tg__less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

#endif
