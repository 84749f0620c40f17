/* SPDX-License-Identifier: Apache-2.0 */
/* The answer from the digests of many ranks and steps. */
#include "suite.h"
#include "world.h"

#include <errno.h>

#include <tidegate/error.h>

#define MIB (UINT64_C(1) << 20)
#define KIB (UINT64_C(1) << 10)
#define MANY 64

/* A run: digests with where they belong, and the answer. */
struct run {
    struct tg_leak_input inputs[MANY];
    struct tg_digest *digests[MANY];
    size_t count;
    struct tg_leak_params params;
    struct tg_leaks *leaks;
    struct tg_leak_summary summary;
};

/* The world as it is now is written as a file of this rank and step. */
static void run_add(struct run *run, struct world *w, int64_t rank, int64_t step) {
    ck_assert_uint_lt(run->count, MANY);
    run->digests[run->count] = world_digest(w, NULL);
    run->inputs[run->count] = (struct tg_leak_input){
        run->digests[run->count], rank, 4000 + rank, step, step, 0, 0, 0};
    run->count++;
}

static void run_find(struct run *run) {
    ck_assert_int_eq(tg_leaks_find(run->inputs, run->count, &run->params, &run->leaks), 0);
    tg_leaks_summary(run->leaks, &run->summary);
}

static void run_free(struct run *run) {
    tg_leaks_close(run->leaks);
    for (size_t i = 0; i < run->count; i++)
        tg_digest_close(run->digests[i]);
}

static const struct tg_leak_site *leak(const struct run *run, size_t index) {
    return tg_leaks_site(run->leaks, TG_LIST_LEAKS, index);
}

static void expect_leak(const struct run *run, const char *where, double rate) {
    ck_assert_int_eq(run->summary.verdict, TG_VERDICT_LEAK);
    ck_assert_uint_eq(run->summary.sites[TG_LIST_LEAKS], 1);
    ck_assert_str_eq(leak(run, 0)->where, where);
    ck_assert_double_eq_tol(leak(run, 0)->bytes_per_step, rate, rate * 1e-6);
    ck_assert_double_eq_tol(run->summary.bytes_per_step, rate, rate * 1e-6);
    ck_assert_ptr_null(leak(run, 1));
}

/* One step of a plain program: temporaries, and what it keeps at a line. */
static void step(struct world *w, int line, uint64_t size) {
    world_touch(w, 10, 3 * MIB);
    if (size > 0)
        world_alloc(w, line, size);
    world_touch(w, 11, 2 * MIB);
}

/* A rank that keeps `size` at `line` in each of the steps first...last; a file a step, the history
 * cleared after each. */
static void run_rank(struct run *run, int64_t rank, int64_t first, int64_t last, int line,
                     uint64_t size) {
    struct world *w = world_new();

    world_alloc(w, 5, 100 * MIB);
    for (int64_t t = first; t <= last; t++) {
        step(w, line, size);
        run_add(run, w, rank, t);
        world_forget(w);
    }
    world_free(w);
}

/* ---- files, one a step ---- */

START_TEST(a_file_a_step) {
    struct run run = {0};
    const struct tg_leak_site *site;

    run_rank(&run, 0, 3, 8, 20, MIB);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    site = leak(&run, 0);
    ck_assert_int_eq(run.summary.step_source, TG_STEPS_FILES);
    ck_assert_uint_eq(run.summary.steps, 6);
    ck_assert_int_eq(run.summary.first_step, 3);
    ck_assert_int_eq(run.summary.last_step, 8);
    ck_assert_uint_eq(site->steps_grown, 5);
    ck_assert_uint_eq(site->bytes, 5 * MIB);
    ck_assert_uint_eq(site->blocks, 5);
    ck_assert_double_eq_tol(site->blocks_per_step, 1, 1e-9);
    ck_assert_int_eq(site->first_step, 4);
    ck_assert_uint_eq(site->rank_count, 1);
    ck_assert_uint_eq(site->stack_count, 3);
    ck_assert_uint_eq(site->own_frame, 1);
    ck_assert_str_eq(site->stack[0].function, "forward");
    ck_assert_uint_eq(site->stack[1].line, 20);
    run_free(&run);
}
END_TEST

START_TEST(the_order_of_files_does_not_matter) {
    struct run run = {0};

    run_rank(&run, 0, 1, 6, 20, MIB);
    for (size_t i = 0; i < run.count / 2; i++) {
        struct tg_leak_input swapped = run.inputs[i];
        run.inputs[i] = run.inputs[run.count - 1 - i];
        run.inputs[run.count - 1 - i] = swapped;
    }
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

/* Names that tell no step: the clock orders them. */
START_TEST(files_without_steps_are_ordered_by_time) {
    struct run run = {0};
    struct tg_leak_input first;

    run_rank(&run, 0, 1, 6, 20, MIB);
    for (size_t i = 0; i < run.count; i++)
        run.inputs[i].first_step = run.inputs[i].last_step = -1;
    first = run.inputs[0];
    run.inputs[0] = run.inputs[4];
    run.inputs[4] = first;
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

START_TEST(only_some_steps_were_written) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 18; t++) {
        step(w, 20, MIB);
        if (t % 3 == 0)
            run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

/* steps{N}-{M}: a file is of the end of its last step. */
START_TEST(a_file_may_hold_several_steps) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 12; t++) {
        step(w, 20, MIB);
        if (t % 2 == 0) {
            run_add(&run, w, 0, t);
            run.inputs[run.count - 1].first_step = t - 1;
            world_forget(w);
        }
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

/* The history goes on from file to file, as in verl 0.7: the same events come again and again. */
START_TEST(histories_may_overlap) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 6; t++) {
        step(w, 20, MIB);
        run_add(&run, w, 0, t);
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

START_TEST(two_sizes_in_turn_are_judged_over_whole_periods) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 8; t++) {
        step(w, 20, t % 2 == 0 ? 2 * MIB : 6 * MIB);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", 4 * MIB);
    run_free(&run);
}
END_TEST

START_TEST(too_few_files_are_unknown) {
    for (int64_t last = 1; last <= 2; last++) {
        struct run run = {0};

        run_rank(&run, 0, 1, last, 20, MIB);
        run_find(&run);
        ck_assert_int_eq(run.summary.verdict, TG_VERDICT_UNKNOWN);
        ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 0);
        run_free(&run);
    }
}
END_TEST

/* ---- ranks ---- */

START_TEST(one_of_two_ranks_leaks) {
    struct run run = {0};

    run_rank(&run, 0, 1, 6, 20, 0);
    run_rank(&run, 1, 1, 6, 20, MIB);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_uint_eq(run.summary.ranks, 2);
    ck_assert_int_eq(tg_leaks_rank(run.leaks, 0)->rank, 0);
    ck_assert_int_eq(tg_leaks_rank(run.leaks, 0)->verdict, TG_VERDICT_NONE);
    ck_assert_double_eq(tg_leaks_rank(run.leaks, 0)->bytes_per_step, 0);
    ck_assert_int_eq(tg_leaks_rank(run.leaks, 1)->verdict, TG_VERDICT_LEAK);
    ck_assert_double_eq_tol(tg_leaks_rank(run.leaks, 1)->bytes_per_step, MIB, 1);
    ck_assert_uint_eq(leak(&run, 0)->rank_count, 1);
    ck_assert_int_eq(leak(&run, 0)->ranks[0], 1);
    ck_assert_ptr_null(tg_leaks_rank(run.leaks, 2));
    run_free(&run);
}
END_TEST

/* The same line on all ranks is one site; its rate is that of the rank where it is largest. */
START_TEST(a_site_is_one_over_all_ranks) {
    struct run run = {0};

    run_rank(&run, 0, 1, 6, 20, MIB);
    run_rank(&run, 1, 1, 6, 20, 3 * MIB);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", 3 * MIB);
    ck_assert_uint_eq(leak(&run, 0)->rank_count, 2);
    run_free(&run);
}
END_TEST

/* After a restart all memory is new, and the pid another; steps go on. What was lost in between is
 * no tide, and the rate is that of the longer life. */
START_TEST(a_restart_changes_no_rate) {
    struct run run = {0};

    run_rank(&run, 0, 1, 3, 20, MIB);
    for (size_t i = 0; i < run.count; i++)
        run.inputs[i].pid = 77;
    run_rank(&run, 0, 4, 10, 20, MIB);
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_LEAK);
    ck_assert_double_eq_tol(run.summary.bytes_per_step, MIB, 1);
    ck_assert_str_eq(leak(&run, 0)->where, "app.py:20 f");
    run_free(&run);
}
END_TEST

/* ---- sites ---- */

START_TEST(the_largest_comes_first) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 6; t++) {
        step(w, 20, MIB);
        step(w, 21, 5 * MIB);
        step(w, WORLD_LIBRARY, 3 * MIB);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 3);
    ck_assert_str_eq(leak(&run, 0)->where, "app.py:21 f");
    ck_assert_str_eq(leak(&run, 1)->where, "linear.py:134 forward (library)");
    ck_assert_uint_eq(leak(&run, 1)->own_frame, leak(&run, 1)->stack_count);
    ck_assert_str_eq(leak(&run, 2)->where, "app.py:20 f");
    ck_assert_double_eq_tol(run.summary.bytes_per_step, 9 * MIB, 1);
    run_free(&run);
}
END_TEST

/* Two ways to the same line of the user's code, both growing: one site. */
START_TEST(one_line_is_one_site) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 6; t++) {
        world_alloc(w, 20, MIB);
        world_alloc(w, 20, 2 * MIB);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", 3 * MIB);
    ck_assert_double_eq_tol(leak(&run, 0)->blocks_per_step, 2, 1e-9);
    run_free(&run);
}
END_TEST

START_TEST(kinds_have_their_lists) {
    struct run run = {0};
    struct world *w = world_new();
    size_t held[2];

    for (int64_t t = 0; t < 10; t++) {
        if (t == 2)
            world_alloc(w, 30, 50 * MIB);
        held[t % 2] = world_alloc(w, 40, 8 * MIB);
        if (t % 2 == 1) {
            world_drop(w, held[0]);
            world_drop(w, held[1]);
        }
        step(w, 20, MIB);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_ONE_TIME], 1);
    ck_assert_str_eq(tg_leaks_site(run.leaks, TG_LIST_ONE_TIME, 0)->where, "app.py:30 f");
    ck_assert_uint_eq(tg_leaks_site(run.leaks, TG_LIST_ONE_TIME, 0)->bytes, 50 * MIB);
    ck_assert_int_eq(tg_leaks_site(run.leaks, TG_LIST_ONE_TIME, 0)->first_step, 2);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_TIDES], 1);
    ck_assert_str_eq(tg_leaks_site(run.leaks, TG_LIST_TIDES, 0)->where, "app.py:40 f");
    ck_assert_uint_eq(tg_leaks_site(run.leaks, TG_LIST_TIDES, 0)->bytes, 8 * MIB);
    run_free(&run);
}
END_TEST

/* Moments in the first step that a file shows the end of, and a cache that fills: neither grows
 * on. Nothing else does: no leak. */
START_TEST(one_time_state_is_no_growth) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 9; t++) {
        step(w, 30, t == 2 ? 660 * MIB : 0);
        step(w, 31, t <= 4 ? 10 * MIB : 0);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    world_free(w);
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_NONE);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 0);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_ONE_TIME], 2);
    ck_assert_double_eq(tg_leaks_rank(run.leaks, 0)->bytes_per_step, 0);
    run_free(&run);
}
END_TEST

/* ---- files that are not the end of a step ---- */

/* Moments within a step: the weight sync's bucket is there in one family only. */
START_TEST(families_never_share_a_series) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 8; t++) {
        size_t bucket = world_alloc(w, 40, (uint64_t)t * 100 * MIB);
        if (t > 6) { /* two files of the first family: too few to tell anything */
            run_add(&run, w, 0, t);
            run.inputs[run.count - 1].family = 1;
        }
        world_drop(w, bucket);
        step(w, 20, MIB);
        run_add(&run, w, 0, t);
    }
    world_free(w);
    run_find(&run);
    for (size_t i = 0; i < run.summary.sites[TG_LIST_LEAKS]; i++)
        ck_assert_str_ne(leak(&run, i)->where, "app.py:40 f");
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_LEAK);
    ck_assert_double_eq_tol(run.summary.bytes_per_step, MIB, 1);
    run_free(&run);
}
END_TEST

START_TEST(an_out_of_memory_file_is_no_step) {
    struct run run = {0};
    struct world *w = world_new();

    for (int64_t t = 1; t <= 6; t++) {
        step(w, 20, 0);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    for (int i = 0; i < 20; i++)
        world_alloc(w, 50, 200 * MIB);
    world_note(w, "oom", MIB, 200 * MIB, 50, 0);
    run_add(&run, w, 0, -1);
    run.inputs[run.count - 1].is_oom = 1;
    world_free(w);
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_NONE);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 0);
    ck_assert_int_eq(run.summary.last_step, 6);
    run_free(&run);
}
END_TEST

/* ---- what may be asked for ---- */

START_TEST(little_growth_is_a_note) {
    struct run run = {0};

    run_rank(&run, 0, 1, 8, 20, 8 * KIB);
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_NONE);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 0);
    ck_assert_uint_ge(run.summary.notes, 1);
    ck_assert_ptr_nonnull(tg_leaks_note(run.leaks, 0));
    ck_assert_ptr_null(tg_leaks_note(run.leaks, run.summary.notes));
    tg_leaks_close(run.leaks);

    run.params.min_bytes_per_step = 1;
    run_find(&run);
    expect_leak(&run, "app.py:20 f", 8 * KIB);
    tg_leaks_close(run.leaks);

    run.params.min_bytes_per_step = MIB;
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_NONE);
    run_free(&run);
}
END_TEST

START_TEST(the_user_says_what_is_own) {
    struct run run = {0};
    const char *own[] = {"no/such/file", "torch/nn/.*[.]py$"};

    run_rank(&run, 0, 1, 6, 20, MIB);
    run.params.own = own;
    run.params.own_count = 2;
    run_find(&run);
    expect_leak(&run, "linear.py:134 forward", MIB);
    ck_assert_uint_eq(leak(&run, 0)->own_frame, 0);
    run_free(&run);
}
END_TEST

START_TEST(wrong_arguments_are_refused) {
    struct run run = {0};
    const char *own[] = {"(["};

    run_rank(&run, 0, 1, 2, 20, MIB);
    ck_assert_int_eq(tg_leaks_find(NULL, 2, &run.params, &run.leaks), -EINVAL);
    ck_assert_int_eq(tg_leaks_find(run.inputs, 0, &run.params, &run.leaks), -EINVAL);
    ck_assert_int_eq(tg_leaks_find(run.inputs, 2, &run.params, NULL), -EINVAL);
    run.params.own = own;
    run.params.own_count = 1;
    ck_assert_int_eq(tg_leaks_find(run.inputs, 2, &run.params, &run.leaks), TG_EPATTERN);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "(["));
    ck_assert_ptr_null(run.leaks);
    tg_leaks_close(NULL);
    run_free(&run);
}
END_TEST

/* The digests may go before the answer does. */
START_TEST(the_answer_owns_what_it_says) {
    struct run run = {0};

    run_rank(&run, 0, 1, 6, 20, MIB);
    run_find(&run);
    for (size_t i = 0; i < run.count; i++) {
        tg_digest_close(run.digests[i]);
        run.digests[i] = NULL;
    }
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_str_eq(leak(&run, 0)->stack[1].file, "/w/app.py");
    run_free(&run);
}
END_TEST

/* ---- what a review found ---- */

/* A full buffer of eight blocks; each step renews one. */
static void renew(struct world *w, size_t *oldest, int steps) {
    for (int i = 0; i < steps; i++) {
        world_touch(w, 10, 3 * MIB);
        world_alloc(w, 20, 8 * MIB);
        world_drop(w, (*oldest)++);
        world_span(w, "Optimizer.step#AdamW.step");
    }
}

/* Who allocated a block that is older than the history is not known when it is freed: the line that
 * replaces it grows, and the buffer does not. */
START_TEST(a_buffer_older_than_the_history_is_no_leak) {
    struct world *w = world_new();
    struct run run = {0};
    size_t oldest = 0;

    for (int i = 0; i < 40; i++)
        world_alloc(w, 20, 8 * MIB);
    world_forget(w);
    renew(w, &oldest, 8);
    run_add(&run, w, 0, 1);
    run_find(&run);
    ck_assert_int_eq(run.summary.verdict, TG_VERDICT_UNKNOWN);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 0);
    ck_assert_ptr_nonnull(strstr(tg_leaks_note(run.leaks, 0), "older than the recording"));
    run_free(&run);
    world_free(w);
}
END_TEST

START_TEST(steps_inside_many_files_all_count) {
    struct world *w = world_new();
    struct run run = {0};

    world_alloc(w, 5, MIB);
    for (int64_t file = 0; file < 3; file++) {
        for (int i = 0; i < 4; i++) {
            step(w, 20, MIB);
            world_span(w, "Optimizer.step#AdamW.step");
        }
        run_add(&run, w, 0, 4 * file + 4);
        run.inputs[file].first_step = 4 * file + 1;
        world_forget(w);
    }
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_int_eq(run.summary.step_source, TG_STEPS_OPTIMIZER);
    ck_assert_uint_eq(run.summary.steps, 12);
    ck_assert_int_eq(run.summary.last_step, 12);
    run_free(&run);
    world_free(w);
}
END_TEST

START_TEST(little_growth_at_many_lines_adds_up) {
    struct world *w = world_new();
    struct run run = {0};

    for (int64_t t = 1; t <= 6; t++) {
        for (int line = 20; line < 30; line++)
            step(w, line, 8192);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    run_find(&run);
    expect_leak(&run, "(spread over many places)", 81920);
    ck_assert_uint_eq(leak(&run, 0)->stack_count, 0);
    run_free(&run);
    world_free(w);
}
END_TEST

START_TEST(blocks_have_the_rate_of_bytes) {
    struct world *w = world_new();
    struct run run = {0};

    for (int64_t t = 1; t <= 16; t++) {
        step(w, 20, t % 4 == 0 ? 40 * MIB : 0);
        run_add(&run, w, 0, t);
        world_forget(w);
    }
    run_find(&run);
    expect_leak(&run, "app.py:20 f", 10 * MIB);
    ck_assert_double_eq_tol(leak(&run, 0)->blocks_per_step, 0.25, 1e-9);
    run_free(&run);
    world_free(w);
}
END_TEST

/* No step in the names, and the same time: neither is a restart of the other. */
START_TEST(processes_of_the_same_time_live_side_by_side) {
    struct run run = {0};

    run_rank(&run, 0, 1, 4, 20, MIB);
    run_rank(&run, 0, 1, 4, 21, 2 * MIB);
    for (size_t i = 0; i < run.count; i++) {
        run.inputs[i].first_step = run.inputs[i].last_step = -1;
        run.inputs[i].pid = i < 4 ? 12 : 13;
    }
    run_find(&run);
    ck_assert_uint_eq(run.summary.ranks, 2);
    ck_assert_uint_eq(run.summary.notes, 0);
    ck_assert_uint_eq(run.summary.sites[TG_LIST_LEAKS], 2);
    ck_assert_uint_eq(leak(&run, 0)->rank_count, 1);
    run_free(&run);
}
END_TEST

START_TEST(runs_are_judged_each_by_itself) {
    struct run run = {0};

    run_rank(&run, -1, 1, 5, 20, MIB);
    run_rank(&run, -1, 1, 5, 20, 0);
    for (size_t i = 0; i < run.count; i++) {
        run.inputs[i].pid = -1;
        run.inputs[i].run = i < 5 ? 0 : 1;
    }
    run_find(&run);
    ck_assert_uint_eq(run.summary.ranks, 2);
    ck_assert_int_eq(tg_leaks_rank(run.leaks, 0)->verdict, TG_VERDICT_LEAK);
    ck_assert_int_eq(tg_leaks_rank(run.leaks, 1)->verdict, TG_VERDICT_NONE);
    expect_leak(&run, "app.py:20 f", MIB);
    run_free(&run);
}
END_TEST

START_TEST(a_file_without_step_has_no_place_among_others) {
    struct run run = {0};

    run_rank(&run, 0, 1, 6, 20, MIB);
    run.inputs[5].first_step = run.inputs[5].last_step = -1;
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_uint_eq(run.summary.steps, 5);
    ck_assert_str_eq(tg_leaks_note(run.leaks, 0),
                     "rank 0: 1 file is left out: no step in the name, unlike the others");
    run_free(&run);
}
END_TEST

/* One history seen twice: the second file holds all that the first does. */
START_TEST(of_two_histories_that_overlap_the_longer_counts) {
    struct world *w = world_new();
    struct run run = {0};

    for (int64_t t = 1; t <= 8; t++) {
        step(w, 20, MIB);
        world_span(w, "Optimizer.step#AdamW.step");
        if (t % 4 == 0) {
            run_add(&run, w, 0, -1);
        }
    }
    run_find(&run);
    expect_leak(&run, "app.py:20 f", MIB);
    ck_assert_uint_eq(run.summary.steps, 8);
    run_free(&run);
    world_free(w);
}
END_TEST

START_TEST(wrong_patterns_are_refused) {
    const char *const none[] = {NULL};
    struct run run = {0};

    run_rank(&run, 0, 1, 3, 20, MIB);
    run.params.own_count = 1;
    ck_assert_int_eq(tg_leaks_find(run.inputs, run.count, &run.params, &run.leaks), -EINVAL);
    run.params.own = none;
    ck_assert_int_eq(tg_leaks_find(run.inputs, run.count, &run.params, &run.leaks), -EINVAL);
    ck_assert_ptr_null(run.leaks);
    run_free(&run);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_buffer_older_than_the_history_is_no_leak, steps_inside_many_files_all_count,
        little_growth_at_many_lines_adds_up, blocks_have_the_rate_of_bytes,
        processes_of_the_same_time_live_side_by_side, runs_are_judged_each_by_itself,
        a_file_without_step_has_no_place_among_others,
        of_two_histories_that_overlap_the_longer_counts, wrong_patterns_are_refused,
        a_file_a_step, the_order_of_files_does_not_matter,
        files_without_steps_are_ordered_by_time, only_some_steps_were_written,
        a_file_may_hold_several_steps, histories_may_overlap,
        two_sizes_in_turn_are_judged_over_whole_periods, too_few_files_are_unknown,
        one_of_two_ranks_leaks, a_site_is_one_over_all_ranks, a_restart_changes_no_rate,
        the_largest_comes_first, one_line_is_one_site, kinds_have_their_lists,
        one_time_state_is_no_growth, families_never_share_a_series,
        an_out_of_memory_file_is_no_step, little_growth_is_a_note, the_user_says_what_is_own,
        wrong_arguments_are_refused, the_answer_owns_what_it_says,
    };
    TCase *group = tcase_create("leak");

    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(group, tests[i]);
    return suite_run("leak", group);
}
