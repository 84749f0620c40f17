/* SPDX-License-Identifier: Apache-2.0 */
/* How one waits for a device's bytes: note the change, put the sign up that somebody waits, look,
 * sleep. Who gives sees the sign, or its bytes were there for the look. The change is noted before,
 * since a giver takes the sign down before it counts the change up. */
#include "base/error.h"
#include "ledger/tenant.h"

/* Who waits looks at least so often: the driver's figure changes, and processes die, without
 * anybody's telling. */
#define POLL_NS (10 * TG__NS_PER_MS)

uint32_t tg__wait_begin_look(struct tg_tenant *tenant, bool may_sleep) {
    uint32_t seen = atomic_load_explicit(&tenant->device->change, memory_order_acquire);

    if (may_sleep)
        atomic_store_explicit(&tenant->device->has_waiters, 1, memory_order_seq_cst);
    return seen;
}

void tg__wait_rest(struct tg_tenant *tenant, uint32_t seen, uint64_t deadline_ns) {
    uint64_t now_ns = tg__clock_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

    if (left_ns > 0)
        tg__shm_wait(&tenant->device->change, seen, left_ns < POLL_NS ? left_ns : POLL_NS);
}

bool tg__wait_is_passing(int status) {
    return status == TG_EHELD || status == TG_EMOTION;
}
