/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/nvml_abi.h"

/* More than run on a GPU at once; the list may grow between asking how long it is and reading it.
 */
enum { SPARE_PROCESSES = 16, MOST_PROCESSES = 65536 };

struct tg__nvml {
    struct tg__nvml_calls calls;
    struct tg__nvmldevice *device;
};

static const struct {
    const char *symbol;
    size_t offset; /* in the table */
} wanted[] = {
#define TG__NVML_CALL(symbol, ...) {#symbol, offsetof(struct tg__nvml_calls, symbol)},
#include "device/nvml_calls.def"
#undef TG__NVML_CALL
};

static int load(struct tg__nvml_calls *calls) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *found;

    if (library == NULL)
        return tg__fail(-ENOTSUP, "the driver's management library, libnvidia-ml.so.1, cannot be "
                        "loaded");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        found = dlsym(library, wanted[i].symbol);
        if (found == NULL)
            return tg__fail(-ENOTSUP, "the driver's management library is too old: it lacks %s",
                            wanted[i].symbol);
        memcpy((char *)calls + wanted[i].offset, &found, sizeof found);
    }
    return 0;
}

/* As people write it; a slice of a GPU has its own prefix. */
static void write_uuid(const char *prefix, const uint8_t uuid[16], char *text, size_t text_bytes) {
    int at = snprintf(text, text_bytes, "%s-", prefix);

    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, text_bytes - (size_t)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int find_device(struct tg__nvml *nvml, const uint8_t uuid[16]) {
    static const char *const prefixes[] = {"GPU", "MIG"};
    char text[64];
    int result = 0;

    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        write_uuid(prefixes[i], uuid, text, sizeof text);
        result = nvml->calls.nvmlDeviceGetHandleByUUID(text, &nvml->device);
        if (result == 0)
            return 0;
    }
    return tg__fail_native(-ENOTSUP, result, "the driver's management library does not know the "
                           "GPU (%d)", result);
}

int tg__nvml_open(const uint8_t uuid[16], struct tg__nvml **nvml) {
    struct tg__nvml *made = calloc(1, sizeof *made);
    int rc, result;

    if (made == NULL)
        return tg__fail_memory();
    rc = load(&made->calls);
    if (rc != 0)
        goto release;
    result = made->calls.nvmlInit_v2();
    if (result != 0) {
        rc = tg__fail_native(-ENOTSUP, result, "the driver's management library does not start "
                             "(%d)", result);
        goto release;
    }
    rc = find_device(made, uuid);
    if (rc != 0)
        goto shut_down;
    *nvml = made;
    return 0;
shut_down:
    made->calls.nvmlShutdown();
release:
    free(made);
    return rc;
}

void tg__nvml_close(struct tg__nvml *nvml, bool is_forked) {
    if (nvml == NULL)
        return;
    if (!is_forked)
        nvml->calls.nvmlShutdown();
    free(nvml);
}

int tg__nvml_memory(const struct tg__nvml *nvml, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct tg__nvmlmemory memory;
    int result = nvml->calls.nvmlDeviceGetMemoryInfo(nvml->device, &memory);

    if (result != 0)
        return tg__fail_native(-ENOTSUP, result, "the driver's management library does not tell "
                               "the GPU's memory (%d)", result);
    *free_bytes = memory.free_bytes;
    *total_bytes = memory.total_bytes;
    return 0;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Freed by the caller. */
static int list(const struct tg__nvml *nvml, struct tg__nvmlprocess **processes, unsigned *count) {
    unsigned room = SPARE_PROCESSES;
    struct tg__nvmlprocess *list = NULL;
    int result;

    do {
        free(list);
        list = calloc(room, sizeof *list);
        if (list == NULL)
            return tg__fail_memory();
        *count = room;
        result = nvml->calls.nvmlDeviceGetComputeRunningProcesses_v3(nvml->device, count, list);
        room = *count + SPARE_PROCESSES;
    } while (result == TG__NVML_ERROR_INSUFFICIENT_SIZE && room < MOST_PROCESSES);
    if (result != 0) {
        free(list);
        return tg__fail_native(-ENOTSUP, result, "the driver's management library does not tell "
                               "the GPU's processes (%d)", result);
    }
    *processes = list;
    return 0;
}

static bool exists(unsigned pid) {
    int saved = errno;
    bool is_gone = kill((pid_t)pid, 0) != 0 && errno == ESRCH;

    errno = saved;
    return !is_gone;
}

/* Which one is this process, or -1. A foreign id that happens to be ours too is not taken for it:
 * then some other one of the list does not exist here. */
static int find_own(const struct tg__nvmlprocess *processes, unsigned count) {
    int own = -1;

    for (unsigned i = 0; i < count; i++) {
        if (!exists(processes[i].pid))
            return -1;
        if (processes[i].pid == (unsigned)getpid())
            own = (int)i;
    }
    return own;
}

int tg__nvml_process(const struct tg__nvml *nvml, bool has_context, uint64_t *own_bytes) {
    struct tg__nvmlprocess *processes;
    unsigned count;
    int own, rc = list(nvml, &processes, &count);

    if (rc != 0)
        return rc;
    own = find_own(processes, count);
    if (own < 0 && has_context)
        rc = tg__fail(-ENOTSUP, "the driver knows this process by another id than it has here, as "
                      "in a container");
    else if (own >= 0 && processes[own].used_bytes == UINT64_MAX)
        rc = tg__fail(-ENOTSUP, "the driver does not tell how much of the GPU a process holds");
    else
        *own_bytes = own < 0 ? 0 : processes[own].used_bytes;
    free(processes);
    return rc;
}

int tg__nvml_others(const struct tg__nvml *nvml, bool has_context, uint32_t *count) {
    struct tg__nvmlprocess *processes;
    unsigned all;
    int rc = list(nvml, &processes, &all);

    if (rc != 0)
        return rc;
    *count = all - (all > 0 && (has_context || find_own(processes, all) >= 0));
    free(processes);
    return 0;
}
