/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' access: the runtime gives it to what its own allocations are, and memory that is mapped is
 * none of those. So what it gives is given to our blocks, too, also to those of a scope that begins
 * later. A program without a card beside this one never comes by. */
#include <stdatomic.h>

#include "base/log.h"
#include "preload/hooks.h"

enum { DEVICES = 64 };

/* Of each device, who has access to its memory, as a bit set. */
static _Atomic uint64_t peers[DEVICES];

static void warn(int peer, const struct tg__library *library) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;

    tg__warn_once(&has_warned, "not all memory of device %d can be reached by its peers: %.300s",
                  peer, library->last_error()->text);
}

void tg__peers_tell(const struct tg__library *library) {
    for (int i = 0; i < DEVICES; i++) {
        uint64_t devices = atomic_load(&peers[i]);

        if (devices != 0 && library->peers(i, devices) != 0)
            warn(i, library);
    }
}

/* The thread's device, as a bit. 0: nothing is to be done. */
static uint64_t own_bit(int peer, const void *caller) {
    tg__current_device_fn current_device = TG__NEXT(current_device);
    int device = 0;

    if (!tg__mode_is_on() || peer < 0 || peer >= DEVICES || current_device == NULL ||
        current_device(&device) != 0 || device < 0 || device >= DEVICES)
        return 0;
    return UINT64_C(1) << device;
}

int tg__hook_enable_peer(int peer, unsigned flags) {
    const void *caller = TG__CALLER();
    tg__enable_peer_fn next = TG__NEXT(enable_peer);
    const struct tg__library *library;
    uint64_t own;
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    result = next(peer, flags);
    own = result == 0 || result == TG__RUNTIME_PEER_IS_ENABLED ? own_bit(peer, caller) : 0;
    if (own == 0)
        return result;
    atomic_fetch_or(&peers[peer], own);
    library = tg__library_open();
    if (library != NULL && library->peers(peer, own) != 0)
        warn(peer, library);
    return result;
}

int tg__hook_disable_peer(int peer) {
    const void *caller = TG__CALLER();
    tg__disable_peer_fn next = TG__NEXT(disable_peer);
    const struct tg__library *library = tg__library_opened();
    uint64_t own;
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    result = next(peer);
    own = result == 0 ? own_bit(peer, caller) : 0;
    if (own == 0)
        return result;
    atomic_fetch_and(&peers[peer], ~own);
    if (library != NULL && library->peers_end(peer, own) != 0)
        warn(peer, library);
    return result;
}
