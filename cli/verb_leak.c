/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate leak: collects the files, reads them on all cores, asks the library what grows, prints
 * the answer. The run owns all that is made on the way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "collect.h"
#include "figures.h"
#include "input.h"
#include "leak_report.h"
#include "monotonic.h"
#include "options.h"
#include "say.h"
#include "verb.h"

/* --fail-above not given; 0 is a limit, too. */
#define NO_LIMIT UINT64_MAX

#define MIN_GROWTH_PRESET "16KiB"

struct leak_options {
    bool json;
    uint64_t capacity_bytes, fail_above_bytes, min_growth_bytes, memory_bytes;
    const char *step_from, *rank_from, *step_mark;
    struct option_texts own;
    size_t jobs, rows_most;
};

#define FIELD(name) offsetof(struct leak_options, name)

static const struct option_row rows[] = {
    {"json", NULL, NULL, "one JSON object (schema tidegate.leak/1) instead of text",
     option_parse_flag, FIELD(json)},
    {"capacity", "SIZE", "80GiB", "the card's memory, to tell when it will be full",
     option_parse_size, FIELD(capacity_bytes)},
    {"fail-above", "SIZE", NULL, "exit with 3 if a rank leaks more than this in a step",
     option_parse_size, FIELD(fail_above_bytes)},
    {"min-growth", "SIZE", MIN_GROWTH_PRESET, "what grows less in a step is no leak",
     option_parse_size, FIELD(min_growth_bytes)},
    {"top", "N", "10", "leaking lines to show at most", option_parse_count, FIELD(rows_most)},
    {"own", "PATTERN", NULL, "your code: files whose path matches; may be repeated",
     option_parse_append, FIELD(own)},
    {"step-from", "PATTERN", NULL, "take a file's step from its path: the group in PATTERN",
     option_parse_text, FIELD(step_from)},
    {"rank-from", "PATTERN", NULL, "take a file's rank from its path, likewise",
     option_parse_text, FIELD(rank_from)},
    {"step-mark", "NAME", NULL, "steps in a file begin at annotations or metadata of this name",
     option_parse_text, FIELD(step_mark)},
    {"jobs", "N", NULL, "files to read at once (default: one for each core)",
     option_parse_count, FIELD(jobs)},
    {"memory", "SIZE", NULL, "for unpacked data (default: half of what is available)",
     option_parse_size, FIELD(memory_bytes)},
};

static const struct option_table table = {
    .verb = "leak",
    .arguments = "PATH...",
    .summary =
        "Finds what holds more GPU memory after every step, and the line of code it belongs to,\n"
        "in snapshots of PyTorch's allocator (torch.cuda.memory._dump_snapshot). PATH is a file,\n"
        "- for standard input, or a folder with files of ranks and steps as verl writes them.\n"
        "gzip, xz and zstd are unpacked.\n",
    .more = "PATTERN is a POSIX extended regular expression. A SIZE is 80GiB, 512MiB, 1e9 ...\n"
            "Exit status: 0 answered; 2 nothing could be read, or wrong usage; 3 --fail-above.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

struct leak_run {
    struct leak_options options;
    const struct option_texts *paths;
    regex_t step_pattern, rank_pattern;
    struct layout_patterns patterns; /* point to the two above where they are compiled */
    struct texts notes;
    struct collected collected;
    struct job *jobs;       /* those files whose place is known */
    struct layout *places;  /* of the same files */
    size_t count, unplaced; /* unplaced: files that a pattern did not fit */
    struct texts runs;      /* what layout_run says of the places' runs */
    struct tg_leaks *leaks;
};

static bool pattern_compile(const char *option, const char *text, regex_t *pattern,
                            const regex_t **compiled) {
    struct sentence why;

    if (text == NULL)
        return true;
    if (!layout_pattern_compile(text, pattern, &why)) {
        say("%s %s", option, why.text);
        return false;
    }
    *compiled = pattern;
    return true;
}

static bool patterns_compile(struct leak_run *run) {
    return pattern_compile("--step-from", run->options.step_from, &run->step_pattern,
                           &run->patterns.step) &&
           pattern_compile("--rank-from", run->options.rank_from, &run->rank_pattern,
                           &run->patterns.rank);
}

/* Gives the file the number of its run. Most files are of the run of the one before. */
static bool run_set(struct leak_run *run, const char *path, struct layout *place) {
    struct texts *runs = &run->runs;
    char *key = malloc(strlen(path) + 2);
    size_t at;
    bool is_set;

    if (key == NULL)
        return false;
    layout_run(path, &run->patterns, key);
    for (at = runs->count; at > 0 && strcmp(runs->items[at - 1], key) != 0;)
        at--;
    is_set = at > 0 || texts_add(runs, "%s", key);
    place->run = (int32_t)(at > 0 ? at : runs->count) - 1;
    free(key);
    return is_set;
}

static bool patterns_fit_some(const struct leak_run *run) {
    for (size_t i = 0; i < run->collected.count; i++) {
        const char *path = run->collected.files[i].path;
        struct layout place;
        struct sentence why;

        layout_read(path, &place);
        if (layout_apply(&run->patterns, path, &place, &why))
            return true;
    }
    return false;
}

/* Says which path a pattern does not fit; `others`: how many more there are like it, where it fits
 * none, with what is mostly the reason. */
static bool misfit_say(struct leak_run *run, const char *path, const struct sentence *why,
                       bool fits_some) {
    const struct leak_options *options = &run->options;
    size_t others = fits_some ? 0 : run->collected.count - 1;
    bool has_digit_class = /* taken for a 'd' */
        (options->step_from != NULL && strstr(options->step_from, "\\d") != NULL) ||
        (options->rank_from != NULL && strstr(options->rank_from, "\\d") != NULL);
    char more[48] = "";

    if (others > 0)
        snprintf(more, sizeof more, " (likewise %zu more file%s)", others,
                 others == 1 ? "" : "s");
    return texts_say(&run->notes, "%s: %s%s%s", input_name(path), why->text, more,
                     has_digit_class ? "; \\d is not POSIX; write [0-9]" : "");
}

/* Makes a job of every file whose path says what it should. False: no memory. */
static bool files_place(struct leak_run *run) {
    const struct collected *collected = &run->collected;

    bool fits_some = patterns_fit_some(run);

    run->jobs = calloc(collected->count + 1, sizeof *run->jobs);
    run->places = calloc(collected->count + 1, sizeof *run->places);
    if (run->jobs == NULL || run->places == NULL)
        return false;
    for (size_t i = 0; i < collected->count; i++) {
        const struct collected_file *file = &collected->files[i];
        struct layout *place = &run->places[run->count];
        struct sentence why;

        layout_read(file->path, place);
        if (!layout_apply(&run->patterns, file->path, place, &why)) {
            run->unplaced++;
            if (!misfit_say(run, file->path, &why, fits_some))
                return false;
            if (!fits_some)
                return true;
            continue;
        }
        if (!run_set(run, file->path, place))
            return false;
        run->jobs[run->count].path = file->path;
        run->jobs[run->count].is_stream = file->is_stream;
        run->count++;
    }
    return true;
}

/* Tells moments of a step apart, among the files that were read. */
static bool families_set(struct leak_run *run) {
    struct layout **read = calloc(run->count + 1, sizeof(struct layout *));
    size_t count = 0;

    if (read == NULL)
        return false;
    for (size_t i = 0; i < run->count; i++) {
        if (run->jobs[i].digest != NULL)
            read[count++] = &run->places[i];
    }
    layout_families(read, count);
    free(read);
    return true;
}

/* Says which files could not be read; true if some could. */
static bool failures_say(struct leak_run *run) {
    size_t read = 0;

    for (size_t i = 0; i < run->count; i++) {
        const struct job *job = &run->jobs[i];

        if (job->digest != NULL)
            read++;
        else if (!texts_say(&run->notes, "%s: %s", input_name(job->path), job->why.text))
            say_no_memory();
    }
    return read > 0;
}

/* A mark that is nowhere would leave steps that the user did not ask for. */
static bool mark_was_found(const struct leak_run *run) {
    const char *mark = run->options.step_mark;

    if (mark == NULL)
        return true;
    for (size_t i = 0; i < run->count; i++) {
        if (run->jobs[i].digest != NULL && run->jobs[i].info.step_source == TG_STEPS_MARK)
            return true;
    }
    say("--step-mark %s: no annotation or metadata in these files has this name", mark);
    return false;
}

/* An oom in a path is believed if the file holds such an event, or no history at all. */
static bool was_written_at_oom(const struct layout *place, const struct job *job) {
    return place->is_oom && (job->info.has_oom != 0 || job->info.events == 0);
}

/* What the library is given of each file that was read; returns how many. */
static size_t inputs_fill(const struct leak_run *run, struct tg_leak_input *inputs) {
    size_t count = 0;

    for (size_t i = 0; i < run->count; i++) {
        const struct layout *place = &run->places[i];

        if (run->jobs[i].digest == NULL)
            continue;
        inputs[count++] = (struct tg_leak_input){
            .digest = run->jobs[i].digest,
            .rank = place->rank,
            .pid = place->pid,
            .first_step = place->first_step,
            .last_step = place->last_step,
            .family = place->family,
            .is_oom = was_written_at_oom(place, &run->jobs[i]),
            .run = place->run,
        };
    }
    return count;
}

static bool leaks_find(struct leak_run *run) {
    struct tg_leak_params params = {
        .own = run->options.own.items,
        .own_count = run->options.own.count,
        /* 0 would ask the library for its own limit. */
        .min_bytes_per_step =
            run->options.min_growth_bytes == 0 ? 1 : run->options.min_growth_bytes,
    };
    struct tg_leak_input *inputs = calloc(run->count, sizeof *inputs);
    int status;

    if (inputs == NULL || !families_set(run)) {
        say_no_memory();
        free(inputs);
        return false;
    }
    status = tg_leaks_find(inputs, inputs_fill(run, inputs), &params, &run->leaks);
    free(inputs);
    if (status != 0)
        say("%s%s", status == TG_EPATTERN ? "--own: " : "", tg_last_error()->text);
    return status == 0;
}

static double seconds_since(uint64_t start_ns) {
    return 1e-9 * (double)(monotonic_ns() - start_ns);
}

/* EXIT_ABOVE where a rank leaks more than is allowed, which is said. */
static int limit_check(const struct leak_options *options, const struct tg_leak_summary *summary) {
    double limit = (double)options->fail_above_bytes;
    struct figure rate_figure, limit_figure;

    if (options->fail_above_bytes == NO_LIMIT || summary->verdict != TG_VERDICT_LEAK ||
        summary->bytes_per_step <= limit)
        return EXIT_ANSWERED;
    size_apart_figures(limit, summary->bytes_per_step, &limit_figure, &rate_figure);
    say("leaks %s a step, more than --fail-above %s", rate_figure.text, limit_figure.text);
    return EXIT_ABOVE;
}

static int answer_print(struct leak_run *run, uint64_t start_ns) {
    const struct leak_options *options = &run->options;
    struct leak_report report = {
        .jobs = run->jobs,
        .places = run->places,
        .file_count = run->count,
        .unplaced_count = run->unplaced,
        .leaks = run->leaks,
        .notes = &run->notes,
        .step_mark = options->step_mark,
        .runs = &run->runs,
        .capacity_bytes = options->capacity_bytes,
        .rows_most = options->rows_most,
        .seconds = seconds_since(start_ns),
    };
    uint64_t min_growth_preset;
    bool is_printed;

    if (size_read(MIN_GROWTH_PRESET, &min_growth_preset) &&
        options->min_growth_bytes != min_growth_preset)
        report.min_growth_bytes = options->min_growth_bytes;
    is_printed = leak_report_complete(&report);
    if (is_printed && options->json)
        is_printed = leak_json_print(&report);
    else if (is_printed)
        leak_text_print(&report);
    leak_report_free(&report);
    if (is_printed)
        return limit_check(options, &report.summary);
    say_no_memory();
    return EXIT_WRONG;
}

static int run_do(struct leak_run *run) {
    struct jobs_params params = {
        .threads = run->options.jobs,
        .memory_bytes = run->options.memory_bytes,
        .step_mark = run->options.step_mark,
    };
    uint64_t start_ns = monotonic_ns();

    if (run->paths->count == 0) {
        say("leak needs the path of a file or folder; tidegate leak --help says more");
        return EXIT_WRONG;
    }
    if (!patterns_compile(run))
        return EXIT_WRONG;
    for (size_t i = 0; i < run->paths->count; i++) {
        if (!collect_path(&run->collected, run->paths->items[i], &run->notes)) {
            say_no_memory();
            return EXIT_WRONG;
        }
    }
    if (!files_place(run)) {
        say_no_memory();
        return EXIT_WRONG;
    }
    jobs_run(run->jobs, run->count, &params);
    if (!failures_say(run) || !mark_was_found(run) || !leaks_find(run))
        return EXIT_WRONG;
    return answer_print(run, start_ns);
}

static void run_free(struct leak_run *run) {
    tg_leaks_close(run->leaks);
    for (size_t i = 0; i < run->count; i++)
        tg_digest_close(run->jobs[i].digest);
    free(run->jobs);
    free(run->places);
    collected_free(&run->collected);
    texts_free(&run->notes);
    texts_free(&run->runs);
    if (run->patterns.step != NULL)
        regfree(&run->step_pattern);
    if (run->patterns.rank != NULL)
        regfree(&run->rank_pattern);
}

static int run_with(void *values, const struct option_texts *paths) {
    const struct leak_options *options = values;
    struct leak_run run = {.options = *options, .paths = paths};
    int status = run_do(&run);

    run_free(&run);
    return status;
}

int verb_leak(int argc, char **argv) {
    struct leak_options options = {.fail_above_bytes = NO_LIMIT};

    return options_run(&table, argc, argv, &options, run_with);
}
