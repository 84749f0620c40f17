/* SPDX-License-Identifier: Apache-2.0 */
/* A device around another one: what fault and spy have in common. Every call is described, shown
 * to `before`, which may refuse it, made on the inner device, and shown to `after`. */
#ifndef TG_DEVICE_WRAP_H
#define TG_DEVICE_WRAP_H

#include <stdint.h>
#include <sys/types.h>

#include "device/device.h"
#include "device/fault.h"

struct tg__wrap_call {
    enum tg__op op;
    uint64_t addr, size_bytes, chunk; /* 0 where the entry has none; outputs only for `after` */
    uint64_t number;                  /* before's own, for `after` */
};

/* The struct stands first in the kind's own. In a forked child `before` and `after` are not called:
 * a mutex of theirs may have been held at the fork. The inner device refuses the call. */
struct tg__wrap {
    struct tg_device device; /* first */
    struct tg_device *inner;
    pid_t pid;
    /* 0: go on; else the call's answer, and nothing else happens. */
    int (*before)(struct tg__wrap *wrap, struct tg__wrap_call *call);
    void (*after)(struct tg__wrap *wrap, const struct tg__wrap_call *call, int status);
};

/* Fills the device's table; the URI is the inner one's. close, before and after are the caller's.
 */
void tg__wrap_init(struct tg__wrap *wrap, struct tg_device *inner);

#endif
