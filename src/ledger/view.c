/* SPDX-License-Identifier: Apache-2.0 */
/* What readers see: no lock, no ticket, no device. */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

static void copy_text(char *to, const char *from, size_t text_bytes) {
    memcpy(to, from, text_bytes);
    tg__text_clean(to, text_bytes);
}

static void tag_view(const struct tg__tag_row *row, struct tg_tag_view *view) {
    copy_text(view->name, row->name, sizeof view->name);
    view->occupied_bytes = tg__tag_held(row);
    view->returnable_bytes = tg__tag_returnable(row);
    view->reserved_bytes = row->reserved_bytes;
    view->asleep_bytes = row->asleep_bytes;
    view->host_bytes = tg__sum(row->host_reserved_bytes, row->host_touched_bytes);
}

static void tenant_view(const struct tg__tenant_row *row, struct tg_tenant_view *view) {
    memset(view, 0, sizeof *view);
    copy_text(view->name, row->name, sizeof view->name);
    copy_text(view->role, row->role, sizeof view->role);
    view->rank = row->rank;
    view->pid = row->pid;
    view->device = row->device;
    view->mode = row->mode <= TG_MODE_ON ? row->mode : TG_MODE_NONE;
    view->is_starting = row->is_starting == TG_START_UP;
    copy_text(view->seams, row->seams, sizeof view->seams);
    view->is_dead = row->state == TG__ROW_DEAD;
    view->is_waiting = row->is_waiting != 0;
    copy_text(view->wait_tag, row->wait_tag, sizeof view->wait_tag);
    view->wait_bytes = row->wait_bytes;
    view->wait_since_ns = row->wait_since_ns;
    view->arrival = row->arrival;
    view->updated_ns = row->updated_ns;
    view->tag_count = row->tag_count;
    for (uint32_t i = 0; i < row->tag_count; i++)
        tag_view(&row->tags[i], &view->tags[i]);
}

/* Devices keep their index, so that tenants find theirs: unused places stay empty. */
static int read_devices(const struct tg__ledger_body *body, struct tg_node_view *view) {
    for (uint32_t i = 0; i < TG_LEDGER_DEVICES; i++) {
        struct tg_device_view *device = &view->devices[i];
        struct tg__device_row row;
        int rc;

        if (atomic_load_explicit(&body->devices[i].is_used, memory_order_acquire) == 0)
            continue;
        rc = tg__device_read(&body->devices[i], &row);
        if (rc < 0)
            return rc;
        memcpy(device->uuid, row.uuid, sizeof device->uuid);
        copy_text(device->name, row.name, sizeof device->name);
        device->total_bytes = row.total_bytes;
        device->free_bytes = row.free_bytes;
        device->measured_ns = row.measured_ns;
        device->unattributed_bytes = row.unattributed_bytes;
        view->device_count = i + 1;
    }
    return 0;
}

/* Whether a settled one's bytes have stopped to count, though nobody has emptied its slot yet. A
 * time ahead of now is another clock's: of a time namespace, or of before the machine's start. */
static bool is_past(const struct tg__tenant_row *row, uint64_t now_ns) {
    uint64_t since_ns = row->dead_since_ns;

    return row->state == TG__ROW_DEAD &&
           (now_ns > since_ns ? now_ns - since_ns : since_ns - now_ns) >= TG__ADMIT_ORPHAN_NS;
}

/* A dead one that nobody has settled yet is told as dead here, too. */
static int read_tenants(struct tg_ledger *ledger, struct tg_node_view *view) {
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        const struct tg__slot *slot = &ledger->body->slots[i];
        uint32_t ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
        struct tg_tenant_view *tenant = &view->tenants[view->tenant_count];
        struct tg__tenant_row row;
        bool is_dead;
        int rc;

        if (ticket == 0)
            continue;
        rc = tg__group_row(ledger->body, slot, &row, false);
        if (rc < 0)
            return rc;
        is_dead = !tg__shmfile_is_alive(ledger->file, ticket);
        if (is_dead && (tg__row_held(&row) == 0 || is_past(&row, view->now_ns)))
            continue;
        tenant_view(&row, tenant);
        tenant->id = ticket;
        tenant->asked_bytes = atomic_load_explicit(&slot->asked_bytes, memory_order_relaxed);
        tenant->is_dead |= is_dead;
        tenant->is_waiting &= !is_dead;
        tenant->is_starting &= !is_dead;
        view->host_bytes = tg__sum(view->host_bytes, is_dead ? 0 : tg__row_host(&row, false));
        view->tenant_count++;
    }
    return 0;
}

int tg_ledger_read(struct tg_ledger *ledger, struct tg_node_view *view) {
    int rc;

    if (ledger == NULL || view == NULL)
        return tg__fail(-EINVAL, "a ledger is read into a view");
    rc = tg__shmfile_check(ledger->file, false);
    if (rc < 0)
        return rc;
    view->now_ns = tg__clock_ns();
    view->host_bytes = 0;
    view->device_count = view->tenant_count = 0;
    memset(view->devices, 0, sizeof view->devices);
    rc = read_devices(ledger->body, view);
    return rc < 0 ? rc : read_tenants(ledger, view);
}
