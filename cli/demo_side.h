/* SPDX-License-Identifier: Apache-2.0 */
/* One side of the demo: a process that opens the device, joins the ledger, and does what its
 * supervisor orders, one order after the other, each with one reply. The two sides share this file
 * and differ in their role. */
#ifndef CLI_DEMO_SIDE_H
#define CLI_DEMO_SIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tidegate/memory.h>

#include "demo_hands.h"
#include "demo_setup.h"
#include "say.h"

enum demo_who { DEMO_TRAINER, DEMO_ROLLOUT, DEMO_SIDES };

enum demo_what {
    DEMO_BEGIN, /* wait for room on the device, and take what is needed from the start */
    DEMO_SLEEP,
    DEMO_WAKE,
    DEMO_RUN /* verify what was kept, then do a step's work */
};

struct demo_order {
    uint32_t what; /* enum demo_what */
    uint32_t step; /* RUN: of the plan */
};

struct demo_reply {
    uint32_t what;  /* as ordered */
    int32_t status; /* not 0: `why` says it */
    struct sentence why;
    struct tg_receipt receipt; /* SLEEP, WAKE */
    uint64_t wait_ns;          /* BEGIN, WAKE: for the other side's bytes */
    uint64_t awake_bytes;      /* on the device now */
    uint64_t verified_bytes, lost_bytes, out_of_memory;
    uint64_t allocations, frees, peak_bytes; /* a trainer's step, in the file's sizes */
};

/* Shared by all three processes, for figures that are shown while a step runs. */
struct demo_gauge {
    _Atomic uint64_t held_bytes[DEMO_SIDES];
    _Atomic uint32_t must_stop; /* Ctrl-C: leave the step where it is */
};

struct demo_side {
    const struct demo_setup *setup;
    struct demo_gauge *gauge;
    enum demo_who who;
    struct tg_device *device;
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;
    struct tg_memory *memory;
    struct demo_hands hands;
    struct demo_reply reply; /* being filled */
};

/* What a role adds. Functions return 0, or a negative status whose sentence is in tg_last_error.
 * `state` is the role's own, made by open. */
struct demo_role {
    const char *name;
    const char *tag; /* of most of its memory */
    int (*open)(struct demo_side *side, void **state);
    uint64_t (*needed_bytes)(const struct demo_setup *setup); /* at its peak */
    int (*begin)(struct demo_side *side, void *state);
    int (*run)(struct demo_side *side, void *state, uint32_t step);
    void (*close)(void *state);
};

extern const struct demo_role demo_trainer_role, demo_rollout_role;

const char *demo_who_name(enum demo_who who);

/* The process's whole life: serves orders from `fd` until it ends. Returns the exit status. */
int demo_side_live(const struct demo_setup *setup, struct demo_gauge *gauge, enum demo_who who,
                   int fd);

/* For roles: has new memory's pages made at once. */
void demo_side_touch(struct demo_side *side, void *at, uint64_t size_bytes);
/* For roles: fills a block; compares its content, or zero, with what it should be, and counts. */
void demo_side_fill(struct demo_side *side, void *at, uint64_t size_bytes, uint64_t key);
void demo_side_verify(struct demo_side *side, void *at, uint64_t size_bytes, uint64_t key);
void demo_side_verify_zero(struct demo_side *side, void *at, uint64_t size_bytes);
/* For roles: tells how much of the device this side holds now. */
void demo_side_measure(struct demo_side *side, uint64_t held_bytes);
bool demo_side_must_stop(const struct demo_side *side);

#endif
