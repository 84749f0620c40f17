/* SPDX-License-Identifier: Apache-2.0 */
#include "leak_report.h"

#include <stdlib.h>
#include <string.h>

/* Further away than this is as good as never. */
#define STEPS_MOST 1e12

const char *leak_step_source_name(enum tg_step_source source) {
    switch (source) {
    case TG_STEPS_FILES:
        return "files";
    case TG_STEPS_MARK:
        return "mark";
    case TG_STEPS_PROFILER:
        return "profiler";
    case TG_STEPS_OPTIMIZER:
        return "optimizer";
    case TG_STEPS_PERIOD:
        return "period";
    case TG_STEPS_NONE:
        break;
    }
    return NULL;
}

const char *leak_verdict_name(enum tg_verdict verdict) {
    switch (verdict) {
    case TG_VERDICT_LEAK:
        return "leak";
    case TG_VERDICT_NONE:
        return "no leak";
    case TG_VERDICT_UNKNOWN:
        break;
    }
    return "unknown";
}

bool leak_site_is_optimizer(const struct tg_leak_site *site, const struct tg_leak_frame **frame) {
    for (size_t i = 0; i < site->stack_count; i++) {
        if (strstr(site->stack[i].file, "torch/optim/") != NULL) {
            *frame = &site->stack[i];
            return true;
        }
    }
    return false;
}

/* None for a rank of several devices: what lives and grows is their sum, the peak is one's, and
 * which of them will be full is not known. */
static struct leak_outlook rank_outlook(const struct tg_leak_rank *rank, uint64_t capacity_bytes) {
    struct leak_outlook outlook = {.rank = rank->rank, .step = -1, .peak_bytes = rank->peak_bytes};
    double steps;

    if (rank->verdict != TG_VERDICT_LEAK || !(rank->bytes_per_step > 0) || rank->devices > 1)
        return outlook;
    outlook.is_known = true;
    if (rank->peak_bytes >= capacity_bytes) {
        outlook.is_full = true;
        outlook.step = rank->last_step;
        return outlook;
    }
    steps = (double)(capacity_bytes - rank->peak_bytes) / rank->bytes_per_step;
    outlook.steps = (int64_t)(steps < STEPS_MOST ? steps : STEPS_MOST) + 1; /* the one that fails */
    if (rank->last_step >= 0 && rank->last_step < INT64_MAX - (int64_t)STEPS_MOST)
        outlook.step = rank->last_step + outlook.steps;
    return outlook;
}

static bool is_earlier(const struct leak_outlook *a, const struct leak_outlook *b) {
    if (a->is_full != b->is_full)
        return a->is_full;
    if (a->is_full)
        return a->peak_bytes > b->peak_bytes;
    return a->step != b->step ? a->step < b->step : a->steps < b->steps;
}

static void outlook_find(struct leak_report *report) {
    for (size_t i = 0; i < report->summary.ranks; i++) {
        struct leak_outlook outlook =
            rank_outlook(tg_leaks_rank(report->leaks, i), report->capacity_bytes);

        outlook.row = i;
        if (outlook.is_known &&
            (!report->outlook.is_known || is_earlier(&outlook, &report->outlook)))
            report->outlook = outlook;
    }
}

/* ---- which files a row is from --------------------------------------------------------------- */

/* The i-th file that was read: those are the library's inputs. */
static size_t file_of_input(const struct leak_report *report, size_t input) {
    size_t file = 0;

    for (;; file++) {
        if (report->jobs[file].digest != NULL && input-- == 0)
            return file;
    }
}

static void origins_name(struct leak_report *report) {
    for (size_t i = 0; i < report->summary.ranks; i++) {
        const struct tg_leak_rank *rank = tg_leaks_rank(report->leaks, i);
        size_t file = file_of_input(report, rank->input);

        report->origins[i].name = rank->is_alone != 0
                                      ? report->jobs[file].path
                                      : report->runs->items[report->places[file].run];
    }
}

static void origins_count(struct leak_report *report) {
    report->name_count = 0;
    report->has_numbers = true;
    for (size_t i = 0; i < report->summary.ranks; i++) {
        bool is_new = true;

        for (size_t j = 0; j < report->summary.ranks; j++) {
            bool is_same = i != j && report->origins[i].name == report->origins[j].name;

            if (is_same && j < i)
                is_new = false;
            if (is_same && tg_leaks_rank(report->leaks, i)->rank ==
                               tg_leaks_rank(report->leaks, j)->rank)
                report->origins[i].tells_pid = true;
        }
        report->name_count += is_new;
        if (tg_leaks_rank(report->leaks, i)->rank < 0)
            report->has_numbers = false;
    }
    report->has_numbers = report->has_numbers && report->name_count == 1;
}

static bool origins_find(struct leak_report *report) {
    report->origins = calloc(report->summary.ranks + 1, sizeof *report->origins);
    if (report->origins == NULL)
        return false;
    origins_name(report);
    origins_count(report);
    return true;
}

bool leak_report_complete(struct leak_report *report) {
    struct leak_oom *oom = &report->oom;

    tg_leaks_summary(report->leaks, &report->summary);
    report->read_count = 0;
    report->events = 0;
    for (size_t i = 0; i < report->file_count; i++) {
        const struct job *job = &report->jobs[i];

        if (job->digest == NULL)
            continue;
        report->read_count++;
        report->events += job->info.events;
        if (!job->info.has_oom)
            continue;
        oom->files++;
        if (oom->job == NULL || job->info.last_us < oom->job->info.last_us) {
            oom->job = job;
            oom->place = &report->places[i];
        }
    }
    outlook_find(report);
    return origins_find(report);
}

void leak_report_free(struct leak_report *report) {
    free(report->origins);
}
