/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and addresses. A handle carries its device in its highest bits. What is mapped cannot be
 * touched until access is set, as on a card. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/host.h"
#include "standin.h"

enum { DEVICE_SHIFT = 60 };
#define HANDLE_MASK ((UINT64_C(1) << DEVICE_SHIFT) - 1)

static struct tg_device *device_of(unsigned long long handle) {
    return standin_device((int)(handle >> DEVICE_SHIFT));
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t free_now, total;
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result == 0)
        result = standin_result(device->ops->memory(device, &free_now, &total));
    if (result == 0) {
        *free_bytes = free_now;
        *total_bytes = total;
    }
    return result;
}

int cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
    size_t free_now, total;
    int result = cuMemGetInfo_v2(&free_now, &total);

    if (result == 0) {
        *free_bytes = (unsigned)free_now;
        *total_bytes = (unsigned)total;
    }
    return result;
}

int cuMemGetAllocationGranularity(size_t *granule_bytes, const struct tg__cuprop *prop,
                                  int option) {
    int result = standin_begin();

    (void)option;
    if (result == 0 && standin_device(prop->location.id) == NULL)
        return TG__CU_ERROR_INVALID_DEVICE;
    if (result == 0)
        *granule_bytes = TG__HOST_GRANULE_BYTES;
    return result;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

int cuMemCreate(unsigned long long *handle, size_t size_bytes, const struct tg__cuprop *prop,
                unsigned long long flags) {
    struct tg_device *device;
    uint64_t chunk;
    int result = standin_enter(&device);

    if (result != 0)
        return result;
    device = standin_device(prop->location.id);
    if (device == NULL || prop->type != TG__CU_MEM_ALLOCATION_TYPE_PINNED || flags != 0 ||
        prop->location.type != TG__CU_MEM_LOCATION_TYPE_DEVICE)
        return TG__CU_ERROR_INVALID_VALUE;
    if (prop->alloc_flags.gpu_direct_rdma_capable)
        return TG__CU_ERROR_NOT_SUPPORTED;
    result = standin_result(device->ops->create(
        device, size_bytes, prop->requested_handle_types != 0 ? TG_CHUNK_EXPORTABLE : 0, &chunk));
    if (result == 0)
        *handle = chunk | (uint64_t)prop->location.id << DEVICE_SHIFT;
    return result;
}

int cuMemRelease(unsigned long long handle) {
    struct tg_device *device = device_of(handle);
    int result = standin_begin();

    if (result == 0 && device == NULL)
        return TG__CU_ERROR_INVALID_VALUE;
    return result != 0 ? result
                       : standin_result(device->ops->release(device, handle & HANDLE_MASK));
}

int cuMemExportToShareableHandle(void *shared, unsigned long long handle, int type,
                                 unsigned long long flags) {
    struct tg_device *device;
    int fd, result = standin_enter(&device);

    if (result != 0)
        return result;
    device = device_of(handle);
    if (device == NULL || type != TG__CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return TG__CU_ERROR_INVALID_VALUE;
    result = standin_result(device->ops->export_fd(device, handle & HANDLE_MASK, &fd));
    if (result == 0)
        memcpy(shared, &fd, sizeof fd);
    return result;
}

/* The driver takes a descriptor without a size: it is the one of the memory behind it. */
static int import_on(int number, int fd, unsigned long long *handle) {
    struct tg_device *device = standin_device(number);
    uint64_t size_bytes = (uint64_t)lseek(fd, 0, SEEK_END), chunk;
    int rc = device->ops->import_fd(device, fd, size_bytes, &chunk);

    if (rc == 0)
        *handle = chunk | (uint64_t)number << DEVICE_SHIFT;
    return standin_result(rc);
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *shared, int type) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result == 0 && type != TG__CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return TG__CU_ERROR_INVALID_VALUE;
    for (int i = 0; result == 0 && i < standin_device_count(); i++) {
        result = import_on(i, (int)(intptr_t)shared, handle);
        if (result != TG__CU_ERROR_INVALID_VALUE)
            return result;
        result = i + 1 == standin_device_count() ? result : 0;
    }
    return result;
}

/* ---- addresses ------------------------------------------------------------------------------- */

int cuMemAddressReserve(unsigned long long *addr, size_t size_bytes, size_t alignment,
                        unsigned long long wanted, unsigned long long flags) {
    struct tg_device *device;
    uint64_t reserved;
    int result = standin_enter(&device);

    (void)wanted;
    if (result == 0 && (flags != 0 || alignment > TG__HOST_GRANULE_BYTES))
        return TG__CU_ERROR_INVALID_VALUE;
    if (result == 0)
        result = standin_result(device->ops->reserve(device, size_bytes, &reserved));
    if (result == 0)
        *addr = reserved;
    return result;
}

/* An address says nothing of its device: the one that knows it takes it. */
static int try_all(int (*call)(struct tg_device *, uint64_t, uint64_t), uint64_t addr,
                   uint64_t size_bytes) {
    int result = standin_begin();

    for (int i = 0; result == 0 && i < standin_device_count(); i++) {
        result = standin_result(call(standin_device(i), addr, size_bytes));
        if (result != TG__CU_ERROR_INVALID_VALUE)
            return result;
        result = i + 1 == standin_device_count() ? result : 0;
    }
    return result;
}

static int unreserve(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    return device->ops->unreserve(device, addr, size_bytes);
}

static int unmap(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    int rc = device->ops->unmap(device, addr, size_bytes);

    if (rc == 0)
        standin_access_end(addr, size_bytes);
    return rc;
}

int cuMemAddressFree(unsigned long long addr, size_t size_bytes) {
    return try_all(unreserve, addr, size_bytes);
}

int cuMemUnmap(unsigned long long addr, size_t size_bytes) {
    struct tg_device *device;
    int result = standin_enter(&device);

    return result != 0 ? result : try_all(unmap, addr, size_bytes);
}

static uint64_t size_of(struct tg_device *device, uint64_t chunk) {
    struct tg__host *host = (struct tg__host *)device;
    const struct tg__hostchunk *found;
    uint64_t size_bytes;

    pthread_mutex_lock(&host->mutex);
    found = tg__hostchunk_find(host, chunk);
    size_bytes = found == NULL ? 0 : found->size_bytes;
    pthread_mutex_unlock(&host->mutex);
    return size_bytes;
}

static void *pointer(unsigned long long addr) {
    return (void *)(uintptr_t)addr;
}

int cuMemMap(unsigned long long addr, size_t size_bytes, size_t offset, unsigned long long handle,
             unsigned long long flags) {
    struct tg_device *device;
    uint64_t whole;
    int result = standin_enter(&device);

    if (result != 0)
        return result;
    device = device_of(handle);
    whole = device == NULL ? 0 : size_of(device, handle & HANDLE_MASK);
    if (whole == 0 || flags != 0 || size_bytes > whole)
        return TG__CU_ERROR_INVALID_VALUE;
    if (offset != 0 || size_bytes != whole)
        return TG__CU_ERROR_NOT_SUPPORTED;
    result = standin_result(device->ops->map(device, addr, handle & HANDLE_MASK, 0));
    if (result == 0) {
        mprotect(pointer(addr), size_bytes, PROT_NONE);
        standin_access_begin(addr, size_bytes);
    }
    return result;
}

int cuMemSetAccess(unsigned long long addr, size_t size_bytes, const struct tg__cuaccess *access,
                   size_t count) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result != 0)
        return result;
    for (size_t i = 0; i < count; i++) {
        if (standin_device(access[i].location.id) == NULL)
            return TG__CU_ERROR_INVALID_DEVICE;
    }
    if (count == 0 || access->flags != TG__CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        mprotect(pointer(addr), size_bytes, PROT_READ | PROT_WRITE) != 0)
        return TG__CU_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        standin_access_give(addr, size_bytes, UINT64_C(1) << access[i].location.id);
    return 0;
}

/* ---- the old way: address and memory in one ---------------------------------------------------
 */

int cuMemAlloc_v2(unsigned long long *addr, size_t size_bytes) {
    uint64_t granule = TG__HOST_GRANULE_BYTES, reserved, chunk;
    uint64_t whole = (size_bytes + granule - 1) / granule * granule;
    struct tg_device *device;
    int rc, result = standin_enter(&device);

    if (result != 0)
        return result;
    if (whole < size_bytes) /* more than there are addresses */
        return TG__CU_ERROR_OUT_OF_MEMORY;
    rc = device->ops->reserve(device, whole, &reserved);
    if (rc != 0)
        return standin_result(rc);
    rc = device->ops->create(device, whole, 0, &chunk);
    if (rc == 0) {
        rc = device->ops->map(device, reserved, chunk, 0);
        (void)!device->ops->release(device, chunk);
    }
    if (rc != 0)
        (void)!device->ops->unreserve(device, reserved, whole);
    else
        *addr = reserved;
    return standin_result(rc);
}

int standin_free(struct tg_device *device, uint64_t addr) {
    struct tg__host *host = (struct tg__host *)device;
    struct tg__span *span;
    uint64_t size_bytes;
    int rc;

    pthread_mutex_lock(&host->mutex);
    span = tg__spans_find(&host->grid.ranges, addr, 1);
    size_bytes = span == NULL || span->addr != addr ? 0 : span->size_bytes;
    pthread_mutex_unlock(&host->mutex);
    rc = device->ops->unmap(device, addr, size_bytes);
    return standin_result(rc != 0 ? rc : device->ops->unreserve(device, addr, size_bytes));
}

int cuMemFree_v2(unsigned long long addr) {
    struct tg_device *device;
    int result = cuCtxSynchronize();

    if (result == 0)
        result = standin_enter(&device);
    if (result != 0 || addr == 0)
        return result;
    result = standin_pool_keep(addr);
    return result != TG__CU_ERROR_NOT_FOUND ? result : standin_free(device, addr);
}

/* ---- host memory ----------------------------------------------------------------------------- */

int cuMemHostRegister_v2(void *memory, size_t size_bytes, unsigned flags) {
    struct tg_device *device;
    int rc, result = standin_enter(&device);

    (void)flags;
    if (result != 0)
        return result;
    rc = device->ops->pin(device, memory, size_bytes, 1);
    return rc == -EINVAL ? TG__CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED : standin_result(rc);
}

int cuMemHostUnregister(void *memory) {
    struct tg_device *device;
    struct tg__host *host;
    struct tg__span *span;
    uint64_t size_bytes;
    int result = standin_enter(&device);

    if (result != 0)
        return result;
    host = (struct tg__host *)device;
    pthread_mutex_lock(&host->mutex);
    span = tg__spans_find(&host->pins, (uint64_t)(uintptr_t)memory, 1);
    size_bytes = span == NULL ? 0 : span->size_bytes;
    pthread_mutex_unlock(&host->mutex);
    return device->ops->pin(device, memory, size_bytes, 0) == 0
               ? 0
               : TG__CU_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
