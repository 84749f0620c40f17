/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate doctor: what of this machine, container and Python lets Tidegate work, and what to do
 * about the rest. What it makes to try things it removes; what other programs share it only reads.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "doctor.h"
#include "doctor_scratch.h"
#include "options.h"
#include "verb.h"

struct doctor_options {
    bool json;
    const char *device, *python;
};

#define FIELD(name) offsetof(struct doctor_options, name)

static const struct option_row rows[] = {
    {"device", "URI", NULL, "what to try in place of the GPUs, such as host:capacity=256MiB",
     option_parse_text, FIELD(device)},
    {"python", "PYTHON", NULL, "the Python of your programs, or its environment's folder",
     option_parse_text, FIELD(python)},
    {"json", NULL, NULL, "one JSON object (schema tidegate.doctor/1) instead of text",
     option_parse_flag, FIELD(json)},
};

static const struct option_table table = {
    .verb = "doctor",
    .arguments = "",
    .summary =
        "Tells what on this machine lets Tidegate work, with a line of advice for what does not,\n"
        "and what works with which versions of verl and its engines. Nothing that it makes\n"
        "stays.\n",
    .more = "Without --python: the Python of $VIRTUAL_ENV, else python3 of the PATH.\n"
            "Exit status: 0 nothing is bad; 1 something is; 2 wrong usage.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

static doctor_check_fn *const checks[CHECK_COUNT] = {
#define CHECK(name, summary) doctor_##name,
#include "doctor_checks.def"
#undef CHECK
};

/* Files of a host device go into the scratch directory: it is made for the checks alone. False: the
 * URI is none, which is said. */
static bool device_open(struct doctor *doctor) {
    const char *uri = doctor->asked_device == NULL ? "cuda:0" : doctor->asked_device;
    const char *dir = getenv("TIDEGATE_DIR");
    char *before = dir == NULL ? NULL : strdup(dir);
    int status;

    if (doctor->scratch[0] != '\0')
        setenv("TIDEGATE_DIR", doctor->scratch, 1);
    status = tg_device_open(uri, &doctor->device);
    if (before == NULL)
        unsetenv("TIDEGATE_DIR");
    else
        setenv("TIDEGATE_DIR", before, 1);
    free(before);
    if (status == 0)
        return true;
    doctor->device = NULL;
    sentence_set(&doctor->device_why, "%s", tg_last_error()->text);
    if (status == -EINVAL && doctor->asked_device != NULL) {
        say("--device: %s", doctor->device_why.text);
        return false;
    }
    return true;
}

/* Of a package by its name; "": not there, or none that matters. */
static const char *version_of(const struct doctor *doctor, const char *name) {
    for (unsigned i = 0; i < PACKAGE_COUNT; i++) {
        if (strcmp(package_name((enum package)i), name) == 0)
            return doctor->packages.versions[i];
    }
    return "";
}

bool doctor_feature_applies(const struct doctor *doctor, const struct feature *feature) {
    const char *version = version_of(doctor, feature->program);

    if (*version == '\0' || !feature_holds(feature, version))
        return false;
    return *feature->engine == '\0' || *version_of(doctor, feature->engine) != '\0';
}

static int answer(const struct doctor_options *options, struct doctor *doctor) {
    struct finding findings[CHECK_COUNT] = {{.state = FINDING_OK}};
    int status = EXIT_ANSWERED;

    doctor->has_python = packages_ask(options->python, &doctor->packages, &doctor->python_why);
    if (!doctor->has_python && options->python != NULL) {
        say("%s", doctor->python_why.text);
        return EXIT_WRONG;
    }
    for (unsigned i = 0; i < CHECK_COUNT; i++) {
        checks[i](doctor, &findings[i]);
        if (findings[i].state == FINDING_BAD)
            status = EXIT_BAD;
    }
    if (!options->json) {
        doctor_text_print(doctor, findings);
        return status;
    }
    if (doctor_json_print(doctor, findings))
        return status;
    say_no_memory();
    return EXIT_WRONG;
}

static int run(void *values, const struct option_texts *paths) {
    const struct doctor_options *options = values;
    struct doctor doctor = {.asked_device = options->device, .asked_python = options->python};
    int status = EXIT_WRONG;

    if (paths->count > 0) {
        say("doctor takes options only, not '%s'", paths->items[0]);
        return EXIT_WRONG;
    }
    place_write(doctor.place, sizeof doctor.place);
    doctor_scratch_make(&doctor);
    if (device_open(&doctor)) {
        status = answer(options, &doctor);
        tg_device_close(doctor.device);
    }
    doctor_scratch_remove(&doctor);
    return status;
}

int verb_doctor(int argc, char **argv) {
    struct doctor_options options = {.json = false};

    return options_run(&table, argc, argv, &options, run);
}
