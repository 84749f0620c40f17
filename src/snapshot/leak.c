/* SPDX-License-Identifier: Apache-2.0 */
/* The answer: ranks judged, and their sites put together. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "snapshot/sites.h"

#define MIN_BYTES_PER_STEP 16384
#define LISTS 4

/* A site of the answer and the ranks that show it. */
struct row {
    struct tg__site site;
    struct tg__vec ranks; /* int64_t */
    struct tg_leak_site view;
};

struct tg_leaks {
    struct tg__merge merge;
    struct tg__vec ranks;                /* struct tg_leak_rank */
    struct tg__vec rows[LISTS];          /* struct row, largest first */
    size_t small_growers, replacements;  /* of all ranks */
    size_t file_notes;                   /* the first of the notes: those of merge */
    struct tg__vec frames;               /* struct tg_leak_frame of all views */
    struct tg_leak_summary summary;
};

/* ---- gathering ------------------------------------------------------------------------------ */

/* Where several ranks show a site, the figures are those of the rank where it is largest.
 * `known_rows` finds a site's row in its list. */
static int add_site(struct tg_leaks *leaks, struct tg__map *known_rows,
                    const struct tg__site *site, int64_t rank) {
    struct tg__vec *rows = &leaks->rows[site->list];
    uint64_t key = (uint64_t)site->where << 8 | (uint64_t)site->list << 4 | (uint64_t)site->kind;
    uint32_t number = tg__map_get(known_rows, key);
    struct row fresh = {.site = *site};
    int rc;

    if (number != UINT32_MAX) {
        struct row *known = (struct row *)rows->items + number;
        bool larger = site->bytes_per_step > known->site.bytes_per_step ||
                      (site->bytes_per_step == known->site.bytes_per_step &&
                       site->bytes > known->site.bytes);
        const int64_t *ranks = known->ranks.items;
        if (larger)
            known->site = *site;
        /* Ranks come in order; two processes of one rank (actor and critic) are one number. */
        return ranks[known->ranks.count - 1] == rank ? 0 : tg__vec_push(&known->ranks, &rank);
    }
    tg__vec_init(&fresh.ranks, sizeof rank, NULL);
    rc = tg__map_put(known_rows, key, (uint32_t)rows->count);
    if (rc == 0)
        rc = tg__vec_push(&fresh.ranks, &rank);
    if (rc == 0)
        rc = tg__vec_push(rows, &fresh);
    if (rc != 0)
        tg__vec_free(&fresh.ranks);
    return rc;
}

static enum tg_verdict verdict_of(const struct tg__rank *rank, const struct tg__judged *judged,
                                  size_t leaks) {
    if (leaks > 0)
        return TG_VERDICT_LEAK;
    return rank->points < 3 || judged->undecided ? TG_VERDICT_UNKNOWN : TG_VERDICT_NONE;
}

static int add_rank(struct tg_leaks *leaks, struct tg__map *known_rows,
                    const struct tg__rank *rank, const struct tg__judged *judged) {
    const struct tg__site *sites = judged->sites.items;
    struct tg_leak_rank row = {
        .rank = rank->rank,
        .pid = rank->pid,
        .input = rank->input,
        .is_alone = rank->is_alone,
        .steps = rank->points,
        .first_step = (int64_t)rank->steps[0],
        .last_step = (int64_t)rank->steps[rank->points - 1],
        .devices = rank->devices,
        .live_bytes = rank->live_bytes,
        .peak_bytes = rank->peak_bytes,
    };
    size_t leaking = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < judged->sites.count; i++) {
        rc = add_site(leaks, known_rows, &sites[i], rank->rank);
        if (sites[i].list != TG_LIST_LEAKS)
            continue;
        leaking++;
        row.bytes_per_step += sites[i].bytes_per_step;
        row.total_bytes += sites[i].bytes;
        if (sites[i].steps_grown > row.steps_grown)
            row.steps_grown = sites[i].steps_grown;
    }
    row.verdict = verdict_of(rank, judged, leaking);
    leaks->small_growers += judged->small_growers;
    leaks->replacements += judged->replacements;
    return rc != 0 ? rc : tg__vec_push(&leaks->ranks, &row);
}

static int judge_ranks(struct tg_leaks *leaks, struct tg__own *own, uint64_t min_bytes) {
    const struct tg__rank *ranks = leaks->merge.ranks.items;
    struct tg__map known_rows;
    int rc = 0;

    tg__map_init(&known_rows);
    for (size_t i = 0; rc == 0 && i < leaks->merge.ranks.count; i++) {
        struct tg__judged judged;
        rc = tg__sites_judge(&ranks[i], &leaks->merge.places, own, min_bytes, &judged);
        if (rc == 0)
            rc = add_rank(leaks, &known_rows, &ranks[i], &judged);
        tg__judged_free(&judged);
    }
    tg__map_free(&known_rows);
    return rc;
}

/* What is said once for all ranks. */
static int add_notes(struct tg_leaks *leaks) {
    struct tg__vec *notes = &leaks->merge.notes;
    int rc = 0;

    leaks->file_notes = notes->count;
    if (leaks->small_growers > 0)
        rc = tg__note(notes, "%zu %s by less than the smallest growth that is reported",
                      leaks->small_growers, leaks->small_growers == 1 ? "line grows"
                                                                      : "lines grow");
    if (rc == 0 && leaks->replacements > 0)
        rc = tg__note(notes, "where a line grew as fast as blocks older than the recording were "
                             "freed, it may only have replaced them: that is unknown");
    return rc;
}

/* ---- the views ------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    const struct tg__site *x = &((const struct row *)a)->site, *y = &((const struct row *)b)->site;

    if (x->bytes_per_step != y->bytes_per_step)
        return x->bytes_per_step > y->bytes_per_step ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->where < y->where ? -1 : x->where > y->where;
}

static int push_frames(struct tg_leaks *leaks, uint32_t stack) {
    const struct tg__places *places = &leaks->merge.places;
    size_t count;
    const uint32_t *frames = tg__places_stack(places, stack, &count);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct tg_frame *frame = tg__places_frame(places, frames[i]);
        struct tg_leak_frame view = {
            .file = tg__places_text(places, frame->file).bytes,
            .function = tg__places_text(places, frame->function).bytes,
            .line = frame->line,
        };
        rc = tg__vec_push(&leaks->frames, &view);
    }
    return rc;
}

static void view_row(const struct tg_leaks *leaks, struct row *row, size_t *first_frame) {
    const struct tg__site *site = &row->site;
    size_t count;

    tg__places_stack(&leaks->merge.places, site->stack, &count);
    row->view = (struct tg_leak_site){
        .kind = site->kind,
        .bytes_per_step = site->bytes_per_step,
        .blocks_per_step = site->blocks_per_step,
        .confidence = site->confidence,
        .bytes = site->bytes,
        .blocks = site->blocks,
        .steps_grown = site->steps_grown,
        .first_step = site->first_step,
        .where = tg__places_text(&leaks->merge.places, site->where).bytes,
        .stack = (const struct tg_leak_frame *)leaks->frames.items + *first_frame,
        .stack_count = count,
        .own_frame = site->own_frame,
        .ranks = row->ranks.items,
        .rank_count = row->ranks.count,
    };
    *first_frame += count;
}

/* Frames first, views then: the views point into the frames, which move while they grow. */
static int make_views(struct tg_leaks *leaks) {
    size_t first_frame = 0;
    int rc = tg__vec_reserve(&leaks->frames, 1);

    for (size_t list = 0; list < LISTS; list++) {
        struct row *rows = leaks->rows[list].items;
        if (leaks->rows[list].count > 0)
            qsort(rows, leaks->rows[list].count, sizeof *rows, by_size);
        for (size_t i = 0; rc == 0 && i < leaks->rows[list].count; i++)
            rc = push_frames(leaks, rows[i].site.stack);
    }
    for (size_t list = 0; rc == 0 && list < LISTS; list++) {
        struct row *rows = leaks->rows[list].items;
        for (size_t i = 0; i < leaks->rows[list].count; i++)
            view_row(leaks, &rows[i], &first_frame);
    }
    return rc;
}

static void sum_up(struct tg_leaks *leaks) {
    const struct tg_leak_rank *ranks = leaks->ranks.items;
    const struct tg__rank *merged = leaks->merge.ranks.items;
    struct tg_leak_summary *summary = &leaks->summary;

    *summary = (struct tg_leak_summary){
        .verdict = TG_VERDICT_NONE,
        .step_confidence = 2, /* above any rank's */
        .ranks = leaks->ranks.count,
        .notes = leaks->merge.notes.count,
        .file_notes = leaks->file_notes,
        .small_growers = leaks->small_growers,
        .first_step = ranks[0].first_step,
        .last_step = ranks[0].last_step,
    };
    for (size_t list = 0; list < LISTS; list++)
        summary->sites[list] = leaks->rows[list].count;
    for (size_t i = 0; i < leaks->ranks.count; i++) {
        if (ranks[i].verdict == TG_VERDICT_LEAK)
            summary->verdict = TG_VERDICT_LEAK;
        else if (ranks[i].verdict == TG_VERDICT_UNKNOWN && summary->verdict == TG_VERDICT_NONE)
            summary->verdict = TG_VERDICT_UNKNOWN;
        if (ranks[i].bytes_per_step > summary->bytes_per_step)
            summary->bytes_per_step = ranks[i].bytes_per_step;
        if (ranks[i].steps > summary->steps)
            summary->steps = ranks[i].steps;
        if (ranks[i].first_step < summary->first_step)
            summary->first_step = ranks[i].first_step;
        if (ranks[i].last_step > summary->last_step)
            summary->last_step = ranks[i].last_step;
        if (merged[i].step_confidence < summary->step_confidence) {
            summary->step_confidence = merged[i].step_confidence;
            summary->step_source = merged[i].source;
        }
    }
}

/* ---- the public face ------------------------------------------------------------------------ */

static int check_params(const struct tg_leak_params *params) {
    for (size_t i = 0; i < params->own_count; i++) {
        if (params->own == NULL || params->own[i] == NULL)
            return tg__fail(-EINVAL, "tg_leaks_find: pattern %zu is NULL", i);
    }
    return 0;
}

static int check_inputs(const struct tg_leak_input *inputs, size_t count) {
    if (inputs == NULL || count == 0)
        return tg__fail(-EINVAL, "tg_leaks_find: no input");
    for (size_t i = 0; i < count; i++) {
        if (inputs[i].digest == NULL)
            return tg__fail(-EINVAL, "tg_leaks_find: input %zu has no digest", i);
        if (inputs[i].last_step < inputs[i].first_step)
            return tg__fail(-EINVAL, "tg_leaks_find: the steps of input %zu do not ascend", i);
    }
    return 0;
}

static int fill(struct tg_leaks *leaks, const struct tg_leak_input *inputs, size_t count,
                struct tg__own *own, uint64_t min_bytes) {
    int rc = tg__merge_make(&leaks->merge, inputs, count);

    if (rc == 0)
        rc = judge_ranks(leaks, own, min_bytes);
    if (rc == 0)
        rc = add_notes(leaks);
    if (rc == 0)
        rc = make_views(leaks);
    if (rc == 0)
        sum_up(leaks);
    return rc;
}

int tg_leaks_find(const struct tg_leak_input *inputs, size_t count,
                  const struct tg_leak_params *params, struct tg_leaks **leaks) {
    static const struct tg_leak_params usual;
    struct tg_leaks *made;
    struct tg__own own;
    uint64_t min_bytes;
    int rc = check_inputs(inputs, count);

    if (rc == 0 && leaks == NULL)
        rc = tg__fail(-EINVAL, "tg_leaks_find: a pointer is NULL");
    if (params == NULL)
        params = &usual;
    if (rc == 0)
        rc = check_params(params);
    if (rc == 0)
        rc = tg__own_init(&own, params->own, params->own_count);
    if (rc != 0)
        return rc;
    min_bytes = params->min_bytes_per_step != 0 ? params->min_bytes_per_step : MIN_BYTES_PER_STEP;
    made = calloc(1, sizeof *made);
    if (made == NULL) {
        tg__own_free(&own);
        return tg__fail_memory();
    }
    tg__vec_init(&made->ranks, sizeof(struct tg_leak_rank), NULL);
    tg__vec_init(&made->frames, sizeof(struct tg_leak_frame), NULL);
    for (size_t list = 0; list < LISTS; list++)
        tg__vec_init(&made->rows[list], sizeof(struct row), NULL);
    rc = fill(made, inputs, count, &own, min_bytes);
    tg__own_free(&own);
    if (rc != 0) {
        tg_leaks_close(made);
        return rc;
    }
    *leaks = made;
    return 0;
}

void tg_leaks_close(struct tg_leaks *leaks) {
    if (leaks == NULL)
        return;
    for (size_t list = 0; list < LISTS; list++) {
        for (size_t i = 0; i < leaks->rows[list].count; i++)
            tg__vec_free(&((struct row *)leaks->rows[list].items)[i].ranks);
        tg__vec_free(&leaks->rows[list]);
    }
    tg__vec_free(&leaks->ranks);
    tg__vec_free(&leaks->frames);
    tg__merge_free(&leaks->merge);
    free(leaks);
}

void tg_leaks_summary(const struct tg_leaks *leaks, struct tg_leak_summary *summary) {
    *summary = leaks->summary;
}

const struct tg_leak_rank *tg_leaks_rank(const struct tg_leaks *leaks, size_t index) {
    return index < leaks->ranks.count ? (const struct tg_leak_rank *)leaks->ranks.items + index
                                      : NULL;
}

const struct tg_leak_site *tg_leaks_site(const struct tg_leaks *leaks, enum tg_leak_list list,
                                         size_t index) {
    const struct tg__vec *rows;

    if ((unsigned)list >= LISTS)
        return NULL;
    rows = &leaks->rows[list];
    return index < rows->count ? &((const struct row *)rows->items)[index].view : NULL;
}

const char *tg_leaks_note(const struct tg_leaks *leaks, size_t index) {
    return index < leaks->merge.notes.count ? ((char *const *)leaks->merge.notes.items)[index]
                                            : NULL;
}
