/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate status: reads the node's ledger, and nothing else: no lock, no device, nobody is asked,
 * so it answers also while every program stands still. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "options.h"
#include "place.h"
#include "replaced_file.h"
#include "say.h"
#include "status_report.h"
#include "verb.h"

enum { LIVE_MS = 1000 };

#define SCREEN_CLEAR "\033[H\033[2J"

struct status_options {
    bool json, live;
    const char *metrics;
};

#define FIELD(name) offsetof(struct status_options, name)

static const struct option_row rows[] = {
    {"json", NULL, NULL, "one JSON object (schema tidegate.status/1) instead of text",
     option_parse_flag, FIELD(json)},
    {"metrics", "FILE|-", NULL, "Prometheus' text format, into FILE in one piece, or on stdout",
     option_parse_text, FIELD(metrics)},
    {"live", NULL, NULL, "again every second, until q or Ctrl-C", option_parse_flag, FIELD(live)},
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

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int number) {
    (void)number;
    is_interrupted = 1;
}

static void absence_print(void) {
    char place[PLACE_BYTES];

    place_write(place, sizeof place);
    printf("no program uses Tidegate on this machine (no ledger in %s)\n", place);
}

/* *has_ledger false: there is none, which is an answer. Returns 0 or a negative status. */
static int ledger_read(struct tg_node_view *view, bool *has_ledger) {
    struct tg_ledger *ledger;
    int status = tg_ledger_open_reader(NULL, &ledger);

    *has_ledger = status != -ENOENT;
    if (status != 0)
        return status == -ENOENT ? 0 : status;
    status = tg_ledger_read(ledger, view);
    tg_ledger_close(ledger);
    return status;
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

    if (ledger_read(view, &has_ledger) != 0) {
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

/* Keys without Enter; false where stdin is no terminal. */
static bool keys_open(struct termios *before) {
    struct termios raw;

    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

/* Waits a second; true: q was pressed. */
static bool second_passes(bool has_keys) {
    struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    char key;

    return poll(&keys, 1, LIVE_MS) > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q');
}

/* On a terminal the answer is painted over the last one; elsewhere each follows the other. */
static int live_run(const struct status_options *options, struct tg_node_view *view) {
    struct sigaction action = {.sa_handler = on_interrupt};
    bool is_screen = isatty(STDOUT_FILENO) && !options->json;
    bool is_first = true, has_keys;
    struct termios before;
    int status = EXIT_ANSWERED;

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    has_keys = is_screen && keys_open(&before);
    do {
        if (is_screen)
            fputs(SCREEN_CLEAR, stdout);
        else if (!is_first && !options->json)
            putchar('\n');
        is_first = false;
        status = answer_print(options, view);
        fflush(stdout);
    } while (status == EXIT_ANSWERED && ferror(stdout) == 0 && !is_interrupted &&
             !second_passes(has_keys) && !is_interrupted);
    if (has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return status;
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
    status = options->live ? live_run(options, view) : answer_print(options, view);
    free(view);
    return status;
}

int verb_status(int argc, char **argv) {
    struct status_options options = {.json = false};

    return options_run(&table, argc, argv, &options, run);
}
