/* SPDX-License-Identifier: Apache-2.0 */
/* Is this series of live bytes a leak? Pure: the points in, a judgement out.
 *
 * The points are the live bytes of one place at the ends of steps. A change smaller than a
 * thousandth of the series' range counts as none. Three questions, in this order; the reasons for
 * each number are in doc/design/snapshot.md:
 *
 *   it never falls:    growth is a leak when it goes on in regular portions at regular distances,
 *                      for three whole periods; it was a cache or a one-time thing when it has
 *                      been still for three steps and for twice its own pace
 *   it repeats itself: each point equals the one a period before, for three periods: comes and
 *                      goes; lies a fixed amount above it: a leak under a sawtooth
 *   neither:           the troughs are judged: a floor that stays is no leak, a floor that rises
 *                      must rise by the first rule, or the whole series pass the Mann-Kendall test
 *                      (rate: Theil-Sen slope); what turns as often as chance (turning-point test)
 *                      and has no trend is noise, and no leak
 *
 * What none of these decides is unknown. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include <tidegate/snapshot.h>

#include "base/error.h"

#define SMALL_SHARE 0.001      /* of the range: no change */
#define ALIKE_SHARE 0.02       /* portions this close to each other are equal */
#define STILL_POINTS 3         /* so long still: it has stopped */
#define WHOLE_PERIODS 3        /* so many must be seen */
#define FALLS_SHARE 0.2        /* of the rises: noise, no sawtooth */
#define TREND_POINTS_MIN 10    /* fewer are too few for Mann-Kendall */
#define TREND_Z_SQUARED 6.64   /* z > 2.58: one in a hundred, both sides */
#define NOISE_POINTS_MIN 8     /* fewer are too few to call it noise */
#define NOISE_Z_SQUARED 2.7    /* z < 1.64: one in ten, both sides */
#define SLOPE_POINTS_MAX 100   /* Theil-Sen looks at all pairs */
#define STEPS_SPAN_MAX (UINT64_C(1) << 40)

struct points {
    const double *x, *t; /* live bytes; step numbers */
    size_t count;
    double small; /* a change up to this is none */
};

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double distance(double a, double b) {
    return a > b ? a - b : b - a;
}

static double smallest_change(const double *x, size_t count) {
    double low = x[0], high = x[0];

    for (size_t i = 1; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    /* In a long series the mean portion is itself a small share of the range: a tenth of it. */
    return (high - low) * (count <= 100 ? SMALL_SHARE : 0.1 / (double)(count - 1));
}

static bool rises(const struct points *p, size_t i) {
    return p->x[i] - p->x[i - 1] > p->small;
}

static bool falls(const struct points *p, size_t i) {
    return p->x[i - 1] - p->x[i] > p->small;
}

/* ---- a series that never falls -------------------------------------------------------------- */

/* The rises of a series: rise[i] is the point that lies above the one before it. */
struct rises {
    size_t *at;
    double *portion; /* what it rose by: a step where every point rises, else in all */
    size_t count;
};

static void note_portions(const struct points *p, struct rises *r) {
    bool every = r->count > 1 && r->at[r->count - 1] - r->at[0] == r->count - 1;

    for (size_t i = 0; i < r->count; i++) {
        size_t at = r->at[i];
        r->portion[i] = p->x[at] - p->x[at - 1];
        /* Missing files make some distances longer: their portions are larger, not irregular. */
        if (every)
            r->portion[i] /= p->t[at] - p->t[at - 1];
    }
}

static size_t widest_gap(const struct rises *r, size_t from) {
    size_t widest = 0;

    for (size_t i = from + 1; i < r->count; i++) {
        size_t gap = r->at[i] - r->at[i - 1];
        widest = gap > widest ? gap : widest;
    }
    return widest;
}

/* Whether three whole periods can be seen from rise `from` on: the points before it (as far as they
 * belong to its period), those up to the last rise, and those after. */
static bool shows_whole_periods(const struct points *p, const struct rises *r, size_t from) {
    size_t gap = widest_gap(r, from), last = r->at[r->count - 1];
    size_t before = from == 0 ? r->at[0] : r->at[from] - r->at[from - 1];

    if (before > gap)
        before = gap;
    return before + p->count - r->at[from] >= WHOLE_PERIODS * gap && p->count - 1 - last < gap;
}

/* Portions repeat with this period (1: all equal), or 0. */
static size_t portion_period(const struct rises *r, size_t from) {
    size_t count = r->count - from;

    for (size_t period = 1; period <= 4; period++) {
        /* Two whole periods, so that no chance likeness passes for one; of two in turn (the
         * commonest) three are enough. */
        bool same = count >= (period == 2 ? 3 : 2 * period);
        for (size_t i = from; same && i + period < r->count; i++)
            same = distance(r->portion[i], r->portion[i + period]) <=
                   ALIKE_SHARE * larger(r->portion[i], r->portion[i + period]);
        if (same)
            return period;
    }
    return 0;
}

/* The later half of the portions is much less than the earlier one: a warm-up. */
static bool fades(const struct rises *r, size_t from) {
    double first = 0, second = 0;

    for (size_t i = 0; i < (r->count - from) / 2; i++) {
        first += r->portion[from + i];
        second += r->portion[r->count - 1 - i];
    }
    return second < first / 2;
}

/* Portions that vary but neither fade nor differ wildly. */
static bool portions_hold(const struct rises *r, size_t from) {
    double low = r->portion[from], high = low;

    for (size_t i = from; i < r->count; i++) {
        low = r->portion[i] < low ? r->portion[i] : low;
        high = larger(high, r->portion[i]);
    }
    return r->count - from >= 3 && high <= 8 * low && !fades(r, from);
}

/* Growth a step by the last `count` rises. */
static double rate(const struct points *p, const struct rises *r, size_t count) {
    size_t first = r->at[r->count - count], last = r->at[r->count - 1];
    double sum = 0;

    if (last - first == count - 1)
        return (p->x[last] - p->x[first - 1]) / (p->t[last] - p->t[first - 1]);
    for (size_t i = r->count - count; i < r->count; i++)
        sum += r->portion[i];
    return sum / (double)count * (double)(count - 1) / (p->t[last] - p->t[first]);
}

/* Sets *g to a leak that begins with rise `from`, if it does. */
static bool leak_from(const struct points *p, const struct rises *r, size_t from, bool exact,
                      struct tg_growth *g) {
    size_t count = r->count - from, period;

    if (count < 2 || !shows_whole_periods(p, r, from))
        return false;
    /* Two rises are enough only where they fill the series: late ones may be a cache's first. */
    if (count == 2 && r->at[from] > widest_gap(r, from))
        return false;
    period = portion_period(r, from);
    if (exact ? period == 0 : !portions_hold(r, from))
        return false;
    /* Whole periods only: of 63, 78, 63 the last two tell the rate. */
    if (exact && count / period * period >= 2)
        count = count / period * period;
    g->kind = TG_GROWTH_LEAK;
    g->bytes_per_step = rate(p, r, count);
    g->first_point = (uint32_t)r->at[from];
    g->confidence = 1 - (exact ? 0.5 : 1.0) / (1.0 + (double)count);
    return true;
}

/* A warm-up may come first, so later beginnings are tried too: first for a regular leak that makes
 * up half of the rises, then for one that varies. */
static bool leak_in(const struct points *p, const struct rises *r, struct tg_growth *g) {
    for (size_t from = 0; from + 2 <= r->count && from <= r->count / 2; from++) {
        if ((from == 0 || r->count - from >= 3) && leak_from(p, r, from, true, g))
            return true;
    }
    for (size_t from = 0; from + 3 <= r->count; from++) {
        if (leak_from(p, r, from, true, g) || leak_from(p, r, from, false, g))
            return true;
    }
    return false;
}

/* It never falls, rises in three of four steps, and that over many: a leak, however it varies. */
static bool keeps_rising(const struct points *p, const struct rises *r, struct tg_growth *g) {
    size_t last = p->count - 1;

    if (p->count < TREND_POINTS_MIN || r->count * 4 < 3 * last || r->at[r->count - 1] != last ||
        fades(r, 0))
        return false;
    g->kind = TG_GROWTH_LEAK;
    g->bytes_per_step = (p->x[last] - p->x[0]) / (p->t[last] - p->t[0]);
    g->confidence = 0.8;
    return true;
}

static void judge_rises(const struct points *p, struct rises *r, struct tg_growth *g) {
    size_t still, gap;

    for (size_t i = 1; i < p->count; i++) {
        if (rises(p, i))
            r->at[r->count++] = i;
    }
    g->points_grown = (uint32_t)r->count;
    g->kind = TG_GROWTH_STEADY;
    g->confidence = 1 - 1 / (double)p->count;
    if (r->count == 0)
        return;
    note_portions(p, r);
    g->first_point = (uint32_t)r->at[0];
    still = p->count - 1 - r->at[r->count - 1];
    gap = widest_gap(r, 0);
    if (still >= STILL_POINTS && still >= 2 * gap) {
        g->kind = r->count == 1 ? TG_GROWTH_ONCE : TG_GROWTH_BOUNDED;
        g->confidence = 1 - 1 / (double)(still + 1);
        return;
    }
    if (leak_in(p, r, g) || keeps_rising(p, r, g))
        return;
    g->kind = TG_GROWTH_UNKNOWN;
    g->confidence = 0;
}

/* ---- a series that repeats itself ----------------------------------------------------------- */

/* Whether, over the last three periods at least, each point lies by the same amount above the one a
 * period before; that amount. */
static bool repeats(const struct points *p, size_t period, double *above) {
    size_t run = 0;
    double sum = 0, first = p->x[p->count - 1] - p->x[p->count - 1 - period];

    for (size_t i = p->count; i-- > period;) {
        double d = p->x[i] - p->x[i - period];
        if (distance(d, first) > larger(p->small, ALIKE_SHARE * larger(first, -first)))
            break;
        sum += d;
        run++;
    }
    if (run < (WHOLE_PERIODS - 1) * period)
        return false;
    *above = sum / (double)run;
    return true;
}

/* Whether it fell within its last period. Without a fall a stretch repeats nothing: it is a ramp,
 * perhaps that of a longer sawtooth, or a pause. */
static bool fell_lately(const struct points *p, size_t period) {
    for (size_t i = p->count - period; i < p->count; i++) {
        if (falls(p, i))
            return true;
    }
    return false;
}

static bool judge_repetition(const struct points *p, struct tg_growth *g) {
    for (size_t period = 2; period * WHOLE_PERIODS <= p->count; period++) {
        size_t last = p->count - 1;
        double above;
        if (!fell_lately(p, period) || !repeats(p, period, &above) || above < -p->small)
            continue;
        g->confidence = 1 - 1 / (double)(p->count / period + 1);
        g->kind = above > p->small ? TG_GROWTH_LEAK : TG_GROWTH_TIDES;
        if (g->kind == TG_GROWTH_LEAK)
            g->bytes_per_step = above / (p->t[last] - p->t[last - period]);
        return true;
    }
    return false;
}

/* ---- a series that rises and falls without a pattern ---------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The Mann-Kendall test: do later points tend to lie above earlier ones? The square of z, with the
 * sign of the trend. */
static double trend(const struct points *p) {
    double n = (double)p->count, score = 0, variance = n * (n - 1) * (2 * n + 5) / 18;

    for (size_t i = 0; i < p->count; i++) {
        for (size_t j = i + 1; j < p->count; j++)
            score += (p->x[j] > p->x[i]) - (p->x[j] < p->x[i]);
    }
    return score > 1 ? (score - 1) * (score - 1) / variance : -score * score / variance;
}

/* The whole last third lies above the whole first one: the trend is larger than the swing. */
static bool thirds_apart(const struct points *p) {
    size_t third = p->count / 3;
    double high = p->x[0], low = p->x[p->count - 1];

    for (size_t i = 0; i < third; i++) {
        high = larger(high, p->x[i]);
        low = p->x[p->count - 1 - i] < low ? p->x[p->count - 1 - i] : low;
    }
    return low > high;
}

/* It repeats itself exactly, but has not been seen to do so for three periods. */
static bool repeats_too_briefly(const struct points *p) {
    for (size_t period = 2; period + 2 <= p->count; period++) {
        bool same = true;
        for (size_t i = period; same && i < p->count; i++)
            same = distance(p->x[i], p->x[i - period]) <= p->small;
        if (same)
            return true;
    }
    return false;
}

/* The turning-point test: as many peaks and troughs as chance makes, or nearly (1.64 sigma). */
static bool is_noise(const struct points *p) {
    double n = (double)p->count, turns = 0, missing;

    for (size_t i = 1; i + 1 < p->count; i++)
        turns += (rises(p, i) && falls(p, i + 1)) || (falls(p, i) && rises(p, i + 1));
    missing = 2 * (n - 2) / 3 - turns;
    return missing <= 0 || missing * missing <= NOISE_Z_SQUARED * (16 * n - 29) / 90;
}

/* The Theil-Sen slope: the median of the slopes of all pairs. */
static int median_slope(const struct points *p, double *slope) {
    size_t stride = p->count / SLOPE_POINTS_MAX + 1, used = (p->count - 1) / stride + 1, n = 0;
    double *slopes = malloc(used * used / 2 * sizeof *slopes);

    if (slopes == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < p->count; i += stride) {
        for (size_t j = i + stride; j < p->count; j += stride)
            slopes[n++] = (p->x[j] - p->x[i]) / (p->t[j] - p->t[i]);
    }
    qsort(slopes, n, sizeof *slopes, by_value);
    *slope = slopes[n / 2];
    free(slopes);
    return 0;
}

/* The troughs: where a fall ends. x and t have room for p->count. */
static size_t find_troughs(const struct points *p, double *x, double *t) {
    size_t count = 0;
    bool falling = false;

    for (size_t i = 1; i < p->count; i++) {
        if (falls(p, i)) {
            falling = true;
        } else if (falling && rises(p, i)) {
            x[count] = p->x[i - 1];
            t[count++] = p->t[i - 1];
            falling = false;
        }
    }
    if (falling) {
        x[count] = p->x[p->count - 1];
        t[count++] = p->t[p->count - 1];
    }
    return count;
}

/* It changed and has been still since, for longer than it ever was between changes: it was a visit,
 * or, where something stayed, a one-time growth. */
static bool judge_stillness(const struct points *p, struct tg_growth *g) {
    size_t last = 0, longest = 0, still;

    for (size_t i = 1; i < p->count; i++) {
        if (!rises(p, i) && !falls(p, i))
            continue;
        if (last != 0 && i - last > longest)
            longest = i - last;
        last = i;
    }
    still = p->count - 1 - last;
    if (still < STILL_POINTS || still < 2 * longest)
        return false;
    g->kind = p->x[p->count - 1] - p->x[0] > p->small ? TG_GROWTH_BOUNDED : TG_GROWTH_TIDES;
    g->confidence = 1 - 1 / (double)(still + 1);
    return true;
}

/* What it falls by in all is a small part of what it rises by: not a sawtooth half seen. */
static bool falls_little(const struct points *p) {
    double up = 0, down = 0;

    for (size_t i = 1; i < p->count; i++) {
        up += larger(p->x[i] - p->x[i - 1], 0);
        down += larger(p->x[i - 1] - p->x[i], 0);
    }
    return down <= FALLS_SHARE * up;
}

static int judge_troughs(const struct points *p, const struct points *troughs, struct rises *r,
                         struct tg_growth *g) {
    struct tg_growth floor = {0};
    size_t last = troughs->count - 1;

    g->kind = TG_GROWTH_UNKNOWN;
    if (troughs->count >= WHOLE_PERIODS && troughs->x[last] - troughs->x[0] <= 50 * p->small) {
        g->kind = TG_GROWTH_TIDES;
        g->confidence = 1 - 1 / (double)troughs->count;
        return 0;
    }
    if (p->count >= NOISE_POINTS_MIN && is_noise(p) && trend(p) < NOISE_Z_SQUARED &&
        !repeats_too_briefly(p)) {
        g->kind = TG_GROWTH_TIDES;
        g->confidence = 0.5;
        return 0;
    }
    if (troughs->count < WHOLE_PERIODS && !falls_little(p))
        return 0;
    if (p->count >= TREND_POINTS_MIN && trend(p) > TREND_Z_SQUARED && thirds_apart(p)) {
        g->kind = TG_GROWTH_LEAK;
        g->confidence = 0.9;
        return median_slope(p, &g->bytes_per_step);
    }
    if (troughs->count <= WHOLE_PERIODS || !thirds_apart(p))
        return 0;
    for (size_t i = 1; i <= last; i++) {
        if (falls(troughs, i))
            return 0;
    }
    judge_rises(troughs, r, &floor);
    if (floor.kind == TG_GROWTH_LEAK) {
        g->kind = floor.kind;
        g->bytes_per_step = floor.bytes_per_step;
        g->confidence = floor.confidence / 2;
    }
    return 0;
}

static int judge_tides(const struct points *p, double *trough_x, double *trough_t,
                       struct rises *r, struct tg_growth *g) {
    struct points troughs = {trough_x, trough_t, 0, p->small};
    bool ever_rises = false;

    for (size_t i = 1; i < p->count; i++) {
        if (!rises(p, i))
            continue;
        if (!ever_rises)
            g->first_point = (uint32_t)i;
        ever_rises = true;
        g->points_grown++;
    }
    g->kind = TG_GROWTH_STEADY;
    g->confidence = 1 - 1 / (double)p->count;
    if (!ever_rises || judge_repetition(p, g) || judge_stillness(p, g))
        return 0;
    troughs.count = find_troughs(p, trough_x, trough_t);
    g->confidence = 0;
    return judge_troughs(p, &troughs, r, g);
}

/* ---- the entrance --------------------------------------------------------------------------- */

/* room: 6 doubles' worth a point. */
static int judge(const uint64_t *live_bytes, const uint64_t *steps, size_t count, double *room,
                 struct tg_growth *g) {
    double *x = room, *t = room + count;
    struct rises r = {(size_t *)(room + 4 * count), room + 5 * count, 0};
    struct points p = {x, t, count, 0};
    bool ever_falls = false, far = steps == NULL || steps[count - 1] - steps[0] > STEPS_SPAN_MAX;

    for (size_t i = 0; i < count; i++) {
        x[i] = (double)live_bytes[i];
        /* From the first on, and compared as they come: a double would round large numbers. Steps
         * so far apart that their neighbours would fall together are not believed. */
        t[i] = far ? (double)i : (double)(steps[i] - steps[0]);
        if (steps != NULL && i > 0 && steps[i] <= steps[i - 1])
            return tg__fail(-EINVAL, "tg_series_judge: steps do not ascend at point %zu", i);
    }
    p.small = smallest_change(x, count);
    for (size_t i = 1; i < count; i++)
        ever_falls = ever_falls || falls(&p, i);
    if (count == 1) {
        g->kind = TG_GROWTH_UNKNOWN;
        return 0;
    }
    if (ever_falls)
        return judge_tides(&p, room + 2 * count, room + 3 * count, &r, g);
    judge_rises(&p, &r, g);
    return 0;
}

int tg_series_judge(const uint64_t *live_bytes, const uint64_t *steps, size_t points,
                    struct tg_growth *growth) {
    struct tg_growth judged = {0};
    double *room;
    int rc;

    if (live_bytes == NULL || growth == NULL || points == 0)
        return tg__fail(-EINVAL, "tg_series_judge: no points");
    room = calloc(points, 6 * sizeof *room);
    if (room == NULL)
        return tg__fail_memory();
    rc = judge(live_bytes, steps, points, room, &judged);
    free(room);
    if (rc == 0)
        *growth = judged;
    return rc;
}
