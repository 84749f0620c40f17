/* SPDX-License-Identifier: Apache-2.0 */
/* Records: version v says that copy v % 2 is whole. Publishing fills the other copy and then stores
 * v + 1. A writer that dies or stops leaves copy v % 2 as it was, and the next one fills the other
 * anew.
 *
 * Why a reader never takes a torn copy. It loads version v, then the words of copy v % 2, then the
 * version again, and takes the copy only if that is still v.
 *   - It sees all that v published: the load of v acquires what the store of v released.
 *   - It sees nothing later. Later words enter copy v % 2 only for v + 2, and so after the store
 *     of v + 1 (by the same thread, or by the next owner of the lock). Each word is stored with
 *     release and loaded with acquire: a reader that got one of them has the store of v + 1 behind
 *     it, and its second load of the version cannot answer v any more.
 * Fences in place of the ordered words would do too and cost the same; ThreadSanitizer understands
 * the words. A version never comes back: it has 64 bits. */
#include <string.h>

#include "base/error.h"
#include "base/shmfile.h"

static _Atomic uint64_t *copy_of(const struct tg__record *record, uint64_t version,
                                 size_t size_bytes) {
    return (_Atomic uint64_t *)(record + 1) + version % 2 * (size_bytes / sizeof(uint64_t));
}

void tg__record_publish(struct tg__record *record, const void *next, size_t size_bytes) {
    uint64_t version = atomic_load_explicit(&record->version, memory_order_relaxed) + 1;
    _Atomic uint64_t *words = copy_of(record, version, size_bytes);

    for (size_t i = 0; i < size_bytes / sizeof(uint64_t); i++) {
        uint64_t word;

        memcpy(&word, (const unsigned char *)next + i * sizeof word, sizeof word);
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
    tg__shm_store(&record->version, version);
}

int tg__record_read(const struct tg__record *record, void *copy, size_t size_bytes) {
    for (int i = 0; i < TG__READ_TRIES; i++) {
        uint64_t version = atomic_load_explicit(&record->version, memory_order_acquire);
        const _Atomic uint64_t *words = copy_of(record, version, size_bytes);

        for (size_t j = 0; j < size_bytes / sizeof(uint64_t); j++) {
            uint64_t word = atomic_load_explicit(&words[j], memory_order_acquire);

            memcpy((unsigned char *)copy + j * sizeof word, &word, sizeof word);
        }
        if (atomic_load_explicit(&record->version, memory_order_relaxed) == version)
            return 0;
    }
    return tg__fail(TG_EMOTION, "figures changed through %d tries to read them", TG__READ_TRIES);
}
