/* SPDX-License-Identifier: Apache-2.0 */
/* One function for each entry: it describes the call and passes it on. */
#include "device/wrap.h"

#include <string.h>
#include <unistd.h>

static struct tg__wrap *wrap_of(struct tg_device *device) {
    return (struct tg__wrap *)device;
}

static int before(struct tg_device *device, struct tg__wrap_call *call) {
    struct tg__wrap *wrap = wrap_of(device);

    return getpid() != wrap->pid ? 0 : wrap->before(wrap, call);
}

static int after(struct tg_device *device, const struct tg__wrap_call *call, int status) {
    struct tg__wrap *wrap = wrap_of(device);

    if (getpid() == wrap->pid)
        wrap->after(wrap, call, status);
    return status;
}

static uint64_t number_of(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

static int wrap_info(struct tg_device *device, struct tg_device_info *info) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_info};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->info(inner, info));
}

static int wrap_memory(struct tg_device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_memory};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->memory(inner, free_bytes, total_bytes));
}

static int wrap_process(struct tg_device *device, uint64_t *own_bytes) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_process};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->process(inner, own_bytes));
}

static int wrap_reserve(struct tg_device *device, uint64_t size_bytes, uint64_t *addr) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_reserve, .size_bytes = size_bytes};
    int rc = before(device, &call);

    if (rc != 0)
        return rc;
    rc = inner->ops->reserve(inner, size_bytes, addr);
    call.addr = rc == 0 ? *addr : 0;
    return after(device, &call, rc);
}

static int wrap_unreserve(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {
        .op = TG__OP_unreserve, .addr = addr, .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->unreserve(inner, addr, size_bytes));
}

static int wrap_create(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                       uint64_t *chunk) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_create, .size_bytes = size_bytes};
    int rc = before(device, &call);

    if (rc != 0)
        return rc;
    rc = inner->ops->create(inner, size_bytes, flags, chunk);
    call.chunk = rc == 0 ? *chunk : 0;
    return after(device, &call, rc);
}

static int wrap_release(struct tg_device *device, uint64_t chunk) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_release, .chunk = chunk};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->release(inner, chunk));
}

static int wrap_map(struct tg_device *device, uint64_t addr, uint64_t chunk, uint64_t devices) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_map, .addr = addr, .chunk = chunk};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->map(inner, addr, chunk, devices));
}

static int wrap_unmap(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_unmap, .addr = addr, .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->unmap(inner, addr, size_bytes));
}

static int wrap_access(struct tg_device *device, uint64_t addr, uint64_t size_bytes,
                       uint64_t devices) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_access, .addr = addr, .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc
                   : after(device, &call, inner->ops->access(inner, addr, size_bytes, devices));
}

static int wrap_copy(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {
        .op = TG__OP_copy, .addr = number_of(to), .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc
                   : after(device, &call, inner->ops->copy(inner, to, from, size_bytes, queue));
}

static int wrap_fill(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_fill, .addr = addr, .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc
                   : after(device, &call, inner->ops->fill(inner, addr, byte, size_bytes, queue));
}

static int wrap_fence(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_fence};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->fence(inner, queue, fence));
}

static int wrap_wait(struct tg_device *device, const struct tg_fence *fence, uint32_t timeout_ms) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_wait};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->wait(inner, fence, timeout_ms));
}

static int wrap_pin(struct tg_device *device, void *host, uint64_t size_bytes, int on) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {
        .op = TG__OP_pin, .addr = number_of(host), .size_bytes = size_bytes};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->pin(inner, host, size_bytes, on));
}

static int wrap_export_fd(struct tg_device *device, uint64_t chunk, int *fd) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_export_fd, .chunk = chunk};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->export_fd(inner, chunk, fd));
}

static int wrap_import_fd(struct tg_device *device, int fd, uint64_t size_bytes, uint64_t *chunk) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_import_fd, .size_bytes = size_bytes};
    int rc = before(device, &call);

    if (rc != 0)
        return rc;
    rc = inner->ops->import_fd(inner, fd, size_bytes, chunk);
    call.chunk = rc == 0 ? *chunk : 0;
    return after(device, &call, rc);
}

static int wrap_queue_open(struct tg_device *device, struct tg_queue **queue) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_queue_open};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->queue_open(inner, queue));
}

static int wrap_queue_close(struct tg_device *device, struct tg_queue *queue) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_queue_close};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->queue_close(inner, queue));
}

static int wrap_unpool(struct tg_device *device, uint64_t *gained_bytes) {
    struct tg_device *inner = wrap_of(device)->inner;
    struct tg__wrap_call call = {.op = TG__OP_unpool};
    int rc = before(device, &call);

    return rc != 0 ? rc : after(device, &call, inner->ops->unpool(inner, gained_bytes));
}

static int wrap_native(struct tg_device *device, uint64_t chunk, uint64_t *native) {
    return tg__device_native(wrap_of(device)->inner, chunk, native);
}

static const struct tg_device_ops wrap_ops = {
#define TG__OP(name) .name = wrap_##name,
#include "device/ops.def"
#undef TG__OP
};

void tg__wrap_init(struct tg__wrap *wrap, struct tg_device *inner) {
    wrap->inner = inner;
    wrap->pid = getpid();
    wrap->device.ops = &wrap_ops;
    wrap->device.native = wrap_native;
    memcpy(wrap->device.uri, inner->uri, sizeof wrap->device.uri);
    memcpy(wrap->device.pci, inner->pci, sizeof wrap->device.pci);
}
