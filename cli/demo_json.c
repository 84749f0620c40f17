/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate demo --json`: one object of doc/schema/demo-1.json, on one line. */
#include "demo_report.h"
#include "json_value.h"

#define TEXT_MOST 1024

static json_t *replay_object(const struct demo_setup *setup) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_text(setup->replay_name, TEXT_MOST));
    failed |= json_put(object, "steps", json_count(setup->plan.step_count));
    failed |= json_put(object, "allocations", json_count(setup->plan.allocations));
    failed |= json_put(object, "peak_bytes", json_count(setup->plan.peak_bytes));
    return json_whole(object, failed);
}

static json_t *step_object(const struct demo_report *report, size_t index) {
    const struct demo_step_done *step = &report->steps[index];
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "step", json_count(index + 1));
    failed |= json_put(object, "file_step", json_count((uint64_t)step->file_step + 1));
    failed |= json_put(object, "allocations", json_count(step->allocations));
    failed |= json_put(object, "frees", json_count(step->frees));
    failed |= json_put(object, "peak_bytes", json_count(step->peak_bytes));
    return json_whole(object, failed);
}

static json_t *steps_array(const struct demo_report *report) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->step_count; i++)
        failed |= json_array_append_new(array, step_object(report, i));
    return json_whole(array, failed);
}

static json_t *hand_over_object(const struct demo_report *report) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "median", json_real(demo_report_median_ms(report)));
    failed |= json_put(object, "worst", json_real(demo_report_worst_ms(report)));
    return json_whole(object, failed);
}

static json_t *speed_object(const struct demo_report *report) {
    const struct demo_speed *speed = &report->copy_speed;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "save",
                       json_real(demo_report_rate(report->saved_bytes, report->save_ns)));
    failed |= json_put(object, "wake",
                       json_real(demo_report_rate(report->woken_bytes, report->wake_ns)));
    failed |= json_put(object, "memcpy_to_fresh_host", json_real(speed->to_fresh_host));
    failed |= json_put(object, "memcpy_to_touched_host", json_real(speed->to_touched_host));
    failed |= json_put(object, "memcpy_to_fresh_device", json_real(speed->to_fresh_device));
    return json_whole(object, failed);
}

static int bytes_put(json_t *object, const struct demo_report *report) {
    int failed = 0;

    failed |= json_put(object, "bytes_slept", json_count(report->slept_bytes));
    failed |= json_put(object, "bytes_saved", json_count(report->saved_bytes));
    failed |= json_put(object, "bytes_woken", json_count(report->woken_bytes));
    failed |= json_put(object, "bytes_restored", json_count(report->restored_bytes));
    failed |= json_put(object, "bytes_verified", json_count(report->verified_bytes));
    failed |= json_put(object, "bytes_lost", json_count(report->lost_bytes));
    return failed;
}

bool demo_json_print(const struct demo_report *report) {
    const struct demo_setup *setup = report->setup;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.demo/1"));
    failed |= json_put(object, "device", json_text(setup->shown, TEXT_MOST));
    failed |= json_put(object, "capacity_bytes", json_count(setup->capacity_bytes));
    failed |= json_put(object, "seed", json_count(setup->options.seed));
    failed |= json_put(object, "replay", replay_object(setup));
    failed |= json_put(object, "steps", json_count(report->step_count));
    failed |= json_put(object, "complete", json_boolean(report->outcome == DEMO_DONE));
    failed |= json_put(object, "hand_overs", json_count(report->hand_over_count));
    failed |= json_put(object, "hand_over_ms", hand_over_object(report));
    failed |= json_put(object, "gib_per_s", speed_object(report));
    failed |= json_put(object, "waits", json_count(report->waits));
    failed |= json_put(object, "out_of_memory", json_count(report->out_of_memory));
    failed |= bytes_put(object, report);
    failed |= json_put(object, "kills", json_count(report->kills));
    failed |= json_put(object, "per_step", steps_array(report));
    return json_print(object, failed);
}
