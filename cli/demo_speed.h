/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine's memory allows: a plain memcpy into memory that nobody has touched yet, as a
 * wake and a first sleep do, and into memory that is there, as a sleep into a kept host copy. */
#ifndef CLI_DEMO_SPEED_H
#define CLI_DEMO_SPEED_H

#include <stdbool.h>
#include <stdint.h>

/* In GiB/s. */
struct demo_speed {
    double to_fresh_host;   /* anonymous memory, as host copies are */
    double to_touched_host; /* the same a second time */
    double to_fresh_device; /* a shared mapping of a memfd, as the host device's chunks are */
};

/* The median of three copies of at most 64 MiB, less for a small capacity. False: no memory. */
bool demo_speed_measure(uint64_t capacity_bytes, struct demo_speed *speed);

#endif
