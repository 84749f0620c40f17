/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate leak` has found, for its two printers. The printers ask the library's answer for
 * the rest. */
#ifndef CLI_LEAK_REPORT_H
#define CLI_LEAK_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tidegate/snapshot.h>

#include "jobs.h"
#include "layout.h"
#include "texts.h"

/* When the card will be full, on the rank where that is first. */
struct leak_outlook {
    bool is_known;  /* false: no rank of one device leaks */
    bool is_full;   /* already more than the capacity */
    size_t row;     /* of tg_leaks_rank */
    int64_t rank;   /* -1: not known */
    int64_t step;   /* -1: steps have no numbers */
    int64_t steps;  /* from the last one on */
    uint64_t peak_bytes;
};

/* The first out-of-memory event, by time. */
struct leak_oom {
    const struct job *job; /* NULL: none */
    const struct layout *place;
    size_t files; /* that hold one */
};

/* Where the files of a row of tg_leaks_rank lie. */
struct leak_origin {
    const char *name; /* the folder of its run; the file, where that is a row by itself */
    bool tells_pid;   /* another row has the same name and rank */
};

struct leak_report {
    const struct job *jobs; /* one for each file, in input order */
    const struct layout *places;
    size_t file_count, read_count;
    size_t unplaced_count; /* further files, to which --step-from or --rank-from did not fit */
    uint64_t events;
    double seconds;

    const struct tg_leaks *leaks;
    struct tg_leak_summary summary;
    struct leak_outlook outlook;
    struct leak_oom oom;
    struct leak_origin *origins; /* of each rank of the summary */
    size_t name_count;           /* different names among them */
    bool has_numbers;            /* one run, whose ranks all have numbers: these tell the rows */
    const struct texts *runs;    /* folders, by the places' runs */
    const struct texts *notes; /* the command's own; the library has more */

    const char *step_mark; /* NULL: none asked for */
    uint64_t capacity_bytes;
    uint64_t min_growth_bytes; /* 0: not asked for */
    size_t rows_most; /* of a list, in the text */
};

/* Fills in what follows from the jobs, the places, the leaks and the capacity. False: no memory.
 * Free with leak_report_free in every case. */
bool leak_report_complete(struct leak_report *report);
void leak_report_free(struct leak_report *report);

/* "files", "mark", "profiler", "optimizer", "period"; NULL for none. */
const char *leak_step_source_name(enum tg_step_source source);
/* "leak", "no leak", "unknown". */
const char *leak_verdict_name(enum tg_verdict verdict);

/* Is it what an optimizer keeps: does its stack pass through torch/optim/? Then *frame is the
 * innermost such frame. */
bool leak_site_is_optimizer(const struct tg_leak_site *site, const struct tg_leak_frame **frame);

void leak_text_print(const struct leak_report *report);

/* False: no memory. */
bool leak_json_print(const struct leak_report *report);

#endif
