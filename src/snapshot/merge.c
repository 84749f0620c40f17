/* SPDX-License-Identifier: Apache-2.0 */
/* See merge.h. */
#include "snapshot/merge.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* So many points, files' ends or steps inside a file, can show growth. */
#define FILES_AS_POINTS_MIN 3

/* Of all ranks together. */
#define HELD_BYTES_MAX ((size_t)1 << 30)

/* The files of one rank while they are sorted out. */
struct group {
    const struct tg_leak_input **files;
    size_t count;
    struct tg__vec *notes;
};

int tg__note(struct tg__vec *notes, const char *format, ...) {
    char *text = NULL;
    va_list args;
    int length, rc;

    va_start(args, format);
    length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        return tg__fail_memory();
    rc = tg__vec_push(notes, &text);
    if (rc != 0)
        free(text);
    return rc;
}

/* ---- which files make a rank ---------------------------------------------------------------- */

static uint64_t end_us(const struct tg_leak_input *input) {
    return input->digest->info.last_us;
}

static int compare(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* Nothing in its name says that it belongs to others, and it shows enough steps by itself. */
static bool stands_alone(const struct tg_leak_input *input) {
    return input->rank < 0 && input->pid < 0 && input->last_step < 0 &&
           input->digest->info.steps >= FILES_AS_POINTS_MIN;
}

static int in_order(const void *a, const void *b) {
    const struct tg_leak_input *x = *(const struct tg_leak_input *const *)a;
    const struct tg_leak_input *y = *(const struct tg_leak_input *const *)b;
    int order = compare(x->rank, y->rank);

    if (order == 0)
        order = compare(x->run, y->run);
    if (order == 0)
        order = compare(stands_alone(x), stands_alone(y));
    if (order == 0)
        order = compare(x->pid, y->pid);
    if (order == 0)
        order = compare(x->last_step, y->last_step);
    if (order == 0)
        order = end_us(x) < end_us(y) ? -1 : end_us(x) > end_us(y);
    /* Last of all by the order in which they were given, so that equals stay in it. */
    return order != 0 ? order : (x > y) - (x < y);
}

/* Takes files out of a group, with a note that says how many and why. */
static int leave_out(struct group *g, bool (*leave)(const struct tg_leak_input *, int64_t),
                     int64_t argument, const char *why) {
    size_t kept = 0, all = g->count;
    char who[40] = "";

    for (size_t i = 0; i < all; i++) {
        if (!leave(g->files[i], argument))
            g->files[kept++] = g->files[i];
    }
    g->count = kept;
    if (kept == all)
        return 0;
    if (g->files[0]->rank >= 0)
        snprintf(who, sizeof who, "rank %" PRId64 ": ", g->files[0]->rank);
    return tg__note(g->notes, "%s%zu %s left out: %s", who, all - kept,
                    all - kept == 1 ? "file is" : "files are", why);
}

static bool is_oom(const struct tg_leak_input *input, int64_t unused) {
    (void)unused;
    return input->is_oom != 0;
}

static bool is_of_another_family(const struct tg_leak_input *input, int64_t family) {
    return input->family != family;
}

static bool has_no_step(const struct tg_leak_input *input, int64_t unused) {
    (void)unused;
    return input->last_step < 0;
}

static bool has_fewer_steps(const struct tg_leak_input *input, int64_t steps) {
    return (int64_t)input->digest->info.steps < steps;
}

static size_t count_of(const struct group *g,
                       bool (*is)(const struct tg_leak_input *, int64_t), int64_t argument) {
    size_t count = 0;

    for (size_t i = 0; i < g->count; i++)
        count += is(g->files[i], argument);
    return count;
}

static int leave_out_oom(struct group *g) {
    if (count_of(g, is_oom, 0) == g->count)
        return 0;
    return leave_out(g, is_oom, 0, "written in the middle of a step, at an out-of-memory error");
}

/* Where some names tell a step, those that do not have no place among them. */
static int leave_out_stepless(struct group *g) {
    if (count_of(g, has_no_step, 0) == g->count)
        return 0;
    return leave_out(g, has_no_step, 0, "no step in the name, unlike the others");
}

/* Files of another family show another moment of the step: the family with most files stays. */
static int keep_one_family(struct group *g) {
    int64_t best = 0;
    size_t best_count = 0;

    for (size_t i = 0; i < g->count; i++) {
        size_t same = g->count - count_of(g, is_of_another_family, g->files[i]->family);
        if (same > best_count || (same == best_count && g->files[i]->family < best)) {
            best_count = same;
            best = g->files[i]->family;
        }
    }
    return leave_out(g, is_of_another_family, best, "another moment of the step");
}

/* Of two files of one step the one written later counts: they follow each other. */
static int keep_one_a_step(struct group *g) {
    size_t kept = 0, all = g->count;

    for (size_t i = 0; i < all; i++) {
        bool same = kept > 0 && g->files[i]->last_step >= 0 &&
                    g->files[kept - 1]->last_step == g->files[i]->last_step;
        if (same)
            kept--;
        g->files[kept++] = g->files[i];
    }
    g->count = kept;
    return kept == all ? 0
                       : tg__note(g->notes, "%zu %s left out: a later one shows the same step",
                                  all - kept, all - kept == 1 ? "file is" : "files are");
}

/* ---- a rank's series ------------------------------------------------------------------------ */

/* The row of a stack in the rank, new or known; rows maps stacks of the common places. */
static int rank_row(struct tg__rank *rank, struct tg__map *rows, uint32_t stack, size_t *row) {
    uint32_t found = tg__map_get(rows, stack);
    void *added;
    int rc = 0;

    if (found == UINT32_MAX) {
        found = (uint32_t)rank->stacks.count;
        rc = tg__vec_push(&rank->stacks, &stack);
        if (rc == 0)
            rc = tg__vec_extend(&rank->held, rank->points + 2, &added);
        if (rc == 0)
            rc = tg__map_put(rows, stack, found);
    }
    *row = found;
    return rc;
}

/* Adds samples of one row of a digest to columns of the rank. Adds, since stacks that differ in the
 * file may be one here. */
static int copy_row(struct tg__rank *rank, struct tg__map *rows, uint32_t stack,
                    const struct tg__held *held, size_t to, size_t count) {
    struct tg__held *into;
    size_t row;
    int rc = rank_row(rank, rows, stack, &row);

    if (rc != 0)
        return rc;
    into = (struct tg__held *)rank->held.items + row * (rank->points + 2) + to;
    for (size_t i = 0; i < count; i++)
        tg__held_add(&into[i], held[i]);
    return 0;
}

/* Copies `count` samples of a digest, `from` on, to columns of the rank, `to` on. */
static int copy_samples(struct tg__merge *merge, struct tg__rank *rank, struct tg__map *rows,
                        const struct tg_digest *digest, size_t from, size_t to, size_t count) {
    const uint32_t *stacks = digest->stacks.items;
    const struct tg__held *old = digest->old.items;
    struct tg__map frames;
    uint32_t stack;
    int rc = 0;

    for (size_t i = 0; i < count; i++)
        tg__held_add(&rank->old[to + i], old[from + i]);
    tg__map_init(&frames);
    for (size_t i = 0; rc == 0 && i < digest->stacks.count; i++) {
        rc = tg__places_copy_stack(&merge->places, &digest->places, &frames, stacks[i], &stack);
        if (rc == 0)
            rc = copy_row(rank, rows, stack, tg__digest_row(digest, i) + from, to, count);
    }
    tg__map_free(&frames);
    return rc;
}

/* The name tells as many steps as there are inside. */
static bool names_its_steps(const struct tg_leak_input *file) {
    return file->first_step >= 0 &&
           (uint64_t)(file->last_step - file->first_step) + 1 == file->digest->info.steps;
}

/* Numbers of the steps inside a file. */
static void number_steps(const struct tg_leak_input *file, uint64_t *steps, size_t count,
                         uint64_t next) {
    if (names_its_steps(file) && (uint64_t)file->first_step >= next)
        next = (uint64_t)file->first_step;
    for (size_t i = 0; i < count; i++)
        steps[i] = next + i;
}

static int series_of_files(struct tg__merge *merge, struct tg__rank *rank, const struct group *g,
                           struct tg__map *rows) {
    int rc = copy_samples(merge, rank, rows, g->files[0]->digest, 0, 0, 1);

    rank->source = TG_STEPS_FILES;
    rank->step_confidence = 1;
    for (size_t i = 0; rc == 0 && i < g->count; i++) {
        const struct tg_digest *digest = g->files[i]->digest;
        bool numbered = g->files[0]->last_step >= 0;
        rank->steps[i] = numbered ? (uint64_t)g->files[i]->last_step : i + 1;
        rc = copy_samples(merge, rank, rows, digest, digest->samples - 1, i + 1, 1);
    }
    return rc;
}

static int series_inside(struct tg__merge *merge, struct tg__rank *rank, const struct group *g,
                         struct tg__map *rows) {
    size_t at = 0;
    int rc = copy_samples(merge, rank, rows, g->files[0]->digest, 0, 0, 1);

    rank->step_confidence = 1;
    for (size_t i = 0; rc == 0 && i < g->count; i++) {
        const struct tg_digest *digest = g->files[i]->digest;
        size_t steps = digest->info.steps;
        if (steps == 0)
            continue;
        number_steps(g->files[i], rank->steps + at, steps, at == 0 ? 1 : rank->steps[at - 1] + 1);
        rank->source = digest->info.step_source;
        if (digest->info.step_confidence < rank->step_confidence)
            rank->step_confidence = digest->info.step_confidence;
        rc = copy_samples(merge, rank, rows, digest, 1, at + 1, steps);
        at += steps;
    }
    return rc;
}

/* Histories that overlap would show the same step twice. */
static bool overlap(const struct group *g) {
    for (size_t i = 1; i < g->count; i++) {
        if (g->files[i]->digest->info.first_us < end_us(g->files[i - 1]))
            return true;
    }
    return false;
}

/* Whether the ends of the files are the points, and not the steps inside them. The steps inside are
 * taken where all files show them and the user marked them, or the names count as many; else only
 * for one or two files, and not for those named after one step each: what recurs inside these is
 * less than a step. */
static bool files_are_points(const struct group *g) {
    size_t marked = 0, named = 0, single = 0;

    if (overlap(g))
        return true;
    for (size_t i = 0; i < g->count; i++) {
        const struct tg_leak_input *file = g->files[i];
        if (file->digest->info.steps == 0)
            return true;
        marked += file->digest->info.step_source == TG_STEPS_MARK;
        named += names_its_steps(file);
        single += file->last_step >= 0 && file->first_step == file->last_step;
    }
    if (g->count == 1 || marked == g->count || (named == g->count && single == 0))
        return false;
    return g->count >= FILES_AS_POINTS_MIN || single == g->count;
}

/* Two histories that overlap are one history, seen twice: the one with more steps tells it. */
static int keep_longer_of_two(struct group *g) {
    size_t first, second;

    if (g->count != 2 || !overlap(g))
        return 0;
    first = g->files[0]->digest->info.steps;
    second = g->files[1]->digest->info.steps;
    if (first == second || (first < FILES_AS_POINTS_MIN && second < FILES_AS_POINTS_MIN))
        return 0;
    return leave_out(g, has_fewer_steps, (int64_t)(first > second ? first : second),
                     "its history is in the other file, too");
}

static int fill_rank(struct tg__merge *merge, struct tg__rank *rank, const struct group *g) {
    const struct tg_digest *last = g->files[g->count - 1]->digest;
    bool by_files = files_are_points(g);
    size_t inside = 0;
    struct tg__map rows;
    int rc;

    for (size_t i = 0; i < g->count; i++)
        inside += g->files[i]->digest->info.steps;
    rank->rank = g->files[0]->rank;
    rank->pid = g->files[0]->pid;
    rank->input = (size_t)(g->files[g->count - 1] - merge->inputs);
    rank->is_alone = stands_alone(g->files[0]);
    rank->devices = last->info.devices;
    rank->points = by_files ? g->count : inside;
    rank->live_bytes = last->info.live_bytes;
    rank->peak_bytes = by_files ? last->info.peak_bytes : last->last_step_peak_bytes;
    rank->steps = calloc(rank->points, sizeof *rank->steps);
    rank->old = calloc(rank->points + 2, sizeof *rank->old);
    if (rank->steps == NULL || rank->old == NULL)
        return tg__fail_memory();
    tg__map_init(&rows);
    rc = by_files ? series_of_files(merge, rank, g, &rows) : series_inside(merge, rank, g, &rows);
    if (rc == 0)
        rc = copy_samples(merge, rank, &rows, last, last->samples - 1, rank->points + 1, 1);
    tg__map_free(&rows);
    return rc;
}

static int add_rank(struct tg__merge *merge, struct group *g) {
    struct tg__rank rank = {0};
    int rc;

    if ((rc = leave_out_oom(g)) != 0 || (rc = leave_out_stepless(g)) != 0 ||
        (rc = keep_one_family(g)) != 0 || (rc = keep_one_a_step(g)) != 0 ||
        (rc = keep_longer_of_two(g)) != 0)
        return rc;
    tg__vec_init(&rank.stacks, sizeof(uint32_t), NULL);
    tg__vec_init(&rank.held, sizeof(struct tg__held), &merge->budget);
    rc = fill_rank(merge, &rank, g);
    if (rc == 0)
        rc = tg__vec_push(&merge->ranks, &rank);
    if (rc != 0) {
        tg__vec_free(&rank.stacks);
        tg__vec_free(&rank.held);
        free(rank.steps);
        free(rank.old);
    }
    return rc;
}

/* One rank with too many places must not cost the others their answer. */
static int add_or_leave_out(struct tg__merge *merge, struct group *g) {
    int64_t rank = g->files[0]->rank;
    int rc = add_rank(merge, g);

    if (rc != TG_ELIMIT)
        return rc;
    if (rank < 0)
        return tg__note(g->notes, "left out: too many places times steps");
    return tg__note(g->notes, "rank %" PRId64 " is left out: too many places times steps", rank);
}

/* ---- processes ------------------------------------------------------------------------------ */

static bool shares_a_step(const struct group *a, const struct group *b) {
    for (size_t i = 0; i < a->count; i++) {
        for (size_t j = 0; j < b->count; j++) {
            if (a->files[i]->last_step >= 0 &&
                a->files[i]->last_step == b->files[j]->last_step &&
                a->files[i]->family == b->files[j]->family)
                return true;
        }
    }
    return false;
}

/* The time that the files of a process tell of; false: they have no clock. */
static bool life(const struct group *g, uint64_t *begin, uint64_t *end) {
    *begin = UINT64_MAX;
    *end = 0;
    for (size_t i = 0; i < g->count; i++) {
        const struct tg_digest_info *info = &g->files[i]->digest->info;
        if (info->first_us != 0 && info->first_us < *begin)
            *begin = info->first_us;
        if (info->last_us > *end)
            *end = info->last_us;
    }
    return *end != 0;
}

/* Processes that wrote in the same steps, or at the same time, lived side by side. */
static bool side_by_side(const struct group *a, const struct group *b) {
    uint64_t a_begin, a_end, b_begin, b_end;

    if (shares_a_step(a, b))
        return true;
    return life(a, &a_begin, &a_end) && life(b, &b_begin, &b_end) && a_begin < b_end &&
           b_begin < a_end;
}

static bool lived_longer(const struct group *a, const struct group *b) {
    uint64_t a_begin, a_end, b_begin, b_end;

    if (a->count != b->count)
        return a->count > b->count;
    life(a, &a_begin, &a_end);
    life(b, &b_begin, &b_end);
    return a_end > b_end;
}

/* Puts one more process of a rank beside those known, or in the place of one, or leaves it out. A
 * process that took over at a later time is a restart, whose memory began anew: of the two the
 * longer life is judged. Returns how many files are left out. */
static size_t add_process(struct group *processes, size_t *count, const struct group *process) {
    for (size_t i = 0; i < *count; i++) {
        struct group left_out = *process;
        if (side_by_side(&processes[i], process))
            continue;
        if (lived_longer(process, &processes[i])) {
            left_out = processes[i];
            processes[i] = *process;
        }
        return left_out.count;
    }
    processes[(*count)++] = *process;
    return 0;
}

/* Files of one rank and different processes: each that lived beside the others (actor and critic)
 * is a rank of its own. */
static int add_processes(struct tg__merge *merge, struct group *all) {
    struct group *processes = calloc(all->count, sizeof *processes);
    size_t count = 0, left_out = 0;
    int rc = 0;

    if (processes == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < all->count;) {
        struct group process = {all->files + i, 0, all->notes};
        while (i < all->count && all->files[i]->pid == process.files[0]->pid) {
            process.count++;
            i++;
        }
        left_out += add_process(processes, &count, &process);
    }
    if (left_out > 0)
        rc = tg__note(all->notes, "restarted: %zu %s of shorter-lived processes left out", left_out,
                      left_out == 1 ? "file is" : "files are");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = add_or_leave_out(merge, &processes[i]);
    free(processes);
    return rc;
}

int tg__merge_make(struct tg__merge *merge, const struct tg_leak_input *inputs, size_t count) {
    const struct tg_leak_input **files;
    int rc;

    merge->inputs = inputs;
    merge->budget.left_bytes = HELD_BYTES_MAX;
    tg__vec_init(&merge->ranks, sizeof(struct tg__rank), NULL);
    tg__vec_init(&merge->notes, sizeof(char *), NULL);
    rc = tg__places_init(&merge->places, NULL, true);
    files = calloc(count, sizeof *files);
    if (files == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < count; i++)
        files[i] = &inputs[i];
    qsort(files, count, sizeof *files, in_order);
    for (size_t i = 0; rc == 0 && i < count;) {
        struct group rank = {files + i, 0, &merge->notes};
        do {
            rank.count++;
            i++;
        } while (i < count && files[i]->rank == rank.files[0]->rank &&
                 files[i]->run == rank.files[0]->run && !stands_alone(files[i]) &&
                 !stands_alone(rank.files[0]));
        rc = add_processes(merge, &rank);
    }
    free(files);
    if (rc == 0 && merge->ranks.count == 0)
        rc = tg__fail(TG_ELIMIT, "too many places times steps");
    return rc;
}

void tg__merge_free(struct tg__merge *merge) {
    struct tg__rank *ranks = merge->ranks.items;

    for (size_t i = 0; i < merge->ranks.count; i++) {
        tg__vec_free(&ranks[i].stacks);
        tg__vec_free(&ranks[i].held);
        free(ranks[i].steps);
        free(ranks[i].old);
    }
    tg__vec_free(&merge->ranks);
    for (size_t i = 0; i < merge->notes.count; i++)
        free(((char **)merge->notes.items)[i]);
    tg__vec_free(&merge->notes);
    tg__places_free(&merge->places);
}
