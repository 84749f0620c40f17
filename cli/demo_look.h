/* SPDX-License-Identifier: Apache-2.0 */
/* A look at a device from a process of its own: a driver that was opened before a fork is of no use
 * to the children, and the supervisor is to hold nothing of the device. */
#ifndef CLI_DEMO_LOOK_H
#define CLI_DEMO_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "demo_setup.h"
#include "demo_speed.h"
#include "say.h"

struct demo_look {
    int32_t status; /* not 0: `why` says it, and nothing else is filled in */
    struct sentence why;
    struct demo_room room;
    bool is_direct; /* the host may reach its memory itself */
    char uri[DEMO_URI_BYTES]; /* of what was chosen */
    struct demo_speed speed; /* of its own copies, where it is not direct */
};

/* Opens the device, making it where it is a new host device, and closes it again. False: no process
 * or memory for it, said; or the demo was asked to end. */
bool demo_look_at(const char *uri, struct demo_look *look);
/* What `auto` is on this machine now: fills status, why and uri. False: as above. */
bool demo_look_choose(struct demo_look *look);

#endif
