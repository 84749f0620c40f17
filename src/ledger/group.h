/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that sleep and wake as one: the ledger's half. doc/design/group.md has the protocol.
 *
 * A member calls come, creates and fills what it was granted (tg_tenant_commit, nothing woken),
 * then end, then undoes where that has failed, or unmaps where its group sleeps, and then leave. Of
 * one tenant one thread at a time makes these calls; what else it does with the ledger is free. */
#ifndef TG_LEDGER_GROUP_H
#define TG_LEDGER_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/layout.h"

struct tg_tenant;

/* What a member brings for a tag. */
struct tg__group_share {
    const char *tag;
    uint64_t size_bytes;   /* of the device: to be granted, or given after the store of a sleep */
    uint64_t asleep_bytes; /* stop to sleep, or begin to */
};

struct tg__group_params {
    const char *name; /* as a tenant's */
    uint32_t size;    /* of how many; 1 to TG_LEDGER_TENANTS */
    enum tg__group_kind kind;
    uint32_t wait_ms; /* the deadline of the whole, as the first to come has it */
    const struct tg__group_share *shares; /* 1 to TG_TENANT_TAGS */
    uint32_t share_count;
};

/* Comes, and waits until all have come and all that they want is granted; then its own part is
 * reserved. After a failure the tenant is in no group and has nothing of it. Errors: that of the
 * member that failed, whoever it was, with its name; TG_EGROUP (one died, or did not come in time);
 * TG_EFULL (no slot for one more group in time, or more tags than fit); -EINVAL (others gather
 * under this name for something else); -EALREADY (the tenant is in a group); those of a reserve. */
int tg__group_come(struct tg_tenant *tenant, const struct tg__group_params *params);
/* The member's phase one is over, well (status 0) or not: then the error of this thread says what
 * it lacked. Waits for the others. 0: all are awake, or asleep. Else as above. */
int tg__group_end(struct tg_tenant *tenant, int status);
/* The member's own row does what the group's word says, and names it no more. created_bytes: of
 * each share, committed and, since the group was given up, unmapped again; NULL: nothing. Cannot
 * fail. */
void tg__group_leave(struct tg_tenant *tenant, const uint64_t *created_bytes);
/* Who of the group has died, as a name; false: nobody is known to. For who was told 0 by end and
 * has not left. */
bool tg__group_lost(struct tg_tenant *tenant, char *name, size_t name_bytes);

/* ---- the word and the rows ------------------------------------------------------------------- */

/* Where a generation stands: its phase; TG__GROUP_PHASES: its slot has another by now; or
 * TG_EPOISONED. */
int tg__group_phase(const struct tg__ledger_body *body, uint32_t group, uint64_t generation);
/* A slot's row as it counts: with what is granted among its reserved bytes, and asleep or awake as
 * the group's word says. is_own: the row is there already. Errors: as tg__row_read. */
int tg__group_row(const struct tg__ledger_body *body, const struct tg__slot *slot,
                  struct tg__tenant_row *row, bool is_own);
/* Gathering to dropped, open to aborted; else nothing. Wakes who waits. */
void tg__group_give_up(struct tg__ledger_body *body, uint32_t group, uint64_t generation);
/* Wakes all who wait, on whatever device. */
void tg__group_wake(struct tg__ledger_body *body);
/* Says in the slot why: before the group is given up. By the slot's owner, or under the file's lock
 * when that is dead. */
void tg__group_tell(struct tg__slot *slot, const struct tg__failure_row *why);
/* What was told of this generation. Of several, who may have seen others' going, the one with an
 * error of its own. deaths_only: the rest is true only where the group was given up. */
bool tg__group_told(const struct tg__ledger_body *body, uint32_t group, uint64_t generation,
                    bool deaths_only, struct tg__failure_row *why);
static inline bool tg__group_may_be_given_up(int phase) {
    return phase == TG__GROUP_GATHERING || phase == TG__GROUP_OPEN;
}
/* The one that has died says so, and its group is given up: under the file's lock, before its row
 * is mended. */
void tg__group_settle(struct tg__ledger_body *body, struct tg__slot *slot,
                      const struct tg__tenant_row *row);
static inline bool tg__group_names(const struct tg__tenant_row *row, uint32_t group,
                                   uint64_t generation) {
    return row->generation == generation && row->group == group;
}

/* What was granted counts in the own row from now on; needs no lock. */
void tg__group_fold(struct tg_tenant *tenant);

/* ---- under the file's lock, and own ---------------------------------------------------------- */

/* Finds the group that gathers under this name, or opens one, and names it in the own row. 1: come;
 * 0: there is no slot now. */
int tg__group_enter(struct tg_tenant *tenant, const struct tg__group_params *params);
/* Grants the group if all have come and it fits on each device; else notes the wait, or gives the
 * group up where it can never fit, or not in time. */
int tg__group_grant(struct tg_tenant *tenant);

#endif
