/* SPDX-License-Identifier: Apache-2.0 */
/* A look at a device from a process of its own: a driver that was opened before a fork is of no use
 * to the children, and the supervisor is to hold nothing of the device. */
#ifndef CLI_DEMO_LOOK_H
#define CLI_DEMO_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "demo_speed.h"
#include "say.h"

struct demo_look {
    int32_t status; /* not 0: `why` says it, and nothing else is filled in */
    struct sentence why;
    uint64_t free_bytes, total_bytes, granule_bytes;
    bool is_direct; /* the host may reach its memory itself */
    struct demo_speed speed; /* of its own copies, where it is not direct */
};

/* Opens the device, making it where it is a new host device, and closes it again. False: no process
 * or memory for it, said; or the demo was asked to end. */
bool demo_look_at(const char *uri, struct demo_look *look);

#endif
