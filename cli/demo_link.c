/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_link.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* The device is ours alone or nearly so: what has not been copied by then never will be. */
#define COPY_WAIT_MS 20000

int demo_link_pinned_make(struct tg_device *device, size_t size_bytes, void **memory) {
    void *made = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status;

    if (made == MAP_FAILED)
        return -ENOMEM;
    memset(made, 1, size_bytes);
    status = tg_device_ops(device)->pin(device, made, size_bytes, 1);
    if (status != 0) {
        munmap(made, size_bytes);
        return status;
    }
    *memory = made;
    return 0;
}

void demo_link_pinned_drop(struct tg_device *device, void *memory, size_t size_bytes) {
    if (memory != NULL && tg_device_ops(device)->pin(device, memory, size_bytes, 0) == 0)
        munmap(memory, size_bytes);
}

int demo_link_copy(struct tg_device *device, void *to, const void *from, size_t size_bytes) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_fence fence;
    int status = ops->copy(device, to, from, size_bytes, NULL);

    if (status == 0)
        status = ops->fence(device, NULL, &fence);
    return status != 0 ? status : ops->wait(device, &fence, COPY_WAIT_MS);
}
