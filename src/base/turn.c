/* SPDX-License-Identifier: Apache-2.0 */
#include "base/turn.h"

#include "base/clock.h"
#include "base/shmfile.h"

bool tg__turn_take(struct tg__turn *turn, uint64_t deadline_ns) {
    if (tg__turn_try(turn))
        return true;
    while (atomic_exchange_explicit(&turn->word, 2, memory_order_acquire) != 0) {
        uint64_t now_ns = tg__clock_ns();

        if (now_ns >= deadline_ns)
            return false;
        tg__shm_wait(&turn->word, 2, deadline_ns - now_ns);
    }
    return true;
}

/* Who is woken puts the 2 back, for the others that sleep. */
void tg__turn_end(struct tg__turn *turn) {
    if (atomic_exchange_explicit(&turn->word, 0, memory_order_release) == 2)
        tg__shm_wake_one(&turn->word);
}
