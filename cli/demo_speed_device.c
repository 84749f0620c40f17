/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's own copies reach, between a new chunk and host memory pinned for them. */
#include "demo_link.h"
#include "demo_run.h"
#include "demo_speed.h"
#include "monotonic.h"

#define PIECE_MOST (UINT64_C(256) << 20)

/* The device and how much is copied each time. */
struct link {
    struct tg_device *device;
    size_t piece_bytes;
};

static int copy_measure(const struct link *link, void *to, const void *from, uint64_t start_ns,
                        double *rate) {
    int status = demo_link_copy(link->device, to, from, link->piece_bytes);

    if (status == 0)
        *rate = demo_report_rate(link->piece_bytes, monotonic_ns() - start_ns);
    return status;
}

/* In the order of a life: in, out into memory that is there, out into memory made for it. */
static int chunk_measure(const struct link *link, void *block, void *touched,
                         struct demo_speed *speed) {
    uint64_t start_ns;
    void *fresh;
    int status = copy_measure(link, block, touched, monotonic_ns(), &speed->to_fresh_device);

    if (status == 0)
        status = copy_measure(link, touched, block, monotonic_ns(), &speed->to_touched_host);
    if (status != 0)
        return status;
    start_ns = monotonic_ns();
    status = demo_link_pinned_make(link->device, link->piece_bytes, &fresh);
    if (status != 0)
        return status;
    status = copy_measure(link, fresh, block, start_ns, &speed->to_fresh_host);
    demo_link_pinned_drop(link->device, fresh, link->piece_bytes);
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
    void *touched;
    int status = demo_link_pinned_make(device, link.piece_bytes, &touched);

    if (status != 0)
        return status;
    status = ops->reserve(device, link.piece_bytes, &addr);
    if (status == 0) {
        status = block_measure(&link, addr, touched, speed);
        (void)ops->unreserve(device, addr, link.piece_bytes);
    }
    demo_link_pinned_drop(device, touched, link.piece_bytes);
    return status;
}
