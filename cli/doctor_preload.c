/* SPDX-License-Identifier: Apache-2.0 */
/* First what is loaded, in the environment as it is; then that of the probes, which is their own.
 */
#include "doctor_preload.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "loaded.h"
#include "object_file.h"
#include "run_preload.h"
#include "stop_signal.h"
#include "verb.h"

#define TAG "doctor"

/* ---- what is loaded -------------------------------------------------------------------------- */

/* False: said, and *status is the verb's. */
static bool load(const struct doctor *doctor, const struct doctor_preload_params *params,
                 struct texts *loaded, int *status) {
    struct sentence why = {""};
    int64_t pid = 0;
    bool is_good = true;

    *status = EXIT_WRONG;
    if (params->pid != NULL) {
        if (!number_read(params->pid, strlen(params->pid), &pid) || pid < 1) {
            say("--pid: '%.40s' is no number of a process", params->pid);
            return false;
        }
        is_good = loaded_of_process((unsigned long long)pid, loaded, &why);
    } else if (params->command != NULL) {
        is_good = loaded_of_command(params->command, doctor->scratch, loaded, status, &why);
    }
    if (!is_good)
        say("%s", why.text);
    return is_good;
}

/* What the preload cannot stand before, and what cannot be looked at. */
static bool look(const struct texts *loaded, struct preload_report *report) {
    report->objects = calloc(loaded->count + 1, sizeof *report->objects);
    if (report->objects == NULL)
        return false;
    for (size_t i = 0; i < loaded->count; i++) {
        struct preload_object *object = &report->objects[report->object_count];
        struct object_facts facts;
        struct sentence why;

        object->path = loaded->items[i];
        if (!object_look(object->path, &facts, &why))
            sentence_set(&object->finding, "it cannot be looked at: %s", why.text);
        else if (facts.has_own_runtime)
            sentence_set(&object->finding, "it has a CUDA runtime of its own linked in: what it "
                                           "allocates never comes by, and does not sleep");
        report->object_count += object->finding.text[0] != '\0';
    }
    return true;
}

/* ---- the runtimes ---------------------------------------------------------------------------- */

static bool environment_make(const struct doctor *doctor) {
    return setenv("TIDEGATE", "on", 1) == 0 && setenv("TIDEGATE_DEFAULT_TAG", TAG, 1) == 0 &&
           setenv("TIDEGATE_DIR", doctor->scratch, 1) == 0;
}

/* False: no memory. */
static bool try_one(const char *runtime, struct preload_report *report) {
    size_t count = report->runtime_count;
    struct preload_runtime *more = reallocarray(report->runtimes, count + 1, sizeof *more);

    if (more == NULL)
        return false;
    report->runtimes = more;
    report->runtime_count += preload_runtime_try(runtime, report->preload, &more[count]);
    return true;
}

/* Those that were loaded; where nobody loads, those that the loader finds by name. False: no
 * memory. */
static bool try_all(const struct doctor_preload_params *params, const struct texts *loaded,
                    struct preload_report *report) {
    static const char *const names[] = {"libcudart.so.12", "libcudart.so.13"};

    for (size_t i = 0; i < loaded->count; i++) {
        if (object_is_runtime(loaded->items[i]) && !try_one(loaded->items[i], report))
            return false;
    }
    if (params->pid != NULL || params->command != NULL)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!try_one(names[i], report))
            return false;
    }
    return true;
}

static size_t bad_count(const struct preload_report *report) {
    size_t count = 0;

    for (size_t i = 0; i < report->runtime_count; i++)
        count += report->runtimes[i].finding.state == FINDING_BAD;
    return count;
}

/* Of all as a whole: a program that uses no runtime is not one for the preload. */
static void judge(const struct doctor_preload_params *params, int status,
                  struct preload_report *report) {
    struct finding *finding = &report->finding;

    if (bad_count(report) > 0) {
        finding_set(finding, FINDING_BAD, "of %zu CUDA runtime%s %zu cannot be used with it here",
                    report->runtime_count, report->runtime_count == 1 ? "" : "s",
                    bad_count(report));
    } else if (report->runtime_count > 0 && status == EXIT_ANSWERED) {
        finding_set(finding, FINDING_OK, "tried over %zu CUDA runtime%s", report->runtime_count,
                    report->runtime_count == 1 ? "" : "s");
    } else if (report->runtime_count > 0) {
        finding_set(finding, FINDING_WARN, "%s ended with status %d", params->command[0], status);
        finding_advise(finding, NULL, "see what it said: more may be loaded when it runs on");
    } else if (params->pid != NULL) {
        finding_set(finding, FINDING_BAD, "process %s has no CUDA runtime (libcudart*) loaded",
                    params->pid);
        finding_advise(finding, NULL, "look at it after its first use of the GPU");
    } else if (params->command != NULL) {
        finding_set(finding, FINDING_BAD, "%s, which ended with status %d, loaded no CUDA runtime "
                    "(libcudart*)", params->command[0], status);
        finding_advise(finding, NULL, "name a command that uses the GPU");
    } else {
        finding_set(finding, FINDING_BAD, "the loader finds no CUDA runtime here: no "
                    "libcudart.so.12, no libcudart.so.13");
        finding_advise(finding, "tidegate doctor --preload -- python3 -c 'import torch'",
                       "name a program that brings its own");
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int answer(struct doctor *doctor, const struct doctor_preload_params *params,
                  struct texts *loaded, struct preload_report *report) {
    int status = EXIT_ANSWERED;

    if (!load(doctor, params, loaded, &status))
        return stop_signal_came() ? EXIT_INTERRUPTED : status;
    if (stop_signal_came())
        return EXIT_INTERRUPTED;
    if (params->command == NULL)
        status = EXIT_ANSWERED;
    if (!look(loaded, report) || !environment_make(doctor) || !try_all(params, loaded, report)) {
        say_no_memory();
        return EXIT_WRONG;
    }
    if (stop_signal_came())
        return EXIT_INTERRUPTED;
    judge(params, status, report);
    if (!params->json) {
        doctor_preload_text_print(report);
    } else if (!doctor_preload_json_print(report)) {
        say_no_memory();
        return EXIT_WRONG;
    }
    return report->finding.state == FINDING_BAD ? EXIT_BAD : EXIT_ANSWERED;
}

int doctor_preload(struct doctor *doctor, const struct doctor_preload_params *params) {
    struct preload_report report = {.runtime_count = 0};
    struct texts loaded = {.count = 0};
    int status;

    if (doctor->scratch[0] == '\0') {
        say("%s", doctor->scratch_why.text);
        return EXIT_WRONG;
    }
    signal(SIGCHLD, SIG_DFL); /* where our caller ignores it, nobody tells how a child ended */
    stop_signal_catch_first();
    if (!run_preload_path(report.preload) || !run_preload_hand_on(NULL, false))
        return EXIT_WRONG;
    status = answer(doctor, params, &loaded, &report);
    texts_free(&loaded);
    free(report.runtimes);
    free(report.objects);
    return status;
}
