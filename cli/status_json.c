/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate status --json`: one object of doc/schema/status-1.json, on one line. */
#include <stdio.h>

#include "json_value.h"
#include "status_report.h"

#define TEXT_MOST 64

static json_t *uuid_text(const uint8_t *uuid) {
    char text[33];

    for (size_t i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", uuid[i]);
    return json_string(text);
}

static json_t *age_value(const struct tg_node_view *view, uint64_t then_ns) {
    return json_real(status_seconds_since(view, then_ns));
}

static json_t *tag_object(const struct tg_tag_view *tag) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_text(tag->name, TEXT_MOST));
    failed |= json_put(object, "awake_bytes", json_count(tag->occupied_bytes));
    failed |= json_put(object, "returnable_bytes", json_count(tag->returnable_bytes));
    failed |= json_put(object, "reserved_bytes", json_count(tag->reserved_bytes));
    failed |= json_put(object, "asleep_bytes", json_count(tag->asleep_bytes));
    failed |= json_put(object, "host_bytes", json_count(tag->host_bytes));
    return json_whole(object, failed);
}

static json_t *tags_array(const struct tg_tenant_view *tenant) {
    json_t *array = json_array();
    int failed = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        failed |= json_array_append_new(array, tag_object(&tenant->tags[i]));
    return json_whole(array, failed);
}

static json_t *wait_value(const struct tg_node_view *view, const struct tg_tenant_view *tenant) {
    json_t *object;
    int failed = 0;

    if (tenant->is_waiting == 0)
        return json_null();
    object = json_object();
    failed |= json_put(object, "tag", json_text(tenant->wait_tag, TEXT_MOST));
    failed |= json_put(object, "bytes", json_count(tenant->wait_bytes));
    failed |= json_put(object, "since_s", age_value(view, tenant->wait_since_ns));
    failed |= json_put(object, "arrival", json_count(tenant->arrival));
    return json_whole(object, failed);
}

static json_t *tenant_object(const struct tg_node_view *view,
                             const struct tg_tenant_view *tenant) {
    bool has_role = tenant->role[0] != '\0', has_seams = tenant->seams[0] != '\0';
    const char *mode = status_mode_text(tenant->mode);
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_text(tenant->name, TEXT_MOST));
    failed |= json_put(object, "role", has_role ? json_text(tenant->role, TEXT_MOST) : json_null());
    failed |= json_put(object, "rank", json_known(tenant->rank));
    failed |= json_put(object, "pid", json_integer(tenant->pid));
    failed |= json_put(object, "device", json_count(tenant->device));
    failed |= json_put(object, "mode", mode != NULL ? json_string(mode) : json_null());
    failed |= json_put(object, "seams",
                       has_seams ? json_text(tenant->seams, TEXT_MOST) : json_null());
    failed |= json_put(object, "starting", json_boolean(tenant->is_starting != 0));
    failed |= json_put(object, "asked_bytes", json_count(tenant->asked_bytes));
    failed |= json_put(object, "dead", json_boolean(tenant->is_dead != 0));
    failed |= json_put(object, "age_s", age_value(view, tenant->updated_ns));
    failed |= json_put(object, "tags", tags_array(tenant));
    failed |= json_put(object, "waits_for", wait_value(view, tenant));
    return json_whole(object, failed);
}

static json_t *tenants_array(const struct tg_node_view *view) {
    json_t *array = json_array();
    int failed = 0;

    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++)
        failed |= json_array_append_new(array, tenant_object(view, &view->tenants[i]));
    return json_whole(array, failed);
}

static json_t *wake_object(const struct status_wake *wake) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "tag", json_text(wake->tag, TEXT_MOST));
    failed |= json_put(object, "asleep_bytes", json_count(wake->asleep_bytes));
    failed |= json_put(object, "short_bytes", json_count(wake->short_bytes));
    failed |= json_put(object, "returnable_bytes", json_count(wake->returnable_bytes));
    return json_whole(object, failed);
}

static json_t *wakes_array(const struct tg_node_view *view, uint32_t device) {
    json_t *array = json_array();
    struct status_wake wake;
    uint32_t place = 0;
    int failed = 0;

    while (status_wake_next(view, device, &place, &wake))
        failed |= json_array_append_new(array, wake_object(&wake));
    return json_whole(array, failed);
}

static json_t *device_object(const struct tg_node_view *view, uint32_t index) {
    const struct tg_device_view *device = &view->devices[index];
    bool is_measured = device->measured_ns != 0;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_text(device->name, TEXT_MOST));
    failed |= json_put(object, "uuid", uuid_text(device->uuid));
    failed |= json_put(object, "total_bytes",
                       is_measured ? json_count(device->total_bytes) : json_null());
    failed |= json_put(object, "free_bytes",
                       is_measured ? json_count(device->free_bytes) : json_null());
    failed |= json_put(object, "unattributed_bytes",
                       is_measured ? json_count(device->unattributed_bytes) : json_null());
    failed |= json_put(object, "age_s",
                       is_measured ? age_value(view, device->measured_ns) : json_null());
    failed |= json_put(object, "wakes", wakes_array(view, index));
    return json_whole(object, failed);
}

static json_t *devices_array(const struct tg_node_view *view) {
    json_t *array = json_array();
    int failed = 0;

    for (uint32_t i = 0; i < view->device_count && i < TG_LEDGER_DEVICES; i++)
        failed |= json_array_append_new(array, device_object(view, i));
    return json_whole(array, failed);
}

bool status_json_print(const struct tg_node_view *view) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.status/1"));
    failed |= json_put(object, "ledger", json_boolean(view != NULL));
    failed |= json_put(object, "host_bytes", json_count(view == NULL ? 0 : view->host_bytes));
    failed |= json_put(object, "devices", view == NULL ? json_array() : devices_array(view));
    failed |= json_put(object, "tenants", view == NULL ? json_array() : tenants_array(view));
    return json_print(object, failed);
}
