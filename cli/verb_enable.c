/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate enable PROGRAM: what to add to the program's command, for the version that a Python has.
 * It prints, and changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "enable_report.h"
#include "feature_rows.h"
#include "options.h"
#include "packages.h"
#include "programs.h"
#include "say.h"
#include "verb.h"

struct enable_options {
    bool observe, json;
    const char *python;
};

#define FIELD(name) offsetof(struct enable_options, name)

static const struct option_row rows[] = {
    {"observe", NULL, NULL, "measure and tell only: no result and no allocation changes",
     option_parse_flag, FIELD(observe)},
    {"python", "PYTHON", NULL, "the Python that runs the program, or its environment's folder",
     option_parse_text, FIELD(python)},
    {"json", NULL, NULL, "one JSON object (schema tidegate.enable/1) instead of text",
     option_parse_flag, FIELD(json)},
};

static const struct option_table table = {
    .verb = "enable",
    .arguments = "verl|sglang|vllm",
    .summary =
        "Prints what to add to a program's command, or to set in its environment, so that all of\n"
        "its processes have Tidegate on: for the version that is installed, or else for each.\n"
        "Changes nothing, and imports nothing of the program.\n",
    .more = "Without --python: the Python of $VIRTUAL_ENV, else python3 of the PATH.\n"
            "Exit status: 0 answered, also where the program is not found; 2 the Python of\n"
            "--python cannot be asked, or wrong usage.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

/* Which of the two ways in this version has. */
static enum enable_way way_of(const char *version, const struct program_versions *versions) {
    if (*version == '\0')
        return ENABLE_UNKNOWN;
    if (version_is_older(version, versions->oldest))
        return ENABLE_NONE;
    return version_is_older(version, versions->entry_points) ? ENABLE_MODULE : ENABLE_ENTRY_POINT;
}

static void warn_of_absence(const struct enable_report *report) {
    const struct packages *packages = &report->packages;

    if (report->found[0] == '\0' || packages->versions[PACKAGE_tidegate][0] != '\0')
        return;
    say("Tidegate is not installed beside %s %s: %s -m pip install tidegate; without it %s",
        report->program, report->found, packages->python,
        report->way == ENABLE_MODULE ? "verl would end with an error" : "nothing would happen");
}

static int answer(const struct enable_options *options, struct enable_report *report) {
    struct sentence why;
    bool is_asked = packages_ask(options->python, &report->packages, &why);

    if (!is_asked && options->python != NULL) {
        say("%s", why.text);
        return EXIT_WRONG;
    }
    report->is_python_there = is_asked;
    report->way = way_of(report->found, report->versions);
    if (!is_asked)
        say("%s; --python names another one", why.text);
    warn_of_absence(report);
    if (!options->json) {
        enable_text_print(report);
        return EXIT_ANSWERED;
    }
    if (enable_json_print(report))
        return EXIT_ANSWERED;
    say_no_memory();
    return EXIT_WRONG;
}

/* As programs.def has it. */
static const struct program_needs {
    enum package package;
    const char *options, *plugins;
    bool is_lenient;
} needs[PROGRAM_COUNT] = {
#define PROGRAM(name, options, plugins, is_lenient) {PACKAGE_##name, options, plugins, is_lenient},
#include "programs.def"
#undef PROGRAM
};

static bool is_listed(const char *list, const char *separators, const char *name) {
    while (*list != '\0') {
        size_t length;

        list += strspn(list, separators);
        length = strcspn(list, separators);
        if (length == strlen(name) && strncmp(list, name, length) == 0)
            return true;
        list += length;
    }
    return false;
}

/* An engine leaves out a plugin that its list does not name, without a word. */
static void warn_of_plugins(const struct program_needs *program) {
    const char *list = *program->plugins == '\0' ? NULL : getenv(program->plugins);

    if (list == NULL || (program->is_lenient && *list == '\0') ||
        is_listed(list, program->is_lenient ? ", " : ",", "tidegate"))
        return;
    say("%s is set here and does not name tidegate, so nothing would happen: add it there",
        program->plugins);
}

static int run(void *values, const struct option_texts *words) {
    const struct enable_options *options = values;
    struct enable_report report = {.mode = options->observe ? "observe" : "on"};
    enum program program;

    if (words->count != 1) {
        say("enable takes the name of one program: tidegate enable verl");
        return EXIT_WRONG;
    }
    if (!program_find(words->items[0], strlen(words->items[0]), &program))
        return EXIT_WRONG;
    report.program = program_name(program);
    report.found = report.packages.versions[needs[program].package];
    report.is_on_ray = program == PROGRAM_verl;
    /* To observe changes no allocation, and these options do. */
    report.options = options->observe ? "" : needs[program].options;
    report.versions = program_versions_find(report.program);
    warn_of_plugins(&needs[program]);
    return answer(options, &report);
}

int verb_enable(int argc, char **argv) {
    struct enable_options options = {.observe = false};

    return options_run(&table, argc, argv, &options, run);
}
