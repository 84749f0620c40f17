/* SPDX-License-Identifier: Apache-2.0 */
/* Opens devices by URI, and chooses one for `auto`. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"

#define GRANULE_BYTES (UINT64_C(2) << 20)
#define AUTO_MOST_BYTES (UINT64_C(1) << 30)

/* What the kernel says could be had without swapping. Errors: -ENODEV. */
static int available_memory(uint64_t *bytes) {
    char text[2048];
    const char *line = NULL;
    uint64_t kib = 0;
    ssize_t length;
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        length = read(fd, text, sizeof text - 1);
        close(fd);
        text[length < 0 ? 0 : length] = '\0';
        line = strstr(text, "MemAvailable:");
    }
    if (line == NULL || sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) != 1)
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
    params.capacity_bytes = available / 4 / GRANULE_BYTES * GRANULE_BYTES;
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

/* Without wrappers. */
static int open_plain(const char *uri, struct tg_device **device) {
    if (strcmp(uri, "auto") == 0)
        return open_auto(device);
    if (begins(uri, "host:"))
        return tg__host_open_uri(uri + strlen("host:"), device);
    if (begins(uri, "cuda:"))
        return tg__fail(-ENODEV, "this build has no GPU device yet: host:capacity=1GiB stands for "
                        "one");
    return tg__fail(-EINVAL, "device \"%.60s\": a device is host:capacity=SIZE, auto, or "
                    "fault:nth=N/ before one of them", uri);
}

int tg_device_open(const char *uri, struct tg_device **device) {
    struct tg_device *opened;
    int saved = errno, rc;

    if (uri == NULL || device == NULL)
        return tg__fail(-EINVAL, "no URI, or no place for the device");
    if (strlen(uri) >= sizeof opened->uri)
        return tg__fail(-EINVAL, "the device's URI has %zu bytes: at most %zu are possible",
                        strlen(uri), sizeof opened->uri - 1);
    rc = open_plain(uri, &opened);
    if (rc == 0) {
        if (opened->uri[0] == '\0')
            memcpy(opened->uri, uri, strlen(uri) + 1);
        *device = opened;
    }
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
