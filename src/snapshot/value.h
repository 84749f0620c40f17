/* SPDX-License-Identifier: Apache-2.0 */
/* A value on the opcode machine's stack: 64 bits, the lowest three say what kind.
 *
 *   INT     61-bit signed number
 *   TEXT    number of a text
 *   OBJECT  number of a dictionary or list, see model.h
 *   POOL    number of a pair of numbers (what pool ids are)
 *   WIDE    number of a wider integer, kept aside
 *   CONST   None, False, True, or a thing that the reader passes over (floats, bytes, sets)
 *
 * All but INT hold numbers below 2^28, so the memo keeps values in half the space. */
#ifndef TG_SNAPSHOT_VALUE_H
#define TG_SNAPSHOT_VALUE_H

#include <stdbool.h>
#include <stdint.h>

enum tg__tag { TG__INT, TG__TEXT, TG__OBJECT, TG__POOL, TG__WIDE, TG__CONST };

enum tg__const { TG__NONE, TG__FALSE, TG__TRUE, TG__PASSED };

static inline uint64_t tg__value(enum tg__tag tag, uint64_t number) {
    return number << 3 | tag;
}

static inline uint64_t tg__value_int(int64_t n) {
    return (uint64_t)n << 3 | TG__INT;
}

static inline enum tg__tag tg__tag(uint64_t value) {
    return (enum tg__tag)(value & 7);
}

static inline uint32_t tg__number(uint64_t value) {
    return (uint32_t)(value >> 3);
}

static inline int64_t tg__int(uint64_t value) {
    return (int64_t)value >> 3;
}

static inline bool tg__is_object(uint64_t value) {
    return tg__tag(value) == TG__OBJECT;
}

static inline bool tg__int_fits(int64_t n) {
    return n >= -(INT64_C(1) << 60) && n < INT64_C(1) << 60;
}

#endif
