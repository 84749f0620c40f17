/* SPDX-License-Identifier: Apache-2.0 */
/* `handover`: two tenants take turns on the device, through the ledger: one sleeps, the other
 * wakes. Both are in this process, so that what is timed is the library's and the driver's, and no
 * program's. Content is dropped: the link's part is in `sleep`. */
#include <stdio.h>

#include <tidegate/memory.h>

#include "bench.h"
#include "monotonic.h"

enum { SIDES = 2, RESERVES = 1000 };

struct play {
    struct bench_run *run;
    uint64_t block_bytes, count;
    struct tg_tenant *other;
    struct tg_memory *memories[SIDES];
    struct bench_times turns;
};

static int side_open(struct play *play, int side) {
    static const struct tg_tag_params params = {.packed = 1};
    struct tg_tenant *tenant = side == 0 ? play->run->tenant : play->other;
    struct tg_tag *tag;
    int status = tg_memory_open(play->run->device, tenant, &play->memories[side]);

    if (status == 0)
        status = tg_tag_open(play->memories[side], "blocks", &params, &tag);
    for (uint64_t i = 0; i < play->count && status == 0; i++) {
        void *block;

        status = bench_go_on(play->run);
        if (status == 0)
            status = tg_tag_alloc(tag, play->block_bytes, &block);
    }
    return status;
}

static int hand_over(struct play *play, int from) {
    uint64_t start_ns = monotonic_ns();
    int status = tg_memory_sleep(play->memories[from], NULL, BENCH_WAIT_MS, NULL);

    if (status == 0)
        status = tg_memory_wake(play->memories[1 - from], NULL, BENCH_WAIT_MS, NULL);
    if (status == 0)
        bench_note(&play->turns, monotonic_ns() - start_ns);
    return status;
}

/* One of both has all of the run's size at any time. */
static int turns_do(struct play *play) {
    int status = side_open(play, 0);

    if (status == 0)
        status = tg_memory_sleep(play->memories[0], NULL, BENCH_WAIT_MS, NULL);
    if (status == 0)
        status = side_open(play, 1);
    for (size_t i = 0; i < play->run->rounds && status == 0; i++) {
        status = bench_go_on(play->run);
        if (status == 0)
            status = hand_over(play, i % SIDES == 0 ? 1 : 0);
    }
    (void)bench_fail(play->run, status);
    for (int side = 0; side < SIDES; side++)
        tg_memory_close(play->memories[side]);
    return status;
}

static int turns_measure(struct bench_run *run, const struct bench_piece *block) {
    uint64_t block_bytes = block->size_bytes;
    const struct tg_tenant_params params = {.name = "bench, other side", .rank = -1,
                                            .uuid = run->info.uuid,
                                            .device_name = run->info.name, .gauge = run->gauge};
    struct play play = {.run = run, .block_bytes = block_bytes,
                        .count = run->size_bytes / block_bytes};
    char what[64];
    int status;

    snprintf(what, sizeof what, "to the other side, %s blocks", block->name);
    if (bench_is_too_large(run, block_bytes))
        return bench_add_too_large(run, what, block_bytes);
    play.turns = (struct bench_times){.size_bytes = play.count * block_bytes,
                                      .pieces = play.count};
    status = tg_ledger_join(run->ledger, &params, &play.other);
    if (status != 0)
        return status;
    status = turns_do(&play);
    tg_tenant_leave(play.other);
    return status == 0 ? bench_add(run, what, BENCH_MS, &play.turns, NULL) : status;
}

static int ledger_measure(struct bench_run *run) {
    struct bench_times times = {.pieces = RESERVES};
    int status = 0;

    for (size_t i = 0; i < run->rounds && status == 0; i++) {
        uint64_t start_ns = monotonic_ns();

        status = bench_go_on(run);
        for (int k = 0; k < RESERVES && status == 0; k++) {
            status = tg_tenant_reserve(run->tenant, "blocks", run->info.granule_bytes, 0);
            if (status == 0)
                tg_tenant_cancel(run->tenant, "blocks", run->info.granule_bytes);
        }
        if (status == 0)
            bench_note(&times, monotonic_ns() - start_ns);
    }
    return status == 0
               ? bench_add(run, "ledger: reserve and cancel", BENCH_US, &times, NULL)
               : status;
}

int bench_handover(struct bench_run *run) {
    static const struct bench_piece sizes[] = {BENCH_PIECE_2M, BENCH_PIECE_20M, BENCH_PIECE_1G};
    int status = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == 0; i++)
        status = turns_measure(run, &sizes[i]);
    return status == 0 ? ledger_measure(run) : status;
}
