/* SPDX-License-Identifier: Apache-2.0 */
/* A device has refused memory: what this process gives back of its own, and what it asks of others.
 *
 * Callers may hold an allocator's lock on which the whole program depends, as torch's cudaMalloc
 * does. So nothing waits for another process, and for the device's work TG__SETTLE_MS at most; in
 * a capture nothing waits at all. Who is asked gives later, or does not: it is for the next
 * attempt. */
#include "memory/state.h"

#include "base/error.h"

bool tg__shortage_settle(struct tg_memory *memory, uint64_t given_bytes) {
    const struct tg_error why = *tg_last_error();
    uint64_t pooled_bytes = 0;
    bool has_gained;

    /* A driver may take its time for it. */
    (void)!tg__memory_note(memory, memory->ops->unpool(memory->device, &pooled_bytes));
    pthread_mutex_lock(&memory->lock);
    if (memory->limbo != NULL || memory->leaving != NULL) {
        tg__limbo_settle(memory, TG__SETTLE_MS);
        tg__memory_tidy(memory);
    }
    has_gained = pooled_bytes > 0 || memory->given_bytes > given_bytes;
    pthread_mutex_unlock(&memory->lock);
    tg__fail_as(&why);
    return has_gained;
}

uint64_t tg__shortage_begin(struct tg_memory *memory) {
    uint64_t given_bytes;

    pthread_mutex_lock(&memory->lock);
    given_bytes = memory->given_bytes;
    pthread_mutex_unlock(&memory->lock);
    return given_bytes;
}

/* Of size_bytes, for a request that the ledger or the device has refused. */
static uint64_t missing(struct tg_memory *memory, uint64_t size_bytes, int status) {
    struct tg_shortfall shortfall;
    uint64_t free_bytes, total_bytes;

    if (status == TG_ENOFIT) {
        tg_tenant_shortfall(memory->tenant, &shortfall);
        return shortfall.missing_bytes;
    }
    if (memory->ops->memory(memory->device, &free_bytes, &total_bytes) != 0 ||
        free_bytes >= size_bytes)
        return size_bytes;
    return size_bytes - free_bytes;
}

/* Not while a peer starts up: it sizes itself by free memory that must not move. */
void tg__shortage_ask(struct tg_memory *memory, uint64_t size_bytes, int status) {
    const struct tg_error why = *tg_last_error();
    uint64_t missing_bytes;
    uint32_t count;

    if ((status != TG_ENOFIT && status != TG_EDEVICEMEMORY) || atomic_load(&memory->is_alone))
        return;
    missing_bytes = missing(memory, size_bytes, status);
    if (missing_bytes > 0 && tg_tenant_check_quiet(memory->tenant, 0) == 0)
        (void)!tg_tenant_ask(memory->tenant, missing_bytes, &count);
    tg__fail_as(&why);
}
