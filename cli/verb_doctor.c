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
#include "doctor_preload.h"
#include "doctor_scratch.h"
#include "options.h"
#include "verb.h"

struct doctor_options {
    bool json, preload;
    const char *device, *python, *pid;
};

#define FIELD(name) offsetof(struct doctor_options, name)

static const struct option_row rows[] = {
    {"device", "URI", NULL, "what to try in place of the GPUs, such as host:capacity=256MiB",
     option_parse_text, FIELD(device)},
    {"python", "PYTHON", NULL, "the Python of your programs, or its environment's folder",
     option_parse_text, FIELD(python)},
    {"preload", NULL, NULL,
     "in place of that: try what run --preload stands before, list what it cannot",
     option_parse_flag, FIELD(preload)},
    {"pid", "PID", NULL, "the same, of what this process has loaded", option_parse_text,
     FIELD(pid)},
    {"json", NULL, NULL,
     "one JSON object (tidegate.doctor/1, with --preload tidegate.preload/1) instead of text",
     option_parse_flag, FIELD(json)},
};

static const struct option_table table = {
    .verb = "doctor",
    .arguments = "[--preload [-- COMMAND [ARGUMENT...]]]",
    .summary =
        "Tells what on this machine lets Tidegate work, with a line of advice for what does not,\n"
        "and what works with which versions of verl and its engines. Nothing that it makes\n"
        "stays.\n",
    .more = "Without --python: the Python of $VIRTUAL_ENV, else python3 of the PATH.\n"
            "With --preload and a command: it is run to its end, and what it and its children\n"
            "load is looked at.\n"
            "Exit status: 0 nothing is bad; 1 something is; 2 wrong usage;\n"
            "126, 127 the command cannot be run, or is not there.\n",
    .ends_at_word = true,
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

static bool is_preload(const struct doctor_options *options) {
    return options->preload || options->pid != NULL;
}

/* False: said. */
static bool options_fit(const struct doctor_options *options, const struct option_texts *words) {
    if (!is_preload(options) && words->count > 0)
        say("doctor takes options only, not '%s'; a command with --preload", words->items[0]);
    else if (options->pid != NULL && words->count > 0)
        say("a process by --pid, or a command: not both");
    else if (is_preload(options) && (options->device != NULL || options->python != NULL))
        say("--preload tries the CUDA runtime and the GPU that it finds: not --device, not "
            "--python");
    else
        return true;
    return false;
}

static int preload_answer(const struct doctor_options *options, const struct option_texts *words,
                          struct doctor *doctor) {
    const struct doctor_preload_params params = {
        .pid = options->pid,
        .command = words->count == 0 ? NULL : (char *const *)words->items,
        .json = options->json,
    };

    return doctor_preload(doctor, &params);
}

static int run(void *values, const struct option_texts *paths) {
    const struct doctor_options *options = values;
    struct doctor doctor = {.asked_device = options->device, .asked_python = options->python};
    int status = EXIT_WRONG;

    if (!options_fit(options, paths))
        return EXIT_WRONG;
    place_write(doctor.place, sizeof doctor.place);
    doctor_scratch_make(&doctor);
    if (is_preload(options)) {
        status = preload_answer(options, paths, &doctor);
    } else if (device_open(&doctor)) {
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
