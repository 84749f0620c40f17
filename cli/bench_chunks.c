/* SPDX-License-Identifier: Apache-2.0 */
/* The device's own way up and down: what no sleep or wake can be faster than. */
#include <stdlib.h>

#include "bench.h"
#include "monotonic.h"

static uint64_t size_of(const struct bench_chunks *chunks, uint64_t index) {
    uint64_t before = index * chunks->chunk_bytes, left = chunks->size_bytes - before;

    return left < chunks->chunk_bytes ? left : chunks->chunk_bytes;
}

int bench_chunks_open(struct bench_run *run, uint64_t size_bytes, uint64_t chunk_bytes,
                      struct bench_chunks *chunks) {
    uint64_t addr;
    int status;

    *chunks = (struct bench_chunks){.run = run, .chunk_bytes = chunk_bytes};
    chunks->count = (size_bytes + chunk_bytes - 1) / chunk_bytes;
    chunks->handles = calloc(chunks->count, sizeof *chunks->handles);
    if (chunks->handles == NULL)
        return bench_no_memory(run);
    status = bench_take(run, "chunks", size_bytes);
    if (status != 0)
        return bench_fail(chunks->run, status);
    status = run->ops->reserve(run->device, size_bytes, &addr);
    if (status != 0) {
        bench_give(run, "chunks", size_bytes);
        return bench_fail(run, status);
    }
    chunks->addr = addr;
    chunks->size_bytes = size_bytes;
    return 0;
}

int bench_chunks_up(struct bench_chunks *chunks, uint64_t *ns) {
    const struct tg_device_ops *ops = chunks->run->ops;
    uint64_t start_ns = monotonic_ns();
    int status = 0;

    while (status == 0 && chunks->made < chunks->count) {
        status = ops->create(chunks->run->device, size_of(chunks, chunks->made), 0,
                             &chunks->handles[chunks->made]);
        chunks->made += status == 0;
    }
    for (uint64_t i = 0; status == 0 && i < chunks->count; i++) {
        status = ops->map(chunks->run->device, chunks->addr + chunks->mapped_bytes,
                          chunks->handles[i], 0);
        chunks->mapped_bytes += status == 0 ? size_of(chunks, i) : 0;
    }
    if (status == 0)
        *ns = monotonic_ns() - start_ns;
    return bench_fail(chunks->run, status);
}

/* Handles whose release is refused are the closing device's. */
static int release_all(struct bench_chunks *chunks) {
    int status = 0;

    for (uint64_t i = 0; i < chunks->made; i++) {
        int rc = bench_fail(chunks->run, chunks->run->ops->release(chunks->run->device,
                                                                   chunks->handles[i]));

        status = status == 0 ? rc : status;
    }
    chunks->made = 0;
    return status;
}

int bench_chunks_down(struct bench_chunks *chunks, uint64_t *ns) {
    uint64_t start_ns = monotonic_ns();
    int status = chunks->mapped_bytes == 0
                     ? 0
                     : chunks->run->ops->unmap(chunks->run->device, chunks->addr,
                                               chunks->mapped_bytes);

    if (status != 0)
        return bench_fail(chunks->run, status);
    chunks->mapped_bytes = 0;
    status = release_all(chunks);
    if (status == 0)
        *ns = monotonic_ns() - start_ns;
    return status;
}

void bench_chunks_close(struct bench_chunks *chunks) {
    uint64_t unused;

    if (chunks->size_bytes > 0) {
        (void)bench_chunks_down(chunks, &unused);
        /* After a failure before: closing the device gives up what could not be given here. */
        (void)chunks->run->ops->unreserve(chunks->run->device, chunks->addr, chunks->size_bytes);
        bench_give(chunks->run, "chunks", chunks->size_bytes);
    }
    free(chunks->handles);
    *chunks = (struct bench_chunks){.run = chunks->run};
}

int bench_settle(const struct bench_run *run) {
    struct tg_fence fence;
    int status = run->ops->fence(run->device, NULL, &fence);

    return status == 0 ? run->ops->wait(run->device, &fence, BENCH_WAIT_MS) : status;
}
