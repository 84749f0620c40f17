/* SPDX-License-Identifier: Apache-2.0 */
/* The decision: the two views, then never, cycle, and who came earlier. Pure; its rules stand in
 * admit.h, the reasons in doc/design/ledger.md. Figures may be garbage: sums and differences stop
 * at both ends. */
#include "ledger/admit.h"

#include <stdbool.h>
#include <string.h>

#include "base/saturate.h"

static uint64_t held(const struct tg__claim *claim) {
    return tg__sum(tg__sum(claim->occupied_bytes, claim->reserved_bytes), claim->declared_bytes);
}

/* Both ways: a time ahead of now is garbage, or of before the machine's last start. */
static uint64_t distance(uint64_t a, uint64_t b) {
    return a > b ? a - b : b - a;
}

static bool is_unseen(const struct tg__orphans *orphans, uint64_t now_ns, uint64_t asked_ns) {
    return asked_ns < orphans->since_ns &&
           distance(now_ns, orphans->since_ns) < TG__ADMIT_ORPHAN_NS;
}

uint64_t tg__admit_orphaned(const struct tg__orphans *orphans, uint64_t now_ns, uint64_t asked_ns,
                            uint64_t unaccounted_bytes) {
    uint64_t extra = tg__less(unaccounted_bytes, orphans->unattributed_before_bytes);

    if (distance(now_ns, orphans->since_ns) >= TG__ADMIT_ORPHAN_NS)
        return 0;
    if (is_unseen(orphans, now_ns, asked_ns))
        return orphans->size_bytes;
    return orphans->size_bytes < extra ? orphans->size_bytes : extra;
}

/* Waits, and its time is not over. */
static bool is_waiting(const struct tg__admit_input *in, uint32_t i) {
    const struct tg__claim *claim = &in->claims[i];

    return claim->wait_bytes > 0 && (i == in->self || claim->deadline_ns > in->now_ns);
}

/* Serves the waiters from `room`, each that can be served giving what it holds to the others after;
 * done[i] is true for who does not take part, and in the end for all that were served. */
static void play_on(const struct tg__admit_input *in, uint64_t room, bool *done) {
    bool has_moved = true;

    while (has_moved) {
        has_moved = false;
        for (uint32_t i = 0; i < in->claim_count; i++) {
            if (done[i] || in->claims[i].wait_bytes > room)
                continue;
            done[i] = has_moved = true;
            room = tg__sum(room, held(&in->claims[i]));
        }
    }
}

/* The largest of the others that will never be served either, if the request closes such a cycle;
 * UINT32_MAX: it can be served, or is not the latest of them. */
static uint32_t cycle_partner(const struct tg__admit_input *in) {
    bool done[TG_LEDGER_TENANTS] = {false};
    uint64_t room = in->total_bytes;
    uint32_t partner = UINT32_MAX;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        done[i] = !is_waiting(in, i);
        if (!done[i])
            room = tg__less(room, held(&in->claims[i]));
    }
    play_on(in, room, done);
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

static bool is_late(const struct tg__admit_input *in, uint32_t i) {
    return distance(in->now_ns, in->claims[i].seen_ns) > TG__ADMIT_LATE_NS;
}

/* What the waiters may count on. */
struct outlook {
    uint64_t reach_bytes; /* without anything from those who wait, the asking one among them */
    bool is_served[TG_LEDGER_TENANTS]; /* in the end, when all serve each other */
    uint64_t first_stuck; /* arrival of the first that needs another waiting one's bytes for that */
};

static void look_out(const struct tg__admit_input *in, uint64_t available, struct outlook *out) {
    out->reach_bytes = available;
    out->first_stuck = UINT64_MAX;
    for (uint32_t i = 0; i < in->claim_count; i++) {
        out->is_served[i] = !is_waiting(in, i);
        if (in->may_wait && out->is_served[i])
            out->reach_bytes = tg__sum(out->reach_bytes, held(&in->claims[i]));
    }
    play_on(in, out->reach_bytes, out->is_served);
    for (uint32_t i = 0; i < in->claim_count; i++) {
        const struct tg__claim *claim = &in->claims[i];
        if (i != in->self && is_waiting(in, i) && !is_late(in, i) && out->is_served[i] &&
            claim->wait_bytes > out->reach_bytes && claim->arrival < out->first_stuck)
            out->first_stuck = claim->arrival;
    }
}

/* Whether the request, if it came later, has to let this waiter go first. */
static bool stands_before(const struct tg__admit_input *in, const struct outlook *outlook,
                          uint32_t i) {
    const struct tg__claim *waiter = &in->claims[i];

    if (in->may_wait && held(&in->claims[in->self]) == 0)
        return outlook->is_served[i];
    return waiter->wait_bytes <= outlook->reach_bytes &&
           (held(waiter) > 0 || waiter->arrival < outlook->first_stuck);
}

/* Who starts up; UINT32_MAX: nobody. */
static uint32_t first_starting(const struct tg__admit_input *in) {
    for (uint32_t i = 0; i < in->claim_count; i++) {
        if (in->claims[i].is_starting)
            return i;
    }
    return UINT32_MAX;
}

/* The first of the earlier waiters that must be served before; UINT32_MAX: none. */
static uint32_t first_before(const struct tg__admit_input *in, uint64_t available) {
    bool is_start = first_starting(in) != UINT32_MAX;
    uint32_t first = UINT32_MAX;
    struct outlook outlook;

    look_out(in, available, &outlook);
    for (uint32_t i = 0; i < in->claim_count; i++) {
        const struct tg__claim *waiter = &in->claims[i];
        if (i == in->self || !is_waiting(in, i) || is_late(in, i) ||
            (is_start && !waiter->is_starting) ||
            waiter->arrival >= in->claims[in->self].arrival || !stands_before(in, &outlook, i))
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

static void take_orphans(const struct tg__admit_input *in, uint64_t unaccounted,
                         uint64_t *seen, uint64_t *unseen) {
    *seen = *unseen = 0;
    for (uint32_t i = 0; i < in->orphan_count; i++) {
        const struct tg__orphans *orphans = &in->orphans[i];
        uint64_t *side = is_unseen(orphans, in->now_ns, in->asked_ns) ? unseen : seen;
        *side = tg__sum(*side, tg__admit_orphaned(orphans, in->now_ns, in->asked_ns, unaccounted));
    }
    *seen = *seen < unaccounted ? *seen : unaccounted;
}

static void take_views(const struct tg__admit_input *in, struct tg__admit_output *out) {
    uint64_t occupied = 0, reserved = 0, accounted = 0, used, seen, unseen;
    uint64_t tenants_view, drivers_view;

    for (uint32_t i = 0; i < in->claim_count; i++) {
        occupied = tg__sum(occupied, in->claims[i].occupied_bytes);
        reserved = tg__sum(reserved, in->claims[i].reserved_bytes);
        accounted = tg__sum(accounted, in->claims[i].declared_bytes);
    }
    accounted = tg__sum(accounted, occupied);
    used = tg__less(in->total_bytes, in->free_bytes);
    take_orphans(in, tg__less(tg__sum(used, in->created_bytes), accounted), &seen, &unseen);
    out->orphaned_bytes = tg__sum(seen, unseen);
    out->unattributed_bytes = tg__less(used, tg__sum(accounted, out->orphaned_bytes));
    tenants_view = tg__less(in->total_bytes,
                            tg__sum(tg__sum(occupied, reserved), out->orphaned_bytes));
    drivers_view = tg__less(in->free_bytes, tg__sum(tg__sum(reserved, in->created_bytes), unseen));
    out->available_bytes = tenants_view < drivers_view ? tenants_view : drivers_view;
}

void tg__admit(const struct tg__admit_input *in, struct tg__admit_output *out) {
    const struct tg__claim *self = &in->claims[in->self];
    bool fits;

    memset(out, 0, sizeof *out);
    out->other = UINT32_MAX;
    take_views(in, out);
    fits = self->wait_bytes <= out->available_bytes;
    if (!fits && self->wait_bytes > tg__less(in->total_bytes, held(self))) {
        out->answer = TG__ADMIT_NEVER;
        return;
    }
    if (in->may_wait && !self->is_starting && first_starting(in) != UINT32_MAX) {
        out->answer = TG__ADMIT_WAIT;
        out->other = first_starting(in);
        out->is_held_up = true;
        return;
    }
    if (fits) {
        out->other = first_before(in, out->available_bytes);
        out->answer = out->other == UINT32_MAX ? TG__ADMIT_GRANT : TG__ADMIT_WAIT;
        return;
    }
    out->other = in->may_wait ? cycle_partner(in) : UINT32_MAX;
    out->answer = out->other == UINT32_MAX ? TG__ADMIT_WAIT : TG__ADMIT_CYCLE;
    if (out->answer == TG__ADMIT_WAIT)
        out->other = largest_holder(in);
}
