/* SPDX-License-Identifier: Apache-2.0 */
/* What tenants tell each other beside their bytes: that one is starting up, and that one is asked
 * to give. Nobody is made to: a flag is set, and who is asked looks when its own thread comes by,
 * since a cache can only be emptied there. Lock-free on both sides. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/tenant.h"

/* ---- notes ----------------------------------------------------------------------------------- */

void tg_tenant_note(struct tg_tenant *tenant, const struct tg_tenant_note *note) {
    if (tenant == NULL || note == NULL ||
        tg__shmfile_check(tenant->ledger->file, false) == TG_EFORKED)
        return;
    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant)) {
        struct tg__tenant_row *row = &tenant->row;

        row->mode = note->mode;
        row->is_starting = note->is_starting == TG_START_GIVING ? TG_START_GIVING
                                                                : note->is_starting != 0;
        memset(row->seams, 0, sizeof row->seams);
        memcpy(row->seams, note->seams, strnlen(note->seams, sizeof row->seams - 1));
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
    if (!note->is_starting)
        tg__device_wake(tenant->device);
}

uint32_t tg_tenant_id(const struct tg_tenant *tenant) {
    return tg__shmfile_ticket(tenant->ledger->file);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* The next peer's slot and row from place *at on; NULL: no more. Rows in motion or of garbage are
 * passed over: who asks again finds them. */
static struct tg__slot *next_peer(const struct tg_tenant *tenant, uint32_t *at,
                                  struct tg__tenant_row *row) {
    struct tg__slot *slots = tenant->ledger->body->slots;

    while (*at < TG_LEDGER_TENANTS) {
        struct tg__slot *slot = &slots[(*at)++];

        if (slot != tenant->slot &&
            atomic_load_explicit(&slot->ticket, memory_order_acquire) != 0 &&
            tg__row_read(slot, row) == 0 && row->device == tenant->row.device &&
            row->state == TG__ROW_LIVES)
            return slot;
    }
    return NULL;
}

static int check_tenant(struct tg_tenant *tenant) {
    if (tenant == NULL)
        return tg__fail(-EINVAL, "only a tenant has peers: join the ledger first");
    return tg__shmfile_check(tenant->ledger->file, false);
}

bool tg__slot_ask(struct tg__slot *slot, const struct tg__tenant_row *row, uint64_t size_bytes) {
    uint64_t returnable_bytes = tg__row_returnable(row);

    if (size_bytes > returnable_bytes)
        size_bytes = returnable_bytes;
    if (atomic_load_explicit(&slot->asked_bytes, memory_order_relaxed) < size_bytes)
        tg__shm_store(&slot->asked_bytes, size_bytes);
    return returnable_bytes > 0;
}

int tg_tenant_ask(struct tg_tenant *tenant, uint64_t size_bytes, uint32_t *asked_count) {
    struct tg_error before = *tg_last_error();
    struct tg__tenant_row row;
    struct tg__slot *slot;
    uint32_t at = 0, count = 0;
    int rc = check_tenant(tenant);

    if (rc < 0)
        return rc;
    if (size_bytes == 0 || asked_count == NULL)
        return tg__fail(-EINVAL, "peers are asked for 1 byte or more, and counted");
    while ((slot = next_peer(tenant, &at, &row)) != NULL)
        count += tg__slot_ask(slot, &row, size_bytes);
    tg__fail_as(&before); /* what was passed over has left its sentence */
    *asked_count = count;
    return 0;
}

uint64_t tg_tenant_asked(struct tg_tenant *tenant) {
    if (tenant == NULL || tg__shmfile_check(tenant->ledger->file, false) != 0 ||
        !tg__tenant_is_joined(tenant) ||
        atomic_load_explicit(&tenant->slot->asked_bytes, memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange_explicit(&tenant->slot->asked_bytes, 0, memory_order_acquire);
}

/* ---- quiet ----------------------------------------------------------------------------------- */

/* Whether a peer starts up; its row then. */
static bool is_start_on(const struct tg_tenant *tenant, struct tg__tenant_row *row) {
    struct tg__shmfile *file = tenant->ledger->file;
    const struct tg__slot *slot;
    uint32_t at = 0;

    while ((slot = next_peer(tenant, &at, row)) != NULL) {
        if (row->is_starting == TG_START_UP &&
            tg__shmfile_is_alive(file, atomic_load_explicit(&slot->ticket, memory_order_acquire)))
            return true;
    }
    return false;
}

int tg_tenant_check_quiet(struct tg_tenant *tenant, uint32_t wait_ms) {
    uint64_t deadline_ns = tg__clock_ns() + wait_ms * TG__NS_PER_MS;
    struct tg_error before = *tg_last_error();
    char name[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];
    struct tg__tenant_row row;
    bool may_sleep = false;
    int rc = check_tenant(tenant);

    /* As in reserve.c: the sign goes up only when the first look has found a reason. */
    for (; rc == 0; may_sleep = true) {
        uint32_t seen = tg__wait_begin_look(tenant, may_sleep);

        if (!is_start_on(tenant, &row)) {
            tg__fail_as(&before);
            return 0;
        }
        if (tg__clock_ns() >= deadline_ns)
            break;
        if (may_sleep)
            tg__wait_rest(tenant, seen, deadline_ns);
        rc = tg__shmfile_check(tenant->ledger->file, false);
    }
    if (rc < 0)
        return rc;
    tg__row_name(&row, name, sizeof name);
    return tg__fail(TG_ESTARTING, TG__STARTING, name);
}
