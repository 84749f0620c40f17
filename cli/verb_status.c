/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate status: reads the node's ledger, and nothing else: no lock, no device, nobody is asked,
 * so it answers also while every program stands still. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "options.h"
#include "replaced_file.h"
#include "say.h"
#include "status_live.h"
#include "status_report.h"
#include "stop_signal.h"
#include "verb.h"

enum { LIVE_MS = 1000 };

struct status_options {
    bool json, live, no_color;
    const char *metrics;
};

#define FIELD(name) offsetof(struct status_options, name)

static const struct option_row rows[] = {
    {"json", NULL, NULL, "one JSON object (schema tidegate.status/1) instead of text",
     option_parse_flag, FIELD(json)},
    {"metrics", "FILE|-", NULL, "Prometheus' text format, into FILE in one piece, or on stdout",
     option_parse_text, FIELD(metrics)},
    {"live", NULL, NULL, "a page painted every second, until q; with --json a line each second",
     option_parse_flag, FIELD(live)},
    {"no-colour", NULL, NULL, "--live paints without colour, as it does where NO_COLOR is set",
     option_parse_flag, FIELD(no_color)},
};

static const struct option_table table = {
    .verb = "status",
    .arguments = "",
    .summary =
        "Shows who holds the memory of this machine's devices: the programs that use Tidegate,\n"
        "what of theirs is awake and asleep, who waits for what, and what nobody here accounts\n"
        "for. It only reads, and waits for nobody.\n",
    .more = "Exit status: 0 answered, also where no program uses Tidegate; 2 the ledger could not\n"
            "be read, or wrong usage.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

static void absence_print(void) {
    struct sentence sentence;

    status_absence_write(&sentence);
    puts(sentence.text);
}

/* The file is whole whenever a collector reads it. */
static int metrics_write(const char *path, const struct tg_node_view *view) {
    struct replaced_file file;

    if (strcmp(path, "-") == 0) {
        status_metrics_print(stdout, view);
        return EXIT_ANSWERED;
    }
    if (!replaced_file_open(&file, path))
        return EXIT_WRONG;
    status_metrics_print(file.out, view);
    return replaced_file_close(&file) ? EXIT_ANSWERED : EXIT_WRONG;
}

static int answer_print(const struct status_options *options, struct tg_node_view *view) {
    bool has_ledger;

    if (status_read(view, &has_ledger) != 0) {
        say("%s", tg_last_error()->text);
        return EXIT_WRONG;
    }
    if (options->metrics != NULL)
        return metrics_write(options->metrics, has_ledger ? view : NULL);
    if (options->json) {
        if (status_json_print(has_ledger ? view : NULL))
            return EXIT_ANSWERED;
        say_no_memory();
        return EXIT_WRONG;
    }
    if (!has_ledger)
        absence_print();
    else
        status_text_print(view);
    return EXIT_ANSWERED;
}

/* A line each second. */
static int lines_run(const struct status_options *options, struct tg_node_view *view) {
    int status;

    stop_signal_catch();
    do {
        status = answer_print(options, view);
        fflush(stdout);
    } while (status == EXIT_ANSWERED && ferror(stdout) == 0 && !stop_signal_came() &&
             poll(NULL, 0, LIVE_MS) == 0);
    return status;
}

static int answer(const struct status_options *options, struct tg_node_view *view) {
    if (!options->live)
        return answer_print(options, view);
    return options->json ? lines_run(options, view) : status_live_run(view, options->no_color);
}

static int run(void *values, const struct option_texts *paths) {
    const struct status_options *options = values;
    struct tg_node_view *view;
    int status;

    if (paths->count > 0) {
        say("status takes options only, not '%s'", paths->items[0]);
        return EXIT_WRONG;
    }
    if (options->metrics != NULL && (options->json || options->live)) {
        say("--metrics writes once, and nothing else: leave out --json and --live");
        return EXIT_WRONG;
    }
    view = calloc(1, sizeof *view);
    if (view == NULL) {
        say_no_memory();
        return EXIT_WRONG;
    }
    status = answer(options, view);
    free(view);
    return status;
}

int verb_status(int argc, char **argv) {
    struct status_options options = {.json = false};

    return options_run(&table, argc, argv, &options, run);
}
