/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the ledger, joining it and leaving. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

/* Who waits for a dead one's place looks as often, and so long after it must be free. */
#define LOOK_NS (10 * TG__NS_PER_MS)
#define FREED_BY_NS (100 * TG__NS_PER_MS)

enum { DEVICE_NAME_BYTES = sizeof((struct tg__device_row){0}.name) };

static int open_ledger(const char *dir, bool is_reader, struct tg_ledger **ledger) {
    struct tg__shmfile_params params = {.dir = dir,
                                        .name = "ledger",
                                        .format = tg__ledger_format(),
                                        .body_bytes = sizeof(struct tg__ledger_body),
                                        .is_reader = is_reader,
                                        .name_of = tg__ledger_name_of};
    struct tg_ledger *made;
    int rc;

    if (ledger == NULL)
        return tg__fail(-EINVAL, "a ledger is opened into a pointer, not into NULL");
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return tg__fail_memory();
    rc = tg__shmfile_open(&params, &made->file);
    if (rc < 0) {
        free(made);
        return rc;
    }
    made->body = tg__shmfile_body(made->file);
    *ledger = made;
    return 0;
}

int tg_ledger_open(const char *dir, struct tg_ledger **ledger) {
    return open_ledger(dir, false, ledger);
}

int tg_ledger_open_reader(const char *dir, struct tg_ledger **ledger) {
    return open_ledger(dir, true, ledger);
}

void tg_ledger_close(struct tg_ledger *ledger) {
    if (ledger == NULL)
        return;
    tg__shmfile_close(ledger->file);
    free(ledger);
}

bool tg__ledger_is_name(const char *name, size_t max_bytes) {
    size_t length = name == NULL ? 0 : strnlen(name, max_bytes);

    if (length == 0 || length >= max_bytes)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] < ' ' || name[i] > '~')
            return false;
    }
    return true;
}

static int check_params(const struct tg_tenant_params *params) {
    if (params == NULL || params->uuid == NULL || params->gauge.ask == NULL)
        return tg__fail(-EINVAL, "a tenant needs a device's uuid and a gauge of its memory");
    if (!tg__ledger_is_name(params->name, TG_TENANT_NAME_BYTES))
        return tg__fail(-EINVAL, "a tenant's name is 1 to %d printable ASCII characters",
                        TG_TENANT_NAME_BYTES - 1);
    if (params->role != NULL && !tg__ledger_is_name(params->role, TG_TENANT_ROLE_BYTES))
        return tg__fail(-EINVAL, "a role is 1 to %d printable ASCII characters, or none",
                        TG_TENANT_ROLE_BYTES - 1);
    if (params->device_name != NULL && !tg__ledger_is_name(params->device_name, DEVICE_NAME_BYTES))
        return tg__fail(-EINVAL, "a device's name is 1 to %d printable ASCII characters, or none",
                        DEVICE_NAME_BYTES - 1);
    if (params->rank < -1)
        return tg__fail(-EINVAL, "a rank is 0 or more, or -1 for none; not %d", (int)params->rank);
    return 0;
}

/* Whether a slot, of a living tenant or of an orphan, speaks of the device. Under the lock. */
static bool is_spoken_of(struct tg_ledger *ledger, uint32_t index) {
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        const struct tg__slot *slot = &ledger->body->slots[i];
        struct tg__tenant_row row;

        if (atomic_load_explicit(&slot->ticket, memory_order_acquire) == 0)
            continue;
        if (tg__row_read(slot, &row) != 0 || row.device == index)
            return true;
    }
    return false;
}

/* Where a new device finds its place: one that was never used, else one that nobody speaks of any
 * more, since devices with names of their own (the host's) come and go. Under the lock. */
static uint32_t free_place(struct tg_ledger *ledger) {
    uint32_t place = 0;

    while (place < TG_LEDGER_DEVICES &&
           atomic_load_explicit(&ledger->body->devices[place].is_used, memory_order_acquire) != 0)
        place++;
    if (place < TG_LEDGER_DEVICES)
        return place;
    for (place = 0; place < TG_LEDGER_DEVICES && is_spoken_of(ledger, place);)
        place++;
    return place;
}

/* The device's index, registered if it is new. Under the lock. */
static int find_device(struct tg_ledger *ledger, const struct tg_tenant_params *params,
                       uint32_t *index) {
    struct tg__device_row row = {0};
    uint32_t place;

    for (uint32_t i = 0; i < TG_LEDGER_DEVICES; i++) {
        struct tg__device_slot *slot = &ledger->body->devices[i];
        if (atomic_load_explicit(&slot->is_used, memory_order_acquire) != 0 &&
            tg__device_read(slot, &row) == 0 &&
            memcmp(row.uuid, params->uuid, sizeof row.uuid) == 0) {
            *index = i;
            return 0;
        }
    }
    place = free_place(ledger);
    if (place == TG_LEDGER_DEVICES)
        return tg__fail(TG_EFULL, "the ledger knows %d devices already and has no place for one "
                        "more", TG_LEDGER_DEVICES);
    memset(&row, 0, sizeof row);
    memcpy(row.uuid, params->uuid, sizeof row.uuid);
    if (params->device_name != NULL)
        memcpy(row.name, params->device_name, strlen(params->device_name));
    tg__record_publish(&ledger->body->devices[place].record, &row, sizeof row);
    tg__shm_store32(&ledger->body->devices[place].is_used, 1);
    *index = place;
    return 0;
}

static void fill_row(struct tg__tenant_row *row, const struct tg_tenant_params *params,
                     uint32_t device) {
    memcpy(row->name, params->name, strlen(params->name));
    if (params->role != NULL)
        memcpy(row->role, params->role, strlen(params->role));
    row->rank = params->rank;
    row->pid = (int32_t)getpid();
    row->device = device;
    row->state = TG__ROW_LIVES;
    row->updated_ns = tg__clock_ns();
}

/* Under the lock: the row first, then the ticket, which makes the slot somebody's. */
static int take_slot(struct tg_tenant *tenant, const struct tg_tenant_params *params) {
    struct tg__ledger_body *body = tenant->ledger->body;
    uint32_t device = 0;
    int rc;

    for (uint32_t i = 0; i < TG_LEDGER_TENANTS && tenant->slot == NULL; i++) {
        if (atomic_load_explicit(&body->slots[i].ticket, memory_order_relaxed) == 0)
            tenant->slot = &body->slots[i];
    }
    if (tenant->slot == NULL)
        return tg__fail(TG_EFULL, "%d tenants have joined already: there is no place for %s",
                        TG_LEDGER_TENANTS, params->name);
    rc = find_device(tenant->ledger, params, &device);
    if (rc < 0)
        return rc;
    tenant->device = &body->devices[device];
    fill_row(&tenant->row, params, device);
    tg__shm_store(&tenant->slot->asked_bytes, 0);
    tg__row_publish(tenant->slot, &tenant->row);
    tg__shm_store32(&tenant->slot->ticket, tg__shmfile_ticket(tenant->ledger->file));
    return 0;
}

static int join_locked(struct tg_tenant *tenant, const struct tg_tenant_params *params) {
    bool has_inherited;
    int rc = tg__shmfile_check(tenant->ledger->file, true);

    if (rc == 0)
        rc = tg__shmfile_lock(tenant->ledger->file, &has_inherited);
    if (rc < 0)
        return rc;
    tg__ledger_settle(tenant->ledger, 0, NULL);
    rc = take_slot(tenant, params);
    tg__shmfile_unlock(tenant->ledger->file);
    return rc;
}

/* A dead one keeps its place as long as its bytes count. */
static bool has_orphans(struct tg_ledger *ledger) {
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        uint32_t ticket = atomic_load_explicit(&ledger->body->slots[i].ticket,
                                               memory_order_acquire);

        if (ticket != 0 && !tg__shmfile_is_alive(ledger->file, ticket))
            return true;
    }
    return false;
}

/* Where the dead hold the last places, these come free in a moment: a job that was killed as a
 * whole and starts again is not to go without. */
static int join_in_time(struct tg_tenant *tenant, const struct tg_tenant_params *params) {
    uint64_t end_ns = tg__clock_ns() + TG__ADMIT_ORPHAN_NS + FREED_BY_NS;
    const struct timespec moment = tg__timespec(LOOK_NS);
    int saved = errno, rc;

    while ((rc = join_locked(tenant, params)) == TG_EFULL && has_orphans(tenant->ledger) &&
           tg__clock_ns() < end_ns) {
        tenant->slot = NULL;
        nanosleep(&moment, NULL);
    }
    errno = saved;
    return rc;
}

int tg_ledger_join(struct tg_ledger *ledger, const struct tg_tenant_params *params,
                   struct tg_tenant **tenant) {
    struct tg_tenant *made;
    int rc = check_params(params);

    if (rc < 0)
        return rc;
    if (ledger == NULL || tenant == NULL)
        return tg__fail(-EINVAL, "a tenant joins a ledger, and is told by a pointer");
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return tg__fail_memory();
    made->survey = calloc(1, sizeof *made->survey);
    made->ledger = ledger;
    made->gauge = params->gauge;
    pthread_mutex_init(&made->own, NULL);
    rc = made->survey == NULL ? tg__fail_memory() : join_in_time(made, params);
    if (rc < 0) {
        free(made->survey);
        free(made);
        return rc;
    }
    *tenant = made;
    return 0;
}

/* Needs no lock: the ticket's own process empties its slot. */
void tg_tenant_leave(struct tg_tenant *tenant) {
    if (tenant == NULL)
        return;
    if (tg__shmfile_check(tenant->ledger->file, false) != TG_EFORKED) {
        if (tenant->member.generation != 0)
            tg__group_give_up(tenant->ledger->body, tenant->member.group,
                              tenant->member.generation);
        pthread_mutex_lock(&tenant->own);
        if (tg__tenant_is_joined(tenant))
            tg__shm_store32(&tenant->slot->ticket, 0);
        pthread_mutex_unlock(&tenant->own);
        tg__device_wake(tenant->device);
    }
    free(tenant->survey);
    free(tenant);
}

int tg_tenant_check(struct tg_tenant *tenant) {
    if (tenant == NULL)
        return tg__fail(-EINVAL, "there is no tenant to check");
    return tg__shmfile_check(tenant->ledger->file, true);
}
