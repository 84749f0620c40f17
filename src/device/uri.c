/* SPDX-License-Identifier: Apache-2.0 */
/* Opens devices by URI, and chooses one for `auto`. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sysfile.h"
#include "device/device.h"
#include "device/fault.h"
#include "device/host.h"

#define AUTO_MOST_BYTES (UINT64_C(1) << 30)

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

/* Programs that say `auto` share one device: the first one's capacity is everybody's. */
static int open_auto(struct tg_device **device) {
    struct tg__host_params params = {.name = "host", .takes_any = true};
    struct tg_device *opened;
    uint64_t available, unused, total;
    int rc = available_memory(&available);

    if (rc != 0)
        return rc;
    params.capacity_bytes = available / 4 / TG__HOST_GRANULE_BYTES * TG__HOST_GRANULE_BYTES;
    if (params.capacity_bytes > AUTO_MOST_BYTES)
        params.capacity_bytes = AUTO_MOST_BYTES;
    if (params.capacity_bytes == 0)
        return tg__fail(-ENODEV, "auto: this machine has less than 8 MiB of memory available");
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

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Without a fault around it. */
static int open_plain(const char *uri, struct tg_device **device) {
    int rc;

    if (strcmp(uri, "auto") == 0)
        return open_auto(device);
    if (begins(uri, "cuda:"))
        return tg__fail(-ENODEV, "this build has no GPU device yet: host:capacity=1GiB stands for "
                        "one");
    if (!begins(uri, "host:"))
        return tg__fail(-EINVAL, "device \"%.60s\": a device is host:capacity=SIZE, auto, or "
                        "fault:nth=N/ before one of them", uri);
    rc = tg__host_open_uri(uri + strlen("host:"), device);
    if (rc == 0)
        snprintf((*device)->uri, sizeof (*device)->uri, "%s", uri);
    return rc;
}

static int wrap(struct tg_device *inner, const struct tg__fault_plan *plan, const char *uri,
                size_t prefix_bytes, struct tg_device **device) {
    struct tg_device *wrapped;
    int rc;

    if (prefix_bytes + strlen(inner->uri) >= sizeof inner->uri)
        return tg__fail(-EINVAL, "with the device that was chosen the URI has more than %zu bytes",
                        sizeof inner->uri - 1);
    rc = tg__fault_wrap(inner, &wrapped);
    if (rc != 0)
        return rc;
    snprintf(wrapped->uri, sizeof wrapped->uri, "%.*s%s", (int)prefix_bytes, uri, inner->uri);
    tg__fault_arm(wrapped, plan);
    *device = wrapped;
    return 0;
}

static int open_fault(const char *uri, struct tg_device **device) {
    const char *options = uri + strlen("fault:"), *slash = strchr(uri, '/');
    struct tg__fault_plan plan;
    struct tg_device *inner;
    int rc;

    if (slash == NULL)
        return tg__fail(-EINVAL, "fault: the device is missing: fault:nth=N/host:capacity=4GiB");
    rc = tg__fault_parse(options, (size_t)(slash - options), &plan);
    if (rc == 0)
        rc = open_plain(slash + 1, &inner);
    if (rc != 0)
        return rc;
    rc = wrap(inner, &plan, uri, (size_t)(slash + 1 - uri), device);
    if (rc != 0)
        inner->close(inner);
    return rc;
}

int tg_device_open(const char *uri, struct tg_device **device) {
    struct tg_device *opened;
    int saved = errno, rc;

    if (uri == NULL || device == NULL)
        return tg__fail(-EINVAL, "no URI, or no place for the device");
    if (strlen(uri) >= sizeof opened->uri)
        return tg__fail(-EINVAL, "the device's URI has %zu bytes: at most %zu are possible",
                        strlen(uri), sizeof opened->uri - 1);
    rc = begins(uri, "fault:") ? open_fault(uri, &opened) : open_plain(uri, &opened);
    if (rc == 0)
        *device = opened;
    errno = saved;
    return rc;
}

const struct tg_device_ops *tg_device_ops(const struct tg_device *device) {
    return device->ops;
}

const char *tg_device_uri(const struct tg_device *device) {
    return device->uri;
}

void tg_device_close(struct tg_device *device) {
    if (device != NULL)
        device->close(device);
}
