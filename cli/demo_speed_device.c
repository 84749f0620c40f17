/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's own copies reach, between a new chunk and host memory pinned for them. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "demo_control.h"
#include "demo_run.h"
#include "demo_speed.h"

#define PIECE_MOST (UINT64_C(256) << 20)
#define WAIT_MS 20000

/* The device and how much is copied each time. */
struct link {
    struct tg_device *device;
    size_t piece_bytes;
};

/* Host memory, new, then pinned; MAP_FAILED: none, said in *status. */
static void *pinned_make(const struct link *link, int *status) {
    void *host = mmap(NULL, link->piece_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *status = -ENOMEM;
    if (host == MAP_FAILED)
        return host;
    memset(host, 1, link->piece_bytes);
    *status = tg_device_ops(link->device)->pin(link->device, host, link->piece_bytes, 1);
    if (*status == 0)
        return host;
    munmap(host, link->piece_bytes);
    return MAP_FAILED;
}

static void pinned_drop(const struct link *link, void *host) {
    if (tg_device_ops(link->device)->pin(link->device, host, link->piece_bytes, 0) == 0)
        munmap(host, link->piece_bytes);
}

static int copy_measure(const struct link *link, void *to, const void *from, uint64_t start_ns,
                        double *rate) {
    const struct tg_device_ops *ops = tg_device_ops(link->device);
    struct tg_fence fence;
    int status = ops->copy(link->device, to, from, link->piece_bytes, NULL);

    if (status == 0)
        status = ops->fence(link->device, NULL, &fence);
    if (status == 0)
        status = ops->wait(link->device, &fence, WAIT_MS);
    if (status == 0)
        *rate = demo_report_rate(link->piece_bytes, demo_now_ns() - start_ns);
    return status;
}

/* In the order of a life: in, out into memory that is there, out into memory made for it. */
static int chunk_measure(const struct link *link, void *block, void *touched,
                         struct demo_speed *speed) {
    uint64_t start_ns;
    void *fresh;
    int status = copy_measure(link, block, touched, demo_now_ns(), &speed->to_fresh_device);

    if (status == 0)
        status = copy_measure(link, touched, block, demo_now_ns(), &speed->to_touched_host);
    if (status != 0)
        return status;
    start_ns = demo_now_ns();
    fresh = pinned_make(link, &status);
    if (fresh == MAP_FAILED)
        return status;
    status = copy_measure(link, fresh, block, start_ns, &speed->to_fresh_host);
    pinned_drop(link, fresh);
    return status;
}

static int block_measure(const struct link *link, uint64_t addr, void *touched,
                         struct demo_speed *speed) {
    const struct tg_device_ops *ops = tg_device_ops(link->device);
    uint64_t chunk;
    int status = ops->create(link->device, link->piece_bytes, 0, &chunk);

    if (status != 0)
        return status;
    status = ops->map(link->device, addr, chunk, 0);
    if (status == 0) {
        status = chunk_measure(link, (void *)(uintptr_t)addr, touched, speed);
        (void)ops->unmap(link->device, addr, link->piece_bytes); /* a process that ends soon */
    }
    (void)ops->release(link->device, chunk);
    return status;
}

int demo_speed_of_device(struct tg_device *device, const struct demo_room *room,
                         struct demo_speed *speed) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t piece_bytes = room->free_bytes < 4 * PIECE_MOST ? room->free_bytes / 4 : PIECE_MOST;
    const struct link link = {device, piece_bytes / room->granule_bytes * room->granule_bytes};
    uint64_t addr;
    int status;
    void *touched = pinned_make(&link, &status);

    if (touched == MAP_FAILED)
        return status;
    status = ops->reserve(device, link.piece_bytes, &addr);
    if (status == 0) {
        status = block_measure(&link, addr, touched, speed);
        (void)ops->unreserve(device, addr, link.piece_bytes);
    }
    pinned_drop(&link, touched);
    return status;
}
