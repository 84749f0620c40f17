/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose calls fail as planned: what the fault sweeps stand on. A call that fails by plan
 * never reaches the inner device. */
#ifndef TG_DEVICE_FAULT_H
#define TG_DEVICE_FAULT_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* The entries of the table, in its order. */
enum tg__op {
#define TG__OP(name) TG__OP_##name,
#include "device/ops.def"
#undef TG__OP
    TG__OP_COUNT,
    TG__OP_ANY = TG__OP_COUNT
};

enum tg__fault_mode {
    TG__FAULT_NONE,
    TG__FAULT_ONCE,        /* call `nth` */
    TG__FAULT_EVERY,       /* every call */
    TG__FAULT_AFTER,       /* every call from `nth` on */
    TG__FAULT_KILL_BEFORE, /* the signal to this process instead of call `nth` */
    TG__FAULT_KILL_AFTER   /* the signal to this process when call `nth` has returned */
};

struct tg__fault_plan {
    enum tg__op op; /* which calls count; TG__OP_ANY: all but info, memory, process */
    enum tg__fault_mode mode;
    uint64_t nth; /* from 1 */
    int status;   /* what the failing call answers; 0: TG_EDEVICE, for create TG_EDEVICEMEMORY */
    int signal;   /* that ends the process, such as SIGABRT; 0: SIGKILL */
};

/* The plan of a URI: `options` is what stands between "fault:" and "/". Errors: -EINVAL. */
int tg__fault_parse(const char *options, size_t options_bytes, struct tg__fault_plan *plan);

/* Sets the plan and counts from 0 again. */
void tg__fault_arm(struct tg_device *device, const struct tg__fault_plan *plan);
/* Calls since the last arm, and how many of them were made to fail; op may be TG__OP_ANY. */
uint64_t tg__fault_calls(struct tg_device *device, enum tg__op op);
uint64_t tg__fault_failed(struct tg_device *device, enum tg__op op);
const char *tg__op_name(enum tg__op op);

#endif
