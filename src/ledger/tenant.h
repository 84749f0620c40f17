/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's objects in this process, and what its files share.
 *
 * Order of locks: `turn` (one waiter of a tenant at a time: its row has place for one) before the
 * file's lock before `own` (the tenant's row). What cannot fail takes `own` alone, which nobody
 * holds while waiting. */
#ifndef TG_LEDGER_TENANT_H
#define TG_LEDGER_TENANT_H

#include <pthread.h>

#include "base/clock.h"
#include "base/turn.h"
#include "ledger/admit.h"
#include "ledger/layout.h"

struct tg_ledger {
    struct tg__shmfile *file;
    struct tg__ledger_body *body;
};

/* The group that the tenant is in, as its own process knows it; one thread's at a time. */
struct tg__member {
    uint64_t generation; /* 0: in none */
    uint64_t deadline_ns;
    uint32_t group, size, kind, share_count;
    struct tg__member_share {
        char tag[TG_TAG_NAME_BYTES];
        uint64_t size_bytes, asleep_bytes;
    } shares[TG_TENANT_TAGS];
};

struct tg_tenant {
    struct tg_ledger *ledger;
    struct tg__slot *slot;
    struct tg__device_slot *device;
    struct tg_gauge gauge;
    struct tg__turn turn;
    pthread_mutex_t own;
    struct tg__member member;
    struct tg__tenant_row row; /* under own: what the slot says, or is about to */
    struct tg_shortfall shortfall; /* under own */
    struct tg__survey *survey;     /* under the file's lock */
};

/* The driver's figures. */
struct tg__driver {
    uint64_t asked_ns; /* before it answered */
    uint64_t total_bytes, free_bytes;
    uint64_t created_before; /* the device's created_bytes when it was asked; */
    uint64_t created_bytes;  /* grown by so much since */
    uint32_t deaths_before;  /* the device's deaths when it was asked */
    bool may_be_asked_again; /* if that alone is why a request does not fit */
};

/* What one look at all slots found, for one decision on one device. */
struct tg__survey {
    struct tg__driver driver; /* asked before the lock was taken */
    uint32_t device; /* index */
    uint32_t claim_count, orphan_count, self;
    struct tg__claim claims[TG_LEDGER_TENANTS];
    struct tg__orphans orphans[TG_LEDGER_TENANTS];
    struct tg__tenant_row rows[TG_LEDGER_TENANTS]; /* of the claims; */
    struct tg__slot *slots[TG_LEDGER_TENANTS];     /* where each was read */
};

/* Under the file's lock: settles the dead. Slots of dead tickets that held bytes become orphans of
 * their device; those that held none, and orphans that no longer count, become free. For the
 * device `index` by the driver's figures in `driver`; elsewhere (driver NULL) by time alone. Each
 * step is one store, and is done by the next one if this process dies before it. Of new orphans
 * the driver's figures know nothing: the device's `deaths` says that there are some. */
void tg__ledger_settle(struct tg_ledger *ledger, uint32_t index, const struct tg__driver *driver);

/* The tag's row, made if there is none; NULL: no place. Under own. */
struct tg__tag_row *tg__tenant_tag(struct tg_tenant *tenant, const char *tag);
/* The sentence for it; returns TG_EFULL. */
int tg__tenant_no_place(const char *tag);
/* Publishes the own row. Under own. */
void tg__tenant_publish(struct tg_tenant *tenant);
/* Whether the slot is still this process's: it is not when its descriptors were closed behind the
 * library's back, so that it was taken for dead. */
bool tg__tenant_is_joined(const struct tg_tenant *tenant);
/* 0, or TG_EREPLACED with its sentence. */
int tg__tenant_check_joined(const struct tg_tenant *tenant);
/* Asks the tenant of this slot and row for so many bytes, or what it has. False: it has none. */
bool tg__slot_ask(struct tg__slot *slot, const struct tg__tenant_row *row, uint64_t size_bytes);
/* Wakes who waits for this device, if anybody does. */
void tg__device_wake(struct tg__device_slot *device);

/* Before each look of who waits, what tg__wait_rest is given after it. may_sleep: it is not the
 * first, so that others are to see that somebody waits. */
uint32_t tg__wait_begin_look(struct tg_tenant *tenant, bool may_sleep);
/* Sleeps until something has changed since, at most 10 ms, and not beyond the deadline. */
void tg__wait_rest(struct tg_tenant *tenant, uint32_t seen, uint64_t deadline_ns);
/* The ledger may answer otherwise a moment later. */
bool tg__wait_is_passing(int status);

/* How a call changes a tag's figures. */
struct tg__tag_change {
    uint64_t occupied_more, occupied_less, reserved_more, reserved_less, asleep_more, asleep_less;
    uint64_t host_reserved_less, host_touched_more, host_touched_less;
};
/* A tag without bytes gives its place back. False: there is no place for it. Under own. */
bool tg__tenant_change(struct tg_tenant *tenant, const char *tag,
                       const struct tg__tag_change *change);

/* What is asked for. */
struct tg__ask {
    const struct tg_share *shares;
    uint32_t count;
    const char *tag;      /* of the largest share */
    uint64_t size_bytes;  /* all shares */
    uint64_t deadline_ns; /* 0: it may not wait */
    uint64_t lock_by_ns;  /* the file's lock is waited for until then, and a moment more */
};

/* Asks the tenant's driver, then takes the file's lock: by lock_by_ns and a moment more. */
int tg__tenant_lock(struct tg_tenant *tenant, uint64_t lock_by_ns, struct tg__driver *driver,
                    bool *has_inherited);
/* Passes rc on. */
int tg__tenant_unlock(struct tg_tenant *tenant, int rc);

/* Everybody on a device into the tenant's survey, under the file's lock and own; its own row is
 * what it says itself. */
int tg__survey_take(struct tg_tenant *tenant, uint32_t device);
/* The decision on it, for the claim `self`, whose wait is filled in. */
void tg__survey_admit(struct tg_tenant *tenant, bool may_wait, struct tg__admit_output *answer);
/* Writes the driver's figures of the tenant's own device down for all. answer NULL: before there is
 * one; what is unattributed stays as it was. */
void tg__survey_note(struct tg_tenant *tenant, const struct tg__admit_output *answer);
/* Asks all others of the survey to give. */
void tg__survey_ask(struct tg_tenant *tenant, uint64_t missing_bytes);

/* The wait in the own row. Under own. */
void tg__tenant_note_wait(struct tg_tenant *tenant, const struct tg__ask *ask, uint64_t arrival);
void tg__tenant_clear_wait(struct tg__tenant_row *row);

/* Fills the tenant's shortfall from its survey and writes the sentence; returns its status. Under
 * the file's lock. */
int tg__shortfall_tell(struct tg_tenant *tenant, const struct tg__ask *ask,
                       const struct tg__admit_output *answer, int status);

/* For a sentence about NAME, for whom others keep still. */
#define TG__STARTING "%s is starting up, and nobody wakes or sleeps on its device meanwhile"
#define TG__GIVING "%s gives memory back, and nobody wakes on its device until it is done"

/* "61.0 GiB", "4.5 MiB", "17 bytes". */
struct tg__amount {
    char text[24];
};
struct tg__amount tg__amount(uint64_t bytes);

/* Whether a name is printable, not empty and short enough. */
bool tg__ledger_is_name(const char *name, size_t max_bytes);

#endif
