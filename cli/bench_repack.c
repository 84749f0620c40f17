/* SPDX-License-Identifier: Apache-2.0 */
/* `repack`: of small blocks that filled large chunks a few stay; what the others had goes back to
 * the driver, around those that stay. */
#include <stdio.h>
#include <stdlib.h>

#include <tidegate/memory.h>

#include "bench.h"
#include "monotonic.h"

#define PAGE_BYTES (2 * BENCH_MIB)

enum { PAGES_EACH = 64 }; /* of which one stays */

struct play {
    struct bench_run *run;
    struct tg_memory *memory;
    void **pages;
    uint64_t count, stay_count;
    struct bench_times times;
};

/* Woken pages lie in chunks as large as they come. */
static int pages_make(struct play *play) {
    static const struct tg_tag_params params = {.packed = 1};
    struct tg_tag *tag;
    int status = tg_tag_open(play->memory, "pages", &params, &tag);

    for (uint64_t i = 0; i < play->count && status == 0; i++) {
        status = bench_go_on(play->run);
        if (status == 0)
            status = tg_tag_alloc(tag, PAGE_BYTES, &play->pages[i]);
    }
    if (status == 0)
        status = tg_memory_sleep(play->memory, NULL, BENCH_WAIT_MS, NULL);
    return status == 0 ? tg_memory_wake(play->memory, NULL, BENCH_WAIT_MS, NULL) : status;
}

static int pages_thin_out(struct play *play) {
    int status = 0;

    for (uint64_t i = 0; i < play->count && status == 0; i++) {
        if (i % PAGES_EACH != 0)
            status = tg_memory_free(play->memory, play->pages[i], NULL);
    }
    return status == 0 ? bench_settle(play->run) : status;
}

static int round_do(struct play *play) {
    struct tg_receipt receipt;
    uint64_t start_ns;
    int status = tg_memory_open(play->run->device, play->run->tenant, &play->memory);

    if (status != 0)
        return status;
    status = pages_make(play);
    if (status == 0)
        status = pages_thin_out(play);
    start_ns = monotonic_ns();
    if (status == 0)
        status = tg_memory_repack(play->memory, NULL, BENCH_WAIT_MS, &receipt);
    if (status == 0) {
        bench_note(&play->times, monotonic_ns() - start_ns);
        play->times.size_bytes = receipt.gained_bytes;
    }
    (void)bench_fail(play->run, status);
    tg_memory_close(play->memory);
    return status;
}

int bench_repack(struct bench_run *run) {
    struct play play = {.run = run, .count = run->size_bytes / PAGE_BYTES};
    char what[64];
    int status = 0;

    play.stay_count = (play.count + PAGES_EACH - 1) / PAGES_EACH;
    play.times.pieces = play.stay_count;
    snprintf(what, sizeof what, "1 page of 2 MiB in %d stays", PAGES_EACH);
    if (bench_is_too_large(run, 2 * PAGE_BYTES))
        return bench_add_too_large(run, what, 2 * PAGE_BYTES);
    play.pages = calloc(play.count, sizeof *play.pages);
    if (play.pages == NULL)
        return bench_no_memory(run);
    for (size_t i = 0; i < run->rounds && status == 0; i++)
        status = round_do(&play);
    free(play.pages);
    if (status == 0 && play.times.size_bytes == 0)
        return bench_add_none(run, what, "nothing came back: moving would cost more than it gains");
    return status == 0 ? bench_add(run, what, BENCH_MS, &play.times, NULL) : status;
}
