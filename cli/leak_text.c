/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate leak` for people: what was read, the verdict, the sites, when the card is full. Docs
 * and tests quote this text to the letter. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clean.h"
#include "figures.h"
#include "leak_report.h"

enum {
    LABEL_WIDTH = 19,    /* "once, not a leak   " */
    PLACE_CHARS_MAX = 96, /* C++ names can fill a page */
    NAME_CHARS_MAX = 44,  /* of one of several frames in a line */
    RANKS_CHARS_MAX = 48,
    NAMES_MAX = 3,        /* of runs in a line */
    CHAIN_FRAMES_MAX = 3,
    OTHER_ROWS_MAX = 3   /* of what is no leak: the largest are enough */
};

/* "3-8" or "3". */
static void print_span(int64_t first, int64_t last) {
    printf("%" PRId64, first);
    if (last != first)
        printf("-%" PRId64, last);
}

static bool some_step_is_known(const struct leak_report *report) {
    for (size_t i = 0; i < report->file_count; i++) {
        if (report->jobs[i].digest != NULL && report->places[i].first_step >= 0)
            return true;
    }
    return false;
}

/* A file whose path tells no step, and that shows none either, is one point in time. */
static bool has_no_steps(const struct leak_report *report) {
    return report->summary.steps <= 1 && report->summary.step_source == TG_STEPS_FILES &&
           !some_step_is_known(report);
}

static void print_steps(const struct leak_report *report) {
    const struct tg_leak_summary *summary = &report->summary;

    if (has_no_steps(report)) {
        fputs(report->read_count == 1 ? "no steps in it" : "no steps in them", stdout);
        return;
    }

    if (summary->first_step >= 0) {
        fputs(summary->first_step == summary->last_step ? "step " : "steps ", stdout);
        print_span(summary->first_step, summary->last_step);
    } else {
        fputs(plural_figure(summary->steps, "step").text, stdout);
    }
    switch (summary->step_source) {
    case TG_STEPS_MARK:
        fputs(" from marks named ", stdout);
        clean_print(stdout, report->step_mark == NULL ? "?" : report->step_mark, PLACE_CHARS_MAX);
        break;
    case TG_STEPS_PROFILER:
        fputs(" from ProfilerStep annotations", stdout);
        break;
    case TG_STEPS_OPTIMIZER:
        fputs(" from Optimizer.step annotations", stdout);
        break;
    case TG_STEPS_PERIOD:
        printf(" from a period in the events, confidence %.1f", summary->step_confidence);
        break;
    case TG_STEPS_FILES:
        if (!some_step_is_known(report))
            fputs(" in order of time", stdout);
        break;
    case TG_STEPS_NONE:
        break;
    }
}

/* What a row is: a run, unless a run has several. */
static const char *row_noun(const struct leak_report *report) {
    return report->has_numbers || report->name_count < report->summary.ranks ? "rank" : "run";
}

/* "8 ranks", "2 runs", "2 runs, 6 ranks"; false: nothing, for one rank without a number. */
static bool print_rows(const struct leak_report *report) {
    size_t rows = report->summary.ranks;

    if (rows == 1 && !report->has_numbers)
        return false;
    if (report->name_count > 1 && report->name_count < rows)
        printf("%s, ", plural_figure(report->name_count, "run").text);
    fputs(plural_figure(rows, row_noun(report)).text, stdout);
    return true;
}

static void print_head(const struct leak_report *report) {
    size_t files = report->file_count + report->unplaced_count;

    if (report->read_count < files)
        printf("%zu of ", report->read_count);
    printf("%s: ", plural_figure(files, "file").text);
    if (print_rows(report))
        fputs(has_no_steps(report) ? ", " : " x ", stdout);
    print_steps(report);
    printf("    %s events, %.*f s\n", count_figure(report->events).text,
           report->seconds < 0.095 ? 2 : 1, report->seconds);
}

/* The ranks as "0-3, 5"; cut where that is longer than the buffer. */
static void ranks_write(const int64_t *ranks, size_t count, char *text, size_t size) {
    size_t length = 0;

    text[0] = '\0';
    for (size_t i = 0; i < count;) {
        size_t last = i;
        int added;

        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
            last++;
        added = last == i ? snprintf(text + length, size - length, "%s%" PRId64,
                                     i == 0 ? "" : ", ", ranks[i])
                          : snprintf(text + length, size - length, "%s%" PRId64 "%s%" PRId64,
                                     i == 0 ? "" : ", ", ranks[i], last == i + 1 ? ", " : "-",
                                     ranks[last]);
        if (added < 0 || (size_t)added + 5 > size - length) {
            snprintf(text + length, size - length, ", ...");
            return;
        }
        length += (size_t)added;
        i = last + 1;
    }
}

/* Ranks with the same verdict, and what they have in common. */
struct rank_group {
    enum tg_verdict verdict;
    size_t count, steps;
    double low, high; /* bytes a step */
    const struct tg_leak_rank *worst;
    int64_t ranks[64]; /* the first of them */
};

static struct rank_group ranks_with(const struct leak_report *report, enum tg_verdict verdict) {
    struct rank_group group = {.verdict = verdict};

    for (size_t i = 0; i < report->summary.ranks; i++) {
        const struct tg_leak_rank *rank = tg_leaks_rank(report->leaks, i);

        if (rank->verdict != verdict)
            continue;
        if (group.count < sizeof group.ranks / sizeof group.ranks[0])
            group.ranks[group.count] = rank->rank;
        if (rank->steps > group.steps)
            group.steps = rank->steps;
        if (group.count == 0 || rank->bytes_per_step < group.low)
            group.low = rank->bytes_per_step;
        if (group.count == 0 || rank->bytes_per_step > group.high) {
            group.high = rank->bytes_per_step;
            group.worst = rank;
        }
        group.count++;
    }
    return group;
}

/* A row where ranks do not tell it: "mix/gpu0", "verl_now rank 0". */
static void print_name(const struct leak_report *report, size_t row) {
    const struct tg_leak_rank *rank = tg_leaks_rank(report->leaks, row);

    clean_print(stdout, report->origins[row].name, PLACE_CHARS_MAX);
    if (rank->rank >= 0)
        printf(" rank %" PRId64, rank->rank);
    if (report->origins[row].tells_pid && rank->pid >= 0)
        printf(" pid %" PRId64, rank->pid);
}

static void print_names(const struct leak_report *report, const struct rank_group *group) {
    size_t shown = 0;

    for (size_t row = 0; row < report->summary.ranks && shown < NAMES_MAX; row++) {
        if (tg_leaks_rank(report->leaks, row)->verdict != group->verdict)
            continue;
        fputs(shown == 0 ? "" : ", ", stdout);
        print_name(report, row);
        shown++;
    }
    if (group->count > shown)
        printf(" and %zu more", group->count - shown);
}

/* " on all 8 ranks", " on ranks 0-3, 7 of 8", " on 1 of 2 runs (mix/gpu0)"; nothing where there is
 * one rank without a number. */
static void print_group(const struct leak_report *report, const struct rank_group *group) {
    size_t listed = sizeof group->ranks / sizeof group->ranks[0];
    const char *noun = row_noun(report);
    char ranks[RANKS_CHARS_MAX];

    if (report->summary.ranks == 1 && group->ranks[0] >= 0) {
        printf(" on rank %" PRId64, group->ranks[0]);
    } else if (report->summary.ranks == 2 && group->count == 2) {
        printf(" on both %ss", noun);
    } else if (report->summary.ranks > 1 && group->count == report->summary.ranks) {
        printf(" on all %zu %ss", group->count, noun);
    } else if (report->summary.ranks > 1 && !report->has_numbers) {
        printf(" on %zu of %zu %ss (", group->count, report->summary.ranks, noun);
        print_names(report, group);
        putchar(')');
    } else if (report->summary.ranks > 1) {
        ranks_write(group->ranks, group->count < listed ? group->count : listed, ranks,
                    sizeof ranks);
        printf(" on rank%s %s of %zu", group->count == 1 ? "" : "s", ranks,
               report->summary.ranks);
    }
}

static void print_leak_verdict(const struct leak_report *report) {
    struct rank_group group = ranks_with(report, TG_VERDICT_LEAK);
    struct figure range = size_range_figure(group.low, group.high);

    printf("LEAK  %s a step", size_figure(report->summary.bytes_per_step).text);
    print_group(report, &group);
    if (strchr(range.text, '-') != NULL)
        printf(" (%s)", range.text);
    printf(", %zu of %zu steps, %s so far\n", group.worst->steps_grown, group.worst->steps - 1,
           size_figure((double)group.worst->total_bytes).text);
}

static void print_verdict(const struct leak_report *report) {
    struct rank_group undecided = ranks_with(report, TG_VERDICT_UNKNOWN);
    struct rank_group clean = ranks_with(report, TG_VERDICT_NONE);

    if (report->summary.verdict == TG_VERDICT_LEAK)
        print_leak_verdict(report);
    if (undecided.count > 0) {
        fputs("unknown  whether anything grows", stdout);
        print_group(report, &undecided);
        printf(" cannot be told from %s\n", plural_figure(undecided.steps, "step").text);
    }
    if (clean.count == report->summary.ranks) {
        fputs("no leak", stdout);
        if (report->min_growth_bytes > 0 && report->summary.small_growers > 0)
            printf(" above --min-growth %s",
                   size_figure((double)report->min_growth_bytes).text);
        printf("  over %s", plural_figure(clean.steps, "step").text);
        print_group(report, &clean);
        putchar('\n');
    }
}

static const char *base_name(const char *file) {
    const char *slash = strrchr(file, '/');

    return slash == NULL ? file : slash + 1;
}

static void print_frame(const struct tg_leak_frame *frame) {
    clean_print(stdout, base_name(frame->file), NAME_CHARS_MAX);
    printf(":%u ", frame->line);
    clean_print(stdout, frame->function, NAME_CHARS_MAX);
}

/* Frames that stand in every stack and say nothing: C++, and what calls a function for another. */
static bool frame_tells(const struct tg_leak_frame *frame) {
    static const char *const wrappers[] = {"_call_impl",       "_wrapped_call_impl", "wrapper",
                                           "wrapped",          "inner",              "_fn",
                                           "decorate_context", "wrapped_func",       "wrapped_fn",
                                           "_call_wrapped",    "call_wrapped",       "_use_grad"};
    const char *ending = strrchr(frame->file, '.');

    if (frame->file[0] != '<' && (ending == NULL || strcmp(ending, ".py") != 0))
        return false;
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        if (strcmp(frame->function, wrappers[i]) == 0)
            return false;
    }
    return true;
}

/* The way from below the own frame inward; of a long one its first frame and its last two. Without
 * an own frame `where` is the innermost, and the way to it from outside is shown. */
static void print_chain(const struct tg_leak_site *site, int indent) {
    bool has_own = site->own_frame < site->stack_count;
    size_t begin = has_own ? site->own_frame : site->stack_count; /* walked down from here */
    size_t end = has_own ? 0 : 1;
    size_t telling = 0, at = 0;

    for (size_t i = begin; i-- > end;)
        telling += frame_tells(&site->stack[i]);
    if (telling == 0)
        return;
    printf("%*s%s", indent, "", has_own ? "" : "from ");
    for (size_t i = begin; i-- > end;) {
        size_t left = telling - at;

        if (!frame_tells(&site->stack[i]))
            continue;
        if (telling > CHAIN_FRAMES_MAX && at > 0 && left > CHAIN_FRAMES_MAX - 1) {
            if (at == 1)
                fputs(" > ...", stdout);
        } else {
            if (at > 0)
                fputs(" > ", stdout);
            print_frame(&site->stack[i]);
        }
        at++;
    }
    putchar('\n');
}

/* "1 block/step", "0.5 blocks/step". */
static struct figure blocks_figure(double blocks) {
    struct figure figure;

    snprintf(figure.text, sizeof figure.text, "%.3g %s/step", blocks,
             blocks > 0.995 && blocks < 1.005 ? "block" : "blocks");
    return figure;
}

/* Which ranks, where a site is not on all that leak. Of several runs a site does not tell which. */
static void print_site_ranks(const struct leak_report *report, const struct tg_leak_site *site) {
    char ranks[RANKS_CHARS_MAX];

    if (report->summary.ranks < 2 || !report->has_numbers ||
        site->rank_count == ranks_with(report, TG_VERDICT_LEAK).count)
        return;
    ranks_write(site->ranks, site->rank_count, ranks, sizeof ranks);
    printf("  (rank%s %s)", site->rank_count == 1 ? "" : "s", ranks);
}

static void print_leaks(const struct leak_report *report) {
    size_t count = report->summary.sites[TG_LIST_LEAKS];
    size_t shown = count < report->rows_most ? count : report->rows_most;
    int bytes_width = 0, blocks_width = 0;
    double rest = 0;

    for (size_t i = 0; i < shown; i++) {
        const struct tg_leak_site *site = tg_leaks_site(report->leaks, TG_LIST_LEAKS, i);
        int bytes = (int)strlen(size_figure(site->bytes_per_step).text);
        int blocks = (int)strlen(blocks_figure(site->blocks_per_step).text);

        bytes_width = bytes > bytes_width ? bytes : bytes_width;
        blocks_width = blocks > blocks_width ? blocks : blocks_width;
    }
    for (size_t i = 0; i < count; i++) {
        const struct tg_leak_site *site = tg_leaks_site(report->leaks, TG_LIST_LEAKS, i);

        if (i >= shown) {
            rest += site->bytes_per_step;
            continue;
        }
        printf("%3zu  %*s/step  %-*s  ", i + 1, bytes_width, size_figure(site->bytes_per_step).text,
               blocks_width, blocks_figure(site->blocks_per_step).text);
        clean_print(stdout, site->where, PLACE_CHARS_MAX);
        print_site_ranks(report, site);
        putchar('\n');
        print_chain(site, 5 + bytes_width + 7 + blocks_width + 2);
    }
    if (count > shown)
        printf("     and %zu more with %s/step together (--top)\n", count - shown,
               size_figure(rest).text);
}

/* "7.1 GiB optimizer state (step 3, adamw.py:139)", "2.0 GiB actor.py:30 sync". */
static void print_other_site(const struct tg_leak_site *site, int width) {
    const struct tg_leak_frame *frame;
    bool is_once = site->kind == TG_GROWTH_ONCE || site->kind == TG_GROWTH_BOUNDED;
    bool is_optimizer = is_once && leak_site_is_optimizer(site, &frame);

    printf("%*s ", width, size_figure((double)site->bytes).text);
    clean_print(stdout, is_optimizer ? "optimizer state" : site->where, PLACE_CHARS_MAX);
    if (is_once && site->first_step >= 0)
        printf(" (step %" PRId64, site->first_step);
    if (is_optimizer) {
        fputs(site->first_step >= 0 ? ", " : " (", stdout);
        clean_print(stdout, base_name(frame->file), NAME_CHARS_MAX);
        printf(":%u", frame->line);
    }
    fputs((is_once && site->first_step >= 0) || is_optimizer ? ")\n" : "\n", stdout);
}

static void print_list(const struct leak_report *report, enum tg_leak_list list,
                       const char *label) {
    size_t count = report->summary.sites[list];
    size_t most = report->rows_most < OTHER_ROWS_MAX ? report->rows_most : OTHER_ROWS_MAX;
    size_t shown = count < most ? count : most;
    double rest = 0;
    int width = 0;

    for (size_t i = 0; i < shown; i++) {
        const struct tg_leak_site *site = tg_leaks_site(report->leaks, list, i);
        int length = (int)strlen(size_figure((double)site->bytes).text);

        width = length > width ? length : width;
    }
    for (size_t i = 0; i < count; i++) {
        const struct tg_leak_site *site = tg_leaks_site(report->leaks, list, i);

        if (i >= shown) {
            rest += (double)site->bytes;
            continue;
        }
        printf("%-*s", LABEL_WIDTH, i == 0 ? label : "");
        print_other_site(site, width);
    }
    if (count > shown)
        printf("%*sand %zu smaller, %s together\n", LABEL_WIDTH, "", count - shown,
               size_figure(rest).text);
}

/* The rank, or of several runs the file. */
static void print_oom_place(const struct leak_report *report) {
    const struct layout *place = report->oom.place;

    if (report->name_count > 1) {
        fputs(" (", stdout);
        clean_print(stdout, report->oom.job->path, PLACE_CHARS_MAX);
        putchar(')');
    } else if (place->rank >= 0) {
        printf(" (rank %" PRId64 ")", place->rank);
    }
}

static void print_oom(const struct leak_report *report) {
    const struct leak_oom *oom = &report->oom;
    const struct tg_digest_info *info;

    if (oom->job == NULL)
        return;
    info = &oom->job->info;
    printf("%-*s%s asked for, %s free on the card, %s live", LABEL_WIDTH,
           "out of memory", size_figure((double)info->oom_asked_bytes).text,
           size_figure((double)info->oom_free_bytes).text,
           size_figure((double)info->oom_live_bytes).text);
    print_oom_place(report);
    if (info->oom_free_bytes > info->oom_asked_bytes) /* set_per_process_memory_fraction */
        fputs(", so a limit on the process, not the card, refused it", stdout);
    if (oom->files > 1)
        printf("; %s more file%s such an event", count_figure(oom->files - 1).text,
               oom->files == 2 ? " holds" : "s hold");
    putchar('\n');
}

static void print_outlook(const struct leak_report *report) {
    const struct leak_outlook *outlook = &report->outlook;

    if (!outlook->is_known)
        return;
    printf("at %s (--capacity) the card is full ",
           size_figure((double)report->capacity_bytes).text);
    if (outlook->is_full)
        printf("already: the peak is %s", size_figure((double)outlook->peak_bytes).text);
    else if (outlook->step >= 0)
        printf("at about step %" PRId64, outlook->step);
    else
        printf("after about %" PRId64 " more steps", outlook->steps);
    if (report->summary.ranks > 1) {
        fputs(" (", stdout);
        if (report->has_numbers)
            printf("rank %" PRId64, outlook->rank);
        else
            print_name(report, outlook->row);
        putchar(')');
    }
    fputs(". Who keeps block 1 is not in these files: run with TIDEGATE=observe\n", stdout);
}

static void print_notes(const struct leak_report *report, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        fputs("note: ", stdout);
        clean_print(stdout, tg_leaks_note(report->leaks, i), SENTENCE_BYTES);
        putchar('\n');
    }
}

void leak_text_print(const struct leak_report *report) {
    const struct tg_leak_summary *summary = &report->summary;

    print_head(report);
    /* Files that were left out belong to what was read, the other notes to what was found. */
    print_notes(report, 0, summary->file_notes);
    print_verdict(report);
    print_leaks(report);
    print_list(report, TG_LIST_ONE_TIME, "once, not a leak");
    print_list(report, TG_LIST_TIDES, "comes and goes");
    print_list(report, TG_LIST_UNKNOWN, "unknown");
    print_oom(report);
    print_outlook(report);
    print_notes(report, summary->file_notes, summary->notes);
}
