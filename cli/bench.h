/* SPDX-License-Identifier: Apache-2.0 */
/* One run of `tidegate bench`: a device, a tenant in the ledger, and rows of figures. Every figure
 * that has a physical limit is measured beside it, in the same round. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tidegate/device.h>
#include <tidegate/ledger.h>

#include "kernel_driver.h"
#include "own_device.h"
#include "say.h"

#define BENCH_MIB (UINT64_C(1) << 20)
#define BENCH_GIB (UINT64_C(1) << 30)

enum {
    BENCH_ROUNDS_MOST = 100,
    BENCH_WAIT_MS = 20000 /* what the device has not done by then it never will */
};

enum bench_unit {
    BENCH_GIB_S, /* more is better */
    BENCH_US,    /* of one piece; less is better */
    BENCH_MS     /* of all; less is better */
};

/* The sizes of chunks and blocks that rows are told apart by. */
struct bench_piece {
    const char *name;
    uint64_t size_bytes;
};

#define BENCH_PIECE_2M {"2 MiB", 2 * BENCH_MIB}
#define BENCH_PIECE_20M {"20 MiB", 20 * BENCH_MIB}
#define BENCH_PIECE_64M {"64 MiB", 64 * BENCH_MIB}
#define BENCH_PIECE_1G {"1 GiB", BENCH_GIB}

/* Times of one operation, round by round, and what each round did. */
struct bench_times {
    uint64_t ns[BENCH_ROUNDS_MOST];
    size_t count;
    uint64_t size_bytes, pieces; /* in each round */
};

struct bench_stats {
    double median, lowest, highest;
};

struct bench_row {
    const char *bench; /* static, as all texts here but `what` */
    char what[64];
    enum bench_unit unit;
    bool is_measured;
    struct bench_stats value;
    double each_us;          /* the median of one piece; negative: there are no pieces */
    uint64_t size_bytes, pieces;
    const char *limit_what;  /* NULL: no limit was measured */
    struct bench_stats limit;
    double ratio;            /* of value and limit, the median of the rounds' */
    char reason[128];        /* why it was not measured */
};

struct bench_run {
    struct tg_device *device;
    const struct tg_device_ops *ops;
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;           /* "bench" */
    struct tg_gauge gauge;
    char shown[256];                    /* the device's URI as people read it */
    char uri[256];                      /* as it is opened: with a name that is ours */
    char device_name[OWN_DEVICE_BYTES]; /* made for this run; "": not ours */
    char driver[KERNEL_DRIVER_BYTES];   /* "": none, or it does not tell */
    struct tg_device_info info;
    uint64_t free_bytes, total_bytes;   /* before the run */
    uint64_t size_bytes;                /* what each row moves, at most */
    size_t rounds;
    bool is_shown;         /* rows are printed as they come */
    const char *bench;     /* whose rows come now */
    struct bench_row *rows;
    size_t row_count, row_room;
    struct sentence why;   /* of the first failure; "": there was none */
};

/* What to measure. Functions return 0 or a negative status; -EINTR: a signal asked to end. */
typedef int bench_fn(struct bench_run *run);
bench_fn bench_vmm, bench_sleep, bench_handover, bench_malloc, bench_prepared, bench_repack,
    bench_parts;

/* ---- the run --------------------------------------------------------------------------------- */

struct bench_options {
    const char *device, *json;
    uint64_t size_bytes; /* 0: not given */
    size_t rounds;
};

/* Opens device and ledger, and settles the size. copies: how many times the size is in host memory
 * beside the device at the worst moment. False: said, and everything is as before. */
bool bench_open(const struct bench_options *options, uint64_t copies, struct bench_run *run);
/* Gives up all that the run holds; rows stay. */
void bench_close(struct bench_run *run);

/* -EINTR once a signal has asked to end. */
int bench_go_on(const struct bench_run *run);
/* Keeps the sentence of the run's first failure, before anything is taken down; returns status. */
int bench_fail(struct bench_run *run, int status);
/* -ENOMEM, with a sentence. */
int bench_no_memory(struct bench_run *run);

/* Device memory that no tg_memory of ours charges: others are to know of it. */
int bench_take(const struct bench_run *run, const char *tag, uint64_t size_bytes);
void bench_give(const struct bench_run *run, const char *tag, uint64_t size_bytes);

/* ---- rows ------------------------------------------------------------------------------------ */

void bench_note(struct bench_times *times, uint64_t ns);

/* What was measured beside it, in as many rounds. */
struct bench_limit {
    const char *what;
    const struct bench_times *times;
};

/* Adds a row and shows it. limit may be NULL. */
int bench_add(struct bench_run *run, const char *what, enum bench_unit unit,
              const struct bench_times *times, const struct bench_limit *limit);
__attribute__((format(printf, 3, 4))) int bench_add_none(struct bench_run *run, const char *what,
                                                         const char *reason, ...);
/* For pieces that do not fit into the run's size. */
bool bench_is_too_large(const struct bench_run *run, uint64_t piece_bytes);
int bench_add_too_large(struct bench_run *run, const char *what, uint64_t piece_bytes);

const char *bench_unit_text(enum bench_unit unit);

void bench_text_begin(const struct bench_run *run);
void bench_text_row(const struct bench_row *row);
/* What the limits were. */
void bench_text_end(const struct bench_run *run);

/* One object of doc/schema/bench-1.json on one line. path "-": stdout. False: said. */
bool bench_json_write(const struct bench_run *run, const char *path);

/* ---- what the rows are made of --------------------------------------------------------------- */

/* Chunks of device memory, mapped one behind the other; the last one may be smaller. */
struct bench_chunks {
    struct bench_run *run;
    uint64_t addr, size_bytes, chunk_bytes;
    uint64_t *handles;
    uint64_t count, made, mapped_bytes;
};

/* Addresses only; charged to the tag "chunks" as long as it is open. Zeroed before: may be closed
 * in every state. */
int bench_chunks_open(struct bench_run *run, uint64_t size_bytes, uint64_t chunk_bytes,
                      struct bench_chunks *chunks);
/* Creates all, then maps all; and the other way: unmaps all at once, releases in the same order. */
int bench_chunks_up(struct bench_chunks *chunks, uint64_t *ns);
int bench_chunks_down(struct bench_chunks *chunks, uint64_t *ns);
void bench_chunks_close(struct bench_chunks *chunks);

/* Waits for all of the device's work. */
int bench_settle(const struct bench_run *run);

#endif
