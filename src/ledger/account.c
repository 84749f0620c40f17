/* SPDX-License-Identifier: Apache-2.0 */
/* What a tenant writes down about itself: all that moves or lowers its own bytes. Each is one
 * publish of its own row; nothing here waits for another process, so nothing here can fail. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/tenant.h"

struct tg__tag_row *tg__tenant_tag(struct tg_tenant *tenant, const char *tag) {
    struct tg__tenant_row *row = &tenant->row;
    struct tg__tag_row *place = NULL;

    for (uint32_t i = 0; i < row->tag_count; i++) {
        if (strncmp(row->tags[i].name, tag, sizeof row->tags[i].name) == 0)
            return &row->tags[i];
    }
    if (row->tag_count < TG_TENANT_TAGS) {
        place = &row->tags[row->tag_count++];
        memset(place, 0, sizeof *place);
        memcpy(place->name, tag, strnlen(tag, sizeof place->name - 1));
    }
    return place;
}

bool tg__tenant_is_joined(const struct tg_tenant *tenant) {
    return atomic_load_explicit(&tenant->slot->ticket, memory_order_relaxed) ==
           tg__shmfile_ticket(tenant->ledger->file);
}

int tg__tenant_no_place(const char *tag) {
    return tg__fail(TG_EFULL, "the ledger has places for %d tags of a tenant: none for %s",
                    TG_TENANT_TAGS, tag);
}

int tg__tenant_check_joined(const struct tg_tenant *tenant) {
    if (tg__tenant_is_joined(tenant))
        return 0;
    return tg__fail(TG_EREPLACED, "this process's place in the ledger was given to another");
}

void tg__tenant_publish(struct tg_tenant *tenant) {
    tenant->row.updated_ns = tg__clock_ns();
    tg__row_publish(tenant->slot, &tenant->row);
}

/* A waiter sets has_waiters, then looks at all rows, then sleeps; we publish, then look at
 * has_waiters: one of the two sees the other. */
void tg__device_wake(struct tg__device_slot *device) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&device->has_waiters, memory_order_relaxed) == 0)
        return;
    tg__shm_store32(&device->has_waiters, 0);
    tg__shm_add32(&device->change, 1);
    tg__shm_wake(&device->change);
}

/* Stops at both ends: a caller that counts wrongly harms its own figures alone. */
static void move(uint64_t *bytes, uint64_t more, uint64_t less) {
    *bytes = tg__less(tg__sum(*bytes, more), less);
}

static void apply(struct tg__tag_row *row, const struct tg__tag_change *change) {
    move(&row->occupied_bytes, change->occupied_more, change->occupied_less);
    move(&row->reserved_bytes, change->reserved_more, change->reserved_less);
    move(&row->asleep_bytes, change->asleep_more, change->asleep_less);
    move(&row->host_reserved_bytes, 0, change->host_reserved_less);
    move(&row->host_touched_bytes, change->host_touched_more, change->host_touched_less);
}

static bool is_empty(const struct tg__tag_row *row) {
    return (row->occupied_bytes | row->reserved_bytes | row->asleep_bytes | row->declared_bytes |
            row->host_reserved_bytes | row->host_touched_bytes | row->wanted_bytes |
            row->turning_bytes) == 0;
}

/* A tag without bytes gives its place back. */
static void drop_empty(struct tg__tenant_row *row, struct tg__tag_row *tag) {
    if (!is_empty(tag))
        return;
    *tag = row->tags[--row->tag_count];
    memset(&row->tags[row->tag_count], 0, sizeof row->tags[0]);
}

bool tg__tenant_change(struct tg_tenant *tenant, const char *tag,
                       const struct tg__tag_change *change) {
    struct tg__tag_row *row = tg__tenant_tag(tenant, tag);

    if (row == NULL)
        return false;
    apply(row, change);
    drop_empty(&tenant->row, row);
    return true;
}

static void record(struct tg_tenant *tenant, const char *tag, const struct tg__tag_change *change) {
    /* By a commit, too: what was created counted twice until now, as reserved and in the driver's
     * figure, and a waiter may have been refused for that. */
    bool has_come_free = change->occupied_less > 0 || change->reserved_less > 0;

    /* A name that no request could have is no tag's. */
    if (tenant == NULL || !tg__ledger_is_name(tag, TG_TAG_NAME_BYTES) ||
        tg__shmfile_check(tenant->ledger->file, false) == TG_EFORKED)
        return;
    /* Before the publish: who sees the figures sees also what they have grown by since it asked the
     * driver. */
    if (change->occupied_more > 0)
        tg__shm_add(&tenant->device->created_bytes, change->occupied_more);
    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant) && tg__tenant_change(tenant, tag, change))
        tg__tenant_publish(tenant);
    pthread_mutex_unlock(&tenant->own);
    if (has_come_free)
        tg__device_wake(tenant->device);
}

void tg_tenant_commit(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                      uint64_t woken_bytes) {
    record(tenant, tag, &(struct tg__tag_change){.occupied_more = size_bytes,
                                                 .reserved_less = size_bytes,
                                                 .asleep_less = woken_bytes});
}

void tg_tenant_cancel(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes) {
    record(tenant, tag, &(struct tg__tag_change){.reserved_less = size_bytes});
}

void tg_tenant_give(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                    uint64_t asleep_bytes) {
    record(tenant, tag,
           &(struct tg__tag_change){.occupied_less = size_bytes, .asleep_more = asleep_bytes});
}

void tg_tenant_forget(struct tg_tenant *tenant, const char *tag, uint64_t asleep_bytes) {
    record(tenant, tag, &(struct tg__tag_change){.asleep_less = asleep_bytes});
}

/* The same row's other figures move by themselves. Under own. Returns what came free. */
static uint64_t declare(struct tg_tenant *tenant, const char *tag, uint64_t occupied_bytes,
                        uint64_t returnable_bytes) {
    struct tg__tag_row *row = tg__tenant_tag(tenant, tag);
    uint64_t before_bytes;

    if (row == NULL)
        return 0;
    before_bytes = row->declared_bytes;
    if (occupied_bytes > before_bytes)
        tg__shm_add(&tenant->device->created_bytes, occupied_bytes - before_bytes);
    row->declared_bytes = occupied_bytes;
    row->returnable_bytes = returnable_bytes;
    drop_empty(&tenant->row, row);
    tg__tenant_publish(tenant);
    return tg__less(before_bytes, occupied_bytes);
}

void tg_tenant_declare(struct tg_tenant *tenant, const char *tag, uint64_t occupied_bytes,
                       uint64_t returnable_bytes) {
    uint64_t given_bytes = 0;

    if (tenant == NULL || !tg__ledger_is_name(tag, TG_TAG_NAME_BYTES) ||
        tg__shmfile_check(tenant->ledger->file, false) == TG_EFORKED)
        return;
    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant))
        given_bytes = declare(tenant, tag, occupied_bytes, returnable_bytes);
    pthread_mutex_unlock(&tenant->own);
    if (given_bytes > 0)
        tg__device_wake(tenant->device);
}

void tg_tenant_host_commit(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes) {
    record(tenant, tag, &(struct tg__tag_change){.host_reserved_less = size_bytes,
                                                 .host_touched_more = size_bytes});
}

void tg_tenant_host_give(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                         int is_committed) {
    if (is_committed)
        record(tenant, tag, &(struct tg__tag_change){.host_touched_less = size_bytes});
    else
        record(tenant, tag, &(struct tg__tag_change){.host_reserved_less = size_bytes});
}
