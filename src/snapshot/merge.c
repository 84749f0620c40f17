/* SPDX-License-Identifier: Apache-2.0 */
/* See merge.h. */
#include "snapshot/merge.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* With so many files each is a point; with fewer the steps inside them are. */
#define FILES_AS_POINTS_MIN 3

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

static int by_rank_and_pid(const void *a, const void *b) {
    const struct tg_leak_input *x = *(const struct tg_leak_input *const *)a;
    const struct tg_leak_input *y = *(const struct tg_leak_input *const *)b;
    int order = compare(x->rank, y->rank);

    if (order == 0)
        order = compare(x->pid, y->pid);
    if (order == 0)
        order = compare(x->last_step, y->last_step);
    if (order == 0)
        order = end_us(x) < end_us(y) ? -1 : end_us(x) > end_us(y);
    /* Last of all by the order in which they were given, so that equals stay in it. */
    return order != 0 ? order : (x > y) - (x < y);
}

/* Keeps the files for which keep() holds; returns how many went. */
static size_t filter(struct group *g, bool (*keep)(const struct tg_leak_input *, int64_t),
                     int64_t argument) {
    size_t kept = 0, all = g->count;

    for (size_t i = 0; i < all; i++) {
        if (keep(g->files[i], argument))
            g->files[kept++] = g->files[i];
    }
    g->count = kept;
    return all - kept;
}

static bool is_regular(const struct tg_leak_input *input, int64_t unused) {
    (void)unused;
    return input->is_oom == 0;
}

static bool is_of_family(const struct tg_leak_input *input, int64_t family) {
    return input->family == family;
}

static int leave_out_oom(struct group *g) {
    size_t regular = 0, left;

    for (size_t i = 0; i < g->count; i++)
        regular += is_regular(g->files[i], 0);
    if (regular == 0)
        return 0;
    left = filter(g, is_regular, 0);
    return left == 0 ? 0
                     : tg__note(g->notes,
                                "rank %" PRId64 ": %zu out-of-memory file(s), written in the "
                                "middle of a step, are not in its series",
                                g->files[0]->rank, left);
}

/* Files of another family show another moment of the step: the family with most files stays. */
static int keep_one_family(struct group *g) {
    int64_t best = 0;
    size_t best_count = 0, left;

    for (size_t i = 0; i < g->count; i++) {
        size_t same = 0;
        for (size_t j = 0; j < g->count; j++)
            same += g->files[j]->family == g->files[i]->family;
        if (same > best_count || (same == best_count && g->files[i]->family < best)) {
            best_count = same;
            best = g->files[i]->family;
        }
    }
    left = filter(g, is_of_family, best);
    return left == 0 ? 0
                     : tg__note(g->notes,
                                "rank %" PRId64 ": %zu file(s) show another moment of the step "
                                "and are not in its series",
                                g->files[0]->rank, left);
}

/* Of two files of one step the one written later counts. */
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
                       : tg__note(g->notes,
                                  "rank %" PRId64 ": %zu file(s) of a step that has a later one "
                                  "are not in its series",
                                  g->files[0]->rank, all - kept);
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

/* Copies sample `from` of a digest to column `to` of the rank, `count` of them. */
static int copy_samples(struct tg__merge *merge, struct tg__rank *rank, struct tg__map *rows,
                        const struct tg_digest *digest, size_t from, size_t to, size_t count) {
    const uint32_t *stacks = digest->stacks.items;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < digest->stacks.count; i++) {
        const struct tg__held *held = tg__digest_row(digest, i) + from;
        struct tg__held *into;
        uint32_t stack;
        size_t row;
        rc = tg__places_copy_stack(&merge->places, &digest->places, stacks[i], &stack);
        if (rc == 0)
            rc = rank_row(rank, rows, stack, &row);
        if (rc != 0)
            break;
        into = (struct tg__held *)rank->held.items + row * (rank->points + 2) + to;
        /* Summed: stacks that differ in the file may be one here. */
        for (size_t j = 0; j < count; j++) {
            into[j].bytes += held[j].bytes;
            into[j].blocks += held[j].blocks;
        }
    }
    return rc;
}

/* Numbers of the steps inside a file: from its name where it counts as many. */
static void number_steps(const struct tg_leak_input *file, uint64_t *steps, size_t count,
                         uint64_t next) {
    int64_t named = file->last_step - file->first_step + 1;

    if (file->first_step >= 0 && named == (int64_t)count && (uint64_t)file->first_step >= next)
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

/* Several files, each named after one step: what recurs inside them is less than a step. */
static bool each_is_one_step(const struct group *g) {
    for (size_t i = 0; i < g->count; i++) {
        if (g->files[i]->last_step < 0 || g->files[i]->first_step != g->files[i]->last_step)
            return false;
    }
    return g->count > 1;
}

static int fill_rank(struct tg__merge *merge, struct tg__rank *rank, const struct group *g) {
    const struct tg_digest *last = g->files[g->count - 1]->digest;
    bool by_files = g->count >= FILES_AS_POINTS_MIN;
    size_t inside = 0;
    struct tg__map rows;
    int rc;

    for (size_t i = 0; i < g->count; i++)
        inside += g->files[i]->digest->info.steps;
    by_files = by_files || inside == 0 || overlap(g) || each_is_one_step(g);
    rank->rank = g->files[0]->rank;
    rank->pid = g->files[0]->pid;
    rank->points = by_files ? g->count : inside;
    rank->live_bytes = last->info.live_bytes;
    rank->peak_bytes = by_files ? last->info.peak_bytes : last->last_step_peak_bytes;
    rank->steps = calloc(rank->points, sizeof *rank->steps);
    if (rank->steps == NULL)
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

    if ((rc = leave_out_oom(g)) != 0 || (rc = keep_one_family(g)) != 0 ||
        (rc = keep_one_a_step(g)) != 0)
        return rc;
    tg__vec_init(&rank.stacks, sizeof(uint32_t), NULL);
    tg__vec_init(&rank.held, sizeof(struct tg__held), NULL);
    rc = fill_rank(merge, &rank, g);
    if (rc == 0)
        rc = tg__vec_push(&merge->ranks, &rank);
    if (rc != 0) {
        tg__vec_free(&rank.stacks);
        tg__vec_free(&rank.held);
        free(rank.steps);
    }
    return rc;
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

/* Files of one rank and different processes. Processes that wrote in the same steps lived side by
 * side (actor and critic): each is a rank of its own. One that took over at a later step is a
 * restart, whose memory began anew: the longer life is judged. */
static int add_processes(struct tg__merge *merge, struct group *all) {
    struct group chosen = {NULL, 0, all->notes};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < all->count;) {
        struct group process = {all->files + i, 0, all->notes};
        while (i < all->count && all->files[i]->pid == process.files[0]->pid) {
            process.count++;
            i++;
        }
        if (chosen.count == 0) {
            chosen = process;
        } else if (shares_a_step(&chosen, &process)) {
            rc = add_rank(merge, &chosen);
            chosen = process;
        } else {
            struct group *shorter = process.count >= chosen.count ? &chosen : &process;
            rc = tg__note(all->notes,
                          "rank %" PRId64 " was restarted: the %zu file(s) of pid %" PRId64
                          " are not in its series",
                          process.files[0]->rank, shorter->count, shorter->files[0]->pid);
            if (shorter == &chosen)
                chosen = process;
        }
    }
    return rc == 0 ? add_rank(merge, &chosen) : rc;
}

/* Nothing in its name says that it belongs to others, and it shows enough steps by itself. */
static bool stands_alone(const struct tg_leak_input *input) {
    return input->rank < 0 && input->pid < 0 && input->last_step < 0 &&
           input->digest->info.steps >= FILES_AS_POINTS_MIN;
}

int tg__merge_make(struct tg__merge *merge, const struct tg_leak_input *inputs, size_t count) {
    const struct tg_leak_input **files;
    int rc;

    tg__vec_init(&merge->ranks, sizeof(struct tg__rank), NULL);
    tg__vec_init(&merge->notes, sizeof(char *), NULL);
    rc = tg__places_init(&merge->places, NULL, true);
    files = calloc(count, sizeof *files);
    if (files == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < count; i++)
        files[i] = &inputs[i];
    qsort(files, count, sizeof *files, by_rank_and_pid);
    for (size_t i = 0; rc == 0 && i < count;) {
        struct group rank = {files + i, 0, &merge->notes};
        do {
            rank.count++;
            i++;
        } while (i < count && files[i]->rank == rank.files[0]->rank && !stands_alone(files[i]) &&
                 !stands_alone(rank.files[0]));
        rc = add_processes(merge, &rank);
    }
    free(files);
    return rc;
}

void tg__merge_free(struct tg__merge *merge) {
    struct tg__rank *ranks = merge->ranks.items;

    for (size_t i = 0; i < merge->ranks.count; i++) {
        tg__vec_free(&ranks[i].stacks);
        tg__vec_free(&ranks[i].held);
        free(ranks[i].steps);
    }
    tg__vec_free(&merge->ranks);
    for (size_t i = 0; i < merge->notes.count; i++)
        free(((char **)merge->notes.items)[i]);
    tg__vec_free(&merge->notes);
    tg__places_free(&merge->places);
}
