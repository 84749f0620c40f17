/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the calls and fails, or dies at, those of the plan. Calls of many threads are numbered in
 * the order in which they come. */
#include "device/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/options.h"
#include "device/wrap.h"

struct fault {
    struct tg__wrap wrap;  /* first */
    pthread_mutex_t mutex; /* guards all below */
    struct tg__fault_plan plan;
    uint64_t counted; /* calls that the plan's op names */
    uint64_t calls[TG__OP_COUNT], failed[TG__OP_COUNT];
};

static const char *const op_names[TG__OP_COUNT] = {
#define TG__OP(name) #name,
#include "device/ops.def"
#undef TG__OP
};

const char *tg__op_name(enum tg__op op) {
    return op < TG__OP_COUNT ? op_names[op] : "any";
}

static bool is_named(enum tg__op wanted, enum tg__op op) {
    return wanted == op || (wanted == TG__OP_ANY && op != TG__OP_info && op != TG__OP_memory &&
                            op != TG__OP_process);
}

static bool is_hit(enum tg__fault_mode mode, uint64_t number, uint64_t nth) {
    switch (mode) {
    case TG__FAULT_EVERY:
        return true;
    case TG__FAULT_AFTER:
        return number >= nth;
    case TG__FAULT_ONCE:
    case TG__FAULT_KILL_BEFORE:
    case TG__FAULT_KILL_AFTER:
        return number == nth;
    case TG__FAULT_NONE:
        break;
    }
    return false;
}

/* raise would reach the handlers of a debugger's choice; this ends the process here. */
static void die(int signal) {
    kill(getpid(), signal == 0 ? SIGKILL : signal);
    for (;;)
        pause();
}

static int fail_by_plan(const struct tg__fault_plan *plan, enum tg__op op, uint64_t number) {
    int status = plan->status;

    if (status == 0)
        status = op == TG__OP_create ? TG_EDEVICEMEMORY : TG_EDEVICE;
    return tg__fail(status, "call %" PRIu64 " of the device, %s, fails by plan", number,
                    tg__op_name(op));
}

static int fault_before(struct tg__wrap *wrap, struct tg__wrap_call *call) {
    struct fault *fault = (struct fault *)wrap;
    struct tg__fault_plan plan;
    bool is_now;

    pthread_mutex_lock(&fault->mutex);
    plan = fault->plan;
    fault->calls[call->op]++;
    is_now = is_named(plan.op, call->op);
    if (is_now)
        call->number = ++fault->counted;
    is_now = is_now && is_hit(plan.mode, call->number, plan.nth);
    if (is_now && plan.mode != TG__FAULT_KILL_AFTER)
        fault->failed[call->op]++;
    pthread_mutex_unlock(&fault->mutex);
    if (!is_now || plan.mode == TG__FAULT_KILL_AFTER)
        return 0;
    if (plan.mode == TG__FAULT_KILL_BEFORE)
        die(plan.signal);
    return fail_by_plan(&plan, call->op, call->number);
}

static void fault_after(struct tg__wrap *wrap, const struct tg__wrap_call *call, int status) {
    struct fault *fault = (struct fault *)wrap;
    bool is_last;
    int signal;

    (void)status;
    pthread_mutex_lock(&fault->mutex);
    is_last = fault->plan.mode == TG__FAULT_KILL_AFTER && call->number == fault->plan.nth &&
              is_named(fault->plan.op, call->op);
    signal = fault->plan.signal;
    pthread_mutex_unlock(&fault->mutex);
    if (is_last)
        die(signal);
}

static void fault_close(struct tg_device *device) {
    struct fault *fault = (struct fault *)device;

    fault->wrap.inner->close(fault->wrap.inner);
    free(fault);
}

int tg__fault_wrap(struct tg_device *inner, struct tg_device **device) {
    struct fault *fault = calloc(1, sizeof *fault);

    if (fault == NULL)
        return tg__fail_memory();
    tg__wrap_init(&fault->wrap, inner);
    fault->wrap.before = fault_before;
    fault->wrap.after = fault_after;
    fault->wrap.device.close = fault_close;
    fault->plan.op = TG__OP_ANY;
    pthread_mutex_init(&fault->mutex, NULL);
    *device = &fault->wrap.device;
    return 0;
}

void tg__fault_arm(struct tg_device *device, const struct tg__fault_plan *plan) {
    struct fault *fault = (struct fault *)device;

    pthread_mutex_lock(&fault->mutex);
    fault->plan = *plan;
    fault->counted = 0;
    memset(fault->calls, 0, sizeof fault->calls);
    memset(fault->failed, 0, sizeof fault->failed);
    pthread_mutex_unlock(&fault->mutex);
}

static uint64_t sum(struct fault *fault, const uint64_t *counts, enum tg__op op) {
    uint64_t total = 0;

    pthread_mutex_lock(&fault->mutex);
    for (int i = 0; i < TG__OP_COUNT; i++)
        total += is_named(op, (enum tg__op)i) ? counts[i] : 0;
    pthread_mutex_unlock(&fault->mutex);
    return total;
}

uint64_t tg__fault_calls(struct tg_device *device, enum tg__op op) {
    struct fault *fault = (struct fault *)device;

    return sum(fault, fault->calls, op);
}

uint64_t tg__fault_failed(struct tg_device *device, enum tg__op op) {
    struct fault *fault = (struct fault *)device;

    return sum(fault, fault->failed, op);
}

/* ---- by URI ---------------------------------------------------------------------------------- */

enum { NTH, OP, MODE, STATUS, OPTIONS };

static const struct {
    const char *name;
    int status;
} statuses[] = {
#define TG_ERROR(name, value, text) {#name, name},
#include <tidegate/errors.def>
#undef TG_ERROR
};

static int read_op(const struct tg__option *option, enum tg__op *op) {
    *op = TG__OP_ANY;
    if (!option->is_given)
        return 0;
    for (int i = 0; i < TG__OP_COUNT; i++) {
        if (strcmp(option->word, op_names[i]) == 0) {
            *op = (enum tg__op)i;
            return 0;
        }
    }
    return tg__fail(-EINVAL, "op=%s: the device's table has no such entry, but create, map, copy "
                    "and others (see tidegate/device.h)", option->word);
}

static int read_mode(const struct tg__option *option, enum tg__fault_mode *mode) {
    static const struct {
        const char *name;
        enum tg__fault_mode mode;
    } modes[] = {{"once", TG__FAULT_ONCE}, {"every", TG__FAULT_EVERY}, {"after", TG__FAULT_AFTER}};

    *mode = TG__FAULT_ONCE;
    if (!option->is_given)
        return 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(option->word, modes[i].name) == 0) {
            *mode = modes[i].mode;
            return 0;
        }
    }
    return tg__fail(-EINVAL, "mode=%s: it is once, every or after", option->word);
}

/* A name of errors.def, or a negative number. */
static int read_status(const struct tg__option *option, int *status) {
    char *end;
    long number;

    *status = 0;
    if (!option->is_given)
        return 0;
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (strcmp(option->word, statuses[i].name) == 0) {
            *status = statuses[i].status;
            return 0;
        }
    }
    number = strtol(option->word, &end, 10);
    if (*end != '\0' || number >= 0 || number < -65535)
        return tg__fail(-EINVAL, "status=%s: it is a name, as in status=TG_EDEVICE, or a negative "
                        "number", option->word);
    *status = (int)number;
    return 0;
}

int tg__fault_parse(const char *options, size_t options_bytes, struct tg__fault_plan *plan) {
    struct tg__option known[OPTIONS] = {
        [NTH] = {.key = "nth", .kind = TG__OPTION_NUMBER, .min = 1, .max = UINT64_C(1) << 40,
                 .example = "3"},
        [OP] = {.key = "op", .kind = TG__OPTION_WORD, .example = "create"},
        [MODE] = {.key = "mode", .kind = TG__OPTION_WORD, .example = "once"},
        [STATUS] = {.key = "status", .kind = TG__OPTION_WORD, .example = "TG_EDEVICE"},
    };
    struct tg__fault_plan read = {0};
    int rc = tg__options_parse("fault", options, options_bytes, known, OPTIONS);

    if (rc == 0)
        rc = read_op(&known[OP], &read.op);
    if (rc == 0)
        rc = read_mode(&known[MODE], &read.mode);
    if (rc == 0)
        rc = read_status(&known[STATUS], &read.status);
    if (rc != 0)
        return rc;
    if (!known[NTH].is_given && read.mode != TG__FAULT_EVERY)
        return tg__fail(-EINVAL, "fault: which call fails is missing, as in fault:nth=3/");
    read.nth = known[NTH].number;
    *plan = read;
    return 0;
}
