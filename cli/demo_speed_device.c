/* SPDX-License-Identifier: Apache-2.0 */
/* What the device's own copies reach, between a new chunk and host memory pinned for them. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "demo_control.h"
#include "demo_run.h"
#include "demo_speed.h"

#define PIECE_BYTES ((size_t)256 << 20)
#define WAIT_MS 20000

/* Host memory, new, then pinned; MAP_FAILED: none, said in *status. */
static void *pinned_make(struct tg_device *device, int *status) {
    void *host = mmap(NULL, PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);

    *status = -ENOMEM;
    if (host == MAP_FAILED)
        return host;
    memset(host, 1, PIECE_BYTES);
    *status = tg_device_ops(device)->pin(device, host, PIECE_BYTES, 1);
    if (*status == 0)
        return host;
    munmap(host, PIECE_BYTES);
    return MAP_FAILED;
}

static void pinned_drop(struct tg_device *device, void *host) {
    if (tg_device_ops(device)->pin(device, host, PIECE_BYTES, 0) == 0)
        munmap(host, PIECE_BYTES);
}

static int copy_measure(struct tg_device *device, void *to, const void *from, uint64_t start_ns,
                        double *rate) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_fence fence;
    int status = ops->copy(device, to, from, PIECE_BYTES, NULL);

    if (status == 0)
        status = ops->fence(device, NULL, &fence);
    if (status == 0)
        status = ops->wait(device, &fence, WAIT_MS);
    if (status == 0)
        *rate = demo_report_rate(PIECE_BYTES, demo_now_ns() - start_ns);
    return status;
}

/* In the order of a life: in, out into memory that is there, out into memory made for it. */
static int chunk_measure(struct tg_device *device, void *block, void *touched,
                         struct demo_speed *speed) {
    uint64_t start_ns;
    void *fresh;
    int status = copy_measure(device, block, touched, demo_now_ns(), &speed->to_fresh_device);

    if (status == 0)
        status = copy_measure(device, touched, block, demo_now_ns(), &speed->to_touched_host);
    if (status != 0)
        return status;
    start_ns = demo_now_ns();
    fresh = pinned_make(device, &status);
    if (fresh == MAP_FAILED)
        return status;
    status = copy_measure(device, fresh, block, start_ns, &speed->to_fresh_host);
    pinned_drop(device, fresh);
    return status;
}

static int block_measure(struct tg_device *device, uint64_t addr, void *touched,
                         struct demo_speed *speed) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t chunk;
    int status = ops->create(device, PIECE_BYTES, 0, &chunk);

    if (status != 0)
        return status;
    status = ops->map(device, addr, chunk, 0);
    if (status == 0) {
        status = chunk_measure(device, (void *)(uintptr_t)addr, touched, speed);
        (void)ops->unmap(device, addr, PIECE_BYTES); /* a process that ends soon */
    }
    (void)ops->release(device, chunk);
    return status;
}

int demo_speed_of_device(struct tg_device *device, struct demo_speed *speed) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t addr;
    int status;
    void *touched = pinned_make(device, &status);

    if (touched == MAP_FAILED)
        return status;
    status = ops->reserve(device, PIECE_BYTES, &addr);
    if (status == 0) {
        status = block_measure(device, addr, touched, speed);
        (void)ops->unreserve(device, addr, PIECE_BYTES);
    }
    pinned_drop(device, touched);
    return status;
}
