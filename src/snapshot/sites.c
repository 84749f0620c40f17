/* SPDX-License-Identifier: Apache-2.0 */
/* See sites.h. */
#include "snapshot/sites.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define WHERE_LENGTH_MAX 512
#define SPREAD_POINTS_MIN 5 /* a sum of odds and ends needs more than three points to be a leak */

struct judge {
    const struct tg__rank *rank;
    struct tg__places *places;
    struct tg__own *own;
    double min_bytes_per_step;
    struct tg__judged *judged;
    uint64_t *bytes; /* room for one series */
    /* Sums of series, each as long as a row of the rank: */
    struct tg__held *undecided; /* of the line at hand, */
    struct tg__held *growing;   /* its leaks, */
    struct tg__held *rest;      /* and what no line tells, of the whole rank */
};

/* ---- where ---------------------------------------------------------------------------------- */

static const char *basename_of(const char *file) {
    const char *slash = strrchr(file, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : file;
}

static bool is_python(const char *file) {
    size_t length = strlen(file);

    return length > 3 && strcmp(file + length - 3, ".py") == 0;
}

/* Frames of the stack's recorder and of the allocator: the same in every C++ stack. */
static bool is_idle(const char *function) {
    static const char *const idle[] = {"torch::unwind::", "CapturedTraceback::",
                                       "gather_with_cpp", "CachingAllocator::"};

    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        if (strstr(function, idle[i]) != NULL)
            return true;
    }
    return false;
}

/* The innermost frame that says something: a Python one, else the innermost that is not idle. */
static const struct tg_frame *innermost(const struct tg__places *places, const uint32_t *frames,
                                        size_t count) {
    const struct tg_frame *busy = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct tg_frame *frame = tg__places_frame(places, frames[i]);
        if (is_python(tg__places_text(places, frame->file).bytes))
            return frame;
        if (busy == NULL && !is_idle(tg__places_text(places, frame->function).bytes))
            busy = frame;
    }
    return busy != NULL ? busy : tg__places_frame(places, frames[0]);
}

/* "basename:line function", with "(library)" where no frame is the user's. */
static int name_place(struct judge *j, uint32_t stack, uint32_t *where, uint32_t *own_frame) {
    char text[WHERE_LENGTH_MAX];
    size_t count, own;
    const uint32_t *frames = tg__places_stack(j->places, stack, &count);
    int rc = tg__own_frame(j->own, j->places, frames, count, &own);

    if (rc != 0)
        return rc;
    *own_frame = (uint32_t)own;
    if (count == 0) {
        snprintf(text, sizeof text, "(no stack recorded)");
    } else {
        const struct tg_frame *frame = own < count ? tg__places_frame(j->places, frames[own])
                                                   : innermost(j->places, frames, count);
        snprintf(text, sizeof text, "%s:%" PRIu32 " %s%s",
                 basename_of(tg__places_text(j->places, frame->file).bytes), frame->line,
                 tg__places_text(j->places, frame->function).bytes,
                 own < count ? "" : " (library)");
    }
    return tg__intern_text(j->places, text, strlen(text), where);
}

/* ---- one series ----------------------------------------------------------------------------- */

static int judge_held(struct judge *j, const struct tg__held *held, struct tg_growth *growth) {
    for (size_t i = 0; i < j->rank->points; i++)
        j->bytes[i] = tg__not_negative(held[i + 1].bytes);
    return tg_series_judge(j->bytes, j->rank->steps, j->rank->points, growth);
}

/* The largest swing between two points. */
static struct tg__held swing(const struct judge *j, const struct tg__held *held) {
    struct tg__held low = held[1], high = held[1];

    for (size_t i = 2; i <= j->rank->points; i++) {
        low = held[i].bytes < low.bytes ? held[i] : low;
        high = held[i].bytes > high.bytes ? held[i] : high;
    }
    return (struct tg__held){tg__minus(high.bytes, low.bytes), tg__minus(high.blocks, low.blocks)};
}

static struct tg__held growth_since(const struct judge *j, const struct tg__held *held,
                                    size_t from) {
    const struct tg__held *last = &held[j->rank->points];

    return (struct tg__held){tg__minus(last->bytes, held[from].bytes),
                             tg__minus(last->blocks, held[from].blocks)};
}

static double steps_since(const struct judge *j, size_t point) {
    return (double)(j->rank->steps[j->rank->points - 1] - j->rank->steps[point]);
}

/* Whether most of what a series grows by replaces blocks from before the history, freed in the same
 * steps: of them nobody knows the line, so a full buffer whose entries are renewed looks like one
 * that fills up. */
static bool replaces_old_blocks(const struct judge *j, const struct tg__held *held) {
    double grown = 0, replaced = 0;

    for (size_t i = 2; i <= j->rank->points; i++) {
        double up = (double)tg__minus(held[i].bytes, held[i - 1].bytes);
        double down = (double)tg__minus(j->rank->old[i - 1].bytes, j->rank->old[i].bytes);
        if (up <= 0)
            continue;
        grown += up;
        if (down > 0)
            replaced += down < up ? down : up;
    }
    return replaced > 0 && replaced >= grown / 2;
}

/* Steady from the first point on, and larger than before the first step: made in that step. Still
 * there at the file's end, too: gradients are at every step's end, and gone soon after. */
static bool came_first(const struct judge *j, const struct tg__held *held) {
    const struct tg__held *end = &held[j->rank->points + 1];

    return (double)tg__minus(held[1].bytes, held[0].bytes) >= j->min_bytes_per_step &&
           end->bytes >= held[j->rank->points].bytes;
}

/* The rate of the blocks: judged like that of the bytes, over whole periods; where they do not grow
 * as regularly, in proportion to the bytes. */
static double blocks_per_step(struct judge *j, const struct tg__held *held, struct tg__held size,
                              double bytes_per_step) {
    struct tg_growth growth;

    for (size_t i = 0; i < j->rank->points; i++)
        j->bytes[i] = tg__not_negative(held[i + 1].blocks);
    if (tg_series_judge(j->bytes, j->rank->steps, j->rank->points, &growth) == 0 &&
        growth.kind == TG_GROWTH_LEAK)
        return growth.bytes_per_step;
    return size.bytes > 0 ? bytes_per_step * (double)size.blocks / (double)size.bytes : 0;
}

/* Fills in what a series shows as a site; false: nothing worth a row. */
static bool describe(struct judge *j, const struct tg__held *held, const struct tg_growth *growth,
                     struct tg__site *site) {
    struct tg__held size = swing(j, held);
    size_t before = growth->first_point > 0 ? growth->first_point - 1 : 0;

    site->kind = growth->kind;
    site->confidence = growth->confidence;
    site->steps_grown = growth->points_grown;
    site->first_step = (int64_t)j->rank->steps[growth->first_point];
    switch (growth->kind) {
    case TG_GROWTH_STEADY:
        if (!came_first(j, held))
            return false;
        site->kind = TG_GROWTH_ONCE;
        site->steps_grown = 1;
        size = growth_since(j, held, 0);
        site->list = TG_LIST_ONE_TIME;
        break;
    case TG_GROWTH_LEAK:
        size = growth_since(j, held, before + 1);
        site->bytes_per_step = growth->bytes_per_step;
        site->blocks_per_step = blocks_per_step(j, held, size, growth->bytes_per_step);
        site->list = TG_LIST_LEAKS;
        break;
    case TG_GROWTH_ONCE:
    case TG_GROWTH_BOUNDED:
        size = growth_since(j, held, 1);
        site->list = TG_LIST_ONE_TIME;
        break;
    case TG_GROWTH_TIDES:
        site->list = TG_LIST_TIDES;
        break;
    case TG_GROWTH_UNKNOWN:
        site->list = TG_LIST_UNKNOWN;
        break;
    }
    site->bytes = tg__not_negative(size.bytes);
    site->blocks = tg__not_negative(size.blocks);
    return true;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Adds the site to the row of its line that behaves like it. */
static int add_site(struct judge *j, const struct tg__site *site) {
    struct tg__site *sites = j->judged->sites.items;

    if (site->list != TG_LIST_LEAKS && (double)site->bytes < j->min_bytes_per_step)
        return 0;
    /* Lines are judged one after the other: the rows of this one are the last. */
    for (size_t i = j->judged->sites.count; i-- > 0 && sites[i].where == site->where;) {
        struct tg__site *known = &sites[i];
        if (known->list != site->list || known->kind != site->kind)
            continue;
        known->bytes_per_step += site->bytes_per_step;
        known->blocks_per_step += site->blocks_per_step;
        known->bytes += site->bytes;
        known->blocks += site->blocks;
        if (site->steps_grown > known->steps_grown)
            known->steps_grown = site->steps_grown;
        if (site->first_step < known->first_step)
            known->first_step = site->first_step;
        if (site->confidence < known->confidence)
            known->confidence = site->confidence;
        if (site->part > known->part) {
            known->part = site->part;
            known->stack = site->stack;
            known->own_frame = site->own_frame;
        }
        return 0;
    }
    return tg__vec_push(&j->judged->sites, site);
}

static void add_up(const struct judge *j, struct tg__held *sum, const struct tg__held *held) {
    for (size_t i = 0; i < j->rank->points + 2; i++)
        tg__held_add(&sum[i], held[i]);
}

/* Rows of the rank by line, so that those of one line follow each other. */
struct row {
    uint32_t where, own_frame;
    size_t number;
};

static int by_where(const void *a, const void *b) {
    const struct row *x = a, *y = b;

    if (x->where != y->where)
        return x->where < y->where ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int judge_growth(struct judge *j, const struct tg__held *held, struct tg_growth *growth) {
    int rc = judge_held(j, held, growth);

    if (rc == 0 && growth->kind == TG_GROWTH_LEAK && replaces_old_blocks(j, held)) {
        growth->kind = TG_GROWTH_UNKNOWN;
        j->judged->replacements++;
    }
    return rc;
}

/* The sum of a line's undecided series, judged again. It becomes part of the rank's rest when that
 * does not decide it either. */
static int judge_undecided(struct judge *j, const struct tg__site *largest) {
    struct tg__site site = *largest;
    struct tg_growth growth;
    int rc = judge_growth(j, j->undecided, &growth);

    if (rc != 0 || growth.kind == TG_GROWTH_STEADY || !describe(j, j->undecided, &growth, &site))
        return rc;
    if (site.list == TG_LIST_UNKNOWN)
        add_up(j, j->rest, j->undecided);
    if (site.list == TG_LIST_LEAKS)
        add_up(j, j->growing, j->undecided);
    return add_site(j, &site);
}

/* A line that leaks less than is reported has no row; what it leaks may still be part of something
 * larger. Its rows are the last. */
static void drop_small_leak(struct judge *j, uint32_t where) {
    struct tg__vec *sites = &j->judged->sites;
    struct tg__site *rows = sites->items;

    for (size_t i = sites->count; i-- > 0 && rows[i].where == where;) {
        if (rows[i].list != TG_LIST_LEAKS || rows[i].bytes_per_step >= j->min_bytes_per_step)
            continue;
        rows[i] = rows[--sites->count];
        j->judged->small_growers++;
        add_up(j, j->rest, j->growing);
        return;
    }
}

static int judge_stack(struct judge *j, const struct row *row, bool is_alone,
                       struct tg__site *largest, size_t *undecided) {
    const struct tg__held *held = tg__rank_row(j->rank, row->number);
    struct tg__site site = {
        .where = row->where,
        .own_frame = row->own_frame,
        .stack = ((const uint32_t *)j->rank->stacks.items)[row->number],
    };
    struct tg_growth growth;
    int rc = judge_growth(j, held, &growth);
    bool shown;

    if (rc != 0)
        return rc;
    shown = describe(j, held, &growth, &site);
    site.part = site.bytes_per_step > 0 ? site.bytes_per_step : (double)site.bytes;
    if (growth.kind == TG_GROWTH_UNKNOWN || (growth.kind == TG_GROWTH_TIDES && !is_alone)) {
        add_up(j, j->undecided, held);
        if ((*undecided)++ == 0 || site.part > largest->part)
            *largest = site;
        return 0;
    }
    if (growth.kind == TG_GROWTH_LEAK)
        add_up(j, j->growing, held);
    return shown ? add_site(j, &site) : 0;
}

/* One line: its stacks one by one, then what is left of them. */
static int judge_line(struct judge *j, const struct row *rows, size_t count) {
    size_t bytes = (j->rank->points + 2) * sizeof *j->undecided, undecided = 0;
    struct tg__site largest = {0};
    int rc = 0;

    memset(j->undecided, 0, bytes);
    memset(j->growing, 0, bytes);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = judge_stack(j, &rows[i], count == 1, &largest, &undecided);
    if (rc == 0 && undecided > 0)
        rc = judge_undecided(j, &largest);
    if (rc == 0)
        drop_small_leak(j, rows[0].where);
    return rc;
}

/* Growth that no line shows by itself. */
static int judge_rest_of_rank(struct judge *j) {
    struct tg__site site = {0};
    struct tg_growth growth;
    double swing_bytes, span = steps_since(j, 0);
    int rc = judge_growth(j, j->rest, &growth);

    if (rc != 0)
        return rc;
    if (growth.kind == TG_GROWTH_LEAK && j->rank->points >= SPREAD_POINTS_MIN &&
        growth.bytes_per_step >= j->min_bytes_per_step) {
        static const char spread[] = "(spread over many places)";
        rc = tg__intern_text(j->places, spread, sizeof spread - 1, &site.where);
        return rc == 0 && describe(j, j->rest, &growth, &site) ? add_site(j, &site) : rc;
    }
    swing_bytes = (double)swing(j, j->rest).bytes;
    if (growth.kind == TG_GROWTH_UNKNOWN || growth.kind == TG_GROWTH_LEAK)
        j->judged->undecided = span == 0 || swing_bytes / span >= j->min_bytes_per_step;
    return 0;
}

static int judge_lines(struct judge *j, struct row *rows, size_t count) {
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint32_t stack = ((const uint32_t *)j->rank->stacks.items)[i];
        rows[i].number = i;
        rc = name_place(j, stack, &rows[i].where, &rows[i].own_frame);
    }
    if (rc == 0)
        qsort(rows, count, sizeof *rows, by_where);
    for (size_t i = 0; rc == 0 && i < count;) {
        size_t end = i + 1;
        while (end < count && rows[end].where == rows[i].where)
            end++;
        rc = judge_line(j, rows + i, end - i);
        i = end;
    }
    return rc == 0 ? judge_rest_of_rank(j) : rc;
}

int tg__sites_judge(const struct tg__rank *rank, struct tg__places *places,
                    struct tg__own *own, uint64_t min_bytes_per_step,
                    struct tg__judged *judged) {
    size_t width = rank->points + 2;
    struct row *rows = calloc(rank->stacks.count + 1, sizeof *rows);
    uint64_t *bytes = calloc(width, sizeof *bytes);
    struct tg__held *sums = calloc(3 * width, sizeof *sums);
    int rc;

    memset(judged, 0, sizeof *judged);
    tg__vec_init(&judged->sites, sizeof(struct tg__site), NULL);
    if (rows == NULL || bytes == NULL || sums == NULL) {
        rc = tg__fail_memory();
    } else {
        struct judge j = {rank, places, own, (double)min_bytes_per_step, judged, bytes,
                          sums, sums + width, sums + 2 * width};
        rc = judge_lines(&j, rows, rank->stacks.count);
    }
    free(rows);
    free(bytes);
    free(sums);
    return rc;
}

void tg__judged_free(struct tg__judged *judged) {
    tg__vec_free(&judged->sites);
}
