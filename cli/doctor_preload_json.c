/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate doctor --preload --json`: one object of doc/schema/preload-1.json, on one line. */
#include "doctor_preload.h"
#include "json_value.h"

#define TEXT_MOST 4096

static json_t *call_object(const struct preload_call_tried *tried, unsigned call) {
    bool is_right = preload_call_is_right(tried, call);
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_string(preload_call_symbol(call)));
    failed |= json_put(object, "what", json_string(preload_call_what(call)));
    failed |= json_put(object, "state",
                       json_string(finding_state_text(is_right ? FINDING_OK : FINDING_BAD)));
    failed |= json_put(object, "outcome", json_string(preload_outcome_text(tried->outcome)));
    failed |= json_put(object, "expected",
                       json_string(preload_outcome_text(preload_call_expected(call))));
    failed |= json_put(object, "code", json_integer(tried->code));
    failed |= json_put(object, "first", json_text_if_any(tried->first, TEXT_MOST));
    return json_whole(object, failed);
}

static json_t *runtime_object(const struct preload_runtime *runtime) {
    json_t *object = json_object(), *order = json_array(), *calls = json_array();
    int failed = finding_json_put(object, &runtime->finding);

    for (size_t i = 0; i < runtime->order_count; i++)
        failed |= json_array_append_new(order, json_text(runtime->order[i], TEXT_MOST));
    for (unsigned i = 0; i < PRELOAD_CALLS && runtime->order_count > 0; i++)
        failed |= json_array_append_new(calls, call_object(&runtime->calls[i], i));
    failed |= json_put(object, "path", json_text(runtime->path, TEXT_MOST));
    failed |= json_put(object, "version",
                       runtime->version > 0 ? json_integer(runtime->version) : json_null());
    failed |= json_put(object, "order", order);
    failed |= json_put(object, "calls", calls);
    return json_whole(object, failed);
}

static json_t *object_object(const struct preload_object *loaded) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "path", json_text(loaded->path, TEXT_MOST));
    failed |= json_put(object, "state", json_string(finding_state_text(FINDING_WARN)));
    failed |= json_put(object, "finding", json_text(loaded->finding.text, TEXT_MOST));
    return json_whole(object, failed);
}

bool doctor_preload_json_print(const struct preload_report *report) {
    json_t *object = json_object(), *runtimes = json_array(), *objects = json_array();
    int failed = json_put(object, "schema", json_string("tidegate.preload/1"));

    failed |= json_put(object, "preload", json_text(report->preload, TEXT_MOST));
    failed |= finding_json_put(object, &report->finding);
    for (size_t i = 0; i < report->runtime_count; i++)
        failed |= json_array_append_new(runtimes, runtime_object(&report->runtimes[i]));
    for (size_t i = 0; i < report->object_count; i++)
        failed |= json_array_append_new(objects, object_object(&report->objects[i]));
    failed |= json_put(object, "runtimes", runtimes);
    failed |= json_put(object, "objects", objects);
    return json_print(object, failed);
}
