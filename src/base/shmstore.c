/* SPDX-License-Identifier: Apache-2.0 */
/* The stores that other processes see. Alone in a file, so that every caller reaches them by name
 * and the linker can put a test's own in between. */
#include "base/shmfile.h"

void tg__shm_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

void tg__shm_store32(_Atomic uint32_t *word, uint32_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

void tg__shm_add(_Atomic uint64_t *word, uint64_t more) {
    atomic_fetch_add_explicit(word, more, memory_order_acq_rel);
}

void tg__shm_add32(_Atomic uint32_t *word, uint32_t more) {
    atomic_fetch_add_explicit(word, more, memory_order_acq_rel);
}

bool tg__shm_swap(_Atomic uint64_t *word, uint64_t *seen, uint64_t value) {
    return atomic_compare_exchange_strong_explicit(word, seen, value, memory_order_acq_rel,
                                                   memory_order_acquire);
}
