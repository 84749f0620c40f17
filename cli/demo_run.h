/* SPDX-License-Identifier: Apache-2.0 */
/* One run of the demo: trainer and rollout take turns, and what there is to report of it. */
#ifndef CLI_DEMO_RUN_H
#define CLI_DEMO_RUN_H

#include "demo_control.h"
#include "demo_speed.h"

/* What the trainer did in one step, in the file's sizes. */
struct demo_step_done {
    uint32_t file_step; /* from 0 */
    uint64_t allocations, frees, peak_bytes;
};

struct demo_report {
    const struct demo_setup *setup;
    struct demo_speed copy_speed;
    struct demo_step_done *steps;
    size_t step_count; /* done */
    uint64_t *hand_over_ns; /* in their order */
    size_t hand_over_count;
    uint64_t waits;
    uint64_t slept_bytes, saved_bytes, save_ns;  /* left the device; saved of these, in what time */
    uint64_t woken_bytes, restored_bytes, wake_ns; /* came back, waiting not counted */
    uint64_t verified_bytes, lost_bytes, out_of_memory, kills;
    enum demo_outcome outcome;
    struct sentence why; /* of DEMO_FAILED */
};

/* The last hand-over, as it is shown. */
struct demo_moment {
    const struct demo_setup *setup;
    const struct demo_gauge *gauge;
    double copy_rate; /* into fresh memory, GiB/s */
    size_t step;        /* from 1 */
    enum demo_who awake;
    uint64_t woken_bytes, hand_over_ns; /* 0: none yet */
};

/* Who looks on. */
struct demo_watcher {
    /* Ten times a second, and more often. */
    void (*passes)(void *argument, const struct demo_moment *moment);
    /* Once in each step, when the rollout has woken. False: go no further. */
    bool (*step_is_seen)(void *argument, const struct demo_moment *moment);
    void *argument;
};

/* Runs it all. False: no memory, said. Free with demo_report_free in every case. */
bool demo_run(const struct demo_setup *setup, const struct demo_watcher *watcher,
              struct demo_report *report);
void demo_report_free(struct demo_report *report);

/* 0 where there was none. */
double demo_report_median_ms(const struct demo_report *report);
double demo_report_worst_ms(const struct demo_report *report);
/* GiB/s; 0 where nothing was moved. */
double demo_report_rate(uint64_t size_bytes, uint64_t time_ns);

#endif
