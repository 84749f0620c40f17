/* SPDX-License-Identifier: Apache-2.0 */
#include "storetrap.h"

#include <signal.h>
#include <stdatomic.h>

static struct {
    _Atomic uint64_t count;
    uint64_t nth;
    int signal;
    bool is_after;
} trap;

void store_trap(uint64_t nth, bool is_after, int signal) {
    trap.nth = nth;
    trap.is_after = is_after;
    trap.signal = signal;
    atomic_store(&trap.count, 0);
}

uint64_t store_count(void) {
    return atomic_load(&trap.count);
}

static bool before_store(void) {
    bool is_the_one = atomic_fetch_add(&trap.count, 1) + 1 == trap.nth;

    if (is_the_one && !trap.is_after)
        raise(trap.signal);
    return is_the_one;
}

static void after_store(bool is_the_one) {
    if (is_the_one && trap.is_after)
        raise(trap.signal);
}

void __real_tg__shm_store(_Atomic uint64_t *word, uint64_t value);
void __wrap_tg__shm_store(_Atomic uint64_t *word, uint64_t value);
void __real_tg__shm_store32(_Atomic uint32_t *word, uint32_t value);
void __wrap_tg__shm_store32(_Atomic uint32_t *word, uint32_t value);
void __real_tg__shm_add(_Atomic uint64_t *word, uint64_t more);
void __wrap_tg__shm_add(_Atomic uint64_t *word, uint64_t more);
void __real_tg__shm_add32(_Atomic uint32_t *word, uint32_t more);
void __wrap_tg__shm_add32(_Atomic uint32_t *word, uint32_t more);
bool __real_tg__shm_swap(_Atomic uint64_t *word, uint64_t *seen, uint64_t value);
bool __wrap_tg__shm_swap(_Atomic uint64_t *word, uint64_t *seen, uint64_t value);

void __wrap_tg__shm_store(_Atomic uint64_t *word, uint64_t value) {
    bool is_the_one = before_store();

    __real_tg__shm_store(word, value);
    after_store(is_the_one);
}

void __wrap_tg__shm_store32(_Atomic uint32_t *word, uint32_t value) {
    bool is_the_one = before_store();

    __real_tg__shm_store32(word, value);
    after_store(is_the_one);
}

void __wrap_tg__shm_add(_Atomic uint64_t *word, uint64_t more) {
    bool is_the_one = before_store();

    __real_tg__shm_add(word, more);
    after_store(is_the_one);
}

void __wrap_tg__shm_add32(_Atomic uint32_t *word, uint32_t more) {
    bool is_the_one = before_store();

    __real_tg__shm_add32(word, more);
    after_store(is_the_one);
}

bool __wrap_tg__shm_swap(_Atomic uint64_t *word, uint64_t *seen, uint64_t value) {
    bool is_the_one = before_store(), has_swapped;

    has_swapped = __real_tg__shm_swap(word, seen, value);
    after_store(is_the_one);
    return has_swapped;
}
