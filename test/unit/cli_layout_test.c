/* SPDX-License-Identifier: Apache-2.0 */
/* What the command reads out of the paths of snapshots, and the figures that go with it. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "layout.h"

#define NONE (-1)

/* What one path must give. */
struct expected {
    const char *path;
    int64_t rank, pid, first_step, last_step;
    int32_t family;
    bool is_oom;
    const char *tag;
};

static const struct expected verl_paths[] = {
    {"outputs/profile/step3/torch_memory_rank0_pid4711.pickle", 0, 4711, 3, 3,
     FAMILY_TORCH_MEMORY, false, "torch_memory"},
    {"step12/torch_memory_rank7_pid4711.pickle.xz", 7, 4711, 12, 12, FAMILY_TORCH_MEMORY, false,
     "torch_memory"},
    {"/abs//outputs/step3//torch_memory_rank0_pid1.pickle.gz", 0, 1, 3, 3, FAMILY_TORCH_MEMORY,
     false, "torch_memory"},
    /* Written at the end of step 3, after the counter rose. */
    {"p/step4/post_update_step4_rank1_pid9.pickle", 1, 9, 3, 3, FAMILY_POST_UPDATE, false,
     "post_update"},
    {"p/steps3-8/torch_memory_rank0_pid2.pickle", 0, 2, 3, 8, FAMILY_TORCH_MEMORY, false,
     "torch_memory"},
    {"p/oom_20261101-101010-123456/torch_memory_oom_rank5_pid3.pickle", 5, 3, NONE, NONE,
     FAMILY_TORCH_MEMORY, true, "torch_memory"},
    {"p/20261101-1010/torch_memory_rank0_pid4000.pickle", 0, 4000, NONE, NONE,
     FAMILY_TORCH_MEMORY, false, "torch_memory"},
    {"torch_memory_rank0_pid4000.pickle", 0, 4000, NONE, NONE, FAMILY_TORCH_MEMORY, false,
     "torch_memory"},
    {"p/step3/manual_rank2_pid5.pickle", 2, 5, 3, 3, FAMILY_OTHER, false, "manual"},
};

static const struct expected other_paths[] = {
    {"mem_rank3_step100.pickle", 3, NONE, 100, 100, FAMILY_OTHER, false, "mem"},
    {"iteration_10/rank0_memory_snapshot.pickle", 0, NONE, 10, 10, FAMILY_OTHER, false,
     "memory_snapshot"},
    {"iteration_10_exit/rank0_memory_snapshot.pickle", 0, NONE, 10, 10, FAMILY_OTHER, true,
     "memory_snapshot"},
    {"step-10/rank_4.pkl", 4, NONE, 10, 10, FAMILY_OTHER, false, ""},
    {"global_step_10/actor/r.pickle", NONE, NONE, 10, 10, FAMILY_OTHER, false, "r"},
    {"global_step10_rank-2.pkl.zst", 2, NONE, 10, 10, FAMILY_OTHER, false, "global"},
    {"rank_3/Step_00012.pickle", 3, NONE, 12, 12, FAMILY_OTHER, false, ""},
    {"iter7.pickle", NONE, NONE, 7, 7, FAMILY_OTHER, false, ""},
    {"iters_7-9_rank1.pickle", 1, NONE, 7, 9, FAMILY_OTHER, false, ""},
    {"step=5.rank=6.pkl", 6, NONE, 5, 5, FAMILY_OTHER, false, ""},
    {"warm_step1_train_step2.pickle", NONE, NONE, 2, 2, FAMILY_OTHER, false, "warm_step#_train"},
    {"qwen_vl_oom.pickle.xz", NONE, NONE, NONE, NONE, FAMILY_OTHER, true, "qwen_vl"},
    {"snapshot_20261101_1010.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false,
     "snapshot_#_#"},
    /* None of these is a step, a rank or an oom. */
    {"step2_tests/run.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "run"},
    {"timestep3.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "timestep#"},
    {"step10k.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "step#k"},
    {"frank3.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "frank#"},
    {"rooms/bloom.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "bloom"},
    {"oom_tests/step1/a.pickle", NONE, NONE, 1, 1, FAMILY_OTHER, false, "a"},
    {"step.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "step"},
    {"step20261101101010123456.pickle", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, "step#"},
    {"steps8-3.pickle", NONE, NONE, 8, 8, FAMILY_OTHER, false, "#"},
    {"-", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, ""},
    {"", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, ""},
    {"/", NONE, NONE, NONE, NONE, FAMILY_OTHER, false, ""},
};

static void check_path(const struct expected *expected) {
    struct layout layout;

    layout_read(expected->path, &layout);
    ck_assert_msg(layout.rank == expected->rank && layout.pid == expected->pid &&
                      layout.first_step == expected->first_step &&
                      layout.last_step == expected->last_step &&
                      layout.family == expected->family && layout.is_oom == expected->is_oom,
                  "%s: rank %jd pid %jd steps %jd-%jd family %d oom %d", expected->path,
                  (intmax_t)layout.rank, (intmax_t)layout.pid, (intmax_t)layout.first_step,
                  (intmax_t)layout.last_step, layout.family, layout.is_oom);
    ck_assert_str_eq(layout.tag, expected->tag);
}

START_TEST(reads_what_verl_writes) {
    check_path(&verl_paths[_i]);
}
END_TEST

START_TEST(reads_other_common_names) {
    check_path(&other_paths[_i]);
}
END_TEST

START_TEST(cuts_a_long_tag) {
    char path[400];
    struct layout layout;

    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    layout_read(path, &layout);
    ck_assert_uint_lt(strlen(layout.tag), LAYOUT_TAG_BYTES);
}
END_TEST

START_TEST(counts_snapshots_only) {
    ck_assert(layout_counts("a.pickle"));
    ck_assert(layout_counts("a.pkl"));
    ck_assert(layout_counts("a.pickle.gz"));
    ck_assert(layout_counts("a.pkl.xz"));
    ck_assert(layout_counts("a.b.pickle.zst"));
    ck_assert(!layout_counts("a.pickle.bz2"));
    ck_assert(!layout_counts("a.pickle.gz.xz"));
    ck_assert(!layout_counts("a.gz"));
    ck_assert(!layout_counts("pickle"));
    ck_assert(!layout_counts(".pickle"));
    ck_assert(!layout_counts(".hidden.pickle"));
    ck_assert(!layout_counts("a.pickle.tmp"));
    ck_assert(!layout_counts(""));
}
END_TEST

/* Applies one --step-from; NONE: it was refused, and the sentence names the option. */
static int64_t step_by(const char *text, const char *path) {
    struct layout_patterns patterns = {0};
    struct layout layout;
    struct sentence why;
    regex_t pattern;
    bool applied;

    ck_assert(layout_pattern_compile(text, &pattern, &why));
    patterns.step = &pattern;
    layout_read(path, &layout);
    applied = layout_apply(&patterns, path, &layout, &why);
    regfree(&pattern);
    if (applied) {
        ck_assert_int_eq(layout.first_step, layout.last_step);
        return layout.first_step;
    }
    ck_assert_ptr_nonnull(strstr(why.text, "--step-from"));
    return NONE;
}

START_TEST(takes_steps_from_a_pattern) {
    ck_assert_int_eq(step_by("run-([0-9]+)-of", "a/run-0042-of-100.pkl"), 42);
    ck_assert_int_eq(step_by("^x([0-9]+)/", "x17/step3/rank0.pkl"), 17);
    /* A pattern gives the number itself, also where verl's is one ahead. */
    ck_assert_int_eq(step_by("_step([0-9]+)_", "step4/post_update_step4_rank0_pid1.pickle"), 4);
    ck_assert_int_eq(step_by("run-([0-9]+)", "a/b.pkl"), NONE);
    ck_assert_int_eq(step_by("run-([a-z]+)", "run-ab.pkl"), NONE);
    ck_assert_int_eq(step_by("run(-[0-9]+)?", "run.pkl"), NONE);
    ck_assert_int_eq(step_by("([0-9]+)", "99999999999999999999.pkl"), NONE);
}
END_TEST

START_TEST(takes_ranks_from_a_pattern) {
    struct layout_patterns patterns = {0};
    struct layout layout;
    struct sentence why;
    regex_t pattern;

    ck_assert(layout_pattern_compile("gpu([0-9]+)", &pattern, &why));
    patterns.rank = &pattern;
    layout_read("step3/rank9_gpu2.pkl", &layout);
    ck_assert(layout_apply(&patterns, "step3/rank9_gpu2.pkl", &layout, &why));
    ck_assert_int_eq(layout.rank, 2);
    ck_assert_int_eq(layout.first_step, 3);
    ck_assert(!layout_apply(&patterns, "step3/rank9.pkl", &layout, &why));
    ck_assert_int_eq(layout.rank, 2); /* as before */
    regfree(&pattern);
}
END_TEST

START_TEST(refuses_patterns_without_one_group) {
    struct sentence why;
    regex_t pattern;

    ck_assert(!layout_pattern_compile("step[0-9]+", &pattern, &why));
    ck_assert(!layout_pattern_compile("(step)([0-9]+)", &pattern, &why));
    ck_assert(!layout_pattern_compile("step([0-9]+", &pattern, &why));
}
END_TEST

/* One run is what two paths have the same text for. */
static void check_run(const char *path, const char *step_from, const char *rank_from,
                      const char *expected) {
    struct layout_patterns patterns = {0};
    struct sentence why;
    regex_t step, rank;
    char key[400];

    ck_assert_uint_lt(strlen(path) + 2, sizeof key);
    if (step_from != NULL) {
        ck_assert(layout_pattern_compile(step_from, &step, &why));
        patterns.step = &step;
    }
    if (rank_from != NULL) {
        ck_assert(layout_pattern_compile(rank_from, &rank, &why));
        patterns.rank = &rank;
    }
    layout_run(path, &patterns, key);
    ck_assert_msg(strcmp(key, expected) == 0, "%s: '%s', not '%s'", path, key, expected);
    if (step_from != NULL)
        regfree(&step);
    if (rank_from != NULL)
        regfree(&rank);
}

START_TEST(tells_runs_apart) {
    static const char *const runs[][2] = {
        {"mix/gpu0/iter_0001/snap.pickle", "mix/gpu0"},
        {"mix/gpu1/iter_0002/snap.pickle", "mix/gpu1"},
        {"mix/iter_0002/gpu1/snap.pickle", "mix/gpu1"},
        {"/abs//./a/step3/x.pickle", "/abs/a"},
        {"./step3/x.pickle", "."},
        {"/step3/x.pickle", "/"},
        {"runA_step5/x.pickle", "runA"},
        {"a/global_step_10/actor/r.pickle", "a/actor"},
        {"a/mem_step100.pickle", "a"},
        {"a/step2_tests/mem_step100.pickle", "a/step2_tests"},
        {"a/step2/mem_step100.pickle", "a/step2"},
        {"a/b/x.pickle", "a/b"},
        {"x.pickle", "."},
        {"-", "."},
        {"", "."},
        /* Ranks and processes of one run. */
        {"a/rank_3/Step_00012.pickle", "a/rank_#"},
        {"a/rank_14/pid99_x/Step_00012.pickle", "a/rank_#/pid#_x"},
        {"a/rank_3/step1/mem_rank_3.pickle", "a/rank_#"},
        {"a/verl_rank1/step1/mem_rank0.pickle", "a/verl_rank1"},
        {"a/node_rank1/step1/mem.pickle", "a/node_rank#"},
        {"a/step10_rank3/x.pickle", "a"},
        {"a/iteration_10_exit/rank0_memory_snapshot.pickle", "a"},
    };

    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        check_run(runs[i][0], NULL, NULL, runs[i][1]);
}
END_TEST

START_TEST(knows_all_that_verl_writes_as_one_run) {
    static const char *const paths[] = {
        "p/step3/torch_memory_rank0_pid4711.pickle",
        "p/steps3-8/torch_memory_rank1_pid2.pickle.xz",
        "p/step4/post_update_step4_rank1_pid9.pickle",
        "p/oom_20261101-101010-123456/torch_memory_oom_rank5_pid3.pickle",
        "p/20261101-1010/torch_memory_rank0_pid4000.pickle",
    };

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        check_run(paths[i], NULL, NULL, "p");
}
END_TEST

START_TEST(heeds_patterns_in_runs) {
    check_run("a/ep-5-of-9/step3/x.pickle", "ep-([0-9]+)", NULL, "a/step3");
    check_run("a/step3/ep5.pickle", "/ep([0-9]+)", NULL, "a/step3");
    check_run("mix/gpu0/iter_1/x.pickle", NULL, "gpu([0-9]+)", "mix/gpu#");
    check_run("mix/rank0/tp12/iter_1/x.pickle", NULL, "tp([0-9]+)", "mix/rank0/tp#");
    check_run("mix/iter_1/x_tp12.pickle", NULL, "tp([0-9]+)", "mix");
    check_run("mix/iter_1/x.pickle", "a([0-9]+)", "b([0-9]+)", "mix/iter_1");
}
END_TEST

/* Families of up to four paths, in their order. */
static void families(const char *const *paths, size_t count, int32_t *out) {
    struct layout layouts[4], *order[4];

    for (size_t i = 0; i < count; i++) {
        layout_read(paths[i], &layouts[i]);
        layouts[i].run = strncmp(paths[i], "other/", 6) == 0;
        order[i] = &layouts[i];
    }
    layout_families(order, count);
    for (size_t i = 0; i < count; i++)
        out[i] = layouts[i].family;
}

START_TEST(tells_moments_of_a_step_apart) {
    static const char *const moments[] = {"step1/before_rank0.pkl", "step1/after_rank0.pkl",
                                          "step2/before_rank0.pkl", "step2/after_rank0.pkl"};
    static const char *const names[] = {"step1/a_rank0.pkl", "step2/b_rank0.pkl",
                                        "step3/c_rank0.pkl"};
    static const char *const runs[] = {"step1/a_rank0.pkl", "step2/a_rank0.pkl",
                                       "other/step1/b_rank0.pkl"};
    static const char *const unnumbered[] = {"first.pkl", "second.pkl", "third.pkl"};
    static const char *const mixed[] = {"step1/torch_memory_rank0.pkl", "step1/x_rank0.pkl",
                                        "step1/y_rank0.pkl"};
    int32_t family[4];

    families(moments, 4, family);
    ck_assert_int_eq(family[0], family[2]);
    ck_assert_int_eq(family[1], family[3]);
    ck_assert_int_ne(family[0], family[1]);
    families(names, 3, family);
    ck_assert_int_eq(family[0], family[1]);
    ck_assert_int_eq(family[1], family[2]);
    families(runs, 3, family);
    ck_assert_int_eq(family[0], family[1]);
    ck_assert_int_eq(family[1], family[2]);
    families(unnumbered, 3, family);
    ck_assert_int_eq(family[0], family[1]);
    ck_assert_int_eq(family[1], family[2]);
    families(mixed, 3, family);
    ck_assert_int_eq(family[0], FAMILY_TORCH_MEMORY);
    ck_assert_int_ge(family[1], FAMILY_OTHER);
    ck_assert_int_ne(family[1], family[2]);
}
END_TEST

START_TEST(reads_sizes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"1e9", 1000000000},
                {"80GiB", (uint64_t)80 << 30},
                {"80gib", (uint64_t)80 << 30},
                {"80G", (uint64_t)80 << 30},
                {"80Gi", (uint64_t)80 << 30},
                {"80GB", 80000000000},
                {"512 MiB", (uint64_t)512 << 20},
                {"1.5k", 1536},
                {".5MiB", 524288},
                {"7B", 7}};
    static const char *const bad[] = {"",     "GiB",  "-1",   "+1",      "0x10",   "inf", "nan",
                                      "1Zib", "1GiX", "1i", "1 2", "1e30GiB", "80 GiBs", " 1"};
    uint64_t bytes;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_msg(size_read(good[i].text, &bytes), "%s", good[i].text);
        ck_assert_uint_eq(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!size_read(bad[i], &bytes), "%s", bad[i]);
}
END_TEST

START_TEST(writes_sizes_apart) {
    struct figure low, high;

    size_apart_figures(141 * 0x1p20, 141.1 * 0x1p20, &low, &high);
    ck_assert_str_eq(low.text, "141.0 MiB");
    ck_assert_str_eq(high.text, "141.1 MiB");
    size_apart_figures(0x1p20, 141.1 * 0x1p20, &low, &high);
    ck_assert_str_eq(low.text, "1.0 MiB");
    ck_assert_str_eq(high.text, "141 MiB");
    size_apart_figures(141 * 0x1p20, 141.001 * 0x1p20, &low, &high);
    ck_assert_str_eq(high.text, "141.001 MiB");
}
END_TEST

START_TEST(writes_sizes) {
    ck_assert_str_eq(size_figure(0).text, "0 B");
    ck_assert_str_eq(size_figure(512).text, "512 B");
    ck_assert_str_eq(size_figure(1023.6).text, "1.0 KiB");
    ck_assert_str_eq(size_figure(141.1 * 0x1p20).text, "141 MiB");
    ck_assert_str_eq(size_figure(70.53 * 0x1p20).text, "70.5 MiB");
    ck_assert_str_eq(size_figure(14.02 * 0x1p20).text, "14 MiB");
    ck_assert_str_eq(size_figure(2.0 * 0x1p30).text, "2.0 GiB");
    ck_assert_str_eq(size_figure(99.97 * 0x1p20).text, "100 MiB");
    ck_assert_str_eq(size_figure(1023.7 * 0x1p20).text, "1.0 GiB");
    ck_assert_str_eq(size_range_figure(505 * 0x1p20, 519 * 0x1p20).text, "505-519");
    ck_assert_str_eq(size_range_figure(505.1 * 0x1p20, 505.2 * 0x1p20).text, "505");
    ck_assert_str_eq(count_figure(970).text, "970");
    ck_assert_str_eq(count_figure(77514).text, "77.5 k");
    ck_assert_str_eq(count_figure(12400000).text, "12.4 M");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cli_layout");
    TCase *paths = tcase_create("paths"), *sizes = tcase_create("sizes");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_add_loop_test(paths, reads_what_verl_writes, 0,
                        sizeof verl_paths / sizeof verl_paths[0]);
    tcase_add_loop_test(paths, reads_other_common_names, 0,
                        sizeof other_paths / sizeof other_paths[0]);
    tcase_add_test(paths, cuts_a_long_tag);
    tcase_add_test(paths, counts_snapshots_only);
    tcase_add_test(paths, takes_steps_from_a_pattern);
    tcase_add_test(paths, takes_ranks_from_a_pattern);
    tcase_add_test(paths, refuses_patterns_without_one_group);
    tcase_add_test(paths, tells_runs_apart);
    tcase_add_test(paths, knows_all_that_verl_writes_as_one_run);
    tcase_add_test(paths, heeds_patterns_in_runs);
    tcase_add_test(paths, tells_moments_of_a_step_apart);
    tcase_add_test(sizes, reads_sizes);
    tcase_add_test(sizes, writes_sizes);
    tcase_add_test(sizes, writes_sizes_apart);
    suite_add_tcase(suite, paths);
    suite_add_tcase(suite, sizes);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
