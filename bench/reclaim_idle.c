/* SPDX-License-Identifier: Apache-2.0 */
/* Times a reclaim that has nothing to give, as a C program would run it; prints one line of JSON.
 *
 *     reclaim_idle URI ROUNDS     such as cuda:0, or host:capacity=64MiB
 *
 * One reclaim asks the driver for its free memory, sets the bounds of four sources, asks which to
 * run, is told none, and asks the driver again for the receipt. */
#include "timing.h"

#include <tidegate/device.h>
#include <tidegate/error.h>
#include <tidegate/reclaim.h>

enum { SOURCES = 4 };

static uint64_t free_of(struct tg_device *device) {
    uint64_t free_bytes = 0, total_bytes = 0;

    if (tg_device_ops(device)->memory(device, &free_bytes, &total_bytes) < 0) {
        fprintf(stderr, "%s\n", tg_last_error()->text);
        exit(2);
    }
    return free_bytes;
}

/* Returns by how much the driver's free memory grew. */
static uint64_t reclaim(struct tg_device *device, struct tg_source *sources) {
    struct tg_reclaim state = {.target_bytes = UINT64_MAX, .min_gain_bytes = 2 << 20};
    uint64_t before = free_of(device);
    uint32_t chosen = 0;

    tg_reclaim_begin(&state, sources, SOURCES);
    for (uint32_t i = 0; i < SOURCES; i++)
        sources[i].bound_bytes = 0;
    state.now_ns = bench_clock_ns(CLOCK_MONOTONIC);
    if (tg_reclaim_next(&state, sources, SOURCES, &chosen) == TG_GO_ON) {
        fprintf(stderr, "a source that has nothing was to be run\n");
        exit(2);
    }
    return free_of(device) - before;
}

int main(int argc, char **argv) {
    struct tg_source sources[SOURCES] = {{.name = "cache"}, {.name = "pool"}, {.name = "host"},
                                         {.name = "collector"}};
    struct bench_times times = {.runs = bench_runs(argc, argv)};
    struct bench_file nothing = {NULL, 0};
    struct tg_device *device = NULL;
    uint64_t grown = 0;

    if (argc < 2 || tg_device_open(argv[1], &device) < 0) {
        fprintf(stderr, "reclaim_idle URI ROUNDS: %s\n", argc < 2 ? "" : tg_last_error()->text);
        return 2;
    }
    for (size_t i = 0; i < times.runs; i++) {
        bench_begin(&times, i);
        grown |= reclaim(device, sources);
        bench_end(&times, i);
    }
    bench_print(&nothing, &times, grown != 0 ? ", \"grown\": true" : "");
    tg_device_close(device);
    return 0;
}
