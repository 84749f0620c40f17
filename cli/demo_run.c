/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_run.h"

#include <stdlib.h>
#include <string.h>

#include "demo_content.h"
#include "monotonic.h"

/* When a kill comes if no hand-over has been measured yet. */
#define FIRST_KILL_NS UINT64_C(100000000)

struct run {
    const struct demo_setup *setup;
    const struct demo_watcher *watcher;
    struct demo_report *report;
    struct demo_control control;
    struct demo_moment moment;
    uint32_t file_step; /* the trainer's next */
};

static enum demo_who other(enum demo_who who) {
    return who == DEMO_TRAINER ? DEMO_ROLLOUT : DEMO_TRAINER;
}

static void on_pass(void *argument) {
    struct run *run = argument;

    if (run->watcher->passes != NULL)
        run->watcher->passes(run->watcher->argument, &run->moment);
}

/* A trainer that was started anew begins its round from the start. */
static void deaths_note(struct run *run) {
    if (run->control.children[DEMO_TRAINER].is_new)
        run->file_step = 0;
}

static void reply_add(struct demo_report *report, const struct demo_reply *reply) {
    const struct tg_receipt *receipt = &reply->receipt;

    report->verified_bytes += reply->verified_bytes;
    report->lost_bytes += reply->lost_bytes;
    report->out_of_memory += reply->out_of_memory;
    report->waits += reply->wait_ns > 0;
    if (reply->what == DEMO_SLEEP) {
        report->slept_bytes += receipt->gained_bytes;
        report->saved_bytes += receipt->copied_bytes;
        report->save_ns += receipt->copy_ns;
    } else if (reply->what == DEMO_WAKE) {
        report->woken_bytes += receipt->gained_bytes;
        report->restored_bytes += receipt->copied_bytes;
        report->wake_ns += receipt->all_ns - receipt->wait_ns;
    }
}

/* Gives an order and waits for it alone. */
static enum demo_outcome do_alone(struct run *run, enum demo_who who, enum demo_what what,
                                  uint32_t step) {
    enum demo_outcome outcome;

    demo_control_order(&run->control, who, what, step);
    outcome = demo_control_await(&run->control, NULL);
    if (outcome == DEMO_DONE && !run->control.children[who].has_died)
        reply_add(run->report, &run->control.children[who].reply);
    deaths_note(run);
    return outcome;
}

/* Which side dies in this hand-over, and when: the same for the same seed, but for the clock. */
static struct demo_kill kill_plan(const struct run *run, uint64_t start_ns) {
    const struct demo_options *options = &run->setup->options;
    size_t number = run->report->hand_over_count + 1;
    uint64_t span_ns = run->moment.hand_over_ns != 0 ? run->moment.hand_over_ns : FIRST_KILL_NS;
    uint64_t luck = demo_content_key(options->seed, DEMO_SIDES, number);

    if (options->kill_every == 0 || number % options->kill_every != 0)
        return (struct demo_kill){.who = DEMO_SIDES};
    return (struct demo_kill){.who = luck & 1 ? DEMO_TRAINER : DEMO_ROLLOUT,
                              .at_ns = start_ns + (luck >> 1) % span_ns};
}

/* One side sleeps, the other wakes; both are told at once, and the ledger lets the waking one wait
 * for the sleeping one's bytes. */
static enum demo_outcome hand_over(struct run *run, enum demo_who to) {
    struct demo_child *children = run->control.children;
    struct demo_report *report = run->report;
    uint64_t start_ns = monotonic_ns();
    struct demo_kill kill = kill_plan(run, start_ns);
    bool has_slept = !children[other(to)].is_new;
    enum demo_outcome outcome;

    if (has_slept)
        demo_control_order(&run->control, other(to), DEMO_SLEEP, 0);
    demo_control_order(&run->control, to, children[to].is_new ? DEMO_BEGIN : DEMO_WAKE, 0);
    outcome = demo_control_await(&run->control, &kill);
    if (has_slept && !children[other(to)].has_died && outcome == DEMO_DONE)
        reply_add(report, &children[other(to)].reply);
    if (!children[to].has_died && outcome == DEMO_DONE)
        reply_add(report, &children[to].reply);
    deaths_note(run);
    while (outcome == DEMO_DONE && children[to].is_new)
        outcome = do_alone(run, to, DEMO_BEGIN, 0);
    if (outcome != DEMO_DONE)
        return outcome;
    run->moment.awake = to;
    run->moment.hand_over_ns = monotonic_ns() - start_ns;
    run->moment.woken_bytes = children[to].reply.awake_bytes;
    report->hand_over_ns[report->hand_over_count++] = run->moment.hand_over_ns;
    return DEMO_DONE;
}

/* A side works, from the beginning if it was killed meanwhile. */
static enum demo_outcome work(struct run *run, enum demo_who who) {
    struct demo_child *child = &run->control.children[who];
    enum demo_outcome outcome = DEMO_DONE;
    bool is_done = false;

    while (outcome == DEMO_DONE && !is_done) {
        if (child->is_new) {
            outcome = do_alone(run, who, DEMO_BEGIN, 0);
            continue;
        }
        outcome = do_alone(run, who, DEMO_RUN, run->file_step);
        is_done = !child->has_died;
    }
    return outcome;
}

static void step_note(struct run *run) {
    const struct demo_reply *reply = &run->control.children[DEMO_TRAINER].reply;
    struct demo_report *report = run->report;

    report->steps[report->step_count] = (struct demo_step_done){
        .file_step = run->file_step,
        .allocations = reply->allocations,
        .frees = reply->frees,
        .peak_bytes = reply->peak_bytes,
    };
}

static enum demo_outcome step_do(struct run *run) {
    struct demo_report *report = run->report;
    enum demo_outcome outcome = hand_over(run, DEMO_TRAINER);

    if (outcome == DEMO_DONE)
        outcome = work(run, DEMO_TRAINER);
    if (outcome != DEMO_DONE)
        return outcome;
    step_note(run);
    run->file_step = (run->file_step + 1) % (uint32_t)run->setup->plan.step_count;
    outcome = hand_over(run, DEMO_ROLLOUT);
    if (outcome == DEMO_DONE && !run->watcher->step_is_seen(run->watcher->argument, &run->moment))
        outcome = DEMO_STOPPED;
    if (outcome == DEMO_DONE)
        outcome = work(run, DEMO_ROLLOUT);
    report->step_count += outcome == DEMO_DONE;
    return outcome;
}

/* The rollout is there first: so the first hand-over has bytes to hand over. */
static enum demo_outcome all_do(struct run *run) {
    enum demo_outcome outcome = demo_control_open(&run->control, run->setup);

    run->moment.gauge = run->control.gauge;
    run->moment.awake = DEMO_ROLLOUT;
    run->moment.step = 1;
    if (outcome == DEMO_DONE)
        outcome = work(run, DEMO_ROLLOUT);
    for (size_t i = 0; outcome == DEMO_DONE && i < run->setup->options.steps; i++) {
        run->moment.step = i + 1;
        outcome = step_do(run);
    }
    return outcome;
}

/* What hand-overs are held against. */
static bool speed_find(const struct demo_setup *setup, struct demo_speed *speed) {
    *speed = setup->speed;
    return !setup->is_direct || demo_speed_measure(setup->capacity_bytes, speed);
}

bool demo_run(const struct demo_setup *setup, const struct demo_watcher *watcher,
              struct demo_report *report) {
    struct run run = {.setup = setup, .watcher = watcher, .report = report};

    memset(report, 0, sizeof *report);
    report->setup = setup;
    report->steps = calloc(setup->options.steps, sizeof *report->steps);
    report->hand_over_ns = calloc(setup->options.steps, 2 * sizeof *report->hand_over_ns);
    if (report->steps == NULL || report->hand_over_ns == NULL ||
        !speed_find(setup, &report->copy_speed)) {
        say_no_memory();
        return false;
    }
    run.moment.setup = setup;
    run.moment.copy_rate = report->copy_speed.to_fresh_device;
    run.control.passes = on_pass;
    run.control.argument = &run;
    report->outcome = all_do(&run);
    report->why = run.control.why;
    demo_control_close(&run.control);
    report->kills = run.control.kills;
    return true;
}

void demo_report_free(struct demo_report *report) {
    free(report->steps);
    free(report->hand_over_ns);
}

static int by_time(const void *left, const void *right) {
    const uint64_t *a = left, *b = right;

    return *a < *b ? -1 : *a > *b;
}

/* The hand-over at this share of all, by length. */
static double quantile_ms(const struct demo_report *report, double share) {
    size_t count = report->hand_over_count;
    uint64_t *sorted = calloc(count + 1, sizeof *sorted);
    double ms;

    if (sorted == NULL || count == 0) {
        free(sorted);
        return 0;
    }
    memcpy(sorted, report->hand_over_ns, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_time);
    ms = (double)sorted[(size_t)((double)(count - 1) * share)] / 1e6;
    free(sorted);
    return ms;
}

double demo_report_median_ms(const struct demo_report *report) {
    return quantile_ms(report, 0.5);
}

double demo_report_worst_ms(const struct demo_report *report) {
    return quantile_ms(report, 1);
}

double demo_report_rate(uint64_t size_bytes, uint64_t time_ns) {
    if (time_ns == 0)
        return 0;
    return (double)size_bytes / (double)(UINT64_C(1) << 30) / ((double)time_ns / 1e9);
}
