/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate demo: two real processes take turns on one device, and every byte is looked at. */
#include <stdio.h>

#include "demo_bar.h"
#include "demo_report.h"
#include "stop_signal.h"
#include "options.h"
#include "verb.h"

#define FIELD(name) offsetof(struct demo_options, name)

/* 0 stands for none given. */
static const char *capacity_parse(const char *value, void *field) {
    const char *wanted = option_parse_size(value, field);

    return wanted == NULL && *(uint64_t *)field == 0 ? "64MiB or more" : wanted;
}

static const struct option_row rows[] = {
    {"device", "URI", "auto", "host:capacity=SIZE[,name=NAME]; auto: a host device of its own",
     option_parse_text, FIELD(device)},
    {"replay", "FILE", NULL, "what the trainer replays (default: a recording that comes along)",
     option_parse_text, FIELD(replay)},
    {"steps", "N", "12", "steps: two hand-overs each", option_parse_count, FIELD(steps)},
    {"capacity", "SIZE", NULL, "bytes to share out (default: 1GiB, less on a small machine)",
     capacity_parse, FIELD(capacity_bytes)},
    {"seed", "N", "1", "for contents and kills", option_parse_number, FIELD(seed)},
    {"kill-every", "N", NULL, "kill one side in every N-th hand-over", option_parse_count,
     FIELD(kill_every)},
    {"json", NULL, NULL, "one JSON object (schema tidegate.demo/1) instead of text",
     option_parse_flag, FIELD(json)},
};

static const struct option_table table = {
    .verb = "demo",
    .arguments = "",
    .summary =
        "Lets two processes, a trainer and a rollout engine, take turns on one device that is\n"
        "too small for both: one sleeps, the other wakes, twice in each step. The trainer does\n"
        "what a recorded program did, allocation by allocation; every byte is checked. No GPU is\n"
        "needed.\n",
    .more = "A SIZE is 1GiB, 512MiB, 1e9 ...\n"
            "Exit status: 0 nothing was lost; 1 bytes were lost; 2 the demo could not run, or\n"
            "wrong usage; 130 interrupted.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

static int status_of(const struct demo_report *report) {
    if (report->outcome == DEMO_FAILED) {
        say("%s", report->why.text);
        return EXIT_WRONG;
    }
    if (report->lost_bytes > 0)
        return EXIT_LOST;
    return report->outcome == DEMO_STOPPED ? EXIT_INTERRUPTED : EXIT_ANSWERED;
}

static int demo_do(struct demo_setup *setup) {
    bool is_json = setup->options.json, is_printed = true;
    struct demo_report report;
    struct demo_bar bar;
    struct demo_watcher watcher = {
        .passes = demo_bar_paint, .step_is_seen = demo_bar_step, .argument = &bar};
    int status = EXIT_WRONG;

    if (!is_json)
        demo_text_begin(setup);
    demo_bar_open(&bar, is_json);
    if (demo_run(setup, &watcher, &report)) {
        demo_bar_close(&bar);
        if (is_json)
            is_printed = demo_json_print(&report);
        else if (report.outcome != DEMO_FAILED || report.hand_over_count > 0)
            demo_text_end(&report);
        status = status_of(&report);
    } else {
        demo_bar_close(&bar);
    }
    if (!is_printed)
        say_no_memory();
    demo_report_free(&report);
    return is_printed ? status : EXIT_WRONG;
}

static int run(void *values, const struct option_texts *paths) {
    const struct demo_options *options = values;
    struct demo_setup setup = {.options = *options};
    int status;

    if (paths->count > 0) {
        say("demo takes options only, not '%s'; a recording is given with --replay",
            paths->items[0]);
        return EXIT_WRONG;
    }
    if (!demo_setup_make(&setup))
        return stop_signal_came() ? EXIT_INTERRUPTED : EXIT_WRONG;
    status = demo_do(&setup);
    demo_setup_undo(&setup);
    demo_plan_free(&setup.plan);
    return status;
}

int verb_demo(int argc, char **argv) {
    struct demo_options options = {.json = false};

    return options_run(&table, argc, argv, &options, run);
}
