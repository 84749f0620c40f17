/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device: opening and closing, and the table. Each entry checks what the driver need not
 * be asked for, enters the driver and calls the file that does it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/cuda_device.h"
#include "device/cuda_load.h"
#include "device/pins.h"

enum { CLOSE_MS = 1000, PORTABLE = 1 };

/* More than any process can map. */
#define MOST_BYTES (UINT64_C(1) << 46)

static struct tg__cuda *cuda_of(struct tg_device *device) {
    return (struct tg__cuda *)device;
}

static int check_size(const struct tg__cuda *cuda, uint64_t size_bytes) {
    uint64_t granule = cuda->info.granule_bytes;

    if (size_bytes > 0 && size_bytes <= MOST_BYTES && size_bytes % granule == 0)
        return 0;
    return tg__fail(-EINVAL, "%" PRIu64 " bytes: a size is a multiple of %" PRIu64 " MiB and not 0",
                    size_bytes, granule >> 20);
}

static int check_range(const struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes) {
    uint64_t granule = cuda->info.granule_bytes;

    if (addr % granule != 0 || addr == 0)
        return tg__fail(-EINVAL, "address %#" PRIx64 " is not a multiple of %" PRIu64 " MiB", addr,
                        granule >> 20);
    return check_size(cuda, size_bytes);
}

/* ---- what is asked --------------------------------------------------------------------------- */

static int cuda_info(struct tg_device *device, struct tg_device_info *info) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = tg__cuda_check(cuda);

    if (rc == 0)
        *info = cuda->info;
    return rc;
}

/* With the NVML mutex. */
static int open_nvml(struct tg__cuda *cuda) {
    return cuda->nvml != NULL ? 0 : tg__nvml_open(cuda->info.uuid, &cuda->nvml);
}

/* Whether this process computes on the GPU, by us or by any other library. */
static bool has_context(struct tg__cuda *cuda) {
    unsigned flags;
    int is_active;

    return atomic_load(&cuda->context) != NULL ||
           (cuda->calls.cuDevicePrimaryCtxGetState(cuda->number, &flags, &is_active) == 0 &&
            is_active);
}

/* Without a context: a status must not cost the memory of one. */
static int ask_nvml(struct tg__cuda *cuda, uint64_t *free_bytes, uint64_t *total_bytes) {
    int saved = errno, rc;

    pthread_mutex_lock(&cuda->nvml_mutex);
    rc = open_nvml(cuda);
    if (rc == 0)
        rc = tg__nvml_memory(cuda->nvml, free_bytes, total_bytes);
    pthread_mutex_unlock(&cuda->nvml_mutex);
    errno = saved;
    return rc;
}

static int cuda_memory(struct tg_device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    size_t free_now, total;
    int rc = tg__cuda_check(cuda);

    if (rc != 0 || (atomic_load(&cuda->context) == NULL &&
                    ask_nvml(cuda, free_bytes, total_bytes) == 0))
        return rc;
    rc = tg__cuda_enter(cuda, &call);
    if (rc != 0)
        return rc;
    rc = tg__cuda_status(cuda, cuda->calls.cuMemGetInfo(&free_now, &total), "cuMemGetInfo");
    if (rc == 0) {
        *free_bytes = free_now;
        *total_bytes = total;
    }
    return tg__cuda_leave(&call, rc);
}

static int cuda_process(struct tg_device *device, uint64_t *own_bytes) {
    struct tg__cuda *cuda = cuda_of(device);
    int saved = errno, rc = tg__cuda_check(cuda);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&cuda->nvml_mutex);
    rc = open_nvml(cuda);
    if (rc == 0)
        rc = tg__nvml_process(cuda->nvml, has_context(cuda), own_bytes);
    pthread_mutex_unlock(&cuda->nvml_mutex);
    errno = saved;
    return rc;
}

int tg__cuda_others(struct tg_device *device, uint32_t *count) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = open_nvml(cuda);

    return rc != 0 ? rc : tg__nvml_others(cuda->nvml, has_context(cuda), count);
}

/* ---- memory and addresses -------------------------------------------------------------------- */

static int cuda_reserve(struct tg_device *device, uint64_t size_bytes, uint64_t *addr) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_size(cuda, size_bytes);

    return rc != 0 ? rc : tg__cudachunk_reserve(cuda, size_bytes, addr);
}

static int cuda_unreserve(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_range(cuda, addr, size_bytes);

    return rc != 0 ? rc : tg__cudachunk_unreserve(cuda, addr, size_bytes);
}

static int cuda_create(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                       uint64_t *chunk) {
    struct tg__cuda *cuda = cuda_of(device);
    uint32_t can = cuda->info.can & (TG_CHUNK_EXPORTABLE | TG_CHUNK_RDMA); /* the same bits */
    int rc = check_size(cuda, size_bytes);

    if (rc == 0 && (flags & ~can) != 0)
        rc = tg__fail(-EINVAL, "flags %#x: this GPU's chunks can have %#x: ask info for what a "
                      "device can", flags, can);
    return rc != 0 ? rc : tg__cudachunk_create(cuda, size_bytes, flags, chunk);
}

static int cuda_release(struct tg_device *device, uint64_t chunk) {
    return tg__cudachunk_release(cuda_of(device), chunk);
}

static int cuda_map(struct tg_device *device, uint64_t addr, uint64_t chunk, uint64_t devices) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_range(cuda, addr, cuda->info.granule_bytes);

    return rc != 0 ? rc : tg__cudachunk_map(cuda, addr, chunk, devices);
}

static int cuda_unmap(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_range(cuda, addr, size_bytes);

    return rc != 0 ? rc : tg__cudachunk_unmap(cuda, addr, size_bytes);
}

static int cuda_access(struct tg_device *device, uint64_t addr, uint64_t size_bytes,
                       uint64_t devices) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_range(cuda, addr, size_bytes);

    return rc != 0 ? rc : tg__cudachunk_access(cuda, addr, size_bytes, devices);
}

static int cuda_native(struct tg_device *device, uint64_t chunk, uint64_t *native) {
    return tg__cudachunk_native(cuda_of(device), chunk, native);
}

static int cuda_export(struct tg_device *device, uint64_t chunk, int *fd) {
    return tg__cudachunk_export(cuda_of(device), chunk, fd);
}

static int cuda_import(struct tg_device *device, int fd, uint64_t size_bytes, uint64_t *chunk) {
    struct tg__cuda *cuda = cuda_of(device);
    int rc = check_size(cuda, size_bytes);

    return rc != 0 ? rc : tg__cudachunk_import(cuda, fd, size_bytes, chunk);
}

/* Half a second for 16 GiB, so not under the lock of the books: the range is noted before. */
static int pin(struct tg__cuda *cuda, void *memory, uint64_t size_bytes) {
    int rc;

    pthread_mutex_lock(&cuda->mutex);
    rc = tg__pins_check(&cuda->pins, memory, size_bytes, 1);
    if (rc == 0)
        tg__pins_note(&cuda->pins, memory, size_bytes, 1);
    pthread_mutex_unlock(&cuda->mutex);
    if (rc != 0)
        return rc;
    rc = tg__cuda_status(cuda, cuda->calls.cuMemHostRegister(memory, size_bytes, PORTABLE),
                         "cuMemHostRegister");
    if (rc == 0)
        return 0;
    pthread_mutex_lock(&cuda->mutex);
    tg__pins_note(&cuda->pins, memory, size_bytes, 0);
    pthread_mutex_unlock(&cuda->mutex);
    return rc;
}

/* As long; the range is noted until it is done. */
static int unpin(struct tg__cuda *cuda, void *memory, uint64_t size_bytes) {
    int rc;

    pthread_mutex_lock(&cuda->mutex);
    rc = tg__pins_check(&cuda->pins, memory, size_bytes, 0);
    pthread_mutex_unlock(&cuda->mutex);
    if (rc == 0)
        rc = tg__cuda_status(cuda, cuda->calls.cuMemHostUnregister(memory), "cuMemHostUnregister");
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&cuda->mutex);
    tg__pins_note(&cuda->pins, memory, size_bytes, 0);
    pthread_mutex_unlock(&cuda->mutex);
    return 0;
}

static int cuda_pin(struct tg_device *device, void *memory, uint64_t size_bytes, int on) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    if (rc != 0)
        return rc;
    return tg__cuda_leave(&call, on ? pin(cuda, memory, size_bytes)
                                    : unpin(cuda, memory, size_bytes));
}

/* ---- work ------------------------------------------------------------------------------------ */

static uint64_t addr_of(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

/* Enters the driver with a queue that nobody closes meanwhile. */
static int begin_work(struct tg__cuda *cuda, struct tg_queue *queue, struct tg__cudacall *call,
                      struct tg_queue **used) {
    int rc = tg__cuda_enter(cuda, call);

    if (rc != 0)
        return rc;
    rc = tg__cudaqueue_get(cuda, queue, used);
    return rc == 0 ? 0 : tg__cuda_leave(call, rc);
}

static int end_work(struct tg__cudacall *call, struct tg_queue *used, int rc) {
    tg__cudaqueue_put(call->cuda, used);
    return tg__cuda_leave(call, rc);
}

static int cuda_copy(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    struct tg_queue *used;
    int rc;

    if (size_bytes == 0 || to == NULL || from == NULL)
        return tg__fail(-EINVAL, "a copy of 0 bytes, or to or from address 0");
    rc = begin_work(cuda, queue, &call, &used);
    if (rc != 0)
        return rc;
    rc = tg__cuda_status(cuda, cuda->calls.cuMemcpyAsync(addr_of(to), addr_of(from), size_bytes,
                                                         used->stream), "cuMemcpyAsync");
    return end_work(&call, used, rc);
}

static int cuda_fill(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    struct tg_queue *used;
    int rc;

    if (size_bytes == 0 || addr == 0)
        return tg__fail(-EINVAL, "a fill of 0 bytes, or at address 0");
    rc = begin_work(cuda, queue, &call, &used);
    if (rc != 0)
        return rc;
    rc = tg__cuda_status(cuda, cuda->calls.cuMemsetD8Async(addr, (unsigned char)byte, size_bytes,
                                                           used->stream), "cuMemsetD8Async");
    return end_work(&call, used, rc);
}

static int cuda_fence(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    return rc != 0 ? rc : tg__cuda_leave(&call, tg__cudafence_make(cuda, queue, fence));
}

static int cuda_wait(struct tg_device *device, const struct tg_fence *fence, uint32_t timeout_ms) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    return rc != 0 ? rc : tg__cuda_leave(&call, tg__cudafence_wait(cuda, fence, timeout_ms));
}

static int cuda_queue_open(struct tg_device *device, struct tg_queue **queue) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    return rc != 0 ? rc : tg__cuda_leave(&call, tg__cudaqueue_open(cuda, queue));
}

static int cuda_queue_close(struct tg_device *device, struct tg_queue *queue) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    return rc != 0 ? rc : tg__cuda_leave(&call, tg__cudaqueue_close(cuda, queue));
}

static int cuda_unpool(struct tg_device *device, uint64_t *gained_bytes) {
    struct tg__cuda *cuda = cuda_of(device);
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    return rc != 0 ? rc : tg__cuda_leave(&call, tg__cudapool_trim(cuda, gained_bytes));
}

static const struct tg_device_ops cuda_ops = {
    .info = cuda_info,
    .memory = cuda_memory,
    .process = cuda_process,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .create = cuda_create,
    .release = cuda_release,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .access = cuda_access,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .fence = cuda_fence,
    .wait = cuda_wait,
    .pin = cuda_pin,
    .export_fd = cuda_export,
    .import_fd = cuda_import,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .unpool = cuda_unpool,
};

/* ---- open and close -------------------------------------------------------------------------- */

/* What is left is given back where the driver still lets us: a context that has failed keeps its
 * memory until its last holder is gone, whatever we say. */
static void leave_context(struct tg__cuda *cuda) {
    struct tg_fence fence;
    struct tg__cuctx *ours;

    cuda->calls.cuCtxPushCurrent(atomic_load(&cuda->context));
    if (atomic_load(&cuda->broken) == 0 && tg__cudafence_make(cuda, NULL, &fence) == 0)
        (void)!tg__cudafence_wait(cuda, &fence, CLOSE_MS);
    tg__cudafence_free_all(cuda, false);
    tg__cudaqueue_free_all(cuda, false);
    tg__cudachunk_free_all(cuda, false);
    tg__cudasync_close(cuda->sync, false);
    cuda->calls.cuCtxPopCurrent(&ours);
    cuda->calls.cuDevicePrimaryCtxRelease(cuda->number);
}

static void cuda_close(struct tg_device *device) {
    struct tg__cuda *cuda = cuda_of(device);
    bool is_forked = tg__forkguard_is_forked(&cuda->guard);
    struct tg_error before = *tg_last_error();
    int saved = errno;

    tg__nvml_close(cuda->nvml, is_forked);
    if (!is_forked && atomic_load(&cuda->context) != NULL) {
        leave_context(cuda);
    } else {
        tg__cudafence_free_all(cuda, true);
        tg__cudaqueue_free_all(cuda, true);
        tg__cudachunk_free_all(cuda, true);
        tg__cudasync_close(cuda->sync, true);
    }
    tg__forkguard_remove(&cuda->guard);
    free(cuda);
    tg__fail_as(&before);
    errno = saved;
}

static int ask_attribute(struct tg__cuda *cuda, int attribute) {
    int value = 0;

    return cuda->calls.cuDeviceGetAttribute(&value, attribute, cuda->number) == 0 && value != 0;
}

/* Left empty where the driver does not tell. */
static void ask_place(struct tg__cuda *cuda) {
    static const int attributes[] = {TG__CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
                                     TG__CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
                                     TG__CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID};
    int place[3];

    for (int i = 0; i < 3; i++) {
        if (cuda->calls.cuDeviceGetAttribute(&place[i], attributes[i], cuda->number) != 0)
            return;
    }
    snprintf(cuda->device.pci, sizeof cuda->device.pci, "%04x:%02x:%02x.0", (unsigned)place[0],
             (unsigned)place[1], (unsigned)place[2]);
}

/* What a chunk can be is asked once; no context is made for it. */
static int ask(struct tg__cuda *cuda) {
    struct tg_device_info *info = &cuda->info;
    struct tg__cuuuid uuid;
    int rc = tg__cuda_status(cuda, cuda->calls.cuDeviceGetUuid(&uuid, cuda->number),
                             "cuDeviceGetUuid");

    if (rc == 0)
        rc = tg__cuda_status(cuda, cuda->calls.cuDeviceGetName(info->name, sizeof info->name - 1,
                                                               cuda->number), "cuDeviceGetName");
    if (rc != 0)
        return rc;
    memcpy(info->uuid, uuid.bytes, sizeof info->uuid);
    if (!ask_attribute(cuda, TG__CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return tg__fail(-ENODEV, "cuda:%d, %s, cannot map memory by chunks", cuda->ordinal,
                        info->name);
    if (ask_attribute(cuda, TG__CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        info->can |= TG_DEVICE_EXPORT;
    if (ask_attribute(cuda, TG__CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        info->can |= TG_DEVICE_RDMA;
    ask_place(cuda);
    return tg__cudachunk_granule(cuda, &info->granule_bytes);
}

static int find(struct tg__cuda *cuda) {
    int count = 0;

    if (cuda->calls.cuDeviceGetCount(&count) != 0 || cuda->ordinal >= count)
        return tg__fail(-ENODEV, "cuda:%d: the driver shows %d GPU%s to this process",
                        cuda->ordinal, count, count == 1 ? "" : "s");
    return tg__cuda_status(cuda, cuda->calls.cuDeviceGet(&cuda->number, cuda->ordinal),
                           "cuDeviceGet");
}

static void init(struct tg__cuda *cuda) {
    pthread_mutex_init(&cuda->mutex, NULL);
    pthread_mutex_init(&cuda->queue_mutex, NULL);
    pthread_mutex_init(&cuda->nvml_mutex, NULL);
    tg__handles_init(&cuda->handles);
    tg__grid_init(&cuda->grid, cuda->info.granule_bytes);
    tg__spans_init(&cuda->pins);
    tg__vec_init(&cuda->idle_events, sizeof(struct tg__cuevent *), NULL);
    snprintf(cuda->device.uri, sizeof cuda->device.uri, "cuda:%d", cuda->ordinal);
    cuda->device.ops = &cuda_ops;
    cuda->device.native = cuda_native;
    cuda->device.close = cuda_close;
}

int tg__cuda_open(int ordinal, struct tg_device **device) {
    struct tg__cuda *cuda = calloc(1, sizeof *cuda);
    int rc;

    if (cuda == NULL)
        return tg__fail_memory();
    cuda->ordinal = ordinal;
    rc = tg__cuda_load(&cuda->calls);
    if (rc == 0)
        rc = find(cuda);
    if (rc == 0)
        rc = ask(cuda);
    if (rc == 0)
        rc = tg__forkguard_add(&cuda->guard);
    if (rc != 0) {
        free(cuda);
        return rc;
    }
    init(cuda);
    *device = &cuda->device;
    return 0;
}
