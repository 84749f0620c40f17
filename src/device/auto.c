/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a device for who does not care: the first GPU that nobody uses, else a host device that
 * all programs which say `auto` share. */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/sysfile.h"
#include "device/device.h"
#include "device/host.h"

#define MOST_HOST_BYTES (UINT64_C(1) << 30)
enum { FREE_PERCENT = 80, MOST_GPUS = 64 };

/* What the kernel says could be had without swapping. Errors: -ENODEV. */
static int available_memory(uint64_t *bytes) {
    char text[TG__SYSFILE_BYTES];
    uint64_t kib;

    if (!tg__sysfile_read("/proc/meminfo", text) ||
        !tg__sysfile_number(text, "MemAvailable:", &kib))
        return tg__fail(-ENODEV, "auto: /proc/meminfo does not say how much memory is available: "
                        "name a capacity, as in host:capacity=1GiB");
    *bytes = kib << 10;
    return 0;
}

static int host_capacity(uint64_t *bytes) {
    uint64_t available;
    int rc = available_memory(&available);

    if (rc != 0)
        return rc;
    *bytes = available / 4 / TG__HOST_GRANULE_BYTES * TG__HOST_GRANULE_BYTES;
    if (*bytes > MOST_HOST_BYTES)
        *bytes = MOST_HOST_BYTES;
    if (*bytes == 0)
        return tg__fail(-ENODEV, "auto: this machine has less than 8 MiB of memory available");
    return 0;
}

/* The first one's capacity is everybody's. */
static int open_host(struct tg_device **device) {
    struct tg__host_params params = {.name = "host", .takes_any = true};
    struct tg_device *opened;
    uint64_t unused, total;
    int rc = host_capacity(&params.capacity_bytes);

    if (rc != 0)
        return rc;
    rc = tg__host_open(&params, &opened);
    if (rc != 0)
        return rc;
    rc = opened->ops->memory(opened, &unused, &total);
    if (rc != 0) {
        opened->close(opened);
        return rc;
    }
    snprintf(opened->uri, sizeof opened->uri, "host:capacity=%" PRIu64 "MiB", total >> 20);
    *device = opened;
    return 0;
}

/* 0: nobody uses it. Else the reason is the thread's error. */
static int judge(struct tg_device *device) {
    uint64_t free_bytes, total_bytes;
    uint32_t others;
    int rc = tg__cuda_others(device, &others);

    if (rc == 0 && others > 0)
        return tg__fail(-EBUSY, "%s: %u other program%s comput%s on it", device->uri, others,
                        others == 1 ? "" : "s", others == 1 ? "es" : "e");
    if (rc == 0)
        rc = device->ops->memory(device, &free_bytes, &total_bytes);
    if (rc == 0 && free_bytes < total_bytes / 100 * FREE_PERCENT)
        return tg__fail(-EBUSY, "%s: %" PRIu64 " of %" PRIu64 " MiB are free, less than %d %%",
                        device->uri, free_bytes >> 20, total_bytes >> 20, FREE_PERCENT);
    return rc;
}

/* The reason that is kept is the first GPU's: of most machines' GPUs one is like the others. */
static int open_gpu(struct tg_device **device, struct tg_error *why) {
    for (int ordinal = 0; ordinal < MOST_GPUS; ordinal++) {
        struct tg_device *opened = NULL;
        int rc = tg__cuda_open(ordinal, &opened);

        if (rc == 0)
            rc = judge(opened);
        if (rc == 0) {
            *device = opened;
            return 0;
        }
        if (ordinal == 0)
            *why = *tg_last_error();
        if (opened == NULL)
            return rc;
        opened->close(opened);
    }
    return -ENODEV;
}

int tg__auto_open(struct tg_device **device) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct tg_error before = *tg_last_error(), why;
    int rc = open_gpu(device, &why);

    if (rc == 0)
        return 0;
    rc = open_host(device);
    if (rc != 0)
        return rc;
    tg__fail_as(&before);
    tg__warn_once(&said, "auto: %s stands for a GPU (%s)", (*device)->uri, why.text);
    return 0;
}

/* A GPU's URI, or that of a host device that is not made. */
static int choose(char uri[static 256]) {
    struct tg_error before = *tg_last_error(), why;
    struct tg_device *device;
    uint64_t bytes;
    int rc = open_gpu(&device, &why);

    if (rc == 0) {
        snprintf(uri, sizeof device->uri, "%s", device->uri);
        device->close(device);
        return 0;
    }
    rc = host_capacity(&bytes);
    if (rc != 0)
        return rc;
    tg__fail_as(&before);
    snprintf(uri, sizeof device->uri, "host:capacity=%" PRIu64 "MiB", bytes >> 20);
    return 0;
}

int tg_device_choose(char *uri, size_t uri_bytes) {
    char chosen[256];
    int saved = errno, rc;

    if (uri == NULL)
        return tg__fail(-EINVAL, "no place for the URI");
    rc = choose(chosen);
    if (rc == 0 && strlen(chosen) >= uri_bytes)
        rc = tg__fail(-ENOSPC, "\"%.60s\" does not fit into %zu bytes", chosen, uri_bytes);
    if (rc == 0)
        memcpy(uri, chosen, strlen(chosen) + 1);
    errno = saved;
    return rc;
}
