/* SPDX-License-Identifier: Apache-2.0 */
/* Which source runs next, and when to stop: the rules stand in reclaim.h.
 *
 * Why a residue and not a share of what was kept: when another program takes what came free while
 * the driver is asked, a run seems to have given nothing. The bound has fallen all the same, so
 * there is no residue, and the next promise is halved once; a share would be near zero, and a full
 * cache would not be asked when it is needed. */
#include <tidegate/reclaim.h>

#include <stdbool.h>
#include <stddef.h>

#include "base/saturate.h"

/* After so many misses in a row neither the halving nor the rest grows any more. */
enum { MISSES_MOST = 10 };

static uint64_t min_gain(const struct tg_reclaim *reclaim) {
    return reclaim->min_gain_bytes > 0 ? reclaim->min_gain_bytes : 1;
}

static uint32_t counted_misses(const struct tg_source *source) {
    return source->misses < MISSES_MOST ? source->misses : MISSES_MOST;
}

static bool has_bound(const struct tg_source *source) {
    return source->bound_bytes != TG_BOUND_UNKNOWN;
}

/* What one source could be asked for. */
struct offer {
    uint64_t size_bytes; /* 0: none */
    bool is_trial;
};

static bool is_trial_due(const struct tg_source *source) {
    return source->runs == 0 || source->rests >= UINT32_C(2) << counted_misses(source);
}

/* Nothing says that it has more to give. */
static bool is_spent(const struct tg_source *source) {
    return !has_bound(source) && source->runs_now > 0;
}

static struct offer offer_of(const struct tg_reclaim *reclaim, const struct tg_source *source) {
    struct offer offer = {.size_bytes = source->last_gain_bytes};

    if (is_spent(source) || source->bound_bytes < min_gain(reclaim))
        return (struct offer){0};
    if (has_bound(source))
        offer.size_bytes =
            tg__less(source->bound_bytes, source->residue_bytes) >> counted_misses(source);
    if (offer.size_bytes >= min_gain(reclaim))
        return offer;
    if (!is_trial_due(source))
        return (struct offer){0};
    return (struct offer){.size_bytes = source->bound_bytes, .is_trial = true};
}

static bool is_too_slow(const struct tg_reclaim *reclaim, const struct tg_source *source) {
    return reclaim->deadline_ns != 0 &&
           (reclaim->now_ns >= reclaim->deadline_ns ||
            source->cost_ns > reclaim->deadline_ns - reclaim->now_ns);
}

/* Lower: sooner. */
static double price(const struct tg_source *source, const struct offer *offer, uint64_t needed) {
    uint64_t useful = offer->size_bytes < needed ? offer->size_bytes : needed;

    return offer->is_trial ? (double)source->cost_ns : (double)source->cost_ns / (double)useful;
}

/* One pass over the sources. */
struct choice {
    uint32_t best; /* UINT32_MAX: none */
    struct offer offer;
    double price;
    bool has_slow;    /* an offer that the deadline forbids */
    bool has_promise; /* a bound worth asking for, whether it is believed or not */
};

static void consider(const struct tg_reclaim *reclaim, const struct tg_source *sources, uint32_t i,
                     struct choice *choice) {
    const struct tg_source *source = &sources[i];
    struct offer offer = offer_of(reclaim, source);
    double offer_price;

    choice->has_promise |= has_bound(source) && source->bound_bytes >= min_gain(reclaim);
    if (offer.size_bytes == 0)
        return;
    if (is_too_slow(reclaim, source)) {
        choice->has_slow = true;
        return;
    }
    offer_price = price(source, &offer, reclaim->target_bytes - reclaim->gained_bytes);
    if (choice->best != UINT32_MAX && (offer.is_trial > choice->offer.is_trial ||
                                       (offer.is_trial == choice->offer.is_trial &&
                                        offer_price >= choice->price)))
        return;
    choice->best = i;
    choice->offer = offer;
    choice->price = offer_price;
}

enum tg_stop tg_reclaim_next(const struct tg_reclaim *reclaim, const struct tg_source *sources,
                             uint32_t count, uint32_t *run) {
    struct choice choice = {.best = UINT32_MAX};

    if (reclaim->gained_bytes >= reclaim->target_bytes)
        return TG_TARGET_MET;
    if (reclaim->idle_runs >= 2 * (uint64_t)count && count > 0)
        return TG_NO_PROGRESS;
    for (uint32_t i = 0; i < count; i++)
        consider(reclaim, sources, i, &choice);
    if (choice.best != UINT32_MAX) {
        *run = choice.best;
        return TG_GO_ON;
    }
    if (choice.has_slow)
        return TG_DEADLINE;
    return choice.has_promise ? TG_NO_PROGRESS : TG_NOTHING_LEFT;
}

void tg_reclaim_begin(struct tg_reclaim *reclaim, struct tg_source *sources, uint32_t count) {
    reclaim->gained_bytes = 0;
    reclaim->runs = reclaim->idle_runs = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tg_source *source = &sources[i];

        if (source->rests < UINT32_MAX)
            source->rests++;
        source->runs_now = 0;
        source->gained_now_bytes = source->spent_now_ns = 0;
    }
}

static uint64_t gain_of(const struct tg_source *source, const struct tg_source_run *run,
                        uint64_t grown_bytes) {
    uint64_t gain = run->freed_bytes > grown_bytes ? run->freed_bytes : grown_bytes;

    return gain < source->bound_bytes ? gain : source->bound_bytes;
}

static void book_source(struct tg_source *source, const struct tg_source_run *run, uint64_t gain,
                        bool is_miss) {
    if (has_bound(source))
        source->promised_bytes = tg__sum(source->promised_bytes, source->bound_bytes);
    source->gained_bytes = tg__sum(source->gained_bytes, gain);
    source->last_gain_bytes = gain;
    source->cost_ns = source->runs == 0 ? run->spent_ns : source->cost_ns / 2 + run->spent_ns / 2;
    source->bound_bytes = run->bound_after_bytes;
    if (is_miss || source->residue_bytes > source->bound_bytes)
        source->residue_bytes = has_bound(source) ? source->bound_bytes : 0;
    source->misses = is_miss ? counted_misses(source) + 1 : 0;
    source->rests = 0;
    source->runs++;
    source->runs_now++;
    source->gained_now_bytes = tg__sum(source->gained_now_bytes, gain);
    source->spent_now_ns = tg__sum(source->spent_now_ns, run->spent_ns);
}

void tg_reclaim_book(struct tg_reclaim *reclaim, struct tg_source *source,
                     const struct tg_source_run *run) {
    uint64_t grown_bytes = tg__less(run->free_after_bytes, run->free_before_bytes);
    uint64_t gain = gain_of(source, run, grown_bytes);

    book_source(source, run, gain, gain < min_gain(reclaim));
    reclaim->gained_bytes = tg__sum(reclaim->gained_bytes, grown_bytes);
    reclaim->runs++;
    reclaim->idle_runs = grown_bytes >= min_gain(reclaim) ? 0 : reclaim->idle_runs + 1;
}

const char *tg_stop_text(enum tg_stop stop) {
    static const char *const texts[] = {
        [TG_GO_ON] = "goes on",
        [TG_TARGET_MET] = "target met",
        [TG_NOTHING_LEFT] = "nothing left",
        [TG_NO_PROGRESS] = "no progress",
        [TG_DEADLINE] = "deadline",
    };

    return (size_t)stop < sizeof texts / sizeof texts[0] ? texts[stop] : "unknown";
}
