/* SPDX-License-Identifier: Apache-2.0 */
/* The body of the ledger's file.
 *
 * A slot belongs to the process whose ticket it holds; 0: to nobody. Its row is published as a
 * record by that process alone, or under the file's lock by whoever settles it when it is dead. A
 * device's row is published under the lock. Every number in here may be garbage: rows are read
 * through tg__row_read, which refuses what no build of ours writes, and tg__device_read. */
#ifndef TG_LEDGER_LAYOUT_H
#define TG_LEDGER_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include <tidegate/ledger.h>

#include "base/saturate.h"
#include "base/shmfile.h"

struct tg__tag_row {
    char name[TG_TAG_NAME_BYTES];
    uint64_t occupied_bytes, reserved_bytes, asleep_bytes;
    uint64_t declared_bytes;   /* another allocator's */
    uint64_t returnable_bytes; /* as said: see tg__tag_returnable */
    uint64_t host_reserved_bytes, host_touched_bytes;
    uint64_t wanted_bytes;  /* by a member of a group: reserved from the grant on */
    uint64_t turning_bytes; /* fall asleep, or awake, with the group's store */
};

enum tg__row_state { TG__ROW_LIVES = 1, TG__ROW_DEAD = 2 };

/* doc/design/group.md. The numbers stand in the file. */
enum { TG__GROUPS = 8 };
enum tg__group_kind { TG__GROUP_WAKES = 1, TG__GROUP_SLEEPS = 2 };
enum tg__group_phase {
    TG__GROUP_DROPPED, /* or never used */
    TG__GROUP_GATHERING,
    TG__GROUP_OPEN,
    TG__GROUP_COMMITTED,
    TG__GROUP_ABORTED,
    TG__GROUP_PHASES
};

/* What does not change while the generation lives. */
struct tg__group_row {
    char name[TG_TENANT_NAME_BYTES];
    uint64_t generation, deadline_ns;
    uint32_t size, kind;
};

struct tg__group_slot {
    _Atomic uint64_t word;    /* generation and phase: see tg__group_word */
    _Atomic uint64_t arrival; /* of the group's wait, from its last member's coming on */
    struct tg__record record;
    struct tg__group_row copies[2];
};

static inline uint64_t tg__group_word(uint64_t generation, enum tg__group_phase phase) {
    return generation * 8 + phase;
}

/* Why a generation was given up. In the slot of the tenant that gave it up, or that died, until
 * another failure there, whoever has left meanwhile. */
struct tg__failure_row {
    uint64_t generation;
    uint32_t group;
    int32_t status;
    uint32_t is_death; /* of whom it names; true whatever became of the group */
    uint32_t unused;
    char who[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];
    char text[160];
};

struct tg__tenant_row {
    char name[TG_TENANT_NAME_BYTES];
    char role[TG_TENANT_ROLE_BYTES];
    int32_t rank, pid;
    uint32_t device;    /* index */
    uint32_t state;     /* enum tg__row_state */
    uint32_t tag_count; /* of tags in use, from the first */
    uint32_t is_waiting;
    uint64_t updated_ns;
    char wait_tag[TG_TAG_NAME_BYTES];
    uint64_t wait_bytes, wait_since_ns, wait_deadline_ns, arrival;
    uint64_t dead_since_ns, unattributed_before_bytes; /* of the dead: see admit.h */
    uint32_t mode; /* enum tg_mode */
    uint32_t is_starting; /* enum tg_start */
    char seams[TG_TENANT_SEAMS_BYTES];
    uint64_t generation; /* of the group that it is in; 0: in none. The next three say more */
    uint32_t group;      /* index of its slot */
    uint32_t group_kind; /* enum tg__group_kind */
    uint32_t is_ready;
    uint32_t unused;
    struct tg__tag_row tags[TG_TENANT_TAGS];
};

struct tg__slot {
    _Atomic uint32_t ticket;
    uint32_t unused;
    _Atomic uint64_t seen_ns;     /* when its waiter last ran */
    _Atomic uint64_t asked_bytes; /* by peers; taken by the tenant itself */
    struct tg__record record;
    struct tg__tenant_row copies[2];
    struct tg__record failure;
    struct tg__failure_row failures[2];
};

struct tg__device_row {
    uint8_t uuid[16];
    char name[64];
    uint64_t total_bytes, free_bytes, measured_ns, unattributed_bytes;
    /* When the driver was asked for them, and what stood in the slot before that: a group is
     * granted by figures of its other members' asking. */
    uint64_t asked_ns, created_before;
    uint32_t deaths_before, unused;
};

struct tg__device_slot {
    _Atomic uint32_t is_used;
    _Atomic uint32_t change;      /* a waiter sleeps on it; grows when memory may have come free */
    _Atomic uint32_t has_waiters; /* set by waiters, cleared by who wakes them */
    _Atomic uint32_t deaths;      /* grows by each that left bytes, before it is written down */
    _Atomic uint64_t created_bytes; /* grows by all that is committed: see admit.h */
    struct tg__record record;
    struct tg__device_row copies[2];
};

struct tg__ledger_body {
    _Atomic uint64_t next_arrival;
    struct tg__group_slot groups[TG__GROUPS];
    struct tg__device_slot devices[TG_LEDGER_DEVICES];
    struct tg__slot slots[TG_LEDGER_TENANTS];
};

/* Names, sizes and offsets of all this in one word. */
uint64_t tg__ledger_format(void);

/* The row in a slot, as it stands there. Errors: TG_EMOTION, TG_EPOISONED (no build of ours has
 * written it). */
int tg__row_read(const struct tg__slot *slot, struct tg__tenant_row *row);
int tg__device_read(const struct tg__device_slot *slot, struct tg__device_row *row);
static inline void tg__row_publish(struct tg__slot *slot, const struct tg__tenant_row *row) {
    tg__record_publish(&slot->record, row, sizeof *row);
}

/* Sums over the tags. */
uint64_t tg__row_occupied(const struct tg__tenant_row *row);
uint64_t tg__row_reserved(const struct tg__tenant_row *row);
uint64_t tg__row_declared(const struct tg__tenant_row *row);
uint64_t tg__row_held(const struct tg__tenant_row *row); /* all three */
uint64_t tg__row_returnable(const struct tg__tenant_row *row);
uint64_t tg__tag_held(const struct tg__tag_row *tag); /* occupied and declared */
uint64_t tg__tag_returnable(const struct tg__tag_row *tag);
uint64_t tg__row_host(const struct tg__tenant_row *row, bool only_untouched);

/* "trainer rank 0" or "rollout". */
void tg__row_name(const struct tg__tenant_row *row, char *text, size_t text_bytes);
/* What people are shown ends, and has no control characters, whatever the file has. */
void tg__text_clean(char *text, size_t text_bytes);

/* For sentences about the lock. */
void tg__ledger_name_of(const void *body, uint32_t ticket, char *text, size_t text_bytes);

#endif
