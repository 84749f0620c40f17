/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked next, and when it stops: one row a case, then records over many reclaims, then
 * games against simple laws. */
#include <check.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/reclaim.h>

#include "suite.h"

enum { SOURCES_MAX = 4, RUNS_MAX = 8, MIN_GAIN = 64 };

#define ALL UINT64_MAX
#define UNKNOWN TG_BOUND_UNKNOWN

/* What a source says and does: its bound before its first run, after it, and so on; what each run
 * gives to the driver, and frees for others. Where a list ends, 0. */
struct script {
    uint64_t bounds[RUNS_MAX + 1], gives[RUNS_MAX], frees[RUNS_MAX];
    uint64_t cost_ns;
    uint64_t frees_to; /* what it frees is in the bound of this source until its next run */
};

struct row {
    const char *name, *order; /* of the runs: A is source 0 */
    enum tg_stop stop;
    uint64_t target_bytes, deadline_ns;
    struct script scripts[SOURCES_MAX];
};

#define BOUNDS(...) .bounds = {__VA_ARGS__}
#define GIVES(...) .gives = {__VA_ARGS__}
#define FREES(...) .frees = {__VA_ARGS__}

static const struct row rows[] = {
    /* Nothing to do. */
    {"no source", "", TG_NOTHING_LEFT, ALL, .scripts = {{BOUNDS(0)}}},
    {"nothing to give runs nothing", "", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(0), GIVES(900)}, {BOUNDS(0), GIVES(900)}}},
    {"nothing to reach runs nothing", "", TG_TARGET_MET, 0, .scripts = {{BOUNDS(900), GIVES(900)}}},
    {"a bound below min_gain is skipped", "", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(63), GIVES(63)}}},
    {"one at it is not", "A", TG_NOTHING_LEFT, ALL, .scripts = {{BOUNDS(64), GIVES(64)}}},
    {"min_gain holds beside others", "B", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(63), GIVES(63)}, {BOUNDS(64), GIVES(64)}}},

    /* How often. */
    {"one useful pass costs one pass", "A", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(900), GIVES(900)}}},
    {"the rest below min_gain is left", "A", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(900, 63), GIVES(837, 63)}}},
    {"900 freed and more to come goes on", "AA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(3900, 3000), GIVES(900, 3000)}}},
    {"goes on with little", "AAAA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(5000, 4936, 4872, 4808), GIVES(64, 64, 64, 4808)}}},
    {"what promises and gives nothing is asked once", "A", TG_NO_PROGRESS, ALL,
     .scripts = {{BOUNDS(900, 900)}}},
    {"a pass below min_gain is the last", "AA", TG_NO_PROGRESS, ALL,
     .scripts = {{BOUNDS(900, 800, 700), GIVES(100, 63, 700)}}},
    {"others are asked after it", "AB", TG_NO_PROGRESS, ALL,
     .scripts = {{BOUNDS(900, 900)}, {BOUNDS(800), GIVES(800), .cost_ns = 10}}},
    {"a growing promise is asked again", "ABA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(100, 100), GIVES(0, 500)},
                 {BOUNDS(900), FREES(500), .cost_ns = 10, .frees_to = 0}}},

    /* The target. */
    {"met stops at once", "A", TG_TARGET_MET, 800,
     .scripts = {{BOUNDS(900), GIVES(900)}, {BOUNDS(900), GIVES(900), .cost_ns = 10}}},
    {"met to the byte", "A", TG_TARGET_MET, 900, .scripts = {{BOUNDS(901, 1), GIVES(900)}}},
    {"one byte short goes on", "AB", TG_TARGET_MET, 901,
     .scripts = {{BOUNDS(900), GIVES(900)}, {BOUNDS(900), GIVES(900), .cost_ns = 10}}},
    {"not to be met: all is asked", "AB", TG_NOTHING_LEFT, 9000,
     .scripts = {{BOUNDS(900), GIVES(900)}, {BOUNDS(900), GIVES(900), .cost_ns = 10}}},
    {"what is freed inside does not meet it", "BA", TG_TARGET_MET, 500,
     .scripts = {{BOUNDS(0, 0), GIVES(500)},
                {BOUNDS(UNKNOWN, UNKNOWN), FREES(500), .frees_to = 0}}},

    /* The order. */
    {"cheapest per byte first", "BA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(100), GIVES(100), .cost_ns = 101},
                {BOUNDS(200), GIVES(200), .cost_ns = 200}}},
    {"bytes beyond the target count for nothing", "A", TG_TARGET_MET, 100,
     .scripts = {{BOUNDS(100), GIVES(100), .cost_ns = 100},
                {BOUNDS(9000), GIVES(9000), .cost_ns = 101}}},
    {"the first of equals first", "AB", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(100), GIVES(100), .cost_ns = 10},
                {BOUNDS(200), GIVES(200), .cost_ns = 20}}},

    /* Bounds that nobody knows. */
    {"one trial", "A", TG_NOTHING_LEFT, ALL, .scripts = {{BOUNDS(UNKNOWN, UNKNOWN)}}},
    {"one also where it gives", "A", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(UNKNOWN, UNKNOWN), GIVES(900, 900)}}},
    {"after all that is known, however dear", "BA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(UNKNOWN, UNKNOWN)}, {BOUNDS(100), GIVES(100), .cost_ns = 1000}}},
    {"not when the target is met", "B", TG_TARGET_MET, 100,
     .scripts = {{BOUNDS(UNKNOWN, UNKNOWN)}, {BOUNDS(100), GIVES(100), .cost_ns = 1000}}},
    {"the cheaper trial first", "BA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(UNKNOWN, UNKNOWN), .cost_ns = 10},
                {BOUNDS(UNKNOWN, UNKNOWN), .cost_ns = 9}}},
    {"a collection fills the cache, which is asked again", "ABA", TG_NOTHING_LEFT, ALL,
     .scripts = {{BOUNDS(900), GIVES(900, 500)},
                {BOUNDS(UNKNOWN, UNKNOWN), FREES(500), .frees_to = 0}}},

    /* Time. */
    {"a deadline that has passed", "", TG_DEADLINE, ALL, 1000,
     .scripts = {{BOUNDS(900), GIVES(900)}}},
    {"nothing to give says so even then", "", TG_NOTHING_LEFT, ALL, 1000,
     .scripts = {{BOUNDS(0), GIVES(900)}}},
    {"the target is met even then", "", TG_TARGET_MET, 0, 1000, .scripts = {{BOUNDS(900)}}},
    {"what takes longer than is left is not begun", "", TG_DEADLINE, ALL, 1100,
     .scripts = {{BOUNDS(900), GIVES(900), .cost_ns = 101}}},
    {"what ends in time is", "A", TG_NOTHING_LEFT, ALL, 1100,
     .scripts = {{BOUNDS(900), GIVES(900), .cost_ns = 100}}},
    {"the quick one in place of the slow one", "B", TG_DEADLINE, ALL, 1100,
     .scripts = {{BOUNDS(9000), GIVES(9000), .cost_ns = 200},
                {BOUNDS(90), GIVES(90), .cost_ns = 100}}},
    {"time passes", "A", TG_DEADLINE, ALL, 1150,
     .scripts = {{BOUNDS(900), GIVES(900), .cost_ns = 100},
                {BOUNDS(900), GIVES(900), .cost_ns = 100}}},
};

static uint32_t count_of(const struct row *row) {
    static const struct script none;
    uint32_t count = 0;

    while (count < SOURCES_MAX && memcmp(&row->scripts[count], &none, sizeof none) != 0)
        count++;
    return count;
}

/* Plays one reclaim; the runs' letters in `order`. */
static enum tg_stop play(const struct row *row, char *order) {
    struct tg_reclaim reclaim = {.target_bytes = row->target_bytes, .min_gain_bytes = MIN_GAIN,
                                 .now_ns = 1000, .deadline_ns = row->deadline_ns};
    struct tg_source sources[SOURCES_MAX] = {{0}};
    uint32_t count = count_of(row), i = UINT32_MAX;
    enum tg_stop stop;

    for (uint32_t k = 0; k < count; k++) {
        sources[k].bound_bytes = row->scripts[k].bounds[0];
        sources[k].cost_ns = row->scripts[k].cost_ns;
    }
    tg_reclaim_begin(&reclaim, sources, count);
    while ((stop = tg_reclaim_next(&reclaim, sources, count, &i)) == TG_GO_ON) {
        const struct script *script = &row->scripts[i];
        uint32_t run = sources[i].runs;

        ck_assert_msg(run < RUNS_MAX && reclaim.runs < 2 * RUNS_MAX, "%s: no end", row->name);
        *order++ = (char)('A' + i);
        tg_reclaim_book(&reclaim, &sources[i],
                        &(struct tg_source_run){.free_before_bytes = 7,
                                                .free_after_bytes = 7 + script->gives[run],
                                                .freed_bytes = script->frees[run],
                                                .bound_after_bytes = script->bounds[run + 1],
                                                .spent_ns = script->cost_ns});
        if (script->frees[run] > 0)
            sources[script->frees_to].bound_bytes += script->frees[run];
        reclaim.now_ns += script->cost_ns;
    }
    *order = '\0';
    return stop;
}

START_TEST(each_case) {
    const struct row *row = &rows[_i];
    char order[2 * RUNS_MAX + 1];
    enum tg_stop stop = play(row, order);

    ck_assert_msg(strcmp(order, row->order) == 0 && stop == row->stop,
                  "%s: %s, %s; not %s, %s", row->name, order, tg_stop_text(stop), row->order,
                  tg_stop_text(row->stop));
}
END_TEST

/* ---- records over many reclaims -------------------------------------------------------------- */

/* How often one source runs in a reclaim of everything. */
static uint32_t runs_in_reclaim(struct tg_source *source, uint64_t bound_bytes,
                                uint64_t gives_bytes, uint64_t left_bytes) {
    struct tg_reclaim reclaim = {.target_bytes = ALL, .min_gain_bytes = MIN_GAIN};
    uint32_t i;

    source->bound_bytes = bound_bytes;
    tg_reclaim_begin(&reclaim, source, 1);
    while (tg_reclaim_next(&reclaim, source, 1, &i) == TG_GO_ON) {
        tg_reclaim_book(&reclaim, source,
                        &(struct tg_source_run){.free_after_bytes = gives_bytes,
                                                .bound_after_bytes = left_bytes});
        gives_bytes = 0;
    }
    return source->runs_now;
}

/* The gaps between the reclaims in which it is asked never shrink, and double. */
static void ck_asked_ever_less(uint64_t bound_bytes) {
    struct tg_source source = {0};
    int last = 0, gap = 0;

    for (int reclaim = 0; reclaim < 250; reclaim++) {
        uint32_t runs = runs_in_reclaim(&source, bound_bytes, 0, bound_bytes);
        ck_assert_uint_le(runs, 1);
        if (runs == 0 || reclaim == 0)
            continue;
        ck_assert_msg(gap == 0 ? reclaim == 4 : reclaim - last == 2 * gap,
                      "asked in %d, %d and %d", last - gap, last, reclaim);
        gap = reclaim - last;
        last = reclaim;
    }
    ck_assert_int_eq(last, 4 + 8 + 16 + 32 + 64);
    ck_assert_uint_eq(source.runs, 6);
}

START_TEST(promises_that_are_not_kept_are_asked_for_ever_less) {
    ck_asked_ever_less(9000);
    ck_asked_ever_less(UNKNOWN);
}
END_TEST

/* Each time the promise has to grow by twice as much. */
START_TEST(a_growing_promise_that_is_not_kept_is_asked_for_ever_less) {
    struct tg_source source = {0};
    uint64_t bound = MIN_GAIN;

    for (uint64_t growth = MIN_GAIN; growth <= MIN_GAIN << 5; growth *= 2) {
        ck_assert_uint_eq(runs_in_reclaim(&source, bound, 0, bound), 1);
        source.rests = 0;
        ck_assert_uint_eq(runs_in_reclaim(&source, bound + 2 * growth - 1, 0, bound), 0);
        source.rests = 0;
        bound += 2 * growth;
    }
}
END_TEST

START_TEST(who_gives_again_is_believed_again) {
    struct tg_source source = {0};

    ck_assert_uint_eq(runs_in_reclaim(&source, 900, 0, 900), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, 900, 0, 900), 0);
    ck_assert_uint_eq(runs_in_reclaim(&source, 2900, 2000, 0), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, 900, 900, 0), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, 64, 64, 0), 1);
}
END_TEST

/* What never comes is asked for once, not once a reclaim. */
START_TEST(the_residue_costs_one_pass_in_all) {
    struct tg_source source = {0};

    ck_assert_uint_eq(runs_in_reclaim(&source, 1000, 900, 100), 2);
    for (int reclaim = 0; reclaim < 20; reclaim++)
        ck_assert_uint_eq(runs_in_reclaim(&source, 1000, 900, 100), 1);
}
END_TEST

/* Another program took what came free: the driver shows nothing, the bound fell all the same. */
START_TEST(a_gain_that_another_took_spoils_no_record) {
    struct tg_source source = {0};

    ck_assert_uint_eq(runs_in_reclaim(&source, 9000, 0, 0), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, 9000, 9000, 0), 1);
}
END_TEST

START_TEST(an_unknown_bound_is_what_was_given_last) {
    struct tg_source source = {0};

    ck_assert_uint_eq(runs_in_reclaim(&source, UNKNOWN, 900, UNKNOWN), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, UNKNOWN, 64, UNKNOWN), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, UNKNOWN, 63, UNKNOWN), 1);
    ck_assert_uint_eq(runs_in_reclaim(&source, UNKNOWN, 900, UNKNOWN), 0);
    ck_assert_uint_eq(runs_in_reclaim(&source, 900, 900, 0), 1); /* now it is known */
}
END_TEST

START_TEST(a_run_is_booked) {
    struct tg_reclaim reclaim = {.target_bytes = 10000, .min_gain_bytes = MIN_GAIN};
    struct tg_source source = {.bound_bytes = 1000, .cost_ns = 7};
    const struct tg_source_run good = {.free_before_bytes = 50, .free_after_bytes = 850,
                                       .bound_after_bytes = 300, .spent_ns = 40};
    const struct tg_source_run bad = {.free_before_bytes = 850, .free_after_bytes = 840,
                                      .bound_after_bytes = 300, .spent_ns = 60};

    tg_reclaim_begin(&reclaim, &source, 1);
    tg_reclaim_book(&reclaim, &source, &good);
    ck_assert_uint_eq(source.cost_ns, 40);
    tg_reclaim_book(&reclaim, &source, &bad);
    ck_assert_uint_eq(source.promised_bytes, 1300);
    ck_assert_uint_eq(source.gained_bytes, 800);
    ck_assert_uint_eq(source.last_gain_bytes, 0);
    ck_assert_uint_eq(source.cost_ns, 50);
    ck_assert_uint_eq(source.residue_bytes, 300);
    ck_assert_uint_eq(source.runs, 2);
    ck_assert_uint_eq(source.misses, 1);
    ck_assert_uint_eq(source.runs_now, 2);
    ck_assert_uint_eq(source.gained_now_bytes, 800);
    ck_assert_uint_eq(source.spent_now_ns, 100);
    ck_assert_uint_eq(reclaim.gained_bytes, 800);
    ck_assert_uint_eq(reclaim.runs, 2);
    ck_assert_uint_eq(reclaim.idle_runs, 1);
    tg_reclaim_begin(&reclaim, &source, 1);
    ck_assert_uint_eq(source.runs, 2);
    ck_assert_uint_eq(source.runs_now + source.gained_now_bytes + source.spent_now_ns, 0);
    ck_assert_uint_eq(reclaim.gained_bytes + reclaim.runs + reclaim.idle_runs, 0);
}
END_TEST

START_TEST(a_gain_is_at_most_the_bound) {
    struct tg_reclaim reclaim = {.target_bytes = 10000, .min_gain_bytes = MIN_GAIN};
    struct tg_source source = {.bound_bytes = 100};

    tg_reclaim_begin(&reclaim, &source, 1);
    tg_reclaim_book(&reclaim, &source, &(struct tg_source_run){.free_after_bytes = 5000});
    ck_assert_uint_eq(source.gained_bytes, 100);
    ck_assert_uint_eq(reclaim.gained_bytes, 5000);
}
END_TEST

START_TEST(no_min_gain_is_one_byte) {
    struct tg_reclaim reclaim = {.target_bytes = ALL};
    struct tg_source source = {0};
    uint32_t i;

    tg_reclaim_begin(&reclaim, &source, 1);
    ck_assert_int_eq(tg_reclaim_next(&reclaim, &source, 1, &i), TG_NOTHING_LEFT);
    source.bound_bytes = 1;
    ck_assert_int_eq(tg_reclaim_next(&reclaim, &source, 1, &i), TG_GO_ON);
}
END_TEST

/* Sources that hand the same bytes to each other for ever. */
START_TEST(freeing_without_end_ends) {
    struct tg_reclaim reclaim = {.target_bytes = ALL, .min_gain_bytes = MIN_GAIN};
    struct tg_source sources[2] = {{.bound_bytes = 900}, {.bound_bytes = 900}};
    enum tg_stop stop;
    uint32_t i;

    tg_reclaim_begin(&reclaim, sources, 2);
    while ((stop = tg_reclaim_next(&reclaim, sources, 2, &i)) == TG_GO_ON) {
        ck_assert_uint_lt(reclaim.runs, 4);
        tg_reclaim_book(&reclaim, &sources[i],
                        &(struct tg_source_run){.free_after_bytes = MIN_GAIN - 1,
                                                .freed_bytes = 900,
                                                .bound_after_bytes = 900});
    }
    ck_assert_int_eq(stop, TG_NO_PROGRESS);
    ck_assert_uint_eq(reclaim.runs, 4);
}
END_TEST

/* ---- games ----------------------------------------------------------------------------------- */

enum { GAMES = 2000, RECLAIMS = 12, GAME_SOURCES = 6 };

static uint64_t draw(uint64_t *seed, uint64_t below) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

static uint64_t draw_bound(uint64_t *seed) {
    switch (draw(seed, 6)) {
    case 0:
        return UNKNOWN;
    case 1:
        return 0;
    case 2:
        return UNKNOWN - 1 - draw(seed, 3);
    default:
        return draw(seed, 20 * MIN_GAIN);
    }
}

/* What came of a run, plausible or not. */
static struct tg_source_run draw_run(uint64_t *seed) {
    return (struct tg_source_run){.free_before_bytes = draw(seed, 9 * MIN_GAIN),
                                  .free_after_bytes = draw(seed, 12 * MIN_GAIN),
                                  .freed_bytes = draw(seed, 2) * draw(seed, 9 * MIN_GAIN),
                                  .bound_after_bytes = draw_bound(seed),
                                  .spent_ns = draw(seed, 1000)};
}

static void ck_may_run(const struct tg_reclaim *reclaim, const struct tg_source *source,
                       uint64_t seed) {
    ck_assert_msg(source->bound_bytes >= reclaim->min_gain_bytes,
                  "seed %" PRIu64 ": below min_gain", seed);
    ck_assert_msg(reclaim->gained_bytes < reclaim->target_bytes,
                  "seed %" PRIu64 ": target is met", seed);
    ck_assert_msg(reclaim->deadline_ns == 0 || reclaim->now_ns < reclaim->deadline_ns,
                  "seed %" PRIu64 ": after the deadline", seed);
    ck_assert_msg(source->bound_bytes != UNKNOWN || source->runs_now == 0,
                  "seed %" PRIu64 ": an unknown bound twice", seed);
}

static void ck_ended_well(const struct tg_reclaim *reclaim, const struct tg_source *sources,
                          enum tg_stop stop, uint64_t seed) {
    uint64_t runs = 0;

    for (int i = 0; i < GAME_SOURCES; i++)
        runs += sources[i].runs_now;
    ck_assert_msg(runs == reclaim->runs, "seed %" PRIu64 ": the runs do not add up", seed);
    ck_assert_msg((stop == TG_TARGET_MET) == (reclaim->gained_bytes >= reclaim->target_bytes),
                  "seed %" PRIu64 ": target met, or not", seed);
    ck_assert_msg(stop != TG_DEADLINE || reclaim->deadline_ns != 0,
                  "seed %" PRIu64 ": no deadline", seed);
}

/* One reclaim of a game; sources keep their records. */
static void play_game(struct tg_source *sources, uint64_t *seed, uint64_t number) {
    struct tg_reclaim reclaim = {.target_bytes = draw(seed, 2) ? ALL : draw(seed, 40 * MIN_GAIN),
                                 .min_gain_bytes = MIN_GAIN,
                                 .now_ns = 1000,
                                 .deadline_ns = draw(seed, 2) * (1000 + draw(seed, 9000))};
    enum tg_stop stop;
    uint32_t i = UINT32_MAX;

    for (int k = 0; k < GAME_SOURCES; k++)
        sources[k].bound_bytes = draw_bound(seed);
    tg_reclaim_begin(&reclaim, sources, GAME_SOURCES);
    while ((stop = tg_reclaim_next(&reclaim, sources, GAME_SOURCES, &i)) == TG_GO_ON) {
        struct tg_source_run run = draw_run(seed);
        bool is_dry = reclaim.runs > 40; /* what a card gives comes to an end */

        ck_assert_uint_lt(i, GAME_SOURCES);
        ck_may_run(&reclaim, &sources[i], number);
        if (is_dry)
            run.free_after_bytes = run.free_before_bytes;
        tg_reclaim_book(&reclaim, &sources[i], &run);
        reclaim.now_ns += run.spent_ns;
        ck_assert_msg(reclaim.runs <= 2 * GAME_SOURCES * (reclaim.gained_bytes / MIN_GAIN + 1),
                      "seed %" PRIu64 ": more runs than it has bytes", number);
        i = UINT32_MAX;
    }
    ck_assert_msg(i == UINT32_MAX, "seed %" PRIu64 ": an index without a run", number);
    ck_ended_well(&reclaim, sources, stop, number);
}

START_TEST(games_keep_the_laws) {
    for (uint64_t number = 1; number <= GAMES; number++) {
        struct tg_source sources[GAME_SOURCES] = {{0}};
        uint64_t seed = number;

        for (int reclaim = 0; reclaim < RECLAIMS; reclaim++)
            play_game(sources, &seed, number);
    }
}
END_TEST

START_TEST(each_stop_has_its_text) {
    ck_assert_str_eq(tg_stop_text(TG_TARGET_MET), "target met");
    ck_assert_str_eq(tg_stop_text(TG_NOTHING_LEFT), "nothing left");
    ck_assert_str_eq(tg_stop_text(TG_NO_PROGRESS), "no progress");
    ck_assert_str_eq(tg_stop_text(TG_DEADLINE), "deadline");
    ck_assert_str_eq(tg_stop_text((enum tg_stop)77), "unknown");
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("reclaim");

    tcase_add_loop_test(cases, each_case, 0, (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(cases, promises_that_are_not_kept_are_asked_for_ever_less);
    tcase_add_test(cases, a_growing_promise_that_is_not_kept_is_asked_for_ever_less);
    tcase_add_test(cases, who_gives_again_is_believed_again);
    tcase_add_test(cases, the_residue_costs_one_pass_in_all);
    tcase_add_test(cases, a_gain_that_another_took_spoils_no_record);
    tcase_add_test(cases, an_unknown_bound_is_what_was_given_last);
    tcase_add_test(cases, a_run_is_booked);
    tcase_add_test(cases, a_gain_is_at_most_the_bound);
    tcase_add_test(cases, no_min_gain_is_one_byte);
    tcase_add_test(cases, freeing_without_end_ends);
    tcase_add_test(cases, games_keep_the_laws);
    tcase_add_test(cases, each_stop_has_its_text);
    return suite_run("reclaim", cases);
}
