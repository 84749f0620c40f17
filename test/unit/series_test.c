/* SPDX-License-Identifier: Apache-2.0 */
/* The judgement of series: one row a case. Figures are MiB at the ends of steps. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

#include "suite.h"

#define MIB 1048576.0
#define POINTS_MAX 24
#define END (-1.0)

struct row {
    const char *name;
    enum tg_growth_kind kind;
    double mib_per_step;
    double mib[POINTS_MAX];
};

static const struct row rows[] = {
    /* Leaks. */
    {"every step", TG_GROWTH_LEAK, 10, {0, 10, 20, 30, 40, END}},
    {"three points, equal portions", TG_GROWTH_LEAK, 1, {1, 2, 3, END}},
    {"sizes in turn: five points", TG_GROWTH_LEAK, 70.55,
     {1137.0, 1199.7, 1278.1, 1340.8, 1419.2, END}},
    {"sizes in turn: the odd one out is not counted", TG_GROWTH_LEAK, 141.1,
     {125.5, 282.2, 407.7, 564.4, 689.9, 846.6, END}},
    {"every third step", TG_GROWTH_LEAK, 1.0 / 3, {0, 0, 1, 1, 1, 2, 2, 2, 3, END}},
    {"every third step, the first not seen", TG_GROWTH_LEAK, 1.0 / 3,
     {1, 1, 1, 2, 2, 2, 3, 3, 3, END}},
    {"every fifth step, two behind", TG_GROWTH_LEAK, 0.2,
     {0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, END}},
    {"after a warm-up", TG_GROWTH_LEAK, 10, {0, 100, 150, 160, 170, 180, 190, END}},
    {"begins late", TG_GROWTH_LEAK, 1, {0, 0, 0, 0, 1, 2, 3, END}},
    {"sizes vary", TG_GROWTH_LEAK, 7.3 / 7, {0, 1, 1.5, 3.1, 3.8, 5.2, 6, 7.3, END}},
    {"under a sawtooth", TG_GROWTH_LEAK, 0.5 / 3,
     {1, 2, 0.5, 1.5, 2.5, 1.0, 2, 3, 1.5, END}},
    {"under noise", TG_GROWTH_LEAK, 10,
     {10, 21, 29, 41, 52, 58, 71, 83, 88, 102, 99, 121, END}},
    /* No leaks. */
    {"nothing", TG_GROWTH_STEADY, 0, {5, 5, 5, 5, END}},
    {"only falls", TG_GROWTH_STEADY, 0, {5, 4, 3, 3, END}},
    {"one-time", TG_GROWTH_ONCE, 0, {0, 5, 5, 5, 5, END}},
    {"cache, three steps at its cap", TG_GROWTH_BOUNDED, 0, {1, 2, 3, 4, 5, 5, 5, 5, END}},
    {"warm-up, then still", TG_GROWTH_BOUNDED, 0, {0, 100, 150, 160, 160, 160, 160, END}},
    {"sawtooth, three periods", TG_GROWTH_TIDES, 0, {1, 2, 0, 1, 2, 0, 1, 2, 0, END}},
    {"double buffer", TG_GROWTH_TIDES, 0, {1, 2, 1, 2, 1, 2, END}},
    {"a visit", TG_GROWTH_TIDES, 0, {2, 2, 5, 5, 2, 2, 2, 2, 2, 2, END}},
    {"the last batch varies", TG_GROWTH_TIDES, 0,
     {47.7, 57.9, 50.6, 74.9, 76.6, 53.8, 52.2, 45.6, 70.0, 82.1, END}},
    /* Too short to tell. */
    {"one point", TG_GROWTH_UNKNOWN, 0, {5, END}},
    {"two points", TG_GROWTH_UNKNOWN, 0, {1, 2, END}},
    {"a jump, two steps ago", TG_GROWTH_UNKNOWN, 0, {0, 0, 0, 5, 5, END}},
    {"cache, two steps at its cap", TG_GROWTH_UNKNOWN, 0, {1, 2, 3, 4, 5, 5, 5, END}},
    {"every third step, less than three times", TG_GROWTH_UNKNOWN, 0,
     {0, 0, 1, 1, 1, 2, 2, 2, END}},
    {"sawtooth, less than three periods", TG_GROWTH_UNKNOWN, 0, {1, 2, 0, 1, 2, 0, 1, 2, END}},
    {"long sawtooth, less than three periods", TG_GROWTH_UNKNOWN, 0,
     {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, END}},
    {"two late rises", TG_GROWTH_UNKNOWN, 0, {0, 0, 0, 0, 1, 2, END}},
    {"two double buffers", TG_GROWTH_UNKNOWN, 0, {1, 2, 1, 2, END}},
};

static size_t fill(const struct row *row, uint64_t *bytes) {
    size_t count = 0;

    for (; row->mib[count] != END; count++)
        bytes[count] = (uint64_t)(row->mib[count] * MIB);
    return count;
}

START_TEST(each_row) {
    const struct row *row = &rows[_i];
    uint64_t bytes[POINTS_MAX];
    struct tg_growth growth;
    size_t count = fill(row, bytes);
    double rate, wanted = row->mib_per_step;

    ck_assert_int_eq(tg_series_judge(bytes, NULL, count, &growth), 0);
    ck_assert_msg(growth.kind == row->kind, "%s: kind %d", row->name, growth.kind);
    rate = growth.bytes_per_step / MIB;
    ck_assert_msg(rate >= wanted * 0.98 && rate <= wanted * 1.02, "%s: %f MiB a step", row->name,
                  rate);
    ck_assert(growth.confidence >= 0 && growth.confidence <= 1);
}
END_TEST

/* What is judged must not depend on what was there before, nor on the unit. */
START_TEST(offset_and_scale) {
    const struct row *row = &rows[_i];
    uint64_t bytes[POINTS_MAX];
    struct tg_growth growth;
    size_t count = fill(row, bytes);

    for (size_t i = 0; i < count; i++)
        bytes[i] = bytes[i] * 64 + (UINT64_C(20) << 30);
    ck_assert_int_eq(tg_series_judge(bytes, NULL, count, &growth), 0);
    ck_assert_msg(growth.kind == row->kind, "%s: kind %d", row->name, growth.kind);
}
END_TEST

/* A sawtooth of any period, seen for any time: no leak, and told once it was seen three times.
 * Within its first rise it is what a leak is: that is left out. */
START_TEST(sawteeth) {
    enum { LENGTH_MAX = 60 };
    size_t period = (size_t)_i;

    for (size_t phase = 0; phase < period; phase++) {
        for (size_t count = period - phase + 1; count <= LENGTH_MAX; count++) {
            uint64_t bytes[LENGTH_MAX];
            struct tg_growth growth;
            for (size_t i = 0; i < count; i++)
                bytes[i] = ((i + phase) % period) * (uint64_t)(50 * MIB);
            ck_assert_int_eq(tg_series_judge(bytes, NULL, count, &growth), 0);
            ck_assert_msg(growth.kind != TG_GROWTH_LEAK, "period %zu, phase %zu, %zu points",
                          period, phase, count);
            if (count >= 3 * period)
                ck_assert_msg(growth.kind == TG_GROWTH_TIDES, "period %zu, phase %zu, %zu points",
                              period, phase, count);
        }
    }
}
END_TEST

/* The same with a floor that rises: a leak once it was seen three times. */
START_TEST(rising_sawteeth) {
    enum { LENGTH_MAX = 60 };
    size_t period = (size_t)_i;

    for (size_t count = 3 * period; count <= LENGTH_MAX; count++) {
        uint64_t bytes[LENGTH_MAX];
        struct tg_growth growth;
        for (size_t i = 0; i < count; i++)
            bytes[i] = (i % period) * (uint64_t)(50 * MIB) + i / period * (uint64_t)(30 * MIB);
        ck_assert_int_eq(tg_series_judge(bytes, NULL, count, &growth), 0);
        ck_assert_msg(growth.kind == TG_GROWTH_LEAK, "period %zu, %zu points: %d", period, count,
                      growth.kind);
        ck_assert_double_eq_tol(growth.bytes_per_step / MIB, 30.0 / (double)period, 0.6);
    }
}
END_TEST

/* Too large for a double to tell apart. */
START_TEST(large_step_numbers) {
    const uint64_t first = UINT64_C(1) << 60;
    const uint64_t steps[] = {first, first + 1, first + 2, first + 3}, bytes[] = {1, 2, 3, 4};
    struct tg_growth growth;

    ck_assert_int_eq(tg_series_judge(bytes, steps, 4, &growth), 0);
    ck_assert_int_eq(growth.kind, TG_GROWTH_LEAK);
}
END_TEST

START_TEST(missing_steps) {
    const uint64_t steps[] = {1, 2, 5, 6, 10}, bytes[] = {100, 200, 500, 600, 1000};
    struct tg_growth growth;

    ck_assert_int_eq(tg_series_judge(bytes, steps, 5, &growth), 0);
    ck_assert_int_eq(growth.kind, TG_GROWTH_LEAK);
    ck_assert_double_eq_tol(growth.bytes_per_step, 100, 1);
}
END_TEST

START_TEST(first_point_and_points_grown) {
    const uint64_t bytes[] = {0, 0, 7, 7, 14, 14, 21};
    struct tg_growth growth;

    ck_assert_int_eq(tg_series_judge(bytes, NULL, 7, &growth), 0);
    ck_assert_int_eq(growth.kind, TG_GROWTH_LEAK);
    ck_assert_uint_eq(growth.first_point, 2);
    ck_assert_uint_eq(growth.points_grown, 3);
}
END_TEST

START_TEST(long_series) {
    enum { COUNT = 5000 };
    uint64_t *bytes = calloc(COUNT, sizeof *bytes);
    struct tg_growth growth;

    ck_assert_ptr_nonnull(bytes);
    for (uint64_t i = 0; i < COUNT; i++)
        bytes[i] = i * 1000 + (i * 2654435761u) % 7000;
    ck_assert_int_eq(tg_series_judge(bytes, NULL, COUNT, &growth), 0);
    ck_assert_int_eq(growth.kind, TG_GROWTH_LEAK);
    ck_assert_double_eq_tol(growth.bytes_per_step, 1000, 20);
    free(bytes);
}
END_TEST

START_TEST(wrong_calls) {
    const uint64_t bytes[] = {1, 2, 3}, back[] = {1, 3, 2};
    struct tg_growth growth = {.points_grown = 77};

    ck_assert_int_eq(tg_series_judge(NULL, NULL, 3, &growth), -EINVAL);
    ck_assert_int_eq(tg_series_judge(bytes, NULL, 0, &growth), -EINVAL);
    ck_assert_int_eq(tg_series_judge(bytes, NULL, 3, NULL), -EINVAL);
    ck_assert_int_eq(tg_series_judge(bytes, back, 3, &growth), -EINVAL);
    ck_assert_ptr_nonnull(tg_last_error()->text);
    ck_assert_uint_eq(growth.points_grown, 77);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("series");

    tcase_add_loop_test(cases, each_row, 0, sizeof rows / sizeof rows[0]);
    tcase_add_loop_test(cases, offset_and_scale, 0, sizeof rows / sizeof rows[0]);
    tcase_add_loop_test(cases, sawteeth, 2, 15);
    tcase_add_loop_test(cases, rising_sawteeth, 2, 13);
    tcase_add_test(cases, large_step_numbers);
    tcase_add_test(cases, missing_steps);
    tcase_add_test(cases, first_point_and_points_grown);
    tcase_add_test(cases, long_series);
    tcase_add_test(cases, wrong_calls);
    return suite_run("series", cases);
}
