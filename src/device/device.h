/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of device is made of. The struct stands first in the kind's own. */
#ifndef TG_DEVICE_DEVICE_H
#define TG_DEVICE_DEVICE_H

#include <tidegate/device.h>

struct tg_device {
    const struct tg_device_ops *ops;
    void (*close)(struct tg_device *device);
    char uri[256];
};

/* The kinds. `options` is what follows "KIND:" in the URI. Errors as tg_device_open. */
int tg__host_open(const char *options, struct tg_device **device);
/* Takes the inner device over, in success only; closing closes it too. */
int tg__fault_wrap(struct tg_device *inner, struct tg_device **device);
int tg__spy_wrap(struct tg_device *inner, struct tg_device **device);

#endif
