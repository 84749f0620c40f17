/* SPDX-License-Identifier: Apache-2.0 */
/* `sleep`, `prepared`: packed tags sleep and wake, by size of block, beside what the link
 * or the driver could do. The limit is measured while the tag sleeps: then the device has room for
 * it, and both saw the same machine.
 *
 * A driver clears what was released before anybody gets it again: some milliseconds a GiB, in the
 * background, and what is copied into such memory meanwhile waits. The limit copies within a chunk
 * that was made long before; so a wake with content comes when that is over, and one at once has a
 * row of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tidegate/hostmem.h>
#include <tidegate/memory.h>

#include "bench.h"
#include "monotonic.h"

#define LINK_LIMIT "host: a plain copy of as many bytes, pinned"

enum {
    CLEARING_MS = 250, /* for 16 GiB an H200 needs 40 */
    LOOK_US = 200      /* between two looks at what is left of host memory */
};

enum kind { KIND_NONE, KIND_FIRST, KIND_LATER, KIND_PREPARED, KIND_COUNT };

static const struct {
    const char *name;
    const char *limit;
    struct tg_tag_params params;
} kinds[KIND_COUNT] = {
    [KIND_NONE] = {"no backup", "no backup: the driver's own way, chunks of 1 GiB", {.packed = 1}},
    [KIND_FIRST] = {"host, first", LINK_LIMIT,
                    {.packed = 1, .backup = TG_BACKUP_HOST}},
    [KIND_LATER] = {"host, later", LINK_LIMIT,
                    {.packed = 1, .backup = TG_BACKUP_HOST, .keep_host = 1}},
    [KIND_PREPARED] = {"host", LINK_LIMIT,
                       {.packed = 1, .backup = TG_BACKUP_HOST}},
};

/* One kind and size of block. */
struct play {
    struct bench_run *run;
    enum kind kind;
    const struct bench_piece *block;
    uint64_t count;
    void *plain; /* host memory as large as all blocks, touched and pinned; NULL: KIND_NONE */
    struct tg_memory *memory;
    struct tg_tag *tag;
    struct bench_times prepare, sleep, wake, wake_at_once, handback; /* ours */
    struct bench_times down, up;                           /* the limit's */
};

static uint64_t all_bytes(const struct play *play) {
    return play->count * play->block->size_bytes;
}

/* ---- the limits ------------------------------------------------------------------------------ */

static int copy_time(const struct play *play, void *to, const void *from, uint64_t *ns) {
    struct bench_run *run = play->run;
    uint64_t start_ns = monotonic_ns();
    int status = run->ops->copy(run->device, to, from, all_bytes(play), NULL);

    if (status == 0)
        status = bench_settle(run);
    if (status == 0)
        *ns = monotonic_ns() - start_ns;
    return status;
}

/* One chunk; the first way in finds its pages, where a device still has to. */
static int limit_of_link(struct play *play, uint64_t *down_ns, uint64_t *up_ns) {
    struct bench_chunks chunks;
    uint64_t unused;
    int status = bench_chunks_open(play->run, all_bytes(play), all_bytes(play), &chunks);

    if (status == 0)
        status = bench_chunks_up(&chunks, &unused);
    if (status == 0) {
        void *there = (void *)(uintptr_t)chunks.addr;

        status = copy_time(play, there, play->plain, &unused);
        if (status == 0)
            status = copy_time(play, play->plain, there, down_ns);
        if (status == 0)
            status = copy_time(play, there, play->plain, up_ns);
    }
    (void)bench_fail(play->run, status);
    bench_chunks_close(&chunks);
    return status;
}

static int limit_of_driver(struct play *play, uint64_t *down_ns, uint64_t *up_ns) {
    struct bench_chunks chunks;
    int status = bench_chunks_open(play->run, all_bytes(play), BENCH_GIB, &chunks);

    if (status == 0)
        status = bench_chunks_up(&chunks, up_ns);
    if (status == 0)
        status = bench_chunks_down(&chunks, down_ns);
    bench_chunks_close(&chunks);
    return status;
}

/* ---- ours ------------------------------------------------------------------------------------ */

static int blocks_make(struct play *play) {
    struct bench_run *run = play->run;
    int status = tg_tag_open(play->memory, "blocks", &kinds[play->kind].params, &play->tag);

    for (uint64_t i = 0; i < play->count && status == 0; i++) {
        void *block;

        status = bench_go_on(run);
        if (status == 0)
            status = tg_tag_alloc(play->tag, play->block->size_bytes, &block);
        if (status == 0 && play->kind != KIND_NONE)
            status = run->ops->fill(run->device, (uint64_t)(uintptr_t)block, (int)(i & 0xff),
                                    play->block->size_bytes, NULL);
    }
    return status == 0 ? bench_settle(run) : status;
}

static int sleep_time(struct play *play, struct bench_times *times) {
    uint64_t start_ns = monotonic_ns();
    int status = tg_memory_sleep(play->memory, NULL, BENCH_WAIT_MS, NULL);

    if (status == 0)
        bench_note(times, monotonic_ns() - start_ns);
    return status;
}

static int wake_time(struct play *play, struct bench_times *times) {
    uint64_t start_ns = monotonic_ns();
    int status = tg_memory_wake(play->memory, NULL, BENCH_WAIT_MS, NULL);

    if (status == 0)
        bench_note(times, monotonic_ns() - start_ns);
    return status;
}

/* From the end of a wake until its host copies are gone: nobody waits for that but who comes next,
 * which is not to be the next round. */
static int handback_time(struct play *play) {
    const struct timespec pause = {.tv_nsec = LOOK_US * 1000L};
    uint64_t start_ns = monotonic_ns();
    struct tg_tag_info info;
    int status = 0;

    for (tg_tag_info(play->tag, &info); status == 0 && info.host_bytes > 0;
         tg_tag_info(play->tag, &info)) {
        status = bench_go_on(play->run);
        nanosleep(&pause, NULL);
    }
    if (status == 0)
        bench_note(&play->handback, monotonic_ns() - start_ns);
    return status;
}

static int prepare_time(struct play *play) {
    uint64_t start_ns = monotonic_ns();
    int status = tg_memory_prepare(play->memory, NULL, NULL);

    if (status == 0)
        bench_note(&play->prepare, monotonic_ns() - start_ns);
    return status;
}

static int limit_time(struct play *play) {
    uint64_t down_ns = 0, up_ns = 0;
    int status = play->kind == KIND_NONE ? limit_of_driver(play, &down_ns, &up_ns)
                                         : limit_of_link(play, &down_ns, &up_ns);

    if (status != 0)
        return status;
    bench_note(&play->down, down_ns);
    bench_note(&play->up, up_ns);
    return 0;
}

static void clearing_wait(const struct play *play) {
    const struct timespec pause = {.tv_nsec = CLEARING_MS * 1000000L};

    if (play->kind != KIND_NONE)
        nanosleep(&pause, NULL);
}

static int turn(struct play *play) {
    int status = play->kind == KIND_PREPARED ? prepare_time(play) : 0;

    if (status == 0)
        status = sleep_time(play, &play->sleep);
    if (status == 0)
        status = limit_time(play);
    clearing_wait(play);
    if (status == 0)
        status = wake_time(play, &play->wake);
    if (status != 0 || play->kind == KIND_NONE)
        return status;
    if (play->kind != KIND_LATER)
        return handback_time(play);
    if (status == 0)
        status = tg_memory_sleep(play->memory, NULL, BENCH_WAIT_MS, NULL);
    return status == 0 ? wake_time(play, &play->wake_at_once) : status;
}

static int turns_do(struct play *play) {
    int status = blocks_make(play);

    if (status == 0 && play->kind == KIND_LATER) { /* its copies are there from now on */
        status = tg_memory_sleep(play->memory, NULL, BENCH_WAIT_MS, NULL);
        if (status == 0)
            status = tg_memory_wake(play->memory, NULL, BENCH_WAIT_MS, NULL);
    }
    for (size_t i = 0; i < play->run->rounds && status == 0; i++) {
        status = bench_go_on(play->run);
        if (status == 0)
            status = turn(play);
    }
    return status;
}

static int row_add(struct play *play, const char *step, const struct bench_times *times,
                   const struct bench_times *limit) {
    const struct bench_limit beside = {kinds[play->kind].limit, limit};
    char what[64];

    snprintf(what, sizeof what, "%s, %s blocks: %s", kinds[play->kind].name, play->block->name,
             step);
    return bench_add(play->run, what, BENCH_GIB_S, times, limit == NULL ? NULL : &beside);
}

/* A time: of little nothing may be left to be given back. */
static int handback_row_add(struct play *play) {
    char what[64];

    snprintf(what, sizeof what, "%s, %s blocks: given back", kinds[play->kind].name,
             play->block->name);
    return bench_add(play->run, what, BENCH_MS, &play->handback, NULL);
}

static int rows_add(struct play *play) {
    int status = 0;

    if (play->kind == KIND_PREPARED)
        status = row_add(play, "prepare", &play->prepare, NULL);
    if (status == 0)
        status = row_add(play, "sleep", &play->sleep, &play->down);
    if (status == 0)
        status = row_add(play, "wake", &play->wake, &play->up);
    if (status == 0 && play->kind == KIND_LATER)
        status = row_add(play, "at once", &play->wake_at_once, &play->up);
    if (status == 0 && (play->kind == KIND_FIRST || play->kind == KIND_PREPARED))
        status = handback_row_add(play);
    return status;
}

static int play_do(struct play *play) {
    struct bench_times times = {.size_bytes = all_bytes(play), .pieces = play->count};
    int status = tg_memory_open(play->run->device, play->run->tenant, &play->memory);

    if (status != 0)
        return status;
    play->prepare = play->sleep = play->wake = play->wake_at_once = play->handback = times;
    play->down = play->up = times;
    status = bench_fail(play->run, turns_do(play));
    tg_memory_close(play->memory);
    return status == 0 ? rows_add(play) : status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int kind_measure(struct bench_run *run, enum kind kind, void *plain) {
    static const struct bench_piece sizes[] = {BENCH_PIECE_2M, BENCH_PIECE_20M, BENCH_PIECE_1G};
    int status = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == 0; i++) {
        struct play *play;
        char what[64];

        if (bench_is_too_large(run, sizes[i].size_bytes)) {
            snprintf(what, sizeof what, "%s, %s blocks", kinds[kind].name, sizes[i].name);
            status = bench_add_too_large(run, what, sizes[i].size_bytes);
            continue;
        }
        play = calloc(1, sizeof *play);
        if (play == NULL)
            return bench_no_memory(run);
        *play = (struct play){.run = run, .kind = kind, .block = &sizes[i],
                              .count = run->size_bytes / sizes[i].size_bytes, .plain = plain};
        status = play_do(play);
        free(play);
    }
    return status;
}

/* Kinds from `first` to `last`, beside copies to and from the same host memory. */
static int host_measure(struct bench_run *run, enum kind first, enum kind last) {
    struct tg_hostmem *plain;
    struct tg_hostmem_info info;
    int status = tg_hostmem_alloc(run->tenant, "plain", run->size_bytes, &plain);

    if (status != 0)
        return status;
    status = tg_hostmem_touch(plain, 0);
    if (status == 0)
        status = tg_hostmem_pin(plain, run->device);
    tg_hostmem_info(plain, &info);
    for (unsigned kind = first; kind <= last && status == 0; kind++)
        status = kind_measure(run, (enum kind)kind, info.bytes);
    (void)bench_fail(run, status);
    tg_hostmem_free(plain);
    return status;
}

int bench_sleep(struct bench_run *run) {
    int status = kind_measure(run, KIND_NONE, NULL);

    return status == 0 ? host_measure(run, KIND_FIRST, KIND_LATER) : status;
}

int bench_prepared(struct bench_run *run) {
    return host_measure(run, KIND_PREPARED, KIND_PREPARED);
}
