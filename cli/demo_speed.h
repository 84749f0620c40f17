/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine's memory allows: a plain copy into memory that nobody has touched yet, as a
 * wake and a first sleep do, and into memory that is there, as a sleep into a kept host copy. The
 * host copies by memcpy; a device whose memory the host cannot reach by its own copies, from and to
 * pinned memory. */
#ifndef CLI_DEMO_SPEED_H
#define CLI_DEMO_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include <tidegate/device.h>

/* In GiB/s. */
struct demo_speed {
    double to_fresh_host;   /* anonymous memory, as host copies are; with its pinning */
    double to_touched_host; /* the same a second time */
    double to_fresh_device; /* a new chunk: for the host device a shared mapping of a memfd */
};

/* As the device says. */
struct demo_room {
    uint64_t free_bytes, total_bytes, granule_bytes;
};

/* The median of three copies of at most 64 MiB, less for a small capacity. False: no memory. */
bool demo_speed_measure(uint64_t capacity_bytes, struct demo_speed *speed);
/* The same with the device's copies, of 256 MiB or a quarter of what is free. Errors: -ENOMEM, the
 * device's. */
int demo_speed_of_device(struct tg_device *device, const struct demo_room *room,
                         struct demo_speed *speed);

#endif
