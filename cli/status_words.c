/* SPDX-License-Identifier: Apache-2.0 */
#include "status_words.h"

#include <string.h>

enum { DEAD_SHOWN_S = 2 };

double status_seconds_since(const struct tg_node_view *view, uint64_t then_ns) {
    return view->now_ns > then_ns ? (double)(view->now_ns - then_ns) / 1e9 : 0;
}

struct figure status_age(double seconds) {
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

struct figure status_size(uint64_t size_bytes) {
    return size_figure((double)size_bytes);
}

struct status_name status_name(const char *name, size_t room) {
    struct status_name shown;

    snprintf(shown.text, sizeof shown.text, "%.*s", (int)room, name);
    for (char *at = shown.text; *at != '\0'; at++) {
        if (*at < ' ' || *at > '~')
            *at = '?';
    }
    return shown;
}

struct status_name status_who(const struct tg_tenant_view *tenant) {
    struct status_name who = status_name(tenant->name, sizeof tenant->name);
    size_t length = strlen(who.text);

    if (tenant->role[0] != '\0' && strcmp(tenant->role, tenant->name) != 0)
        length += (size_t)snprintf(who.text + length, sizeof who.text - length, " (%s)",
                                   status_name(tenant->role, sizeof tenant->role).text);
    if (tenant->rank >= 0)
        snprintf(who.text + length, sizeof who.text - length, " rank %d", (int)tenant->rank);
    return who;
}

uint64_t status_host_bytes(const struct tg_tenant_view *tenant) {
    uint64_t host_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        host_bytes += tenant->tags[i].host_bytes;
    return host_bytes;
}

uint64_t status_held_bytes(const struct tg_tenant_view *tenant) {
    uint64_t held_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        held_bytes += tenant->tags[i].occupied_bytes + tenant->tags[i].reserved_bytes;
    return held_bytes;
}

bool status_is_used(const struct tg_node_view *view, uint32_t device) {
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        if (tenant->device == device &&
            (tenant->is_dead == 0 || status_seconds_since(view, tenant->updated_ns) < DEAD_SHOWN_S))
            return true;
    }
    return false;
}

const struct tg_tenant_view *status_waiter_next(const struct tg_node_view *view, uint32_t device,
                                                uint64_t *after) {
    const struct tg_tenant_view *next = NULL;

    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        if (tenant->device == device && tenant->is_waiting != 0 && tenant->is_dead == 0 &&
            tenant->arrival >= *after && tenant->arrival != UINT64_MAX &&
            (next == NULL || tenant->arrival < next->arrival))
            next = tenant;
    }
    if (next != NULL)
        *after = next->arrival + 1;
    return next;
}

struct status_line status_wait_line(const struct tg_node_view *view,
                                    const struct tg_tenant_view *tenant) {
    struct status_line line;

    snprintf(line.text, sizeof line.text, "next: %s waits for %s %s, since %s",
             status_name(tenant->name, sizeof tenant->name).text,
             status_name(tenant->wait_tag, sizeof tenant->wait_tag).text,
             status_size(tenant->wait_bytes).text,
             status_age(status_seconds_since(view, tenant->wait_since_ns)).text);
    return line;
}

/* Who could return what a wake lacks. */
static struct status_line cover_line(const struct status_wake *wake) {
    struct status_line line;

    if (wake->returnable_bytes == 0)
        snprintf(line.text, sizeof line.text, "no cache covers it");
    else if (wake->richest_bytes >= wake->short_bytes)
        snprintf(line.text, sizeof line.text, "the %s's cache covers it",
                 status_name(wake->richest->name, sizeof wake->richest->name).text);
    else if (wake->returnable_bytes >= wake->short_bytes)
        snprintf(line.text, sizeof line.text, "the caches together cover it");
    else
        snprintf(line.text, sizeof line.text, "caches cover %s of it",
                 status_size(wake->returnable_bytes).text);
    return line;
}

struct status_line status_wake_line(const struct status_wake *wake) {
    struct status_line line;
    int length = snprintf(line.text, sizeof line.text, "next: wake %s needs %s, ",
                          status_name(wake->tag, TG_TAG_NAME_BYTES).text,
                          status_size(wake->asleep_bytes).text);
    size_t room = sizeof line.text - (size_t)length;

    if (wake->short_bytes == 0)
        snprintf(line.text + length, room, "free now");
    else
        snprintf(line.text + length, room, "short by %s; %.100s",
                 status_size(wake->short_bytes).text, cover_line(wake).text);
    return line;
}
