/* SPDX-License-Identifier: Apache-2.0 */
/* `malloc`: a block comes and goes, beside the driver's calls for a chunk of the same size. */
#include <stdio.h>

#include <tidegate/memory.h>

#include "bench.h"
#include "figures.h"
#include "monotonic.h"

#define SMALL_BYTES (2 * BENCH_MIB)

enum { PAIRS = 32 }; /* in a round */

enum kind { KIND_REUSED, KIND_UNZEROED, KIND_FRESH, KIND_COUNT };

static const struct {
    const char *name;
    struct tg_tag_params params;
} kinds[KIND_COUNT] = {
    [KIND_REUSED] = {"reused, zeroed", {.packed = 1}},
    [KIND_UNZEROED] = {"reused, as it was", {.packed = 1, .fill_none = 1}},
    [KIND_FRESH] = {"fresh", {.packed = 0}},
};

struct play {
    struct bench_run *run;
    enum kind kind;
    uint64_t block_bytes;
    struct tg_memory *memory;
    struct tg_tag *tag;
    bool is_kept; /* what was freed is there for the next block */
    struct bench_times ours, limit;
};

static int pair(struct play *play) {
    void *block;
    int status = tg_tag_alloc(play->tag, play->block_bytes, &block);

    return status == 0 ? tg_memory_free(play->memory, block, NULL) : status;
}

/* A hole between two blocks: the chunks around it stay, so what comes and goes there is reused. */
static int hole_make(struct play *play) {
    void *blocks[2 + 20 * BENCH_MIB / SMALL_BYTES];
    uint64_t count = 2 + play->block_bytes / SMALL_BYTES;
    struct tg_tag_info before, after;
    int status = 0;

    for (uint64_t i = 0; i < count && status == 0; i++)
        status = tg_tag_alloc(play->tag, SMALL_BYTES, &blocks[i]);
    tg_tag_info(play->tag, &before);
    for (uint64_t i = 1; i < count - 1 && status == 0; i++)
        status = tg_memory_free(play->memory, blocks[i], NULL);
    if (status == 0)
        status = bench_settle(play->run);
    for (int i = 0; i < 2 && status == 0; i++)
        status = pair(play);
    tg_tag_info(play->tag, &after);
    play->is_kept = after.device_bytes == before.device_bytes;
    return status;
}

static int limit_time(struct play *play, uint64_t *ns) {
    struct bench_chunks chunks;
    uint64_t up_ns, down_ns;
    int status = bench_chunks_open(play->run, play->block_bytes, play->block_bytes, &chunks);

    *ns = 0;
    for (int i = 0; i < PAIRS && status == 0; i++) {
        status = bench_chunks_up(&chunks, &up_ns);
        if (status == 0)
            status = bench_chunks_down(&chunks, &down_ns);
        *ns += status == 0 ? up_ns + down_ns : 0;
    }
    bench_chunks_close(&chunks);
    return status;
}

static int rounds_do(struct play *play) {
    int status = pair(play); /* settles what was freed before */

    for (size_t i = 0; i < play->run->rounds && status == 0; i++) {
        uint64_t limit_ns, start_ns;

        status = bench_go_on(play->run);
        if (status == 0)
            status = limit_time(play, &limit_ns);
        start_ns = monotonic_ns();
        for (int k = 0; k < PAIRS && status == 0; k++)
            status = pair(play);
        if (status == 0) {
            bench_note(&play->ours, monotonic_ns() - start_ns);
            bench_note(&play->limit, limit_ns);
        }
    }
    return status;
}

static int play_do(struct play *play) {
    int status = tg_memory_open(play->run->device, play->run->tenant, &play->memory);

    if (status != 0)
        return status;
    status = tg_tag_open(play->memory, "blocks", &kinds[play->kind].params, &play->tag);
    play->is_kept = true;
    if (status == 0 && play->kind != KIND_FRESH)
        status = hole_make(play);
    if (status == 0 && play->is_kept)
        status = rounds_do(play);
    (void)bench_fail(play->run, status);
    tg_memory_close(play->memory);
    return status;
}

static int block_measure(struct bench_run *run, enum kind kind,
                         const struct bench_piece *block) {
    uint64_t block_bytes = block->size_bytes;
    struct bench_times times = {.size_bytes = block_bytes * PAIRS, .pieces = PAIRS};
    struct play play = {.run = run, .kind = kind, .block_bytes = block_bytes, .ours = times,
                        .limit = times};
    const struct bench_limit limit = {"create, map, unmap, release of such a chunk", &play.limit};
    char what[64];
    int status;

    snprintf(what, sizeof what, "%s, %s block", kinds[kind].name, block->name);
    if (bench_is_too_large(run, block_bytes + 2 * SMALL_BYTES))
        return bench_add_too_large(run, what, block_bytes + 2 * SMALL_BYTES);
    status = play_do(&play);
    if (status != 0)
        return status;
    if (!play.is_kept)
        return bench_add_none(run, what, "chunks of a device of %s are too small to keep",
                              size_figure((double)run->total_bytes).text);
    return bench_add(run, what, BENCH_US, &play.ours, &limit);
}

int bench_malloc(struct bench_run *run) {
    static const struct bench_piece sizes[] = {BENCH_PIECE_2M, BENCH_PIECE_20M};
    int status = 0;

    for (unsigned kind = 0; kind < KIND_COUNT && status == 0; kind++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == 0; i++)
            status = block_measure(run, (enum kind)kind, &sizes[i]);
    }
    return status;
}
