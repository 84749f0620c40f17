/* SPDX-License-Identifier: Apache-2.0 */
/* Times tg_snapshot_parse on a file: parse and close, RUNS times over the same mapped bytes.
 *
 *     reader FILE [RUNS]      prints one line of JSON
 *
 * first_ns is what a program that reads one file pays: its memory is fresh. close is not timed. */
#include "timing.h"

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

int main(int argc, char **argv) {
    static struct bench_times times;
    struct tg_snapshot_info info = {0};
    char extra[192];

    if (argc < 2) {
        fprintf(stderr, "usage: reader FILE [RUNS]\n");
        return 2;
    }
    struct bench_file file = bench_open(argv[1]);
    times.runs = bench_runs(argc, argv);
    for (size_t i = 0; i < times.runs; i++) {
        struct tg_snapshot *snapshot = NULL;
        bench_begin(&times, i);
        int status = tg_snapshot_parse(file.bytes, file.size_bytes, &snapshot);
        bench_end(&times, i);
        if (status != 0) {
            fprintf(stderr, "%s: %s\n", argv[1], tg_last_error()->text);
            return 2;
        }
        tg_snapshot_info(snapshot, &info);
        tg_snapshot_close(snapshot);
    }
    snprintf(extra, sizeof extra,
             ", \"events\": %zu, \"blocks\": %zu, \"frames\": %zu, \"stacks\": %zu, \"texts\": %zu",
             info.events, info.blocks, info.frames, info.stacks, info.texts);
    bench_print(&file, &times, extra);
    return 0;
}
