/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and addresses. The driver's calls on addresses are made with the mutex, so that book and
 * driver agree; create and release, which may take as long as the driver scrubs, are not. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "device/cuda_device.h"

struct tg__cudachunk {
    unsigned long long handle; /* the driver's */
    uint64_t size_bytes;
    bool is_exportable;
};

/* All that a mapping is in the book: unmapping needs no more. */
static char mapping;

static int lock(struct tg__cuda *cuda, struct tg__cudacall *call) {
    int rc = tg__cuda_enter(cuda, call);

    if (rc == 0)
        pthread_mutex_lock(&cuda->mutex);
    return rc;
}

static int unlock(struct tg__cudacall *call, int rc) {
    pthread_mutex_unlock(&call->cuda->mutex);
    return tg__cuda_leave(call, rc);
}

/* With a chunk of ours; else it is unlocked again: -EINVAL. */
static int lock_chunk(struct tg__cuda *cuda, uint64_t chunk, struct tg__cudacall *call,
                      const struct tg__handle **handle) {
    int rc = lock(cuda, call);

    if (rc != 0)
        return rc;
    *handle = tg__handles_find(&cuda->handles, chunk);
    return *handle != NULL ? 0 : unlock(call, -EINVAL);
}

static struct tg__cuprop prop_of(const struct tg__cuda *cuda, uint32_t flags) {
    struct tg__cuprop prop = {
        .type = TG__CU_MEM_ALLOCATION_TYPE_PINNED,
        .requested_handle_types = (flags & TG_CHUNK_EXPORTABLE) != 0
                                      ? TG__CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                      : TG__CU_MEM_HANDLE_TYPE_NONE,
        .location = {TG__CU_MEM_LOCATION_TYPE_DEVICE, cuda->ordinal},
    };

    prop.alloc_flags.gpu_direct_rdma_capable = (flags & TG_CHUNK_RDMA) != 0;
    return prop;
}

int tg__cudachunk_granule(struct tg__cuda *cuda, uint64_t *granule_bytes) {
    struct tg__cuprop prop = prop_of(cuda, 0);
    size_t granule;
    int result = cuda->calls.cuMemGetAllocationGranularity(&granule, &prop,
                                                           TG__CU_MEM_ALLOC_GRANULARITY_MINIMUM);

    if (result == 0)
        *granule_bytes = granule;
    return tg__cuda_status(cuda, result, "cuMemGetAllocationGranularity");
}

/* ---- addresses ------------------------------------------------------------------------------- */

int tg__cudachunk_reserve(struct tg__cuda *cuda, uint64_t size_bytes, uint64_t *addr) {
    struct tg__cudacall call;
    struct tg__gridrange *range;
    unsigned long long reserved;
    int rc = lock(cuda, &call);

    if (rc != 0)
        return rc;
    rc = tg__grid_prepare(&cuda->grid, size_bytes, &range);
    if (rc != 0)
        return unlock(&call, rc);
    rc = tg__cuda_status(cuda, cuda->calls.cuMemAddressReserve(&reserved, size_bytes,
                                                               cuda->info.granule_bytes, 0, 0),
                         "cuMemAddressReserve");
    if (rc == 0) {
        tg__grid_insert(&cuda->grid, reserved, size_bytes, range);
        *addr = reserved;
    } else {
        tg__grid_drop(range);
    }
    return unlock(&call, rc);
}

int tg__cudachunk_unreserve(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes) {
    struct tg__cudacall call;
    int rc = lock(cuda, &call);

    if (rc != 0)
        return rc;
    rc = tg__grid_check_empty(&cuda->grid, addr, size_bytes);
    if (rc == 0)
        rc = tg__cuda_status(cuda, cuda->calls.cuMemAddressFree(addr, size_bytes),
                             "cuMemAddressFree");
    if (rc == 0)
        tg__grid_remove(&cuda->grid, addr, size_bytes);
    return unlock(&call, rc);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Tells the figures beside what was asked for: they decide what to do next. */
static int fail_create(struct tg__cuda *cuda, uint64_t size_bytes, int result) {
    size_t free_bytes = 0, total_bytes = 0;
    int asked = cuda->calls.cuMemGetInfo(&free_bytes, &total_bytes);

    if (result != TG__CU_ERROR_OUT_OF_MEMORY && (asked != 0 || size_bytes <= total_bytes))
        return tg__cuda_status(cuda, result, "cuMemCreate");
    return tg__fail_native(TG_EDEVICEMEMORY, result,
                           "the device has %" PRIu64 " MiB free of %" PRIu64 ", %" PRIu64
                           " are asked for: cuMemCreate: %s (%d)", (uint64_t)free_bytes >> 20,
                           (uint64_t)total_bytes >> 20, size_bytes >> 20,
                           tg__cuda_name(cuda, result), result);
}

/* Takes what is made into the table, or frees it. */
static int keep(struct tg__cuda *cuda, struct tg__cudachunk *made, uint64_t *chunk) {
    int rc;

    pthread_mutex_lock(&cuda->mutex);
    rc = tg__handles_room(&cuda->handles);
    if (rc == 0)
        *chunk = tg__handles_add(&cuda->handles, made, made->is_exportable);
    pthread_mutex_unlock(&cuda->mutex);
    if (rc != 0) {
        cuda->calls.cuMemRelease(made->handle);
        free(made);
    }
    return rc;
}

int tg__cudachunk_create(struct tg__cuda *cuda, uint64_t size_bytes, uint32_t flags,
                         uint64_t *chunk) {
    struct tg__cuprop prop = prop_of(cuda, flags);
    struct tg__cudachunk *made;
    struct tg__cudacall call;
    int result, rc = tg__cuda_enter(cuda, &call);

    if (rc != 0)
        return rc;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return tg__cuda_leave(&call, tg__fail_memory());
    result = cuda->calls.cuMemCreate(&made->handle, size_bytes, &prop, 0);
    if (result != 0) {
        free(made);
        return tg__cuda_leave(&call, fail_create(cuda, size_bytes, result));
    }
    made->size_bytes = size_bytes;
    made->is_exportable = (flags & TG_CHUNK_EXPORTABLE) != 0;
    return tg__cuda_leave(&call, keep(cuda, made, chunk));
}

int tg__cudachunk_release(struct tg__cuda *cuda, uint64_t chunk) {
    const struct tg__handle *handle;
    struct tg__cudachunk *found;
    struct tg__cudacall call;
    int rc = lock_chunk(cuda, chunk, &call, &handle);

    if (rc != 0)
        return rc;
    found = handle->what;
    tg__handles_remove(&cuda->handles, chunk);
    pthread_mutex_unlock(&cuda->mutex);
    rc = tg__cuda_status(cuda, cuda->calls.cuMemRelease(found->handle), "cuMemRelease");
    free(found);
    return tg__cuda_leave(&call, rc);
}

/* ---- mappings -------------------------------------------------------------------------------- */

/* This device and those of the set. */
static uint32_t list_access(const struct tg__cuda *cuda, uint64_t devices,
                            struct tg__cuaccess access[64]) {
    uint32_t count = 0;

    if (cuda->ordinal < 64)
        devices |= UINT64_C(1) << cuda->ordinal;
    for (; devices != 0; devices &= devices - 1)
        access[count++] = (struct tg__cuaccess){
            .location = {TG__CU_MEM_LOCATION_TYPE_DEVICE, __builtin_ctzll(devices)},
            .flags = TG__CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return count;
}

static int set_access(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes,
                      uint64_t devices) {
    struct tg__cuaccess access[64];
    uint32_t count = list_access(cuda, devices, access);

    return tg__cuda_status(cuda, cuda->calls.cuMemSetAccess(addr, size_bytes, access, count),
                           "cuMemSetAccess");
}

static int map_handle(struct tg__cuda *cuda, uint64_t addr, const struct tg__cudachunk *chunk,
                      uint64_t devices) {
    int result = cuda->calls.cuMemMap(addr, chunk->size_bytes, 0, chunk->handle, 0);
    int rc = tg__cuda_status(cuda, result, "cuMemMap");

    if (rc != 0)
        return rc;
    rc = set_access(cuda, addr, chunk->size_bytes, devices);
    if (rc != 0)
        cuda->calls.cuMemUnmap(addr, chunk->size_bytes);
    return rc;
}

int tg__cudachunk_map(struct tg__cuda *cuda, uint64_t addr, uint64_t chunk, uint64_t devices) {
    const struct tg__handle *handle;
    const struct tg__cudachunk *found;
    struct tg__gridpiece piece;
    struct tg__cudacall call;
    int rc = lock_chunk(cuda, chunk, &call, &handle);

    if (rc != 0)
        return rc;
    found = handle->what;
    rc = tg__grid_find_vacant(&cuda->grid, addr, found->size_bytes, &piece);
    if (rc == 0)
        rc = map_handle(cuda, addr, found, devices);
    if (rc == 0)
        tg__grid_fill(&piece, &mapping);
    return unlock(&call, rc);
}

int tg__cudachunk_unmap(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes) {
    struct tg__gridpiece piece;
    struct tg__cudacall call;
    int rc = lock(cuda, &call);

    if (rc != 0)
        return rc;
    rc = tg__grid_find_whole(&cuda->grid, addr, size_bytes, &piece);
    if (rc == 0)
        rc = tg__cuda_status(cuda, cuda->calls.cuMemUnmap(addr, size_bytes), "cuMemUnmap");
    for (uint64_t i = 0; rc == 0 && i < piece.count; i++)
        tg__grid_clear(&piece, i);
    return unlock(&call, rc);
}

int tg__cudachunk_access(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes,
                         uint64_t devices) {
    struct tg__gridpiece piece;
    struct tg__cudacall call;
    int rc = lock(cuda, &call);

    if (rc != 0)
        return rc;
    rc = tg__grid_find_whole(&cuda->grid, addr, size_bytes, &piece);
    if (rc == 0)
        rc = set_access(cuda, addr, size_bytes, devices);
    return unlock(&call, rc);
}

int tg__cudachunk_native(struct tg__cuda *cuda, uint64_t chunk, uint64_t *native) {
    const struct tg__handle *handle;
    struct tg__cudacall call;
    int rc = lock_chunk(cuda, chunk, &call, &handle);

    if (rc != 0)
        return rc;
    *native = ((const struct tg__cudachunk *)handle->what)->handle;
    return unlock(&call, 0);
}

/* ---- travelling ------------------------------------------------------------------------------ */

int tg__cudachunk_export(struct tg__cuda *cuda, uint64_t chunk, int *fd) {
    const struct tg__handle *handle;
    const struct tg__cudachunk *found;
    struct tg__cudacall call;
    int shared = -1, rc = lock_chunk(cuda, chunk, &call, &handle);

    if (rc != 0)
        return rc;
    found = handle->what;
    if (!handle->is_created)
        return unlock(&call, tg__fail(-EINVAL, "only a chunk that this process created as "
                                      "exportable can be exported"));
    rc = tg__cuda_status(cuda, cuda->calls.cuMemExportToShareableHandle(
                                   &shared, found->handle,
                                   TG__CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                         "cuMemExportToShareableHandle");
    if (rc == 0) {
        fcntl(shared, F_SETFD, FD_CLOEXEC);
        *fd = shared;
    }
    return unlock(&call, rc);
}

/* The driver tells nobody how large what it imported is; it maps it whole or not at all. */
static int check_import(struct tg__cuda *cuda, unsigned long long handle, uint64_t size_bytes) {
    unsigned long long addr;
    int rc = tg__cuda_status(cuda, cuda->calls.cuMemAddressReserve(&addr, size_bytes, 0, 0, 0),
                             "cuMemAddressReserve");

    if (rc != 0)
        return rc;
    if (cuda->calls.cuMemMap(addr, size_bytes, 0, handle, 0) == 0)
        cuda->calls.cuMemUnmap(addr, size_bytes);
    else
        rc = tg__fail(-EINVAL, "the chunk has another size than %" PRIu64 " bytes", size_bytes);
    cuda->calls.cuMemAddressFree(addr, size_bytes);
    return rc;
}

static int import_handle(struct tg__cuda *cuda, int fd, uint64_t size_bytes,
                         unsigned long long *handle) {
    int result, rc;

    if (fcntl(fd, F_GETFD) < 0)
        return tg__fail(-EINVAL, "descriptor %d is not open", fd);
    result = cuda->calls.cuMemImportFromShareableHandle(
        handle, (void *)(intptr_t)fd, TG__CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    rc = tg__cuda_status(cuda, result, "cuMemImportFromShareableHandle");
    if (rc == TG_EDEVICE && result != TG__CU_ERROR_OUT_OF_MEMORY)
        return tg__fail(-EINVAL, "descriptor %d is no chunk of this device", fd);
    if (rc != 0)
        return rc;
    rc = check_import(cuda, *handle, size_bytes);
    if (rc != 0)
        cuda->calls.cuMemRelease(*handle);
    return rc;
}

int tg__cudachunk_import(struct tg__cuda *cuda, int fd, uint64_t size_bytes, uint64_t *chunk) {
    struct tg__cudachunk *made;
    struct tg__cudacall call;
    int rc = tg__cuda_enter(cuda, &call);

    if (rc != 0)
        return rc;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return tg__cuda_leave(&call, tg__fail_memory());
    rc = import_handle(cuda, fd, size_bytes, &made->handle);
    if (rc != 0) {
        free(made);
        return tg__cuda_leave(&call, rc);
    }
    made->size_bytes = size_bytes;
    return tg__cuda_leave(&call, keep(cuda, made, chunk));
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The driver unmaps whole neighbours at once. */
static void unmap_all(struct tg__cuda *cuda, const struct tg__span *span) {
    uint64_t granule = cuda->info.granule_bytes, first = 0, count;

    while ((count = tg__grid_next_run(&cuda->grid, span, &first)) != 0) {
        cuda->calls.cuMemUnmap(span->addr + first * granule, count * granule);
        first += count;
    }
    cuda->calls.cuMemAddressFree(span->addr, span->size_bytes);
}

void tg__cudachunk_free_all(struct tg__cuda *cuda, bool is_forked) {
    const struct tg__span *spans = cuda->grid.ranges.vec.items, *pins = cuda->pins.vec.items;
    struct tg__handle *handles = cuda->handles.vec.items;

    for (size_t i = 0; i < cuda->grid.ranges.vec.count && !is_forked; i++)
        unmap_all(cuda, &spans[i]);
    for (size_t i = 0; i < cuda->pins.vec.count && !is_forked; i++)
        cuda->calls.cuMemHostUnregister((void *)(uintptr_t)pins[i].addr);
    for (size_t i = 0; i < cuda->handles.vec.count; i++) {
        struct tg__cudachunk *chunk = handles[i].what;

        if (chunk != NULL && !is_forked)
            cuda->calls.cuMemRelease(chunk->handle);
        free(chunk);
    }
    tg__grid_free(&cuda->grid);
    tg__spans_free(&cuda->pins);
    tg__handles_free(&cuda->handles);
}
