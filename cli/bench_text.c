/* SPDX-License-Identifier: Apache-2.0 */
/* The table, a line as soon as it is known. */
#include <stdio.h>
#include <string.h>

#include <tidegate/tidegate.h>

#include "bench.h"
#include "clean.h"
#include "figures.h"

enum { NAME_MOST = 64, URI_MOST = 256 };

static void number_write(char text[static 16], double value) {
    int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;

    snprintf(text, 16, "%.*f", digits, value);
}

void bench_text_begin(const struct bench_run *run) {
    clean_print(stdout, run->shown, URI_MOST);
    if ((run->info.can & TG_DEVICE_DIRECT) != 0) {
        fputs(" (memory of this machine stands for a card)", stdout);
    } else {
        putchar(' ');
        clean_print(stdout, run->info.name, NAME_MOST);
        printf(", driver %s", run->driver[0] == '\0' ? "not known" : run->driver);
    }
    printf(", %s free of %s; %s in each row, %s, tidegate %s\n",
           size_figure((double)run->free_bytes).text, size_figure((double)run->total_bytes).text,
           size_figure((double)run->size_bytes).text, plural_figure(run->rounds, "round").text,
           tg_version());
    printf("%-8s  %-32s  %14s  %-15s  %10s  %9s  %5s\n", "", "", "median", "lowest-highest",
           "us a piece", "limit", "ratio");
    fflush(stdout);
}

void bench_text_row(const struct bench_row *row) {
    char value[16], low[16], high[16], spread[40], each[16] = "", limit[16] = "", ratio[16] = "";

    if (!row->is_measured) {
        printf("%-8s  %-32s  not measured here: %s\n", row->bench, row->what, row->reason);
        fflush(stdout);
        return;
    }
    number_write(value, row->value.median);
    number_write(low, row->value.lowest);
    number_write(high, row->value.highest);
    snprintf(spread, sizeof spread, "%s-%s", low, high);
    if (row->each_us >= 0 && row->unit != BENCH_US)
        number_write(each, row->each_us);
    if (row->limit_what != NULL) {
        number_write(limit, row->limit.median);
        snprintf(ratio, sizeof ratio, "%.2f", row->ratio);
    }
    printf("%-8s  %-32s  %8s %-5s  %-15s  %10s  %9s  %5s\n", row->bench, row->what, value,
           bench_unit_text(row->unit), spread, each, limit, ratio);
    fflush(stdout);
}

/* Whether a row before has the same. */
static bool is_told(const struct bench_run *run, size_t index) {
    for (size_t i = 0; i < index; i++) {
        if (run->rows[i].limit_what != NULL &&
            strcmp(run->rows[i].limit_what, run->rows[index].limit_what) == 0)
            return true;
    }
    return false;
}

void bench_text_end(const struct bench_run *run) {
    for (size_t i = 0; i < run->row_count; i++) {
        const struct bench_row *row = &run->rows[i];

        if (row->limit_what != NULL && !is_told(run, i))
            printf("limit     %-8s  %s\n", row->bench, row->limit_what);
    }
}
