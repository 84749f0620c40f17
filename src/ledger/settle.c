/* SPDX-License-Identifier: Apache-2.0 */
/* The dead: what they held, and for how long it still counts. */
#include <string.h>

#include "base/clock.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

static uint64_t last_unattributed(const struct tg__ledger_body *body, uint32_t device) {
    struct tg__device_row row;

    return tg__device_read(&body->devices[device], &row) == 0 ? row.unattributed_bytes : 0;
}

/* The death is written down: its bytes are orphans from now on, its host copies and its wait are
 * gone, and its group is given up before. A slot without bytes becomes free at once, and leaves no
 * orphans. */
static void note_death(struct tg_ledger *ledger, struct tg__slot *slot,
                       struct tg__tenant_row *row) {
    tg__group_settle(ledger->body, slot, row);
    if (tg__row_held(row) == 0) {
        tg__shm_store32(&slot->ticket, 0);
        tg__device_wake(&ledger->body->devices[row->device]);
        return;
    }
    /* Before the row: who looks with an older figure of the driver's then asks anew. */
    tg__shm_add32(&ledger->body->devices[row->device].deaths, 1);
    row->state = TG__ROW_DEAD;
    row->is_waiting = 0;
    row->wait_bytes = 0;
    row->generation = 0;
    row->is_ready = 0;
    row->dead_since_ns = tg__clock_ns();
    row->unattributed_before_bytes = last_unattributed(ledger->body, row->device);
    for (uint32_t i = 0; i < row->tag_count; i++) {
        row->tags[i].asleep_bytes = 0;
        row->tags[i].wanted_bytes = row->tags[i].turning_bytes = 0;
        row->tags[i].host_reserved_bytes = row->tags[i].host_touched_bytes = 0;
    }
    tg__row_publish(slot, row);
}

/* Used of the device, and not by the living; what was committed since the driver was asked may be
 * counted too often, and is never left out. */
static uint64_t unaccounted(const struct tg_ledger *ledger, uint32_t index,
                            const struct tg__driver *driver) {
    const _Atomic uint64_t *created = &ledger->body->devices[index].created_bytes;
    uint64_t used = tg__less(driver->total_bytes, driver->free_bytes), living = 0;

    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        const struct tg__slot *slot = &ledger->body->slots[i];
        struct tg__tenant_row row;
        if (atomic_load_explicit(&slot->ticket, memory_order_acquire) != 0 &&
            tg__row_read(slot, &row) == 0 && row.device == index && row.state == TG__ROW_LIVES)
            living = tg__sum(living, tg__sum(tg__row_occupied(&row), tg__row_declared(&row)));
    }
    /* Read after the rows: what is in them by now is counted. */
    used = tg__sum(used, atomic_load_explicit(created, memory_order_acquire) -
                             driver->created_before);
    return tg__less(used, living);
}

/* driver NULL: only time tells. */
static void settle_orphan(struct tg_ledger *ledger, struct tg__slot *slot,
                          const struct tg__tenant_row *row, const struct tg__driver *driver) {
    struct tg__orphans orphans = {.size_bytes = tg__row_held(row),
                                  .since_ns = row->dead_since_ns,
                                  .unattributed_before_bytes = row->unattributed_before_bytes};
    uint64_t most = driver == NULL ? UINT64_MAX : unaccounted(ledger, row->device, driver);
    uint64_t asked_ns = driver == NULL ? 0 : driver->asked_ns;

    if (tg__admit_orphaned(&orphans, tg__clock_ns(), asked_ns, most) > 0)
        return;
    tg__shm_store32(&slot->ticket, 0);
    tg__device_wake(&ledger->body->devices[row->device]);
}

void tg__ledger_settle(struct tg_ledger *ledger, uint32_t index, const struct tg__driver *driver) {
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__slot *slot = &ledger->body->slots[i];
        uint32_t ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
        struct tg__tenant_row row;
        bool is_here;

        if (ticket == 0 || tg__shmfile_is_alive(ledger->file, ticket) ||
            tg__row_read(slot, &row) < 0)
            continue;
        is_here = driver != NULL && row.device == index;
        if (row.state != TG__ROW_DEAD)
            note_death(ledger, slot, &row);
        else
            settle_orphan(ledger, slot, &row, is_here ? driver : NULL);
    }
}
