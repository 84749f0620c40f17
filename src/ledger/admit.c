/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger/admit.h"

#include <stdbool.h>
#include <string.h>

/* Sums saturate: figures come from a file. */
static uint64_t sum(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static uint64_t held(const struct tg__claim *claim) {
    return sum(claim->occupied_bytes, claim->reserved_bytes);
}

uint64_t tg__admit_orphaned(const struct tg__orphans *orphans, uint64_t now_ns,
                            uint64_t unaccounted_bytes) {
    uint64_t extra = less(unaccounted_bytes, orphans->unattributed_before_bytes);

    if (less(now_ns, orphans->since_ns) >= TG__ADMIT_ORPHAN_NS)
        return 0;
    return orphans->size_bytes < extra ? orphans->size_bytes : extra;
}

/* Waits, and its time is not over. */
static bool is_waiting(const struct tg__admit_input *in, uint32_t i) {
    const struct tg__claim *claim = &in->claims[i];

    return claim->wait_bytes > 0 && (i == in->self || claim->deadline_ns > in->now_ns);
}

/* What all could come to have if those that hold something and do not wait gave it up, and after
 * them each waiter that could then be served: all but the waiters that remain. done[i]: i is not
 * among these. */
static void play_on(const struct tg__admit_input *in, bool *done) {
    uint64_t room = in->total_bytes;
    bool has_moved = true;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        done[i] = !is_waiting(in, i);
        if (!done[i])
            room = less(room, held(&in->claims[i]));
    }
    while (has_moved) {
        has_moved = false;
        for (uint32_t i = 0; i < in->claim_count; i++) {
            if (done[i] || in->claims[i].wait_bytes > room)
                continue;
            done[i] = has_moved = true;
            room = sum(room, held(&in->claims[i]));
        }
    }
}

/* The largest of the others that will never be served either, if the request closes such a cycle;
 * UINT32_MAX: it can be served, or is not the latest of them. */
static uint32_t cycle_partner(const struct tg__admit_input *in) {
    bool done[TG_LEDGER_TENANTS] = {false};
    uint32_t partner = UINT32_MAX;

    play_on(in, done);
    if (done[in->self])
        return UINT32_MAX;
    for (uint32_t i = 0; i < in->claim_count; i++) {
        if (i == in->self || done[i])
            continue;
        if (in->claims[i].arrival > in->claims[in->self].arrival)
            return UINT32_MAX;
        if (partner == UINT32_MAX || held(&in->claims[i]) > held(&in->claims[partner]))
            partner = i;
    }
    return partner;
}

/* What there could be for an earlier waiter without anything from those who wait, the asking one
 * among them. */
static uint64_t within_reach(const struct tg__admit_input *in, uint64_t available) {
    uint64_t bytes = available;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        if (in->may_wait && !is_waiting(in, i))
            bytes = sum(bytes, held(&in->claims[i]));
    }
    return bytes;
}

/* The first of the earlier waiters that must be served before; UINT32_MAX: none. */
static uint32_t first_before(const struct tg__admit_input *in, uint64_t available) {
    uint64_t reach = within_reach(in, available);
    uint32_t first = UINT32_MAX;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        const struct tg__claim *waiter = &in->claims[i];
        if (i == in->self || !is_waiting(in, i) || waiter->wait_bytes > reach ||
            waiter->arrival >= in->claims[in->self].arrival ||
            less(in->now_ns, waiter->seen_ns) > TG__ADMIT_LATE_NS)
            continue;
        if (first == UINT32_MAX || waiter->arrival < in->claims[first].arrival)
            first = i;
    }
    return first;
}

static uint32_t largest_holder(const struct tg__admit_input *in) {
    uint32_t largest = UINT32_MAX;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        if (i != in->self && held(&in->claims[i]) > 0 &&
            (largest == UINT32_MAX || held(&in->claims[i]) > held(&in->claims[largest])))
            largest = i;
    }
    return largest;
}

static void take_views(const struct tg__admit_input *in, struct tg__admit_output *out) {
    uint64_t occupied = 0, reserved = 0, used, unaccounted, tenants_view, drivers_view;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        occupied = sum(occupied, in->claims[i].occupied_bytes);
        reserved = sum(reserved, in->claims[i].reserved_bytes);
    }
    used = less(in->total_bytes, in->free_bytes);
    unaccounted = less(used, occupied);
    for (uint32_t i = 0; i < in->orphan_count; i++)
        out->orphaned_bytes =
            sum(out->orphaned_bytes,
                tg__admit_orphaned(&in->orphans[i], in->now_ns, unaccounted));
    if (out->orphaned_bytes > unaccounted)
        out->orphaned_bytes = unaccounted;
    out->unattributed_bytes = unaccounted - out->orphaned_bytes;
    tenants_view = less(in->total_bytes, sum(sum(occupied, reserved), out->orphaned_bytes));
    drivers_view = less(in->free_bytes, reserved);
    out->available_bytes = tenants_view < drivers_view ? tenants_view : drivers_view;
}

void tg__admit(const struct tg__admit_input *in, struct tg__admit_output *out) {
    const struct tg__claim *self = &in->claims[in->self];

    memset(out, 0, sizeof *out);
    out->other = UINT32_MAX;
    take_views(in, out);
    if (self->wait_bytes > less(in->total_bytes, held(self))) {
        out->answer = TG__ADMIT_NEVER;
        return;
    }
    if (self->wait_bytes <= out->available_bytes) {
        out->other = first_before(in, out->available_bytes);
        out->answer = out->other == UINT32_MAX ? TG__ADMIT_GRANT : TG__ADMIT_WAIT;
        return;
    }
    out->other = in->may_wait ? cycle_partner(in) : UINT32_MAX;
    out->answer = out->other == UINT32_MAX ? TG__ADMIT_WAIT : TG__ADMIT_CYCLE;
    if (out->answer == TG__ADMIT_WAIT)
        out->other = largest_holder(in);
}
