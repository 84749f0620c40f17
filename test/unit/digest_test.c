/* SPDX-License-Identifier: Apache-2.0 */
/* What one file contributes: its steps, and live bytes at each. A digest's series is seen through
 * the search, which is run over this one file. */
#include "suite.h"
#include "world.h"

#include <errno.h>

#include <tidegate/error.h>

#define MIB (UINT64_C(1) << 20)
#define OPTIMIZER "Optimizer.step#AdamW.step"

/* The answer for one file whose name says nothing. */
static struct tg_leaks *find_in(struct tg_digest *digest) {
    struct tg_leak_input input = {digest, -1, -1, -1, -1, 0, 0, 0};
    struct tg_leak_params params = {0};
    struct tg_leaks *leaks;

    ck_assert_int_eq(tg_leaks_find(&input, 1, &params, &leaks), 0);
    return leaks;
}

/* Digest and answer of the world, which they free. */
struct answer {
    struct tg_digest_info info;
    struct tg_leaks *leaks;
    struct tg_leak_summary summary;
    struct tg_digest *digest;
};

static struct answer answer_of(struct world *w, const char *mark) {
    struct answer a;

    a.digest = world_digest(w, mark);
    world_free(w);
    tg_digest_info(a.digest, &a.info);
    a.leaks = find_in(a.digest);
    tg_leaks_summary(a.leaks, &a.summary);
    return a;
}

static void answer_free(struct answer *a) {
    tg_leaks_close(a->leaks);
    tg_digest_close(a->digest);
}

/* The one leak, at this line with this rate; or none. */
static void expect_leak(const struct answer *a, int line, double rate) {
    char where[64];
    const struct tg_leak_site *site = tg_leaks_site(a->leaks, TG_LIST_LEAKS, 0);

    ck_assert_int_eq(a->summary.verdict, TG_VERDICT_LEAK);
    ck_assert_uint_eq(a->summary.sites[TG_LIST_LEAKS], 1);
    snprintf(where, sizeof where, "app.py:%d f", line);
    ck_assert_str_eq(site->where, where);
    ck_assert_double_eq_tol(site->bytes_per_step, rate, rate * 1e-6);
    ck_assert_double_eq_tol(a->summary.bytes_per_step, rate, rate * 1e-6);
}

static void expect_none(const struct answer *a) {
    ck_assert_int_eq(a->summary.verdict, TG_VERDICT_NONE);
    ck_assert_uint_eq(a->summary.sites[TG_LIST_LEAKS], 0);
    ck_assert_double_eq(a->summary.bytes_per_step, 0);
}

/* ---- where steps come from ---- */

START_TEST(optimizer_annotations_are_steps) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 6; i++) {
        world_touch(w, 10, 3 * MIB);
        world_alloc(w, 20, MIB);
        world_span(w, OPTIMIZER);
        world_touch(w, 11, 2 * MIB);
    }
    a = answer_of(w, NULL);
    ck_assert_int_eq(a.info.step_source, TG_STEPS_OPTIMIZER);
    ck_assert_double_eq(a.info.step_confidence, 1);
    ck_assert_uint_eq(a.info.steps, 6);
    ck_assert_int_eq(a.summary.step_source, TG_STEPS_OPTIMIZER);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

START_TEST(other_annotations_are_no_steps) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 6; i++) {
        world_alloc(w, 20, MIB);
        for (int k = 0; k < 3; k++)
            world_span(w, "nccl:all_reduce");
        world_span(w, "Optimizer.zero_grad#AdamW.zero_grad");
        world_span(w, OPTIMIZER);
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.steps, 6);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

/* Several optimizer steps in each of the profiler's: those are the steps of the loop. */
START_TEST(profiler_steps_come_before_the_optimizers) {
    struct world *w = world_new();
    struct answer a;
    char name[32];

    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "ProfilerStep#%d", i + 3);
        world_annotate(w, name, 0);
        for (int k = 0; k < 4; k++) {
            world_alloc(w, 20, MIB);
            world_span(w, OPTIMIZER);
        }
        world_touch(w, 10, MIB);
        world_annotate(w, name, 1);
    }
    a = answer_of(w, NULL);
    ck_assert_int_eq(a.info.step_source, TG_STEPS_PROFILER);
    expect_leak(&a, 20, 4 * MIB);
    answer_free(&a);
}
END_TEST

START_TEST(a_mark_comes_before_all) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 6; i++) {
        world_span(w, "rollout");
        for (int k = 0; k < 2; k++) {
            world_alloc(w, 20, MIB);
            world_span(w, OPTIMIZER);
        }
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, "rollout");
    ck_assert_int_eq(a.info.step_source, TG_STEPS_MARK);
    expect_leak(&a, 20, 2 * MIB);
    answer_free(&a);
}
END_TEST

START_TEST(a_mark_may_be_a_prefix_of_metadata) {
    struct world *w = world_new();
    struct answer a;
    char text[32];

    for (int i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "epoch 0 step %d", i);
        world_metadata(w, text);
        world_touch(w, 10, MIB);
        world_alloc(w, 20, MIB);
        world_touch(w, 11, MIB);
    }
    a = answer_of(w, "epoch*");
    ck_assert_int_eq(a.info.step_source, TG_STEPS_MARK);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

/* Metadata are the setting thread's: what the engine's thread allocates has none, also in the
 * middle of a step. Only another word ends the first. */
START_TEST(a_mark_of_metadata_begins_where_it_comes_up) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 6; i++) {
        world_metadata(w, "begin");
        world_touch(w, 10, MIB);
        world_metadata(w, "");
        world_touch(w, 12, MIB);
        world_metadata(w, "begin");
        world_touch(w, 10, MIB);
        world_metadata(w, "train");
        world_alloc(w, 20, MIB);
        world_touch(w, 11, MIB);
    }
    a = answer_of(w, "begin");
    ck_assert_int_eq(a.info.step_source, TG_STEPS_MARK);
    ck_assert_uint_ge(a.info.steps, 5);
    ck_assert_uint_le(a.info.steps, 6);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

START_TEST(a_period_is_found) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < 12; k++)
            world_touch(w, 30 + k, (uint64_t)(k + 1) * MIB);
        world_alloc(w, 20, MIB);
    }
    a = answer_of(w, NULL);
    ck_assert_int_eq(a.info.step_source, TG_STEPS_PERIOD);
    ck_assert_double_gt(a.info.step_confidence, 0);
    ck_assert_double_le(a.info.step_confidence, 1);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

START_TEST(no_steps_no_answer) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 4; i++)
        world_alloc(w, 20 + i, (uint64_t)(i + 1) * MIB);
    a = answer_of(w, NULL);
    ck_assert_int_eq(a.info.step_source, TG_STEPS_NONE);
    ck_assert_int_eq(a.summary.verdict, TG_VERDICT_UNKNOWN);
    answer_free(&a);
}
END_TEST

/* ---- exactly where a step ends ---- */

/* A block that is there at each boundary, larger each time, allocated by the last event before it
 * and freed by the first after it: at the boundaries it grows. */
START_TEST(the_last_event_before_a_boundary_counts) {
    struct world *w = world_new();
    struct answer a;

    for (uint64_t i = 1; i <= 6; i++) {
        size_t block;
        world_touch(w, 10, MIB);
        block = world_alloc(w, 20, i * MIB);
        world_span(w, OPTIMIZER);
        world_drop(w, block);
    }
    a = answer_of(w, NULL);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

/* The other way round: allocated by the first event after a boundary, freed by the last before the
 * next: at no boundary is it there. */
START_TEST(the_first_event_after_a_boundary_does_not) {
    struct world *w = world_new();
    struct answer a;

    for (uint64_t i = 1; i <= 6; i++) {
        world_drop(w, world_alloc(w, 20, i * MIB));
        world_span(w, OPTIMIZER);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    answer_free(&a);
}
END_TEST

static int64_t first_step_at(const struct answer *a, int line) {
    char where[64];
    const struct tg_leak_site *site;

    snprintf(where, sizeof where, "app.py:%d f", line);
    for (size_t i = 0; (site = tg_leaks_site(a->leaks, TG_LIST_ONE_TIME, i)) != NULL; i++) {
        if (strcmp(site->where, where) == 0)
            return site->first_step;
    }
    ck_abort_msg("line %d is not in the list", line);
    return -1;
}

/* The first event behind a boundary and the last before the next are of the same step. */
START_TEST(a_step_is_from_boundary_to_boundary) {
    struct world *w = world_new();
    struct answer a;
    int64_t step;

    for (int i = 0; i < 10; i++) {
        if (i == 4)
            world_alloc(w, 30, 4 * MIB);
        if (i == 5)
            world_alloc(w, 32, 5 * MIB);
        world_touch(w, 10, MIB);
        if (i == 3)
            world_alloc(w, 29, 2 * MIB);
        if (i == 4)
            world_alloc(w, 31, 3 * MIB);
        world_span(w, OPTIMIZER);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    step = first_step_at(&a, 30);
    ck_assert_int_eq(first_step_at(&a, 29), step - 1);
    ck_assert_int_eq(first_step_at(&a, 31), step);
    ck_assert_int_eq(first_step_at(&a, 32), step + 1);
    answer_free(&a);
}
END_TEST

/* Each step leaves another amount: a boundary that slips by a step would give another sum. */
START_TEST(each_step_has_its_own_bytes) {
    struct world *w = world_new();
    struct answer a;
    const struct tg_leak_rank *rank;

    for (uint64_t i = 0; i < 8; i++) {
        world_alloc(w, 20, (i % 2 == 0 ? 3 : 5) * MIB);
        world_span(w, OPTIMIZER);
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, NULL);
    expect_leak(&a, 20, 4 * MIB);
    rank = tg_leaks_rank(a.leaks, 0);
    ck_assert_ptr_nonnull(rank);
    ck_assert_uint_eq(rank->steps, 8);
    ck_assert_uint_eq(rank->steps_grown, 7);
    answer_free(&a);
}
END_TEST

/* ---- frees ---- */

START_TEST(what_is_freed_is_gone) {
    struct world *w = world_new();
    struct answer a;
    size_t held = 0;

    for (int i = 0; i < 8; i++) {
        size_t next = world_alloc(w, 20, 4 * MIB);
        if (i > 0)
            world_drop(w, held);
        held = next;
        world_span(w, OPTIMIZER);
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    ck_assert_uint_eq(a.info.live_bytes, 4 * MIB);
    ck_assert_uint_eq(a.info.peak_bytes, 8 * MIB);
    answer_free(&a);
}
END_TEST

/* Freed by the program, still used by a stream: the program does not hold it. */
START_TEST(pending_blocks_are_not_live) {
    struct world *w = world_new();
    struct answer a;

    world_alloc(w, 10, MIB);
    for (int i = 0; i < 6; i++) {
        world_drop_pending(w, world_alloc(w, 20, 4 * MIB));
        world_span(w, OPTIMIZER);
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.live_bytes, MIB);
    expect_none(&a);
    answer_free(&a);
}
END_TEST

/* A sawtooth: collected for three steps, then let go. */
START_TEST(what_comes_and_goes_is_no_leak) {
    struct world *w = world_new();
    struct answer a;
    size_t held[3];

    for (int i = 0; i < 12; i++) {
        held[i % 3] = world_alloc(w, 20, 4 * MIB);
        if (i % 3 == 2) {
            for (int k = 0; k < 3; k++)
                world_drop(w, held[k]);
        }
        world_span(w, OPTIMIZER);
        world_touch(w, 10, MIB);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    ck_assert_uint_eq(a.summary.sites[TG_LIST_TIDES], 1);
    answer_free(&a);
}
END_TEST

/* ---- one-time state ---- */

START_TEST(moments_come_once) {
    struct world *w = world_new();
    struct answer a;
    const struct tg_leak_site *site;

    world_alloc(w, 5, 64 * MIB);
    world_forget(w); /* the weights are older than the history */
    for (int i = 0; i < 8; i++) {
        world_touch(w, 10, MIB);
        world_annotate(w, OPTIMIZER, 0);
        if (i == 0)
            world_alloc(w, 30, 128 * MIB);
        world_touch(w, 11, MIB);
        world_annotate(w, OPTIMIZER, 1);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    ck_assert_uint_eq(a.summary.sites[TG_LIST_ONE_TIME], 1);
    site = tg_leaks_site(a.leaks, TG_LIST_ONE_TIME, 0);
    ck_assert_str_eq(site->where, "app.py:30 f");
    ck_assert_uint_eq(site->bytes, 128 * MIB);
    answer_free(&a);
}
END_TEST

/* In a later step: still once. */
START_TEST(a_late_one_time_thing_is_no_growth) {
    struct world *w = world_new();
    struct answer a;

    for (int i = 0; i < 9; i++) {
        world_touch(w, 10, MIB);
        if (i == 2)
            world_alloc(w, 30, 50 * MIB);
        world_span(w, OPTIMIZER);
    }
    a = answer_of(w, NULL);
    expect_none(&a);
    ck_assert_uint_eq(a.summary.sites[TG_LIST_ONE_TIME], 1);
    ck_assert_int_eq(tg_leaks_site(a.leaks, TG_LIST_ONE_TIME, 0)->kind, TG_GROWTH_ONCE);
    answer_free(&a);
}
END_TEST

/* ---- histories with holes ---- */

/* The ring lost the first steps; their blocks are live, and some are freed later without an alloc
 * in the history. */
START_TEST(a_lost_beginning_changes_no_rate) {
    struct world *w = world_new();
    struct answer a;
    size_t old = world_alloc(w, 40, 7 * MIB);

    for (int i = 0; i < 10; i++) {
        world_touch(w, 10, 2 * MIB);
        world_alloc(w, 20, MIB);
        world_span(w, OPTIMIZER);
        world_touch(w, 11, MIB);
        if (i == 6)
            world_drop(w, old);
    }
    /* A step is 7 events; the 2 of the drop: the last six steps are left, the first not whole. */
    world_keep_last(w, 6 * 7 + 2);
    a = answer_of(w, NULL);
    expect_leak(&a, 20, MIB);
    ck_assert_uint_eq(a.info.live_bytes, 10 * MIB);
    answer_free(&a);
}
END_TEST

/* Nothing but blocks: the end is known, steps are not. */
START_TEST(no_history_is_one_point) {
    struct world *w = world_new();
    struct answer a;

    world_alloc(w, 20, 3 * MIB);
    world_forget(w);
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.events, 0);
    ck_assert_uint_eq(a.info.live_bytes, 3 * MIB);
    ck_assert_uint_eq(a.info.first_us, 0);
    ck_assert_int_eq(a.summary.verdict, TG_VERDICT_UNKNOWN);
    answer_free(&a);
}
END_TEST

/* ---- devices ---- */

START_TEST(all_devices_count) {
    struct world *w = world_new();
    struct answer a;

    w->devices = 3;
    world_alloc_on(w, 0, 5, 2 * MIB);
    for (int i = 0; i < 6; i++) {
        world_alloc_on(w, 1, 20, MIB);
        world_drop(w, world_alloc_on(w, 2, 10, MIB));
        world_span(w, OPTIMIZER);
        world_drop(w, world_alloc_on(w, 0, 10, MIB));
    }
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.live_bytes, 8 * MIB);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

/* The same addresses may be in use on two devices: each has its own. */
START_TEST(devices_do_not_share_addresses) {
    struct world *w = world_new();
    struct answer a;

    w->devices = 2;
    for (int i = 0; i < 6; i++) {
        size_t one = world_alloc_on(w, 0, 20, MIB), two;
        two = world_alloc_on(w, 1, 21, 2 * MIB);
        w->blocks[two].addr = w->blocks[one].addr;
        w->events[w->event_count - 1].addr = w->blocks[one].addr;
        world_drop(w, two);
        world_span(w, OPTIMIZER);
    }
    a = answer_of(w, NULL);
    expect_leak(&a, 20, MIB);
    answer_free(&a);
}
END_TEST

/* ---- figures ---- */

START_TEST(figures_are_those_of_the_file) {
    struct world *w = world_new();
    struct answer a;
    uint64_t first, last;

    world_alloc(w, 20, 5 * MIB);
    first = w->events[0].time;
    world_touch(w, 21, 3 * MIB);
    world_drop_pending(w, world_alloc(w, 22, MIB));
    last = w->time;
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.events, 6);
    ck_assert_uint_eq(a.info.live_bytes, 5 * MIB);
    ck_assert_uint_eq(a.info.reserved_bytes, 6 * MIB);
    ck_assert_uint_eq(a.info.peak_bytes, 8 * MIB);
    ck_assert_uint_eq(a.info.first_us, first);
    ck_assert_uint_eq(a.info.last_us, last);
    ck_assert_uint_eq(a.info.has_oom, 0);
    answer_free(&a);
}
END_TEST

START_TEST(the_last_out_of_memory_event_is_told) {
    struct world *w = world_new();
    struct answer a;

    world_alloc(w, 20, 5 * MIB);
    world_note(w, "oom", 111, 222, 20, 0);
    world_alloc(w, 20, 2 * MIB);
    world_note(w, "oom", 3 * MIB, 900 * MIB, 20, 0);
    world_touch(w, 21, MIB);
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.has_oom, 1);
    ck_assert_uint_eq(a.info.oom_asked_bytes, 900 * MIB);
    ck_assert_uint_eq(a.info.oom_free_bytes, 3 * MIB);
    ck_assert_uint_eq(a.info.oom_live_bytes, 7 * MIB);
    answer_free(&a);
}
END_TEST

/* By time, not by number of the device. */
START_TEST(the_last_out_of_memory_event_may_be_of_any_device) {
    struct world *w = world_new();
    struct answer a;

    w->devices = 2;
    world_alloc_on(w, 1, 20, MIB);
    world_note(w, "oom", 111, 222 * MIB, 20, 1);
    world_alloc(w, 20, 5 * MIB);
    world_note(w, "oom", 3 * MIB, 900 * MIB, 20, 0);
    a = answer_of(w, NULL);
    ck_assert_uint_eq(a.info.oom_asked_bytes, 900 * MIB);
    ck_assert_uint_eq(a.info.oom_live_bytes, 5 * MIB);
    answer_free(&a);
}
END_TEST

START_TEST(wrong_arguments_are_refused) {
    struct world *w = world_new();
    struct tg_snapshot *snapshot = world_parse(w);
    struct tg_digest *digest = NULL;

    ck_assert_int_eq(tg_digest_make(NULL, NULL, &digest), -EINVAL);
    ck_assert_int_eq(tg_digest_make(snapshot, NULL, NULL), -EINVAL);
    ck_assert_ptr_null(digest);
    ck_assert_int_eq(tg_last_error()->status, -EINVAL);
    tg_digest_close(NULL);
    tg_snapshot_close(snapshot);
    world_free(w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        optimizer_annotations_are_steps, other_annotations_are_no_steps,
        profiler_steps_come_before_the_optimizers, a_mark_comes_before_all,
        a_mark_may_be_a_prefix_of_metadata, a_mark_of_metadata_begins_where_it_comes_up,
        a_period_is_found, no_steps_no_answer, the_last_event_before_a_boundary_counts,
        the_first_event_after_a_boundary_does_not, a_step_is_from_boundary_to_boundary,
        each_step_has_its_own_bytes,
        what_is_freed_is_gone, pending_blocks_are_not_live, what_comes_and_goes_is_no_leak,
        moments_come_once, a_late_one_time_thing_is_no_growth, a_lost_beginning_changes_no_rate,
        no_history_is_one_point, all_devices_count, devices_do_not_share_addresses,
        figures_are_those_of_the_file, the_last_out_of_memory_event_is_told,
        the_last_out_of_memory_event_may_be_of_any_device,
        wrong_arguments_are_refused,
    };
    TCase *group = tcase_create("digest");

    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(group, tests[i]);
    return suite_run("digest", group);
}
