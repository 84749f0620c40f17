/* SPDX-License-Identifier: Apache-2.0 */
/* The count of open captures is kept by whoever sees them begin and end. It is read where it lies,
 * so that it is never out of date. */
#include "device/captures.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const int *) watched;

void tg__captures_watch(const int *open) {
    atomic_store(&watched, open);
}

bool tg__captures_are_open(void) {
    const int *open = atomic_load(&watched);

    return open != NULL && __atomic_load_n(open, __ATOMIC_SEQ_CST) > 0;
}
