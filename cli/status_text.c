/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "status_words.h"

enum { NAME_WIDTH = 16 };

static void name_print(const char *name, size_t room) {
    fputs(status_name(name, room).text, stdout);
}

static void device_print(const struct tg_node_view *view, const struct tg_device_view *device) {
    name_print(device->name, sizeof device->name);
    if (device->measured_ns == 0) {
        puts("   not measured yet");
        return;
    }
    printf(" %s   used %s   free %s (driver, %s ago)\n", status_size(device->total_bytes).text,
           status_size(device->total_bytes - device->free_bytes).text,
           status_size(device->free_bytes).text,
           status_age(status_seconds_since(view, device->measured_ns)).text);
}

/* "weights 256 MiB", "kv_cache asleep (440 MiB)", both where a part sleeps. */
static void tag_print(const struct tg_tag_view *tag) {
    fputs("  ", stdout);
    name_print(tag->name, sizeof tag->name);
    if (tag->occupied_bytes > 0 || tag->asleep_bytes == 0)
        printf(" %s", status_size(tag->occupied_bytes).text);
    if (tag->returnable_bytes > 0)
        printf(" (returnable %s)", status_size(tag->returnable_bytes).text);
    if (tag->asleep_bytes > 0)
        printf(" asleep (%s)", status_size(tag->asleep_bytes).text);
    if (tag->reserved_bytes > 0)
        printf(" coming (%s)", status_size(tag->reserved_bytes).text);
}

/* "  observe (verl 0.9.1: 4 of 4)  starting up". */
static void note_print(const struct tg_tenant_view *tenant) {
    const char *mode = status_mode_text(tenant->mode);

    if (mode != NULL)
        printf("  %s", mode);
    if (tenant->seams[0] != '\0') {
        fputs(mode != NULL ? " (" : "  (", stdout);
        name_print(tenant->seams, sizeof tenant->seams);
        putchar(')');
    }
    if (tenant->is_starting != 0)
        fputs("  starting up", stdout);
}

static void tenant_print(const struct tg_node_view *view, const struct tg_tenant_view *tenant) {
    uint64_t host_bytes = status_host_bytes(tenant);

    printf("  %-*s", NAME_WIDTH, status_who(tenant).text);
    if (tenant->is_dead != 0) {
        printf(" dead; held %s when it died (orphaned)\n",
               status_size(status_held_bytes(tenant)).text);
        return;
    }
    printf(" pid %d", (int)tenant->pid);
    note_print(tenant);
    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        tag_print(&tenant->tags[i]);
    if (host_bytes > 0)
        printf("  host copies %s", status_size(host_bytes).text);
    if (tenant->asked_bytes > 0)
        printf("  asked for %s, not served yet", status_size(tenant->asked_bytes).text);
    printf("  as of %s\n", status_age(status_seconds_since(view, tenant->updated_ns)).text);
}

static void nexts_print(const struct tg_node_view *view, uint32_t device) {
    const struct tg_tenant_view *waiter;
    struct status_wake wake;
    uint64_t after = 0;
    uint32_t place = 0;

    while ((waiter = status_waiter_next(view, device, &after)) != NULL)
        puts(status_wait_line(view, waiter).text);
    while (status_wake_next(view, device, &place, &wake))
        puts(status_wake_line(&wake).text);
}

void status_text_print(const struct tg_node_view *view) {
    uint32_t used_count = 0;

    for (uint32_t i = 0; i < view->device_count && i < TG_LEDGER_DEVICES; i++) {
        if (!status_is_used(view, i)) /* its figures are of some time ago, and nobody renews them */
            continue;
        used_count++;
        device_print(view, &view->devices[i]);
        for (uint32_t j = 0; j < view->tenant_count && j < TG_LEDGER_TENANTS; j++) {
            if (view->tenants[j].device == i)
                tenant_print(view, &view->tenants[j]);
        }
        if (view->devices[i].measured_ns != 0)
            printf("  unattributed %s\n", status_size(view->devices[i].unattributed_bytes).text);
        nexts_print(view, i);
    }
    if (used_count == 0)
        puts("no program uses Tidegate on this machine now");
    if (view->host_bytes > 0)
        printf("host copies of all programs: %s\n", status_size(view->host_bytes).text);
}
