/* SPDX-License-Identifier: Apache-2.0 */
/* What the ledger is told. A memory without a tenant, or whose ledger was poisoned or replaced,
 * goes on alone: then nothing is reserved, and the device alone says what fits. */
#include "memory/state.h"

#include "base/error.h"
#include "base/log.h"

/* A ledger that is lost is no reason to stop: 0 then, and once a line on stderr. */
static int detach_if_lost(struct tg_memory *memory, int status) {
    if (status != TG_EPOISONED && status != TG_EREPLACED)
        return status;
    atomic_store(&memory->is_alone, true);
    tg__warn_once(&memory->has_warned, "the ledger is lost (%s): going on without it",
                  tg_last_error()->text);
    return 0;
}

int tg__charge_check(struct tg_memory *memory) {
    if (atomic_load(&memory->is_alone))
        return 0;
    return detach_if_lost(memory, tg_tenant_check(memory->tenant));
}

int tg__charge_quiet(struct tg_memory *memory, uint32_t wait_ms) {
    if (atomic_load(&memory->is_alone))
        return 0;
    return detach_if_lost(memory, tg_tenant_check_quiet(memory->tenant, wait_ms));
}

int tg__charge_reserve(struct tg_tag *tag, uint64_t size_bytes, uint32_t wait_ms) {
    struct tg_memory *memory = tag->memory;

    if (atomic_load(&memory->is_alone) || size_bytes == 0)
        return 0;
    return detach_if_lost(memory,
                          tg_tenant_reserve(memory->tenant, tag->name, size_bytes, wait_ms));
}

int tg__charge_reserve_all(struct tg_memory *memory, const struct tg_tag *chosen,
                           uint32_t wait_ms) {
    struct tg_share shares[TG_TENANT_TAGS];
    uint32_t count = 0;

    if (atomic_load(&memory->is_alone))
        return 0;
    for (const struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        if (tag->reserved_bytes == 0)
            continue;
        if (count == TG_TENANT_TAGS)
            return tg__fail(TG_EFULL, "at most %d tags with memory wake at once", TG_TENANT_TAGS);
        shares[count++] = (struct tg_share){.tag = tag->name, .size_bytes = tag->reserved_bytes};
    }
    if (count == 0)
        return 0;
    return detach_if_lost(memory, tg_tenant_reserve_all(memory->tenant, shares, count, wait_ms));
}

void tg__charge_commit(struct tg_tag *tag, uint64_t size_bytes, uint64_t woken_bytes) {
    if (!atomic_load(&tag->memory->is_alone) && (size_bytes > 0 || woken_bytes > 0))
        tg_tenant_commit(tag->memory->tenant, tag->name, size_bytes, woken_bytes);
}

void tg__charge_cancel(struct tg_tag *tag, uint64_t size_bytes) {
    if (!atomic_load(&tag->memory->is_alone) && size_bytes > 0)
        tg_tenant_cancel(tag->memory->tenant, tag->name, size_bytes);
}

void tg__charge_give(struct tg_tag *tag, uint64_t size_bytes, uint64_t asleep_bytes) {
    if (!atomic_load(&tag->memory->is_alone) && (size_bytes > 0 || asleep_bytes > 0))
        tg_tenant_give(tag->memory->tenant, tag->name, size_bytes, asleep_bytes);
}

void tg__charge_forget(struct tg_tag *tag, uint64_t asleep_bytes) {
    if (!atomic_load(&tag->memory->is_alone))
        tg_tenant_forget(tag->memory->tenant, tag->name, asleep_bytes);
}

/* What the driver said for a reservation is of before its memory was taken. Without it readers see
 * that until the next one: no reason to fail. */
void tg__charge_measure(struct tg_memory *memory) {
    if (!atomic_load(&memory->is_alone))
        (void)!tg_tenant_measure(memory->tenant);
}

/* Host memory is the node's: its budget is asked also without a ledger. */
int tg__charge_host(struct tg__segment *segment) {
    struct tg_memory *memory = segment->tag->memory;
    struct tg_tenant *tenant = atomic_load(&memory->is_alone) ? NULL : memory->tenant;
    int rc = tg_tenant_host_reserve(tenant, segment->tag->name, segment->size_bytes);

    if (rc == TG_EPOISONED || rc == TG_EREPLACED) {
        detach_if_lost(memory, rc);
        tenant = NULL;
        rc = tg_tenant_host_reserve(NULL, segment->tag->name, segment->size_bytes);
    }
    if (rc == 0)
        segment->tenant = tenant;
    return rc;
}

bool tg__charge_has_host_room(const struct tg__segment *segment, uint64_t size_bytes) {
    const char *name = segment->tag->name;

    if (tg_tenant_host_reserve(segment->tenant, name, size_bytes) != 0)
        return false;
    tg_tenant_host_give(segment->tenant, name, size_bytes, 0);
    return true;
}
