/* SPDX-License-Identifier: Apache-2.0 */
/* What comes next: for each tag that sleeps, what its wake needs, lacks, and who could return that.
 * One line for a name, since who sleeps under one name is woken as one. */
#include <string.h>

#include "status_report.h"

const char *status_mode_text(uint32_t mode) {
    static const char *const texts[] = {NULL, "off", "observe", "on"};

    return mode < sizeof texts / sizeof texts[0] ? texts[mode] : NULL;
}

static bool is_here(const struct tg_tenant_view *tenant, uint32_t device) {
    return tenant->device == device && tenant->is_dead == 0;
}

static bool is_same(const char *one, const char *other) {
    return strncmp(one, other, TG_TAG_NAME_BYTES) == 0;
}

/* The tag at a place of the walk over all tenants' tags; NULL: none sleeps there. */
static const struct tg_tag_view *sleeping_at(const struct tg_node_view *view, uint32_t device,
                                             uint32_t place) {
    const struct tg_tenant_view *tenant = &view->tenants[place / TG_TENANT_TAGS];
    const struct tg_tag_view *tag = &tenant->tags[place % TG_TENANT_TAGS];

    return is_here(tenant, device) && place % TG_TENANT_TAGS < tenant->tag_count &&
                   tag->asleep_bytes > 0
               ? tag
               : NULL;
}

static bool is_waited_for(const struct tg_node_view *view, uint32_t device, const char *tag) {
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        if (is_here(tenant, device) && tenant->is_waiting != 0 && is_same(tenant->wait_tag, tag))
            return true;
    }
    return false;
}

static bool is_told(const struct tg_node_view *view, uint32_t device, uint32_t place,
                    const char *tag) {
    for (uint32_t before = 0; before < place; before++) {
        const struct tg_tag_view *other = sleeping_at(view, device, before);

        if (other != NULL && is_same(other->name, tag))
            return true;
    }
    return false;
}

static uint64_t returnable_of(const struct tg_tenant_view *tenant) {
    uint64_t size_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        size_bytes += tenant->tags[i].returnable_bytes;
    return size_bytes;
}

static void find_returnable(const struct tg_node_view *view, uint32_t device,
                            struct status_wake *wake) {
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];
        uint64_t size_bytes = is_here(tenant, device) ? returnable_of(tenant) : 0;

        wake->returnable_bytes += size_bytes;
        if (size_bytes <= wake->richest_bytes)
            continue;
        wake->richest_bytes = size_bytes;
        wake->richest = tenant;
    }
}

bool status_wake_next(const struct tg_node_view *view, uint32_t device, uint32_t *place,
                      struct status_wake *wake) {
    const struct tg_device_view *where = &view->devices[device];
    uint32_t end = view->tenant_count < TG_LEDGER_TENANTS ? view->tenant_count : TG_LEDGER_TENANTS;

    for (end *= TG_TENANT_TAGS; where->measured_ns != 0 && *place < end;) {
        uint32_t at = (*place)++;
        const struct tg_tag_view *tag = sleeping_at(view, device, at);

        if (tag == NULL || is_waited_for(view, device, tag->name) ||
            is_told(view, device, at, tag->name))
            continue;
        *wake = (struct status_wake){.tag = tag->name};
        if (tg_reclaim_target(view, where->uuid, tag->name, 0, &wake->asleep_bytes,
                              &wake->short_bytes) != 0)
            continue; /* no name that a list could hold */
        find_returnable(view, device, wake);
        return true;
    }
    return false;
}
