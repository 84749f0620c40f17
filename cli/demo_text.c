/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "demo_report.h"
#include "figures.h"

void demo_text_begin(const struct demo_setup *setup) {
    const struct demo_plan *plan = &setup->plan;

    printf("trainer and rollout take turns on %s, %s; trainer replays %s "
           "(%s allocations a step)\n",
           setup->shown, plural_figure(setup->options.steps, "step").text, setup->replay_name,
           grouped_figure(plan->allocations / plan->step_count).text);
    fflush(stdout);
}

static void hand_overs_print(const struct demo_report *report) {
    printf("hand-overs %zu   median %.0f ms   worst %.0f ms   waits %" PRIu64
           "   out of memory %" PRIu64 "   bytes verified %s   lost %" PRIu64,
           report->hand_over_count, demo_report_median_ms(report), demo_report_worst_ms(report),
           report->waits, report->out_of_memory,
           size_figure((double)report->verified_bytes).text, report->lost_bytes);
    if (report->setup->options.kill_every != 0 || report->kills != 0)
        printf("   kills %" PRIu64, report->kills);
    putchar('\n');
}

static void bytes_print(const struct demo_report *report) {
    const char *copy = demo_setup_copy_name(report->setup);

    printf("slept %s, %s of it saved at %.1f GiB/s (%s into fresh memory here: %.1f, into touched: "
           "%.1f)\n",
           size_figure((double)report->slept_bytes).text,
           size_figure((double)report->saved_bytes).text,
           demo_report_rate(report->saved_bytes, report->save_ns),
           copy, report->copy_speed.to_fresh_host, report->copy_speed.to_touched_host);
    printf("woken %s at %.1f GiB/s, %s of it restored (%s into fresh memory of the device here: "
           "%.1f)\n",
           size_figure((double)report->woken_bytes).text,
           demo_report_rate(report->woken_bytes, report->wake_ns),
           size_figure((double)report->restored_bytes).text,
           copy, report->copy_speed.to_fresh_device);
}

/* The first time that this step of the file was done; NULL: never. */
static const struct demo_step_done *step_find(const struct demo_report *report, size_t file_step) {
    for (size_t i = 0; i < report->step_count; i++) {
        if (report->steps[i].file_step == file_step)
            return &report->steps[i];
    }
    return NULL;
}

/* Each of the file's steps once: later rounds are like the first. */
static void steps_print(const struct demo_report *report) {
    int width;

    if (report->step_count == 0)
        return;
    width = printf("step of %s", report->setup->replay_name);
    printf("%16s%10s%22s\n", "allocations", "frees", "most live at once");
    for (size_t i = 0; i < report->setup->plan.step_count; i++) {
        const struct demo_step_done *step = step_find(report, i);

        if (step != NULL)
            printf("%*zu%16s%10s%22s\n", width, i + 1, grouped_figure(step->allocations).text,
                   grouped_figure(step->frees).text, size_figure((double)step->peak_bytes).text);
    }
}

void demo_text_end(const struct demo_report *report) {
    hand_overs_print(report);
    bytes_print(report);
    steps_print(report);
}
