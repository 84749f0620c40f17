/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate leak --json`: one object of doc/schema/leak-1.json, on one line. Every adding function
 * returns 0, or not 0 where memory was short; what was made so far is then thrown away. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "clean.h"
#include "leak_report.h"

/* Significant digits of rates: enough for bytes in a petabyte, without the noise of a double. */
#define REAL_DIGITS 15

/* What is longer is cut, so that a file cannot ask for an answer without end: characters of a text,
 * frames of a stack (the innermost), rows of a list (the largest). */
#define TEXT_MOST 8192
#define FRAME_TEXT_MOST 1024
#define FRAMES_MOST 256
#define SITES_MOST 500

/* Jansson's setters take the value over, and answer NULL (no memory) with -1. */
static int put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value);
}

/* A value that is finished, or thrown away because a part of it is missing. */
static json_t *whole(json_t *value, int failed) {
    if (failed == 0)
        return value;
    json_decref(value);
    return NULL;
}

static json_t *text_value(const char *text, size_t most) {
    char *shown = clean_copy(text, most);
    json_t *value = shown == NULL ? NULL : json_string(shown);

    free(shown);
    return value;
}

static json_t *count_value(uint64_t count) {
    return json_integer(count > INT64_MAX ? INT64_MAX : (json_int_t)count);
}

/* -1 stands for "not known" in the library. */
static json_t *known_value(int64_t number) {
    return number < 0 ? json_null() : json_integer(number);
}

static json_t *input_object(const struct job *job, const struct layout *place) {
    json_t *object = json_object();
    int failed = 0;

    failed |= put(object, "file", text_value(job->path, TEXT_MOST));
    failed |= put(object, "format", json_string(job->format));
    failed |= put(object, "events", count_value(job->info.events));
    failed |= put(object, "rank", known_value(place->rank));
    failed |= put(object, "pid", known_value(place->pid));
    failed |= put(object, "step", known_value(place->last_step));
    failed |= put(object, "live_bytes", count_value(job->info.live_bytes));
    failed |= put(object, "reserved_bytes", count_value(job->info.reserved_bytes));
    failed |= put(object, "peak_bytes", count_value(job->info.peak_bytes));
    return whole(object, failed);
}

static json_t *inputs_array(const struct leak_report *report) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->file_count; i++) {
        if (report->jobs[i].digest != NULL)
            failed |=
                json_array_append_new(array, input_object(&report->jobs[i], &report->places[i]));
    }
    return whole(array, failed);
}

static json_t *rank_object(const struct leak_report *report, size_t row) {
    const struct tg_leak_rank *rank = tg_leaks_rank(report->leaks, row);
    json_t *object = json_object();
    int failed = 0;

    failed |= put(object, "rank", known_value(rank->rank));
    failed |= put(object, "verdict", json_string(leak_verdict_name(rank->verdict)));
    failed |= put(object, "bytes_per_step", json_real(rank->bytes_per_step));
    failed |= put(object, "bytes_total", count_value(rank->total_bytes));
    failed |= put(object, "steps", count_value(rank->steps));
    failed |= put(object, "steps_grown", count_value(rank->steps_grown));
    failed |= put(object, "first_step", known_value(rank->first_step));
    failed |= put(object, "last_step", known_value(rank->last_step));
    failed |= put(object, "live_bytes", count_value(rank->live_bytes));
    failed |= put(object, "peak_bytes", count_value(rank->peak_bytes));
    failed |= put(object, "pid", known_value(rank->pid));
    if (report->name_count > 1)
        failed |= put(object, "run", text_value(report->origins[row].name, TEXT_MOST));
    return whole(object, failed);
}

static json_t *ranks_array(const struct leak_report *report) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->summary.ranks; i++)
        failed |= json_array_append_new(array, rank_object(report, i));
    return whole(array, failed);
}

static json_t *stack_array(const struct tg_leak_site *site) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < site->stack_count && i < FRAMES_MOST; i++) {
        const struct tg_leak_frame *frame = &site->stack[i];
        json_t *object = json_object();

        failed |= put(object, "file", text_value(frame->file, FRAME_TEXT_MOST));
        failed |= put(object, "line", json_integer(frame->line));
        failed |= put(object, "function", text_value(frame->function, FRAME_TEXT_MOST));
        failed |= json_array_append_new(array, object);
    }
    return whole(array, failed);
}

static json_t *site_ranks_array(const struct tg_leak_site *site) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < site->rank_count; i++)
        failed |= json_array_append_new(array, known_value(site->ranks[i]));
    return whole(array, failed);
}

static json_t *site_object(const struct tg_leak_site *site) {
    bool has_own = site->own_frame < site->stack_count && site->own_frame < FRAMES_MOST;
    const struct tg_leak_frame *frame;
    json_t *object = json_object();
    int failed = 0;

    failed |= put(object, "bytes_per_step", json_real(site->bytes_per_step));
    failed |= put(object, "bytes_total", count_value(site->bytes));
    failed |= put(object, "blocks", count_value(site->blocks));
    failed |= put(object, "blocks_per_step", json_real(site->blocks_per_step));
    failed |= put(object, "steps_grown", count_value(site->steps_grown));
    failed |= put(object, "first_step", known_value(site->first_step));
    failed |= put(object, "ranks", site_ranks_array(site));
    failed |= put(object, "confidence", json_real(site->confidence));
    failed |= put(object, "where", text_value(site->where, TEXT_MOST));
    failed |= put(object, "own_frame", has_own ? count_value(site->own_frame) : json_null());
    if (leak_site_is_optimizer(site, &frame))
        failed |= put(object, "label", json_string("optimizer state"));
    failed |= put(object, "stack", stack_array(site));
    return whole(object, failed);
}

static json_t *sites_array(const struct leak_report *report, enum tg_leak_list list) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->summary.sites[list] && i < SITES_MOST; i++)
        failed |= json_array_append_new(array, site_object(tg_leaks_site(report->leaks, list, i)));
    return whole(array, failed);
}

static json_t *notes_array(const struct leak_report *report) {
    json_t *array = json_array();
    size_t cut = 0;
    int failed = 0;

    for (size_t list = 0; list <= TG_LIST_UNKNOWN; list++)
        cut += report->summary.sites[list] > SITES_MOST;
    if (cut > 0)
        failed |= json_array_append_new(
            array, json_sprintf("of longer lists the largest %d are shown", SITES_MOST));

    for (size_t i = 0; i < report->notes->count; i++)
        failed |= json_array_append_new(array, text_value(report->notes->items[i], TEXT_MOST));
    for (size_t i = 0; i < report->summary.notes; i++)
        failed |= json_array_append_new(array,
                                        text_value(tg_leaks_note(report->leaks, i), TEXT_MOST));
    return whole(array, failed);
}

/* The first out-of-memory event's own figures; null without one. */
static json_t *oom_value(const struct leak_oom *oom) {
    const struct tg_digest_info *info;
    json_t *object;
    int failed = 0;

    if (oom->job == NULL)
        return json_null();
    info = &oom->job->info;
    object = json_object();
    failed |= put(object, "file", text_value(oom->job->path, TEXT_MOST));
    failed |= put(object, "rank", known_value(oom->place->rank));
    failed |= put(object, "asked_bytes", count_value(info->oom_asked_bytes));
    failed |= put(object, "free_bytes", count_value(info->oom_free_bytes));
    failed |= put(object, "live_bytes", count_value(info->oom_live_bytes));
    failed |= put(object, "files", count_value(oom->files));
    return whole(object, failed);
}

static int outlook_put(json_t *object, const struct leak_report *report) {
    const struct leak_outlook *outlook = &report->outlook;
    bool is_known = outlook->is_known;
    int failed = 0;

    failed |= put(object, "capacity_bytes", count_value(report->capacity_bytes));
    failed |= put(object, "full_at_step", known_value(is_known ? outlook->step : -1));
    failed |= put(object, "full_in_steps", known_value(is_known ? outlook->steps : -1));
    failed |= put(object, "full_on_rank", known_value(is_known ? outlook->rank : -1));
    return failed;
}

static int answer_put(json_t *object, const struct leak_report *report) {
    const struct tg_leak_summary *summary = &report->summary;
    const char *source = leak_step_source_name(summary->step_source);
    int failed = 0;

    failed |= put(object, "schema", json_string("tidegate.leak/1"));
    failed |= put(object, "inputs", inputs_array(report));
    failed |= put(object, "ranks", ranks_array(report));
    failed |= put(object, "steps", count_value(summary->steps));
    failed |= put(object, "first_step", known_value(summary->first_step));
    failed |= put(object, "last_step", known_value(summary->last_step));
    failed |= put(object, "step_source", source == NULL ? json_null() : json_string(source));
    failed |= put(object, "step_confidence", json_real(summary->step_confidence));
    failed |= put(object, "verdict", json_string(leak_verdict_name(summary->verdict)));
    failed |= put(object, "bytes_per_step", json_real(summary->bytes_per_step));
    failed |= outlook_put(object, report);
    failed |= put(object, "oom", oom_value(&report->oom));
    failed |= put(object, "leaks", sites_array(report, TG_LIST_LEAKS));
    failed |= put(object, "one_time", sites_array(report, TG_LIST_ONE_TIME));
    failed |= put(object, "comes_and_goes", sites_array(report, TG_LIST_TIDES));
    failed |= put(object, "unknown", sites_array(report, TG_LIST_UNKNOWN));
    failed |= put(object, "notes", notes_array(report));
    return failed;
}

bool leak_json_print(const struct leak_report *report) {
    json_t *object = json_object();
    bool printed = answer_put(object, report) == 0 &&
                   json_dumpf(object, stdout, JSON_REAL_PRECISION(REAL_DIGITS)) == 0;

    json_decref(object);
    if (printed)
        putchar('\n');
    return printed;
}
