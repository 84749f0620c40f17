/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate doctor` asks a device, all of it through tidegate/device.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "doctor.h"
#include "figures.h"
#include "kernel_driver.h"

#define PINNED_BYTES ((size_t)64 << 20)

enum { DEVICES_MOST = 64 };

/* What a machine without a card can try the rest on. */
#define STAND_IN "tidegate doctor --device host:capacity=256MiB"

void doctor_driver(struct doctor *doctor, struct finding *finding) {
    char version[KERNEL_DRIVER_BYTES];
    bool is_in_kernel = kernel_driver_read(version);

    if (doctor->device != NULL && doctor->asked_device != NULL) {
        finding_set(finding, FINDING_OK, "%s stands in", doctor->asked_device);
    } else if (doctor->device != NULL) {
        finding_set(finding, FINDING_OK, "%s", version[0] == '\0' ? "it answers" : version);
    } else if (doctor->asked_device != NULL) {
        finding_set(finding, FINDING_BAD, "%s", doctor->device_why.text);
        finding_advise(finding, STAND_IN, "name another device");
    } else if (is_in_kernel) {
        finding_set(finding, FINDING_BAD, "%s (the kernel's driver is %s)",
                    doctor->device_why.text, version[0] == '\0' ? "there" : version);
        finding_advise(finding, STAND_IN,
                       "start the container with --gpus all and "
                       "NVIDIA_DRIVER_CAPABILITIES=compute,utility; to go on without a card");
    } else {
        finding_set(finding, FINDING_BAD, "%s", doctor->device_why.text);
        finding_advise(finding, STAND_IN, "install the driver, or start the container with "
                       "--gpus all; to go on without a card");
    }
}

static bool needs_device(const struct doctor *doctor, struct finding *finding) {
    if (doctor->device == NULL)
        finding_set(finding, FINDING_SKIPPED, "not tried: there is no device");
    return doctor->device != NULL;
}

/* The sentence of the call that has just failed. */
static void refused(struct finding *finding, const char *what) {
    finding_set(finding, FINDING_BAD, "%s: %s", what, tg_last_error()->text);
}

/* "cuda:0 NAME 139.8 GiB, 130.2 GiB free", behind what is there already. */
static bool device_tell(struct tg_device *device, struct sentence *text) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    const char *uri = tg_device_uri(device);
    size_t length = strlen(text->text);
    uint64_t free_bytes, total_bytes;
    struct tg_device_info info;

    if (ops->info(device, &info) != 0 || ops->memory(device, &free_bytes, &total_bytes) != 0)
        return false;
    snprintf(text->text + length, sizeof text->text - length, "%s%.*s %s %s, %s free",
             length == 0 ? "" : "; ", (int)strcspn(uri, ","), uri, info.name,
             size_figure((double)total_bytes).text, size_figure((double)free_bytes).text);
    return true;
}

/* All GPUs, of which the first is open. */
static bool devices_tell(const struct doctor *doctor, struct sentence *text) {
    bool is_told = device_tell(doctor->device, text);
    struct tg_device *device;
    char uri[32];

    for (int i = 1; is_told && doctor->asked_device == NULL && i < DEVICES_MOST; i++) {
        snprintf(uri, sizeof uri, "cuda:%d", i);
        if (tg_device_open(uri, &device) != 0)
            break;
        is_told = device_tell(device, text);
        tg_device_close(device);
    }
    return is_told;
}

void doctor_device(struct doctor *doctor, struct finding *finding) {
    struct sentence text = {""};

    if (!needs_device(doctor, finding))
        return;
    if (devices_tell(doctor, &text)) {
        finding_set(finding, FINDING_OK, "%s", text.text);
        return;
    }
    refused(finding, "the device's memory cannot be asked for");
    finding_advise(finding, NULL, "look for the driver's own messages in dmesg");
}

void doctor_pin(struct doctor *doctor, struct finding *finding) {
    const struct tg_device_ops *ops;
    void *host;

    if (!needs_device(doctor, finding))
        return;
    ops = tg_device_ops(doctor->device);
    host = mmap(NULL, PINNED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        finding_set(finding, FINDING_BAD, "64 MiB of host memory: %s", strerror(errno));
        finding_advise(finding, NULL, "give this machine or container more memory (--memory)");
        return;
    }
    if (ops->pin(doctor->device, host, PINNED_BYTES, 1) != 0 ||
        ops->pin(doctor->device, host, PINNED_BYTES, 0) != 0) {
        refused(finding, "64 MiB of host memory could not be registered");
        finding_advise(finding, NULL, "give this machine or container more memory (--memory); "
                       "without it copies run at a fraction of the link's speed");
    } else {
        finding_set(finding, FINDING_OK, "64 MiB of host memory registered");
    }
    munmap(host, PINNED_BYTES);
}

/* 0, or the status of the call that failed. */
static int export_try(struct tg_device *device, uint64_t size_bytes) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t chunk, imported;
    int fd, status = ops->create(device, size_bytes, TG_CHUNK_EXPORTABLE, &chunk);

    if (status != 0)
        return status;
    status = ops->export_fd(device, chunk, &fd);
    if (status != 0)
        goto release;
    status = ops->import_fd(device, fd, size_bytes, &imported);
    close(fd);
    if (status == 0)
        status = ops->release(device, imported);
release:
    /* What was refused first is the sentence; this one has no reason to fail. */
    return ops->release(device, chunk) != 0 && status == 0 ? TG_EDEVICE : status;
}

void doctor_export(struct doctor *doctor, struct finding *finding) {
    struct tg_device_info info;

    if (!needs_device(doctor, finding))
        return;
    if (tg_device_ops(doctor->device)->info(doctor->device, &info) != 0) {
        refused(finding, "the device does not tell what it can do");
        finding_advise(finding, NULL, "look for the driver's own messages in dmesg");
    } else if ((info.can & TG_DEVICE_EXPORT) == 0) {
        finding_set(finding, FINDING_WARN, "this device's memory cannot be exported");
        finding_advise(finding, NULL, "use it for programs that share no device memory");
    } else if (export_try(doctor->device, info.granule_bytes) != 0) {
        refused(finding, "a chunk could not be exported and imported");
        finding_advise(finding, NULL, "free some of the device's memory; where there is enough, "
                       "update the driver");
    } else {
        finding_set(finding, FINDING_OK, "%s exported and imported again",
                    size_figure((double)info.granule_bytes).text);
    }
}
