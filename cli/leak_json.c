/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate leak --json`: one object of doc/schema/leak-1.json, on one line. */
#include "json_value.h"
#include "leak_report.h"

/* What is longer is cut, so that a file cannot ask for an answer without end: characters of a text,
 * frames of a stack (the innermost), rows of a list (the largest). */
#define TEXT_MOST 8192
#define FRAME_TEXT_MOST 1024
#define FRAMES_MOST 256
#define SITES_MOST 500

static json_t *input_object(const struct job *job, const struct layout *place) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "file", json_text(job->path, TEXT_MOST));
    failed |= json_put(object, "format", json_string(job->format));
    failed |= json_put(object, "events", json_count(job->info.events));
    failed |= json_put(object, "rank", json_known(place->rank));
    failed |= json_put(object, "pid", json_known(place->pid));
    failed |= json_put(object, "step", json_known(place->last_step));
    failed |= json_put(object, "live_bytes", json_count(job->info.live_bytes));
    failed |= json_put(object, "reserved_bytes", json_count(job->info.reserved_bytes));
    failed |= json_put(object, "peak_bytes", json_count(job->info.peak_bytes));
    return json_whole(object, failed);
}

static json_t *inputs_array(const struct leak_report *report) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->file_count; i++) {
        if (report->jobs[i].digest != NULL)
            failed |=
                json_array_append_new(array, input_object(&report->jobs[i], &report->places[i]));
    }
    return json_whole(array, failed);
}

static json_t *rank_object(const struct leak_report *report, size_t row) {
    const struct tg_leak_rank *rank = tg_leaks_rank(report->leaks, row);
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "rank", json_known(rank->rank));
    failed |= json_put(object, "verdict", json_string(leak_verdict_name(rank->verdict)));
    failed |= json_put(object, "bytes_per_step", json_real(rank->bytes_per_step));
    failed |= json_put(object, "bytes_total", json_count(rank->total_bytes));
    failed |= json_put(object, "steps", json_count(rank->steps));
    failed |= json_put(object, "steps_grown", json_count(rank->steps_grown));
    failed |= json_put(object, "first_step", json_known(rank->first_step));
    failed |= json_put(object, "last_step", json_known(rank->last_step));
    failed |= json_put(object, "live_bytes", json_count(rank->live_bytes));
    failed |= json_put(object, "peak_bytes", json_count(rank->peak_bytes));
    failed |= json_put(object, "pid", json_known(rank->pid));
    if (report->name_count > 1)
        failed |= json_put(object, "run", json_text(report->origins[row].name, TEXT_MOST));
    return json_whole(object, failed);
}

static json_t *ranks_array(const struct leak_report *report) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->summary.ranks; i++)
        failed |= json_array_append_new(array, rank_object(report, i));
    return json_whole(array, failed);
}

static json_t *stack_array(const struct tg_leak_site *site) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < site->stack_count && i < FRAMES_MOST; i++) {
        const struct tg_leak_frame *frame = &site->stack[i];
        json_t *object = json_object();

        failed |= json_put(object, "file", json_text(frame->file, FRAME_TEXT_MOST));
        failed |= json_put(object, "line", json_integer(frame->line));
        failed |= json_put(object, "function", json_text(frame->function, FRAME_TEXT_MOST));
        failed |= json_array_append_new(array, object);
    }
    return json_whole(array, failed);
}

static json_t *site_ranks_array(const struct tg_leak_site *site) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < site->rank_count; i++)
        failed |= json_array_append_new(array, json_known(site->ranks[i]));
    return json_whole(array, failed);
}

static json_t *site_object(const struct tg_leak_site *site) {
    bool has_own = site->own_frame < site->stack_count && site->own_frame < FRAMES_MOST;
    const struct tg_leak_frame *frame;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "bytes_per_step", json_real(site->bytes_per_step));
    failed |= json_put(object, "bytes_total", json_count(site->bytes));
    failed |= json_put(object, "blocks", json_count(site->blocks));
    failed |= json_put(object, "blocks_per_step", json_real(site->blocks_per_step));
    failed |= json_put(object, "steps_grown", json_count(site->steps_grown));
    failed |= json_put(object, "first_step", json_known(site->first_step));
    failed |= json_put(object, "ranks", site_ranks_array(site));
    failed |= json_put(object, "confidence", json_real(site->confidence));
    failed |= json_put(object, "where", json_text(site->where, TEXT_MOST));
    failed |= json_put(object, "own_frame", has_own ? json_count(site->own_frame) : json_null());
    if (leak_site_is_optimizer(site, &frame))
        failed |= json_put(object, "label", json_string("optimizer state"));
    failed |= json_put(object, "stack", stack_array(site));
    return json_whole(object, failed);
}

static json_t *sites_array(const struct leak_report *report, enum tg_leak_list list) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < report->summary.sites[list] && i < SITES_MOST; i++)
        failed |= json_array_append_new(array, site_object(tg_leaks_site(report->leaks, list, i)));
    return json_whole(array, failed);
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
        failed |= json_array_append_new(array, json_text(report->notes->items[i], TEXT_MOST));
    for (size_t i = 0; i < report->summary.notes; i++)
        failed |= json_array_append_new(array,
                                        json_text(tg_leaks_note(report->leaks, i), TEXT_MOST));
    return json_whole(array, failed);
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
    failed |= json_put(object, "file", json_text(oom->job->path, TEXT_MOST));
    failed |= json_put(object, "rank", json_known(oom->place->rank));
    failed |= json_put(object, "asked_bytes", json_count(info->oom_asked_bytes));
    failed |= json_put(object, "free_bytes", json_count(info->oom_free_bytes));
    failed |= json_put(object, "live_bytes", json_count(info->oom_live_bytes));
    failed |= json_put(object, "files", json_count(oom->files));
    return json_whole(object, failed);
}

static int outlook_put(json_t *object, const struct leak_report *report) {
    const struct leak_outlook *outlook = &report->outlook;
    bool is_known = outlook->is_known;
    int failed = 0;

    failed |= json_put(object, "capacity_bytes", json_count(report->capacity_bytes));
    failed |= json_put(object, "full_at_step", json_known(is_known ? outlook->step : -1));
    failed |= json_put(object, "full_in_steps", json_known(is_known ? outlook->steps : -1));
    failed |= json_put(object, "full_on_rank", json_known(is_known ? outlook->rank : -1));
    return failed;
}

static int answer_put(json_t *object, const struct leak_report *report) {
    const struct tg_leak_summary *summary = &report->summary;
    const char *source = leak_step_source_name(summary->step_source);
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.leak/1"));
    failed |= json_put(object, "inputs", inputs_array(report));
    failed |= json_put(object, "ranks", ranks_array(report));
    failed |= json_put(object, "steps", json_count(summary->steps));
    failed |= json_put(object, "first_step", json_known(summary->first_step));
    failed |= json_put(object, "last_step", json_known(summary->last_step));
    failed |= json_put(object, "step_source", source == NULL ? json_null() : json_string(source));
    failed |= json_put(object, "step_confidence", json_real(summary->step_confidence));
    failed |= json_put(object, "verdict", json_string(leak_verdict_name(summary->verdict)));
    failed |= json_put(object, "bytes_per_step", json_real(summary->bytes_per_step));
    failed |= outlook_put(object, report);
    failed |= json_put(object, "oom", oom_value(&report->oom));
    failed |= json_put(object, "leaks", sites_array(report, TG_LIST_LEAKS));
    failed |= json_put(object, "one_time", sites_array(report, TG_LIST_ONE_TIME));
    failed |= json_put(object, "comes_and_goes", sites_array(report, TG_LIST_TIDES));
    failed |= json_put(object, "unknown", sites_array(report, TG_LIST_UNKNOWN));
    failed |= json_put(object, "notes", notes_array(report));
    return failed;
}

bool leak_json_print(const struct leak_report *report) {
    json_t *object = json_object();

    return json_print(object, answer_put(object, report));
}
