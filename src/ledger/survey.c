/* SPDX-License-Identifier: Apache-2.0 */
/* What every request looks at: everybody on a device, and the driver's figures of it, for the one
 * decision; and the wait that a tenant notes in its row. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

/* The last look is made at the deadline. So long it waits for the file's lock, whose owner may
 * have been put aside by the scheduler for a moment. */
#define LAST_LOCK_NS (10 * TG__NS_PER_MS)

/* ---- the lock, and the driver before it ------------------------------------------------------ */

/* A gauge that is not of this library leaves no sentence. */
static int gauge_failed(int status) {
    if (tg_last_error()->status == status)
        return status;
    return tg__fail(status, "the device's memory could not be asked for: %s",
                    tg_error_text(status));
}

/* The driver is asked before the lock is taken; what others commit between the two is noted. */
int tg__tenant_lock(struct tg_tenant *tenant, uint64_t lock_by_ns, struct tg__driver *driver,
                    bool *has_inherited) {
    uint64_t wait_ns = UINT64_MAX;
    int rc;

    driver->created_before = atomic_load_explicit(&tenant->device->created_bytes,
                                                  memory_order_acquire);
    driver->deaths_before = atomic_load_explicit(&tenant->device->deaths, memory_order_acquire);
    driver->asked_ns = tg__clock_ns();
    rc = tenant->gauge.ask(tenant->gauge.argument, &driver->free_bytes, &driver->total_bytes);
    if (rc < 0)
        return gauge_failed(rc);
    if (lock_by_ns != UINT64_MAX) {
        uint64_t now_ns = tg__clock_ns();
        wait_ns = LAST_LOCK_NS + (lock_by_ns > now_ns ? lock_by_ns - now_ns : 0);
    }
    return tg__shmfile_lock_within(tenant->ledger->file, wait_ns, has_inherited);
}

/* Garbage that was found under the lock is told to all. */
int tg__tenant_unlock(struct tg_tenant *tenant, int rc) {
    if (rc == TG_EPOISONED)
        rc = tg__shmfile_poison(tenant->ledger->file, tg_last_error()->text);
    tg__shmfile_unlock(tenant->ledger->file);
    return rc;
}

/* ---- everybody on a device ------------------------------------------------------------------- */

static struct tg__claim claim_of(const struct tg__tenant_row *row, uint64_t seen_ns) {
    return (struct tg__claim){.occupied_bytes = tg__row_occupied(row),
                              .reserved_bytes = tg__row_reserved(row),
                              .declared_bytes = tg__row_declared(row),
                              .wait_bytes = row->is_waiting ? row->wait_bytes : 0,
                              .arrival = row->arrival,
                              .deadline_ns = row->wait_deadline_ns,
                              .seen_ns = seen_ns,
                              .is_starting = row->is_starting != 0};
}

static void add_orphans(struct tg__survey *survey, const struct tg__tenant_row *row) {
    survey->orphans[survey->orphan_count++] = (struct tg__orphans){
        .size_bytes = tg__row_held(row),
        .since_ns = row->dead_since_ns,
        .unattributed_before_bytes = row->unattributed_before_bytes};
}

int tg__survey_take(struct tg_tenant *tenant, uint32_t device) {
    struct tg__survey *survey = tenant->survey;
    struct tg__slot *slots = tenant->ledger->body->slots;

    survey->device = device;
    survey->claim_count = survey->orphan_count = 0;
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__tenant_row *row = &survey->rows[survey->claim_count];
        int rc;

        if (atomic_load_explicit(&slots[i].ticket, memory_order_acquire) == 0)
            continue;
        if (&slots[i] == tenant->slot) {
            survey->self = survey->claim_count;
            *row = tenant->row;
        }
        rc = tg__group_row(tenant->ledger->body, &slots[i], row, &slots[i] == tenant->slot);
        if (rc < 0)
            return rc;
        if (row->device != device)
            continue;
        if (row->state == TG__ROW_DEAD) {
            add_orphans(survey, row);
            continue;
        }
        survey->slots[survey->claim_count] = &slots[i];
        survey->claims[survey->claim_count++] =
            claim_of(row, atomic_load_explicit(&slots[i].seen_ns, memory_order_relaxed));
    }
    return 0;
}

void tg__survey_note(struct tg_tenant *tenant, const struct tg__admit_output *answer) {
    struct tg__device_row row;

    if (tg__device_read(tenant->device, &row) < 0)
        return;
    row.total_bytes = tenant->survey->driver.total_bytes;
    row.free_bytes = tenant->survey->driver.free_bytes;
    row.asked_ns = tenant->survey->driver.asked_ns;
    row.created_before = tenant->survey->driver.created_before;
    row.deaths_before = tenant->survey->driver.deaths_before;
    if (answer != NULL)
        row.unattributed_bytes = answer->unattributed_bytes;
    row.measured_ns = tg__clock_ns();
    tg__record_publish(&tenant->device->record, &row, sizeof row);
}

void tg__survey_admit(struct tg_tenant *tenant, bool may_wait, struct tg__admit_output *answer) {
    struct tg__survey *survey = tenant->survey;
    const struct tg__device_slot *device = &tenant->ledger->body->devices[survey->device];
    struct tg__admit_input input;

    /* After the rows: what is in them by now is counted. */
    survey->driver.created_bytes =
        atomic_load_explicit(&device->created_bytes, memory_order_acquire) -
        survey->driver.created_before;
    input = (struct tg__admit_input){.now_ns = tg__clock_ns(),
                                     .total_bytes = survey->driver.total_bytes,
                                     .free_bytes = survey->driver.free_bytes,
                                     .asked_ns = survey->driver.asked_ns,
                                     .created_bytes = survey->driver.created_bytes,
                                     .claims = survey->claims,
                                     .claim_count = survey->claim_count,
                                     .self = survey->self,
                                     .may_wait = may_wait,
                                     .orphans = survey->orphans,
                                     .orphan_count = survey->orphan_count};
    tg__admit(&input, answer);
}

/* At each look, since who served it may have something again. */
void tg__survey_ask(struct tg_tenant *tenant, uint64_t missing_bytes) {
    struct tg__survey *survey = tenant->survey;

    for (uint32_t i = 0; i < survey->claim_count; i++) {
        if (i != survey->self)
            tg__slot_ask(survey->slots[i], &survey->rows[i], missing_bytes);
    }
}

/* ---- the wait in the row --------------------------------------------------------------------- */

void tg__tenant_clear_wait(struct tg__tenant_row *row) {
    row->is_waiting = 0;
    memset(row->wait_tag, 0, sizeof row->wait_tag);
    row->wait_bytes = row->wait_since_ns = row->wait_deadline_ns = row->arrival = 0;
}

void tg__tenant_note_wait(struct tg_tenant *tenant, const struct tg__ask *ask, uint64_t arrival) {
    struct tg__tenant_row *row = &tenant->row;

    row->is_waiting = 1;
    memcpy(row->wait_tag, ask->tag, strlen(ask->tag));
    row->wait_bytes = ask->size_bytes;
    row->wait_since_ns = tg__clock_ns();
    row->wait_deadline_ns = ask->deadline_ns;
    row->arrival = arrival;
    tg__tenant_publish(tenant);
}
