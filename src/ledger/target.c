/* SPDX-License-Identifier: Apache-2.0 */
/* What the others are about to wake, from a view of the node: how much has to come free for it. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "ledger/tenant.h"

/* Whether the list names the tag. */
static bool lists(const char *names, const char *tag) {
    size_t tag_length = strnlen(tag, TG_TAG_NAME_BYTES);

    for (const char *at = names;; at++) {
        size_t length = strcspn(at, ",");

        if (length == tag_length && memcmp(at, tag, length) == 0)
            return true;
        at += length;
        if (*at == '\0')
            return false;
    }
}

static bool has_empty_name(const char *names) {
    size_t length = strlen(names);

    return length == 0 || names[0] == ',' || names[length - 1] == ',' ||
           strstr(names, ",,") != NULL;
}

static int find_device(const struct tg_node_view *view, const uint8_t *uuid, uint32_t *index) {
    for (uint32_t i = 0; i < view->device_count && i < TG_LEDGER_DEVICES; i++) {
        if (memcmp(view->devices[i].uuid, uuid, sizeof view->devices[i].uuid) == 0) {
            *index = i;
            return 0;
        }
    }
    return tg__fail(-ENOENT, "the ledger knows no such device: nobody has joined it");
}

/* What counts of one tenant. */
struct share {
    uint64_t asleep_bytes, reserved_bytes;
};

static struct share share_of(const struct tg_tenant_view *tenant, const char *tags, bool is_self) {
    struct share share = {0, 0};

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++) {
        const struct tg_tag_view *tag = &tenant->tags[i];

        share.reserved_bytes = tg__sum(share.reserved_bytes, tag->reserved_bytes);
        if (!is_self && !tenant->is_dead && (tags == NULL || lists(tags, tag->name)))
            share.asleep_bytes = tg__sum(share.asleep_bytes, tag->asleep_bytes);
    }
    return share;
}

int tg_reclaim_target(const struct tg_node_view *view, const uint8_t *uuid, const char *tags,
                      uint32_t self, uint64_t *asleep_bytes, uint64_t *short_bytes) {
    struct share all = {0, 0};
    uint32_t device = 0;
    int rc;

    if (view == NULL || uuid == NULL || asleep_bytes == NULL || short_bytes == NULL)
        return tg__fail(-EINVAL, "a target is for a device in a view, and is told by pointers");
    if (tags != NULL && has_empty_name(tags))
        return tg__fail(-EINVAL, "the list of tags '%.100s' has an empty name", tags);
    rc = find_device(view, uuid, &device);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];
        struct share share;

        if (tenant->device != device)
            continue;
        share = share_of(tenant, tags, self != 0 && tenant->id == self);
        all.asleep_bytes = tg__sum(all.asleep_bytes, share.asleep_bytes);
        all.reserved_bytes = tg__sum(all.reserved_bytes, share.reserved_bytes);
    }
    *asleep_bytes = all.asleep_bytes;
    *short_bytes = tg__less(tg__sum(all.asleep_bytes, all.reserved_bytes),
                            view->devices[device].free_bytes);
    return 0;
}
