/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate doctor --json`: one object of doc/schema/doctor-1.json, on one line. */
#include "doctor.h"
#include "json_value.h"

#define TEXT_MOST 4096

static json_t *text_value(const char *text) {
    return json_text_if_any(text, TEXT_MOST);
}

int finding_json_put(json_t *object, const struct finding *finding) {
    int failed = 0;

    failed |= json_put(object, "state", json_string(finding_state_text(finding->state)));
    failed |= json_put(object, "finding", json_text(finding->text.text, TEXT_MOST));
    failed |= json_put(object, "advice", text_value(finding->advice.text));
    failed |= json_put(object, "command", text_value(finding->command.text));
    return failed;
}

static json_t *check_object(unsigned check, const struct finding *finding) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_string(check_name(check)));
    failed |= finding_json_put(object, finding);
    return json_whole(object, failed);
}

static json_t *checks_array(const struct finding findings[CHECK_COUNT]) {
    json_t *array = json_array();
    int failed = 0;

    for (unsigned i = 0; i < CHECK_COUNT; i++)
        failed |= json_array_append_new(array, check_object(i, &findings[i]));
    return json_whole(array, failed);
}

static json_t *versions_object(const struct doctor *doctor) {
    const struct packages *packages = &doctor->packages;
    json_t *object = json_object();
    int failed = 0;

    for (unsigned i = 0; i < PACKAGE_COUNT; i++)
        failed |= json_put(object, package_name((enum package)i),
                           text_value(packages->versions[i]));
    return json_whole(object, failed);
}

static json_t *feature_object(const struct doctor *doctor, const struct feature *feature) {
    bool applies = doctor_feature_applies(doctor, feature);
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "name", json_string(feature->name));
    failed |= json_put(object, "program", text_value(feature->program));
    failed |= json_put(object, "since", text_value(feature->since));
    failed |= json_put(object, "before", text_value(feature->until));
    failed |= json_put(object, "engine", text_value(feature->engine));
    failed |= json_put(object, "where", text_value(feature->where));
    failed |= json_put(object, "state", json_string(feature_state_text(feature->state)));
    failed |= json_put(object, "reason", text_value(feature->reason));
    failed |= json_put(object, "applies",
                       *feature->program == '\0' ? json_null() : json_boolean(applies));
    return json_whole(object, failed);
}

static json_t *features_array(const struct doctor *doctor) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < feature_count; i++)
        failed |= json_array_append_new(array, feature_object(doctor, &features[i]));
    return json_whole(array, failed);
}

bool doctor_json_print(const struct doctor *doctor, const struct finding findings[CHECK_COUNT]) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.doctor/1"));
    failed |= json_put(object, "checks", checks_array(findings));
    failed |= json_put(object, "python",
                       text_value(doctor->has_python ? doctor->packages.python : ""));
    failed |= json_put(object, "versions", versions_object(doctor));
    failed |= json_put(object, "features", features_array(doctor));
    return json_print(object, failed);
}
