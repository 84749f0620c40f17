/* SPDX-License-Identifier: Apache-2.0 */
/* Opens devices by URI. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "device/fault.h"

enum { MOST_ORDINAL = 63 }; /* what the set of devices in a map can name */

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static int open_cuda(const char *ordinal, struct tg_device **device) {
    char *end;
    unsigned long number = strtoul(ordinal, &end, 10);

    if (ordinal[0] < '0' || ordinal[0] > '9' || *end != '\0' || number > MOST_ORDINAL)
        return tg__fail(-EINVAL, "cuda:%.40s: a GPU is named by its number, as in cuda:0", ordinal);
    return tg__cuda_open((int)number, device);
}

/* Without a fault around it. */
static int open_plain(const char *uri, struct tg_device **device) {
    int rc;

    if (strcmp(uri, "auto") == 0)
        return tg__auto_open(device);
    if (begins(uri, "cuda:"))
        return open_cuda(uri + strlen("cuda:"), device);
    if (!begins(uri, "host:"))
        return tg__fail(-EINVAL, "device \"%.60s\": a device is cuda:N, host:capacity=SIZE, auto, "
                        "or fault:nth=N/ before one of them", uri);
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

int tg__device_ordinal(const struct tg_device *device) {
    const char *slash = strrchr(device->uri, '/');
    const char *plain = slash == NULL ? device->uri : slash + 1;

    return begins(plain, "cuda:") ? (int)strtol(plain + strlen("cuda:"), NULL, 10) : 0;
}

const char *tg__device_pci(const struct tg_device *device) {
    return device->pci;
}

int tg__device_native(struct tg_device *device, uint64_t chunk, uint64_t *native) {
    if (device->native == NULL)
        return tg__fail(-ENOTSUP, "chunks of this device have no handle but ours");
    return device->native(device, chunk, native);
}

int tg__device_open_ordinal(int ordinal, struct tg_device **device) {
    char uri[24];

    snprintf(uri, sizeof uri, "cuda:%d", ordinal);
    return tg_device_open(uri, device);
}

void tg_device_close(struct tg_device *device) {
    if (device != NULL)
        device->close(device);
}
