/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1 over the capacity files of the stand-in GPUs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/capacity.h"
#include "device/nvml_abi.h"
#include "standin.h"

#define TG__NVML_CALL(symbol, ...) STANDIN_API int symbol(__VA_ARGS__);
#include "device/nvml_calls.def"
#undef TG__NVML_CALL

enum { NOT_FOUND = 6, NO_DRIVER = 9, PROCESSES = 64, UNKNOWN = 999 };
enum { FOREIGN_ID = 1 << 24 }; /* above the kernel's largest */

struct tg__nvmldevice {
    struct tg__capacity *capacity;
    bool hides_pids;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct tg__nvmldevice devices[STANDIN_DEVICES];
static unsigned users;

static int open_all(void) {
    struct standin_options options;

    if (standin_read(&options) != 0)
        return NO_DRIVER;
    for (int i = 0; i < options.devices; i++) {
        char name[32];

        standin_name(&options, i, name);
        if (tg__capacity_open(name, options.capacity_bytes, true, &devices[i].capacity) != 0)
            return UNKNOWN;
        devices[i].hides_pids = options.hides_pids;
    }
    return 0;
}

static void close_all(void) {
    for (int i = 0; i < STANDIN_DEVICES; i++) {
        tg__capacity_close(devices[i].capacity);
        devices[i].capacity = NULL;
    }
}

int nvmlInit_v2(void) {
    int result = 0;

    pthread_mutex_lock(&mutex);
    if (users == 0)
        result = open_all();
    if (result != 0)
        close_all();
    else
        users++;
    pthread_mutex_unlock(&mutex);
    return result;
}

int nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    if (users > 0 && --users == 0)
        close_all();
    pthread_mutex_unlock(&mutex);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct tg__nvmldevice **device) {
    for (int i = 0; i < STANDIN_DEVICES && devices[i].capacity != NULL; i++) {
        const uint8_t *bytes = tg__capacity_uuid(devices[i].capacity);
        char text[48];
        int at = snprintf(text, sizeof text, "GPU-");

        for (int j = 0; j < 16; j++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%02x",
                           j == 4 || j == 6 || j == 8 || j == 10 ? "-" : "", bytes[j]);
        if (strcmp(text, uuid) == 0) {
            *device = &devices[i];
            return 0;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(struct tg__nvmldevice *device, struct tg__nvmlmemory *memory) {
    uint64_t free_bytes, total_bytes;

    if (tg__capacity_memory(device->capacity, &free_bytes, &total_bytes) != 0)
        return UNKNOWN;
    *memory = (struct tg__nvmlmemory){total_bytes, free_bytes, total_bytes - free_bytes};
    return 0;
}

/* Where ids are the driver's own, ours may well be somebody else's. */
static unsigned id_of(const struct tg__nvmldevice *device, uint64_t pid) {
    if (!device->hides_pids)
        return (unsigned)pid;
    return pid == (uint64_t)getpid() ? FOREIGN_ID : (unsigned)getpid();
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct tg__nvmldevice *device, unsigned *count,
                                            struct tg__nvmlprocess *processes) {
    struct tg__capacity_share shares[PROCESSES];
    size_t room = *count, found;

    if (tg__capacity_shares(device->capacity, shares, PROCESSES, &found) != 0)
        return UNKNOWN;
    *count = (unsigned)found;
    if (found > room)
        return TG__NVML_ERROR_INSUFFICIENT_SIZE;
    for (size_t i = 0; i < found; i++)
        processes[i] = (struct tg__nvmlprocess){.pid = id_of(device, shares[i].pid),
                                                .used_bytes = shares[i].held_bytes,
                                                .gpu_instance_id = UINT32_MAX,
                                                .compute_instance_id = UINT32_MAX};
    return 0;
}
