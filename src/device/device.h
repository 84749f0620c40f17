/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of device is made of. The struct stands first in the kind's own. */
#ifndef TG_DEVICE_DEVICE_H
#define TG_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <tidegate/device.h>

struct tg_device {
    const struct tg_device_ops *ops;
    void (*close)(struct tg_device *device);
    /* What the driver itself calls a chunk; NULL: there is no such driver. */
    int (*native)(struct tg_device *device, uint64_t chunk, uint64_t *native);
    char uri[256];
    char pci[24]; /* where the system finds it, "0000:3b:00.0"; "": nowhere */
};

struct tg__host_params {
    const char *name; /* of the device, up to 31 bytes */
    uint64_t capacity_bytes;
    bool takes_any; /* where somebody holds the device, with its capacity as it is */
    uint32_t lag_ms;
    bool hangs;
    uint32_t straggler_ms; /* 0: none */
};

/* The kinds. Errors as tg_device_open. */
int tg__host_open(const struct tg__host_params *params, struct tg_device **device);
/* `options` is what follows "host:" in the URI. */
int tg__host_open_uri(const char *options, struct tg_device **device);
/* ordinal: among the GPUs that the driver shows to this process. */
int tg__cuda_open(int ordinal, struct tg_device **device);
/* For a cuda device that nobody else uses yet: how many other processes compute on it. Errors:
 * -ENOTSUP, -ENOMEM. */
int tg__cuda_others(struct tg_device *device, uint32_t *count);
/* The number by which the driver, and whoever speaks to it beside us, knows the device; 0 for a
 * host device, which stands for the only one. */
int tg__device_ordinal(const struct tg_device *device);
/* The device's place on the PCI bus as the system names it; "": it has none. Lent until close. */
const char *tg__device_pci(const struct tg_device *device);
/* The driver's own handle of a chunk, for whoever speaks to it beside us: lent until release.
 * Errors: -ENOTSUP (a host device), -EINVAL, the device's. */
int tg__device_native(struct tg_device *device, uint64_t chunk, uint64_t *native);
/* The GPU of that number. Errors: as tg_device_open. */
int tg__device_open_ordinal(int ordinal, struct tg_device **device);
/* A GPU that nobody uses, else a host device: then one line on stderr says why. */
int tg__auto_open(struct tg_device **device);
/* Takes the inner device over, in success only; closing closes it too. */
int tg__fault_wrap(struct tg_device *inner, struct tg_device **device);
int tg__spy_wrap(struct tg_device *inner, struct tg_device **device);

#endif
