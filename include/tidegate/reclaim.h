/* SPDX-License-Identifier: Apache-2.0 */
/* Reclaim: which cache to empty next, and when to stop. Pure: no clock, no device, no memory of its
 * own. The caller measures, asks, runs the source it is told, and books what came of it:
 *
 *     tg_reclaim_begin(&reclaim, sources, count);
 *     while (tg_reclaim_next(&reclaim, sources, count, &i) == TG_GO_ON) {
 *         ... run source i; measure ...
 *         tg_reclaim_book(&reclaim, &sources[i], &run);
 *         ... bounds of the others, the time ...
 *     }
 *
 * A source is asked for what it is believed to give, its *offer*:
 *   - its bound, less its residue, halved for each miss in a row. A miss is a run that gave less
 *     than min_gain_bytes; the residue is what the bound still said after one. So who promises much
 *     and gives nothing is asked again only when its promise has grown, each time by twice as much;
 *   - where the bound is unknown: what it gave last;
 *   - an offer below min_gain_bytes is none; nor is any whose bound is below it, ever.
 *   - A trial takes the place of an offer that is none: of an unknown bound that was never run, and
 *     of any source in the 4th reclaim after its last run, in the 8th when it missed twice, then in
 *     the 16th, and so on (2 << misses). Nothing here depends on time or luck.
 * The one that costs least for each byte of its offer goes first, where bytes beyond the target
 * count for nothing; trials go after all offers, the cheapest first.
 *
 * In one reclaim a source is asked again as long as it has an offer; one with an unknown bound is
 * asked once. So one useful pass costs one pass, and where more is to come it goes on while each
 * pass gives min_gain_bytes, however little that is: no other threshold ends it. It stops
 *   TG_TARGET_MET    as soon as the driver's free memory has grown by target_bytes;
 *   TG_NOTHING_LEFT  no source promises min_gain_bytes any more;
 *   TG_NO_PROGRESS   some do, but are not believed; also after as many runs as 2 for each source
 *                    in which the driver's free memory has not grown, whatever they say;
 *   TG_DEADLINE      what is left costs more than the time that is left.
 * At most 2 x count x (gained_bytes / min_gain_bytes + 1) runs. Functions here cannot fail, and are
 * safe for different objects from different threads; each costs less than a microsecond. */
#ifndef TIDEGATE_RECLAIM_H
#define TIDEGATE_RECLAIM_H

#include <stdint.h>

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tg_stop { TG_GO_ON, TG_TARGET_MET, TG_NOTHING_LEFT, TG_NO_PROGRESS, TG_DEADLINE };

#define TG_BOUND_UNKNOWN UINT64_MAX

/* One thing that can be called for memory. The caller fills the first three and sets bound_bytes
 * anew before each question; the rest is zero at first and belongs to the functions below. It lives
 * as long as the process: its record is what it is judged by. */
struct tg_source {
    const char *name;         /* not read here */
    uint64_t bound_bytes;     /* the most that a run can give now, or TG_BOUND_UNKNOWN */
    uint64_t cost_ns;         /* of a run: a guess at first, then measured, the later the heavier */
    uint64_t promised_bytes;  /* sum of its known bounds before its runs; */
    uint64_t gained_bytes;    /* what it gave in all of them, */
    uint64_t last_gain_bytes; /* and in the last */
    uint64_t residue_bytes;   /* still promised after a miss, so not believed */
    uint32_t runs;            /* all of them */
    uint32_t misses;          /* the last so many gave nothing worth it */
    uint32_t rests;           /* reclaims that were begun since its last run */
    uint32_t runs_now;        /* of the reclaim that was begun last, as the next two */
    uint64_t gained_now_bytes, spent_now_ns;
};

/* The caller fills the first four, now_ns anew before each question. */
struct tg_reclaim {
    uint64_t target_bytes;   /* the driver's free memory is to grow by so much; UINT64_MAX: by all
                              * that can be had */
    uint64_t min_gain_bytes; /* less is not worth a run; 0 is taken for 1 */
    uint64_t now_ns;         /* any clock that does not go back */
    uint64_t deadline_ns;    /* of the same clock; 0: none */
    uint64_t gained_bytes;   /* by so much it has grown during the runs */
    uint32_t runs;
    uint32_t idle_runs; /* the last so many did not make it grow by min_gain_bytes */
};

/* What a run did, in success and in failure. */
struct tg_source_run {
    uint64_t free_before_bytes, free_after_bytes; /* as the driver said */
    uint64_t freed_bytes;       /* given inside the process, for another source to hand on: by how
                                 * much live bytes fell in a collection; 0 where there is no such
                                 * thing. The source gained the larger of this and the growth of the
                                 * driver's free memory, and at most its bound */
    uint64_t bound_after_bytes; /* its new bound, taken over into the source */
    uint64_t spent_ns;
};

/* Begins a reclaim: what is counted for one alone becomes zero, and all sources have rested once
 * more. */
TG_API void tg_reclaim_begin(struct tg_reclaim *reclaim, struct tg_source *sources, uint32_t count);
/* What to do now. *run is set with TG_GO_ON alone. */
TG_API enum tg_stop tg_reclaim_next(const struct tg_reclaim *reclaim,
                                    const struct tg_source *sources, uint32_t count, uint32_t *run);
/* Writes a finished run into both. */
TG_API void tg_reclaim_book(struct tg_reclaim *reclaim, struct tg_source *source,
                            const struct tg_source_run *run);
/* "target met"; static, never NULL. */
TG_API const char *tg_stop_text(enum tg_stop stop);

#ifdef __cplusplus
}
#endif

#endif
