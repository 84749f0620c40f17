/* SPDX-License-Identifier: Apache-2.0 */
/* What one run of the demo is made of, settled before any process starts. */
#ifndef CLI_DEMO_SETUP_H
#define CLI_DEMO_SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "demo_plan.h"
#include "demo_speed.h"
#include "own_device.h"

struct demo_options {
    bool json;
    const char *device, *replay;
    size_t steps;
    uint64_t capacity_bytes; /* 0: not given */
    uint64_t seed;
    size_t kill_every; /* 0: never */
};

#define DEMO_URI_BYTES 256

struct demo_setup {
    struct demo_options options;
    struct demo_plan plan;
    char replay_name[64];
    char uri[DEMO_URI_BYTES];   /* opens the device in each process */
    char shown[DEMO_URI_BYTES]; /* what people read: without the name that is ours */
    char device_name[OWN_DEVICE_BYTES]; /* made for this run, and removed after it; "": not ours */
    uint64_t capacity_bytes;    /* how much of the device the two sides share out */
    uint64_t granule_bytes;
    bool is_direct;          /* the host may reach the device's memory itself; else */
    struct demo_speed speed; /* of the device's own copies */
    uint64_t trainer_peak_bytes; /* what the plan's peak is scaled to */
    uint64_t weights_bytes, kv_cache_bytes; /* of one of so many blocks: */
};

enum { DEMO_WEIGHTS_BLOCKS = 8, DEMO_KV_CACHE_BLOCKS = 4 };

/* Fills in all but the options, which are there. False: said; nothing is left behind and nothing is
 * to be undone. */
bool demo_setup_make(struct demo_setup *setup);
/* Whose plain copy hand-overs are held against: "memcpy", or the device's. */
const char *demo_setup_copy_name(const struct demo_setup *setup);
/* Removes what was made for the run. */
void demo_setup_undo(struct demo_setup *setup);

#endif
