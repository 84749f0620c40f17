/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' access: the runtime gives it to what its own allocations are, and memory that is mapped is
 * none of those. So what it gives is given to our blocks, too. A program without a card beside this
 * one never comes by. */
#include <stdatomic.h>

#include "base/log.h"
#include "preload/hooks.h"

int tg__hook_enable_peer(int peer, unsigned flags) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    const void *caller = TG__CALLER();
    tg__enable_peer_fn next = TG__NEXT(enable_peer);
    tg__current_device_fn current_device = TG__NEXT(current_device);
    const struct tg__library *library;
    int device = 0, result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    result = next(peer, flags);
    if ((result != 0 && result != TG__RUNTIME_PEER_IS_ENABLED) || !tg__mode_is_on())
        return result;
    library = tg__library_open();
    if (library == NULL || current_device == NULL || current_device(&device) != 0 || device > 63)
        return result;
    if (library->peers(peer, UINT64_C(1) << device) != 0)
        tg__warn_once(&has_warned, "device %d cannot reach all memory of device %d: %.300s",
                      device, peer, library->last_error()->text);
    return result;
}
