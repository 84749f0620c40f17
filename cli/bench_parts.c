/* SPDX-License-Identifier: Apache-2.0 */
/* `parts`: what sleep and wake do with host memory, one part after the other: touched, pinned in
 * steps, copied from, unpinned, unmapped. And whether a copy minds that other memory is unpinned
 * meanwhile, as after a wake. */
#include <tidegate/hostmem.h>

#include "bench.h"
#include "monotonic.h"

#define STEP_BYTES (256 * BENCH_MIB) /* as a sleep pins */

struct parts {
    struct bench_run *run;
    struct bench_chunks chunks; /* as large as the lower half */
    struct tg_hostmem *memory;
    char *bytes;
    uint64_t half_bytes, size_bytes, pinned_bytes; /* pinned from the beginning */
    struct bench_times touch, pin, alone, beside, unpin, unmap;
};

/* Up to `end`, from where it stands. */
static int pin_until(struct parts *parts, uint64_t end) {
    int status = 0;

    while (status == 0 && parts->pinned_bytes < end) {
        uint64_t left = end - parts->pinned_bytes, step = left < STEP_BYTES ? left : STEP_BYTES;

        status = parts->run->ops->pin(parts->run->device, parts->bytes + parts->pinned_bytes, step,
                                      1);
        parts->pinned_bytes += status == 0 ? step : 0;
    }
    return status;
}

/* The last step above `begin`, which a step begins with. */
static int unpin_last(struct parts *parts, uint64_t begin) {
    uint64_t above = parts->pinned_bytes - begin;
    uint64_t step = above % STEP_BYTES == 0 ? STEP_BYTES : above % STEP_BYTES;
    int status = parts->run->ops->pin(parts->run->device,
                                      parts->bytes + parts->pinned_bytes - step, step, 0);

    parts->pinned_bytes -= status == 0 ? step : 0;
    return status;
}

static int unpin_until(struct parts *parts, uint64_t begin) {
    int status = 0;

    while (status == 0 && parts->pinned_bytes > begin)
        status = unpin_last(parts, begin);
    return status;
}

/* Step by step: what was pinned apart is not one range to a driver. */
static int copy_begin(struct parts *parts, struct tg_fence *fence) {
    struct bench_run *run = parts->run;
    int status = 0;

    for (uint64_t at = 0; status == 0 && at < parts->half_bytes; at += STEP_BYTES) {
        uint64_t left = parts->half_bytes - at, step = left < STEP_BYTES ? left : STEP_BYTES;

        status = run->ops->copy(run->device, (void *)(uintptr_t)(parts->chunks.addr + at),
                                parts->bytes + at, step, NULL);
    }
    return status == 0 ? run->ops->fence(run->device, NULL, fence) : status;
}

static int copy_alone(struct parts *parts, uint64_t *ns) {
    struct bench_run *run = parts->run;
    uint64_t start_ns = monotonic_ns();
    struct tg_fence fence;
    int status = copy_begin(parts, &fence);

    if (status == 0)
        status = run->ops->wait(run->device, &fence, BENCH_WAIT_MS);
    if (status == 0)
        *ns = monotonic_ns() - start_ns;
    return status;
}

/* The upper half's steps go as long as the copy from the lower one runs. */
static int copy_beside(struct parts *parts) {
    struct bench_run *run = parts->run;
    uint64_t start_ns = monotonic_ns();
    struct tg_fence fence;
    int status = copy_begin(parts, &fence);

    while (status == 0 && parts->pinned_bytes > parts->half_bytes &&
           run->ops->wait(run->device, &fence, 0) != 0)
        status = unpin_last(parts, parts->half_bytes);
    if (status == 0)
        status = run->ops->wait(run->device, &fence, BENCH_WAIT_MS);
    if (status == 0)
        bench_note(&parts->beside, monotonic_ns() - start_ns);
    return status;
}

/* The time since *start_ns, where it went well; the next part begins now. */
static int part_note(struct bench_times *times, uint64_t *start_ns, int status) {
    uint64_t now_ns = monotonic_ns();

    if (status == 0)
        bench_note(times, now_ns - *start_ns);
    *start_ns = monotonic_ns();
    return status;
}

static int memory_play(struct parts *parts) {
    uint64_t start_ns = monotonic_ns(), copy_ns = 0;
    int status = part_note(&parts->touch, &start_ns, tg_hostmem_touch(parts->memory, 0));

    if (status == 0) /* in two goes: a step begins with the upper half */
        status = pin_until(parts, parts->half_bytes);
    if (status == 0)
        status = part_note(&parts->pin, &start_ns, pin_until(parts, parts->size_bytes));
    if (status == 0)
        status = copy_alone(parts, &copy_ns);
    if (status == 0)
        status = copy_alone(parts, &copy_ns); /* the first may find a fresh chunk */
    if (status == 0) {
        bench_note(&parts->alone, copy_ns);
        status = copy_beside(parts);
    }
    if (status == 0)
        status = pin_until(parts, parts->size_bytes);
    start_ns = monotonic_ns();
    if (status == 0)
        status = unpin_until(parts, parts->half_bytes);
    if (status == 0)
        status = unpin_until(parts, 0);
    return status == 0 ? part_note(&parts->unpin, &start_ns, 0) : status;
}

static int round_do(struct parts *parts) {
    struct bench_run *run = parts->run;
    struct tg_hostmem_info info;
    uint64_t start_ns;
    int status = tg_hostmem_alloc(run->tenant, "parts", parts->size_bytes, &parts->memory);

    if (status != 0)
        return status;
    tg_hostmem_info(parts->memory, &info);
    parts->bytes = info.bytes;
    status = bench_fail(run, memory_play(parts));
    (void)bench_settle(run);
    if (status != 0) { /* what is pinned must not be unmapped */
        (void)unpin_until(parts, parts->half_bytes);
        (void)unpin_until(parts, 0);
    }
    start_ns = monotonic_ns();
    tg_hostmem_free(parts->memory);
    return part_note(&parts->unmap, &start_ns, status);
}

static int rows_add(struct parts *parts) {
    const struct bench_limit alone = {"the same copy, and nothing else", &parts->alone};
    struct bench_run *run = parts->run;
    int status = bench_add(run, "host memory touched", BENCH_GIB_S, &parts->touch, NULL);

    if (status == 0)
        status = bench_add(run, "pinned, in steps of 256 MiB", BENCH_GIB_S, &parts->pin, NULL);
    if (status == 0)
        status = bench_add(run, "copied while other steps are unpinned", BENCH_GIB_S,
                           &parts->beside, &alone);
    if (status == 0)
        status = bench_add(run, "unpinned, in steps of 256 MiB", BENCH_GIB_S, &parts->unpin, NULL);
    return status == 0 ? bench_add(run, "unmapped", BENCH_GIB_S, &parts->unmap, NULL) : status;
}

int bench_parts(struct bench_run *run) {
    uint64_t granule = run->info.granule_bytes;
    struct parts parts = {.run = run, .half_bytes = run->size_bytes / 2 / granule * granule};
    struct bench_times all, half;
    int status;

    if (bench_is_too_large(run, 2 * granule))
        return bench_add_too_large(run, "host memory", 2 * granule);
    parts.size_bytes = 2 * parts.half_bytes;
    all = (struct bench_times){.size_bytes = parts.size_bytes,
                               .pieces = 2 * ((parts.half_bytes + STEP_BYTES - 1) / STEP_BYTES)};
    half = (struct bench_times){.size_bytes = parts.half_bytes, .pieces = 1};
    parts.touch = parts.pin = parts.unpin = parts.unmap = all;
    parts.alone = parts.beside = half;
    status = bench_chunks_open(run, parts.half_bytes, parts.half_bytes, &parts.chunks);
    if (status == 0) {
        uint64_t unused;

        status = bench_chunks_up(&parts.chunks, &unused);
    }
    for (size_t i = 0; i < run->rounds && status == 0; i++) {
        status = bench_go_on(run);
        if (status == 0)
            status = round_do(&parts);
    }
    bench_chunks_close(&parts.chunks);
    return status == 0 ? rows_add(&parts) : status;
}
