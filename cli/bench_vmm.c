/* SPDX-License-Identifier: Apache-2.0 */
/* `vmm`: what the driver takes for device memory, by the size of its chunks. */
#include <stdio.h>

#include "bench.h"

static int rounds_do(struct bench_run *run, struct bench_chunks *chunks, struct bench_times *up,
                     struct bench_times *down) {
    uint64_t up_ns = 0, down_ns = 0;
    int status = 0;

    for (size_t i = 0; i < run->rounds && status == 0; i++) {
        status = bench_go_on(run);
        if (status == 0)
            status = bench_chunks_up(chunks, &up_ns);
        if (status == 0)
            status = bench_chunks_down(chunks, &down_ns);
        if (status == 0) {
            bench_note(up, up_ns);
            bench_note(down, down_ns);
        }
    }
    return status;
}

static int chunk_size_measure(struct bench_run *run, const struct bench_piece *chunk) {
    uint64_t chunk_bytes = chunk->size_bytes;
    uint64_t count = run->size_bytes / chunk_bytes;
    struct bench_times up = {.size_bytes = count * chunk_bytes, .pieces = count}, down = up;
    struct bench_chunks chunks;
    char what[48];
    int status;

    snprintf(what, sizeof what, "up, chunks of %s", chunk->name);
    if (bench_is_too_large(run, chunk_bytes))
        return bench_add_too_large(run, what + 4, chunk_bytes);
    status = bench_chunks_open(run, up.size_bytes, chunk_bytes, &chunks);
    if (status == 0)
        status = rounds_do(run, &chunks, &up, &down);
    bench_chunks_close(&chunks);
    if (status == 0)
        status = bench_add(run, what, BENCH_GIB_S, &up, NULL);
    snprintf(what, sizeof what, "down, chunks of %s", chunk->name);
    return status == 0 ? bench_add(run, what, BENCH_GIB_S, &down, NULL) : status;
}

int bench_vmm(struct bench_run *run) {
    static const struct bench_piece sizes[] = {BENCH_PIECE_2M, BENCH_PIECE_20M, BENCH_PIECE_64M,
                                               BENCH_PIECE_1G};
    int status = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == 0; i++)
        status = chunk_size_measure(run, &sizes[i]);
    return status;
}
