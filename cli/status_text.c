/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clean.h"
#include "figures.h"
#include "status_report.h"

enum { NAME_WIDTH = 16, DEAD_SHOWN_S = 2 };

double status_seconds_since(const struct tg_node_view *view, uint64_t then_ns) {
    return view->now_ns > then_ns ? (double)(view->now_ns - then_ns) / 1e9 : 0;
}

/* "0.3 s", "2 s", "5 min", "3 h": nobody needs it more exactly. */
static struct figure age_figure(double seconds) {
    struct figure figure;

    if (seconds < 1)
        snprintf(figure.text, sizeof figure.text, "%.1f s", seconds);
    else if (seconds < 120)
        snprintf(figure.text, sizeof figure.text, "%.0f s", seconds);
    else if (seconds < 2 * 3600)
        snprintf(figure.text, sizeof figure.text, "%.0f min", seconds / 60);
    else
        snprintf(figure.text, sizeof figure.text, "%.0f h", seconds / 3600);
    return figure;
}

static struct figure bytes_figure(uint64_t size_bytes) {
    return size_figure((double)size_bytes);
}

/* What another program wrote into the ledger, harmless and terminated. */
static void name_print(const char *name, size_t room) {
    char text[64], *shown;

    snprintf(text, sizeof text, "%.*s", (int)room, name);
    shown = clean_copy(text, sizeof text);
    fputs(shown == NULL ? "?" : shown, stdout);
    free(shown);
}

static void device_print(const struct tg_node_view *view, const struct tg_device_view *device) {
    name_print(device->name, sizeof device->name);
    if (device->measured_ns == 0) {
        puts("   not measured yet");
        return;
    }
    printf(" %s   used %s   free %s (driver, %s ago)\n", bytes_figure(device->total_bytes).text,
           bytes_figure(device->total_bytes - device->free_bytes).text,
           bytes_figure(device->free_bytes).text,
           age_figure(status_seconds_since(view, device->measured_ns)).text);
}

/* "weights 256 MiB", "kv_cache asleep (440 MiB)", both where a part sleeps. */
static void tag_print(const struct tg_tag_view *tag) {
    fputs("  ", stdout);
    name_print(tag->name, sizeof tag->name);
    if (tag->occupied_bytes > 0 || tag->asleep_bytes == 0)
        printf(" %s", bytes_figure(tag->occupied_bytes).text);
    if (tag->returnable_bytes > 0)
        printf(" (returnable %s)", bytes_figure(tag->returnable_bytes).text);
    if (tag->asleep_bytes > 0)
        printf(" asleep (%s)", bytes_figure(tag->asleep_bytes).text);
    if (tag->reserved_bytes > 0)
        printf(" coming (%s)", bytes_figure(tag->reserved_bytes).text);
}

static uint64_t host_bytes_of(const struct tg_tenant_view *tenant) {
    uint64_t host_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        host_bytes += tenant->tags[i].host_bytes;
    return host_bytes;
}

/* What it had of the device, or had been promised. */
static uint64_t held_bytes_of(const struct tg_tenant_view *tenant) {
    uint64_t held_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        held_bytes += tenant->tags[i].occupied_bytes + tenant->tags[i].reserved_bytes;
    return held_bytes;
}

/* "trainer rank 0"; the role where it says more than the name. */
static void who_print(const struct tg_tenant_view *tenant) {
    char who[NAME_WIDTH + TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES + 16];
    size_t length;

    snprintf(who, sizeof who, "%.*s", TG_TENANT_NAME_BYTES - 1, tenant->name);
    length = strlen(who);
    if (tenant->role[0] != '\0' && strcmp(tenant->role, tenant->name) != 0)
        length += (size_t)snprintf(who + length, sizeof who - length, " (%.*s)",
                                   TG_TENANT_ROLE_BYTES - 1, tenant->role);
    if (tenant->rank >= 0)
        snprintf(who + length, sizeof who - length, " rank %d", (int)tenant->rank);
    fputs("  ", stdout);
    name_print(who, sizeof who);
    length = strlen(who);
    printf("%*s", length < NAME_WIDTH ? (int)(NAME_WIDTH - length) : 0, "");
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
    uint64_t host_bytes = host_bytes_of(tenant);

    who_print(tenant);
    if (tenant->is_dead != 0) {
        printf(" dead; held %s when it died (orphaned)\n",
               bytes_figure(held_bytes_of(tenant)).text);
        return;
    }
    printf(" pid %d", (int)tenant->pid);
    note_print(tenant);
    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        tag_print(&tenant->tags[i]);
    if (host_bytes > 0)
        printf("  host copies %s", bytes_figure(host_bytes).text);
    if (tenant->asked_bytes > 0)
        printf("  asked for %s, not served yet", bytes_figure(tenant->asked_bytes).text);
    printf("  as of %s\n", age_figure(status_seconds_since(view, tenant->updated_ns)).text);
}

/* Who waits, in the order in which they will be served. */
static void waiters_print(const struct tg_node_view *view, uint32_t device) {
    uint64_t after = 0;

    for (;;) {
        const struct tg_tenant_view *next = NULL;

        for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
            const struct tg_tenant_view *tenant = &view->tenants[i];

            if (tenant->device == device && tenant->is_waiting != 0 && tenant->is_dead == 0 &&
                tenant->arrival >= after && (next == NULL || tenant->arrival < next->arrival))
                next = tenant;
        }
        if (next == NULL)
            return;
        fputs("next: ", stdout);
        name_print(next->name, sizeof next->name);
        fputs(" waits for ", stdout);
        name_print(next->wait_tag, sizeof next->wait_tag);
        printf(" %s, since %s\n", bytes_figure(next->wait_bytes).text,
               age_figure(status_seconds_since(view, next->wait_since_ns)).text);
        if (next->arrival == UINT64_MAX)
            return;
        after = next->arrival + 1;
    }
}

/* Who could return what a wake lacks. */
static void cover_print(const struct status_wake *wake) {
    if (wake->returnable_bytes == 0) {
        fputs("no cache covers it", stdout);
    } else if (wake->richest_bytes >= wake->short_bytes) {
        fputs("the ", stdout);
        name_print(wake->richest->name, sizeof wake->richest->name);
        fputs("'s cache covers it", stdout);
    } else if (wake->returnable_bytes >= wake->short_bytes) {
        fputs("the caches together cover it", stdout);
    } else {
        printf("caches cover %s of it", bytes_figure(wake->returnable_bytes).text);
    }
}

static void wakes_print(const struct tg_node_view *view, uint32_t device) {
    struct status_wake wake;
    uint32_t place = 0;

    while (status_wake_next(view, device, &place, &wake)) {
        fputs("next: wake ", stdout);
        name_print(wake.tag, TG_TAG_NAME_BYTES);
        printf(" needs %s, ", bytes_figure(wake.asleep_bytes).text);
        if (wake.short_bytes == 0) {
            puts("free now");
            continue;
        }
        printf("short by %s; ", bytes_figure(wake.short_bytes).text);
        cover_print(&wake);
        putchar('\n');
    }
}

/* Whether somebody lives on it, or has died there just now. After the last tenant nobody settles
 * the dead, so what the ledger still says of them means nothing. */
static bool is_used(const struct tg_node_view *view, uint32_t device) {
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        if (tenant->device == device &&
            (tenant->is_dead == 0 || status_seconds_since(view, tenant->updated_ns) < DEAD_SHOWN_S))
            return true;
    }
    return false;
}

void status_text_print(const struct tg_node_view *view) {
    uint32_t used_count = 0;

    for (uint32_t i = 0; i < view->device_count && i < TG_LEDGER_DEVICES; i++) {
        if (!is_used(view, i)) /* its figures are of some time ago, and nobody renews them */
            continue;
        used_count++;
        device_print(view, &view->devices[i]);
        for (uint32_t j = 0; j < view->tenant_count && j < TG_LEDGER_TENANTS; j++) {
            if (view->tenants[j].device == i)
                tenant_print(view, &view->tenants[j]);
        }
        if (view->devices[i].measured_ns != 0)
            printf("  unattributed %s\n", bytes_figure(view->devices[i].unattributed_bytes).text);
        waiters_print(view, i);
        wakes_print(view, i);
    }
    if (used_count == 0)
        puts("no program uses Tidegate on this machine now");
    if (view->host_bytes > 0)
        printf("host copies of all programs: %s\n", bytes_figure(view->host_bytes).text);
}
