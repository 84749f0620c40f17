/* SPDX-License-Identifier: Apache-2.0 */
#include "enable_report.h"

#include <stdio.h>
#include <string.h>

#include "clean.h"
#include "json_value.h"

#define TEXT_MOST 4096

/* Hydra's word for one more variable in the environment of all workers. */
#define VARIABLE "+ray_kwargs.ray_init.runtime_env.env_vars."
#define ADD "add to the command:  "
#define SET "set in its environment:  "

size_t enable_words(const struct enable_report *report, enum enable_way way,
                    char words[ENABLE_WORDS_MOST][128]) {
    if (way != ENABLE_MODULE && way != ENABLE_ENTRY_POINT)
        return 0;
    snprintf(words[0], sizeof words[0], "%sTIDEGATE=%s", report->is_on_ray ? VARIABLE : "",
             report->mode);
    snprintf(words[1], sizeof words[1], VARIABLE "VERL_USE_EXTERNAL_MODULES=tidegate.%s",
             report->program);
    return way == ENABLE_MODULE ? 2 : 1;
}

static void words_print(const struct enable_report *report, enum enable_way way) {
    char words[ENABLE_WORDS_MOST][128];
    size_t count = enable_words(report, way, words);
    const char *lead = report->is_on_ray ? ADD : SET;

    for (size_t i = 0; i < count; i++)
        printf("%*s%s\n", (int)strlen(lead), i == 0 ? lead : "", words[i]);
    if (count > 0 && *report->options != '\0')
        printf("%-*s%s\n", (int)strlen(lead), ADD, report->options);
}

/* Whether old versions need other words than new ones. */
static bool has_two_ways(const struct enable_report *report) {
    return version_is_older(report->versions->oldest, report->versions->entry_points);
}

static void found_print(const struct enable_report *report) {
    const char *version = report->found;

    fputs(report->program, stdout);
    putchar(' ');
    clean_print(stdout, version, TEXT_MOST);
    fputs(" in ", stdout);
    clean_print(stdout, report->packages.python, TEXT_MOST);
    if (report->way == ENABLE_NONE)
        printf(": older than %s, which is the first that has seams; there is nothing to add",
               report->versions->oldest);
    else if (version_is_older(report->versions->newest_tried, version))
        printf(" (newer than %s, the newest that was tried: what has changed is named in a "
               "warning, and stays as it is)", report->versions->newest_tried);
    putchar('\n');
}

void enable_text_print(const struct enable_report *report) {
    if (report->way != ENABLE_UNKNOWN) {
        found_print(report);
        words_print(report, report->way);
        return;
    }
    if (report->is_python_there) {
        printf("no %s in ", report->program);
        clean_print(stdout, report->packages.python, TEXT_MOST);
        putchar('\n');
    }
    printf("for %s %s and newer\n", report->program, report->versions->entry_points);
    words_print(report, ENABLE_ENTRY_POINT);
    if (!has_two_ways(report))
        return;
    printf("for %s %s and newer, before %s\n", report->program, report->versions->oldest,
           report->versions->entry_points);
    words_print(report, ENABLE_MODULE);
}

static json_t *words_array(const struct enable_report *report, enum enable_way way) {
    char words[ENABLE_WORDS_MOST][128];
    size_t count = enable_words(report, way, words);
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < count; i++)
        failed |= json_array_append_new(array, json_string(words[i]));
    return json_whole(array, failed);
}

static json_t *options_array(const struct enable_report *report, enum enable_way way) {
    const char *option = way == ENABLE_NONE ? "" : report->options;
    json_t *array = json_array();
    int failed = 0;

    while (*option != '\0') {
        size_t length = strcspn(option, " ");

        failed |= json_array_append_new(array, json_stringn(option, length));
        option += length + (option[length] == ' ');
    }
    return json_whole(array, failed);
}

static json_t *choice_object(const struct enable_report *report, enum enable_way way) {
    bool is_module = way == ENABLE_MODULE;
    const char *oldest = report->versions->oldest, *entry_points = report->versions->entry_points;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "since", json_string(is_module ? oldest : entry_points));
    failed |= json_put(object, "before", is_module ? json_string(entry_points) : json_null());
    failed |= json_put(object, "add", words_array(report, way));
    failed |= json_put(object, "options", options_array(report, way));
    return json_whole(object, failed);
}

static json_t *choices_array(const struct enable_report *report) {
    json_t *array = json_array();
    int failed = 0;

    failed |= json_array_append_new(array, choice_object(report, ENABLE_ENTRY_POINT));
    if (has_two_ways(report))
        failed |= json_array_append_new(array, choice_object(report, ENABLE_MODULE));
    return json_whole(array, failed);
}

static json_t *version_value(const char *version) {
    return *version == '\0' ? json_null() : json_text(version, TEXT_MOST);
}

bool enable_json_print(const struct enable_report *report) {
    const struct packages *packages = &report->packages;
    bool is_known = report->way != ENABLE_UNKNOWN;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.enable/1"));
    failed |= json_put(object, "program", json_string(report->program));
    failed |= json_put(object, "mode", json_string(report->mode));
    failed |= json_put(object, "python",
                       version_value(report->is_python_there ? packages->python : ""));
    failed |= json_put(object, "version", version_value(report->found));
    failed |= json_put(object, "tidegate", version_value(packages->versions[PACKAGE_tidegate]));
    failed |= json_put(object, "add", is_known ? words_array(report, report->way) : json_null());
    failed |= json_put(object, "options",
                       is_known ? options_array(report, report->way) : json_null());
    failed |= json_put(object, "choices", choices_array(report));
    return json_print(object, failed);
}
