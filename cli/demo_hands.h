/* SPDX-License-Identifier: Apache-2.0 */
/* How a side fills and compares blocks of the device: itself, where the host may reach what is
 * mapped, else piece by piece through pinned memory beside it, with the device's own copies. One
 * caller at a time. */
#ifndef CLI_DEMO_HANDS_H
#define CLI_DEMO_HANDS_H

#include <stddef.h>
#include <stdint.h>

#include <tidegate/device.h>

#include "demo_crew.h"

struct demo_hands {
    struct demo_crew crew;
    struct tg_device *device;
    void *stage; /* NULL: the host may reach the device's memory itself */
    int status; /* the first failure of a copy: what was compared since then means nothing */
};

void demo_hands_open(struct demo_hands *hands);
/* Before the first task. Errors: -ENOMEM, the device's. */
int demo_hands_reach(struct demo_hands *hands, struct tg_device *device);
/* Before the device is closed. */
void demo_hands_close(struct demo_hands *hands);

/* Does it to size_bytes at `at`; returns how many of them are not as they should be. */
uint64_t demo_hands_do(struct demo_hands *hands, enum demo_task task, void *at, size_t size_bytes,
                       uint64_t key);

#endif
