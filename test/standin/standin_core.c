/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the driver, its devices, contexts, and what every call begins with. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "standin.h"

enum { DEPTH = 32, SEVERAL = 100 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next three */
static struct standin_options options;
static struct tg__cuctx contexts[STANDIN_DEVICES];
static char *begun_with; /* TIDEGATE_STANDIN at the last cuInit that succeeded; NULL: none did */
static struct tg_device *devices[STANDIN_DEVICES];
static pid_t owner;
static _Atomic uint64_t calls_in_context;

static _Thread_local struct tg__cuctx *stack[DEPTH];
static _Thread_local int depth;

const struct standin_options *standin_options(void) {
    return &options;
}

int standin_device_count(void) {
    return options.devices;
}

struct tg_device *standin_device(int device) {
    return device < 0 || device >= options.devices ? NULL : devices[device];
}

int standin_result(int status) {
    static const struct {
        int status, result;
    } known[] = {
        {0, 0},
        {-EINVAL, TG__CU_ERROR_INVALID_VALUE},
        {-ENOMEM, TG__CU_ERROR_OUT_OF_MEMORY},
        {TG_EDEVICEMEMORY, TG__CU_ERROR_OUT_OF_MEMORY},
        {TG_EBUSY, TG__CU_ERROR_NOT_READY},
        {TG_EFORKED, TG__CU_ERROR_NOT_INITIALIZED},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].status == status)
            return known[i].result;
    }
    return TG__CU_ERROR_UNKNOWN;
}

/* ---- starting -------------------------------------------------------------------------------- */

static void close_devices(void) {
    for (int i = 0; i < STANDIN_DEVICES; i++) {
        tg_device_close(devices[i]);
        devices[i] = NULL;
        contexts[i] = (struct tg__cuctx){.device = i};
    }
}

static int open_devices(void) {
    for (int i = 0; i < options.devices; i++) {
        char name[32];
        struct tg__host_params params = {.name = name,
                                         .capacity_bytes = options.capacity_bytes,
                                         .lag_ms = options.lag_ms,
                                         .hangs = options.hangs,
                                         .straggler_ms = options.straggler_ms};

        standin_name(&options, i, name);
        if (tg__host_open(&params, &devices[i]) != 0) {
            fprintf(stderr, "stand-in: %s\n", tg_last_error()->text);
            close_devices();
            return TG__CU_ERROR_UNKNOWN;
        }
    }
    return 0;
}

static int is_in_use(void) {
    for (int i = 0; i < STANDIN_DEVICES; i++) {
        if (contexts[i].retained > 0)
            return 1;
    }
    return 0;
}

/* A test may ask for another card once it has left the last one. */
static int start(void) {
    const char *asked = getenv("TIDEGATE_STANDIN");
    int result;

    if (begun_with != NULL && owner != getpid())
        return TG__CU_ERROR_NOT_INITIALIZED;
    if (begun_with != NULL && (is_in_use() || (asked != NULL && strcmp(asked, begun_with) == 0)))
        return 0;
    close_devices();
    free(begun_with);
    begun_with = NULL;
    if (standin_read(&options) != 0)
        return TG__CU_ERROR_NO_DEVICE;
    if (options.init != 0)
        return options.init;
    result = open_devices();
    if (result != 0)
        return result;
    atomic_store(&calls_in_context, 0);
    owner = getpid();
    begun_with = strdup(asked);
    return begun_with != NULL ? 0 : TG__CU_ERROR_OUT_OF_MEMORY;
}

int cuInit(unsigned flags) {
    int result;

    if (flags != 0)
        return TG__CU_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    result = start();
    pthread_mutex_unlock(&mutex);
    return result;
}

int standin_begin(void) {
    return begun_with != NULL && owner == getpid() ? 0 : TG__CU_ERROR_NOT_INITIALIZED;
}

int standin_enter(struct tg_device **device) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (depth == 0 || stack[depth - 1] == NULL)
        return TG__CU_ERROR_INVALID_CONTEXT;
    if (options.sticky != 0 && atomic_fetch_add(&calls_in_context, 1) + 1 >= options.sticky)
        return TG__CU_ERROR_ILLEGAL_ADDRESS;
    *device = devices[stack[depth - 1]->device];
    return 0;
}

int cuDriverGetVersion(int *version) {
    struct standin_options asked;

    if (version == NULL)
        return TG__CU_ERROR_INVALID_VALUE;
    *version = standin_read(&asked) == 0 ? asked.driver : 0;
    return 0;
}

/* ---- devices --------------------------------------------------------------------------------- */

static int begin_on(int device) {
    int result = standin_begin();

    if (result == 0 && standin_device(device) == NULL)
        return TG__CU_ERROR_INVALID_DEVICE;
    return result;
}

int cuDeviceGetCount(int *count) {
    int result = standin_begin();

    if (result == 0)
        *count = options.devices;
    return result;
}

int cuDeviceGet(int *device, int ordinal) {
    int result = begin_on(ordinal);

    if (result == 0)
        *device = ordinal;
    return result;
}

int cuDeviceGetName(char *name, int name_bytes, int device) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (standin_device(device) == NULL || name_bytes < 1)
        return TG__CU_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)name_bytes, "stand-in GPU %d", device);
    return 0;
}

int cuDeviceGetUuid_v2(struct tg__cuuuid *uuid, int device) {
    struct tg_device_info info;
    int result = begin_on(device);

    if (result != 0)
        return result;
    result = standin_result(devices[device]->ops->info(devices[device], &info));
    if (result == 0)
        memcpy(uuid->bytes, info.uuid, sizeof uuid->bytes);
    return result;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int result = begin_on(device);

    if (result != 0)
        return result;
    *value = attribute == TG__CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
             attribute == TG__CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    if (attribute == TG__CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
        *value = STANDIN_PCI_DOMAIN;
    if (attribute == TG__CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = device;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *total_bytes, int device) {
    uint64_t unused, total;
    int result = begin_on(device);

    if (result != 0)
        return result;
    result = standin_result(devices[device]->ops->memory(devices[device], &unused, &total));
    if (result == 0)
        *total_bytes = total;
    return result;
}

/* ---- contexts -------------------------------------------------------------------------------- */

int cuDevicePrimaryCtxRetain(struct tg__cuctx **context, int device) {
    int result = begin_on(device);

    if (result != 0)
        return result;
    pthread_mutex_lock(&mutex);
    if (contexts[device].retained == 0 && options.context_bytes > 0)
        result = standin_result(devices[device]->ops->create(
            devices[device], options.context_bytes, 0, &contexts[device].chunk));
    if (result == 0) {
        contexts[device].retained++;
        *context = &contexts[device];
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    struct tg__cuctx *context;
    int result = begin_on(device);

    if (result != 0)
        return result;
    pthread_mutex_lock(&mutex);
    context = &contexts[device];
    if (context->retained == 0) {
        result = TG__CU_ERROR_INVALID_CONTEXT;
    } else if (--context->retained == 0 && context->chunk != 0) {
        result = standin_result(devices[device]->ops->release(devices[device], context->chunk));
        context->chunk = 0;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
    int result = begin_on(device);

    if (result != 0)
        return result;
    pthread_mutex_lock(&mutex);
    *flags = 0;
    *is_active = contexts[device].retained > 0;
    pthread_mutex_unlock(&mutex);
    return 0;
}

int cuCtxPushCurrent_v2(struct tg__cuctx *context) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (context == NULL || depth == DEPTH)
        return TG__CU_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return 0;
}

int cuCtxPopCurrent_v2(struct tg__cuctx **context) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (depth == 0)
        return TG__CU_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return 0;
}

int cuCtxGetCurrent(struct tg__cuctx **context) {
    int result = standin_begin();

    if (result == 0)
        *context = depth == 0 ? NULL : stack[depth - 1];
    return result;
}

int cuCtxSetCurrent(struct tg__cuctx *context) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    if (context == NULL)
        depth--;
    return 0;
}

int cuCtxGetDevice(int *device) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (depth == 0)
        return TG__CU_ERROR_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return 0;
}

int standin_wait(struct tg_device *device, const struct tg_fence *fence) {
    int rc;

    do
        rc = device->ops->wait(device, fence, SEVERAL);
    while (rc == TG_EBUSY);
    return standin_result(rc);
}

int cuCtxSynchronize(void) {
    struct tg_device *device;
    struct tg_fence fence;
    int result = standin_enter(&device);

    if (result == 0)
        result = standin_mind_captures(1);
    if (result == 0)
        result = standin_result(device->ops->fence(device, NULL, &fence));
    return result != 0 ? result : standin_wait(device, &fence);
}
