/* SPDX-License-Identifier: Apache-2.0 */
/* From times to rows: medians and spreads. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "figures.h"

void bench_note(struct bench_times *times, uint64_t ns) {
    times->ns[times->count++] = ns == 0 ? 1 : ns;
}

const char *bench_unit_text(enum bench_unit unit) {
    static const char *const texts[] = {
        [BENCH_GIB_S] = "GiB/s", [BENCH_US] = "us", [BENCH_MS] = "ms"};

    return texts[unit];
}

static double value_of(const struct bench_times *times, size_t round, enum bench_unit unit) {
    double ns = (double)times->ns[round];

    if (unit == BENCH_GIB_S)
        return (double)times->size_bytes / (double)BENCH_GIB / (ns * 1e-9);
    return unit == BENCH_US ? ns * 1e-3 / (double)times->pieces : ns * 1e-6;
}

static int by_value(const void *left, const void *right) {
    const double *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* Orders the values. */
static struct bench_stats stats_of(double *values, size_t count) {
    double median;

    qsort(values, count, sizeof *values, by_value);
    median = count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    return (struct bench_stats){median, values[0], values[count - 1]};
}

/* NULL: no memory. */
static struct bench_row *row_next(struct bench_run *run, const char *what) {
    struct bench_row *row;

    if (run->row_count == run->row_room) {
        size_t room = run->row_room == 0 ? 64 : run->row_room * 2;
        struct bench_row *rows = realloc(run->rows, room * sizeof *rows);

        if (rows == NULL)
            return NULL;
        run->rows = rows;
        run->row_room = room;
    }
    row = &run->rows[run->row_count++];
    *row = (struct bench_row){.bench = run->bench, .each_us = -1};
    snprintf(row->what, sizeof row->what, "%s", what);
    return row;
}

static void row_show(const struct bench_run *run, const struct bench_row *row) {
    if (run->is_shown)
        bench_text_row(row);
}

static void row_limit(struct bench_row *row, const double *values,
                      const struct bench_limit *limit) {
    double limits[BENCH_ROUNDS_MOST], ratios[BENCH_ROUNDS_MOST];
    size_t count = limit->times->count;

    for (size_t i = 0; i < count; i++) {
        limits[i] = value_of(limit->times, i, row->unit);
        ratios[i] = values[i] / limits[i];
    }
    row->limit_what = limit->what;
    row->limit = stats_of(limits, count);
    row->ratio = stats_of(ratios, count).median;
}

int bench_add(struct bench_run *run, const char *what, enum bench_unit unit,
              const struct bench_times *times, const struct bench_limit *limit) {
    struct bench_row *row = row_next(run, what);
    double values[BENCH_ROUNDS_MOST];

    if (row == NULL)
        return bench_no_memory(run);
    row->unit = unit;
    row->is_measured = true;
    row->size_bytes = times->size_bytes;
    row->pieces = times->pieces;
    for (size_t i = 0; i < times->count; i++)
        values[i] = value_of(times, i, unit);
    if (limit != NULL)
        row_limit(row, values, limit);
    row->value = stats_of(values, times->count);
    for (size_t i = 0; i < times->count && times->pieces > 0; i++)
        values[i] = value_of(times, i, BENCH_US);
    if (times->pieces > 0)
        row->each_us = stats_of(values, times->count).median;
    row_show(run, row);
    return 0;
}

int bench_add_none(struct bench_run *run, const char *what, const char *reason, ...) {
    struct bench_row *row = row_next(run, what);
    va_list args;

    if (row == NULL)
        return bench_no_memory(run);
    va_start(args, reason);
    vsnprintf(row->reason, sizeof row->reason, reason, args);
    va_end(args);
    row_show(run, row);
    return 0;
}

bool bench_is_too_large(const struct bench_run *run, uint64_t piece_bytes) {
    return piece_bytes > run->size_bytes;
}

int bench_add_too_large(struct bench_run *run, const char *what, uint64_t piece_bytes) {
    return bench_add_none(run, what, "%s is more than this run moves: %s (--size)",
                          size_figure((double)piece_bytes).text,
                          size_figure((double)run->size_bytes).text);
}
