/* SPDX-License-Identifier: Apache-2.0 */
/* Who may have memory now: the ledger's one decision, pure. All numbers are arguments; the clock is
 * one of them.
 *
 * Available to a request on a device is the least of two views:
 *   the tenants': total - all occupied and reserved bytes of the living - orphans
 *   the driver's: free  - what tenants have reserved and not yet created, or created since
 * What tenants only declare (another allocator's memory) is in the driver's view and left out of
 * the first: the figure may be old. All else here counts it as held.
 *
 * The first keeps tenants from overcommitting whatever the driver said a moment ago; the second
 * knows foreign programs, and never takes an old figure for a new one: what is committed after the
 * driver was asked is taken off, though it may be in the figure already.
 *
 * Orphans are the bytes of a dead tenant. They count as far as the driver's used memory is more
 * than what the living occupy and what was unattributed before the death, for 2 s at most; from
 * then on the driver's view alone decides. A figure of the driver's from before the death was
 * noticed says nothing about them: they count whole, in both views.
 *
 * A request that may wait fails at once when it could never be served: it is more than the total
 * less what its tenant holds itself (NEVER), or it closes a cycle of waiters (CYCLE): even if every
 * tenant that does not wait gave all it has, and every waiter that could then be served did the
 * same after, the request could not be. Of a cycle the latest fails. Foreign programs and orphans
 * are left out of this: they may go. Waiters whose deadline has passed count as not waiting.
 *
 * Nor is it granted while another tenant is starting up and its own is not: who starts measures the
 * device's free memory. Who is held up by that stands before nobody meanwhile.
 *
 * Else it is granted when it fits and no earlier waiter of the device stands before it. An earlier
 * waiter does not stand before a request
 *   - when it is late (was not seen for ADMIT_LATE_NS: stopped or dead) or its deadline has passed;
 *   - that holds something, when it could be served only with bytes that the requesting tenant or
 *     another waiting one holds: they keep these while they wait, so to let the request wait could
 *     not help the earlier one, and would be a deadlock; nor when it stands itself behind such a
 *     one, as the next rule wants it;
 *   - that holds nothing, only when all waiters' serving each other could not serve it: foreign
 *     programs have the memory. Who holds nothing is in nobody's way and has nothing to pass for.
 * Nobody is starved or stuck: among waiters that are in no cycle one can be served by those who do
 * not wait. If one of these holds something, the first of them passes all that are stuck, and gives
 * what it holds when its turn is over; if none does, nobody is stuck, and they go by arrival.
 *
 * A request that may not wait (an allocation in the middle of a program's work) gives way only to
 * waiters that could be served right now: it never fails because somebody queues for more than
 * there is. */
#ifndef TG_LEDGER_ADMIT_H
#define TG_LEDGER_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include <tidegate/ledger.h>

#define TG__ADMIT_LATE_NS UINT64_C(30000000)
#define TG__ADMIT_ORPHAN_NS UINT64_C(2000000000)

/* A tenant of the device in question. */
struct tg__claim {
    uint64_t occupied_bytes, reserved_bytes, declared_bytes;
    uint64_t wait_bytes;  /* 0: it does not wait */
    uint64_t arrival;     /* of its wait; smaller: earlier */
    uint64_t deadline_ns; /* of its wait */
    uint64_t seen_ns;     /* when the waiter last ran */
    bool is_starting;
};

struct tg__orphans {
    uint64_t size_bytes;
    uint64_t since_ns;                  /* when the death was noticed */
    uint64_t unattributed_before_bytes; /* as last measured before */
};

struct tg__admit_input {
    uint64_t now_ns;
    uint64_t total_bytes, free_bytes; /* the driver's */
    uint64_t asked_ns;                /* when it was asked for them */
    uint64_t created_bytes;           /* what all tenants have committed since then */
    const struct tg__claim *claims;
    uint32_t claim_count;
    uint32_t self;    /* index into claims: who asks; its wait fields hold the request */
    uint32_t may_wait; /* 0: an answer other than GRANT ends the request */
    const struct tg__orphans *orphans;
    uint32_t orphan_count;
};

enum tg__admit_answer { TG__ADMIT_GRANT, TG__ADMIT_WAIT, TG__ADMIT_NEVER, TG__ADMIT_CYCLE };

struct tg__admit_output {
    enum tg__admit_answer answer;
    uint64_t available_bytes;    /* to this request, were it alone */
    uint64_t orphaned_bytes;     /* that still count */
    uint64_t unattributed_bytes; /* used, and neither of the living nor orphaned */
    uint32_t other;              /* CYCLE: one of the others in it; WAIT: the waiter before it, who
                                  * starts up, or who holds most; UINT32_MAX: none */
    bool is_held_up;             /* WAIT: by who starts up */
};

void tg__admit(const struct tg__admit_input *input, struct tg__admit_output *output);
/* Bytes of these orphans that still count, where the driver, asked at asked_ns, has so many bytes
 * more in use than what the living occupy. */
uint64_t tg__admit_orphaned(const struct tg__orphans *orphans, uint64_t now_ns, uint64_t asked_ns,
                            uint64_t unaccounted_bytes);

#endif
