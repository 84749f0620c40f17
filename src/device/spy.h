/* SPDX-License-Identifier: Apache-2.0 */
/* A device that records which calls were made, in order, with their sizes and answers: for tests
 * that count maps or look at an order. */
#ifndef TG_DEVICE_SPY_H
#define TG_DEVICE_SPY_H

#include <stddef.h>
#include <stdint.h>

#include "device/fault.h"

struct tg__spy_call {
    enum tg__op op;
    int status;
    uint64_t addr, size_bytes, chunk; /* 0 where the entry has none */
};

/* The calls since the last tg__spy_clear; lent until the next call of the device. */
const struct tg__spy_call *tg__spy_calls(struct tg_device *device, size_t *count);
void tg__spy_clear(struct tg_device *device);

#endif
