/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for other processes: a block of ours is named by a token in the runtime's handle, and such
 * a handle is opened by us; all others are the runtime's. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "preload/hooks.h"

/* The one flag there is; the runtime wants it, and means what we do anyway. */
enum { PEERS_TOO = 1 };

/* ---- giving ---------------------------------------------------------------------------------- */

/* True: it is ours, and *result is the answer. */
static bool name(struct tg__ipc_handle *handle, const void *addr, int *result) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    const struct tg__library *library = tg__library_opened();
    int rc = library == NULL || handle == NULL ? -ENOENT : library->ipc_token(addr, handle->bytes);

    if (rc == -ENOENT || tg__is_runtimes(rc))
        return false;
    if (rc != 0)
        tg__warn_once(&has_warned, "memory cannot be handed to another process: %.300s",
                      library->last_error()->text);
    *result = rc == 0          ? 0
              : rc == -ENOTSUP ? TG__RUNTIME_INVALID_VALUE
                               : TG__RUNTIME_OUT_OF_MEMORY;
    return true;
}

/* In every mode, as a free: the block may be older than that. */
int tg__hook_ipc_token(struct tg__ipc_handle *handle, void *addr) {
    const void *caller = TG__CALLER();
    tg__ipc_token_fn next = TG__NEXT(ipc_token);
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    if (!name(handle, addr, &result))
        return next(handle, addr);
    return result == 0 ? 0 : tg__error_set(result, caller);
}

/* ---- opening --------------------------------------------------------------------------------- */

static int result_of(const struct tg__library *library, int status) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;

    if (status == -ENOMEM || (tg__is_out_of_memory(status) && status != TG_EASLEEP))
        return TG__RUNTIME_OUT_OF_MEMORY;
    switch (status) {
    case 0:
        return 0;
    case -ELOOP:
        return TG__RUNTIME_INVALID_CONTEXT;
    case -ESTALE:
        return TG__RUNTIME_INVALID_HANDLE;
    default:
        tg__warn_once(&has_warned, "another process's memory cannot be opened: %.300s",
                      library->last_error()->text);
        return TG__RUNTIME_MAP_FAILED;
    }
}

/* True: it is ours, and *result is the answer. */
static bool open_token(void **addr, const struct tg__ipc_handle *handle, const void *caller,
                       int *result) {
    tg__current_device_fn current_device = TG__NEXT(current_device);
    const struct tg__library *library = tg__library_need();
    void *opened;
    int device, rc;

    if (library == NULL || current_device == NULL || current_device(&device) != 0)
        return false;
    rc = library->ipc_open(device, handle->bytes, &opened);
    if (rc == -ENOENT || tg__is_runtimes(rc))
        return false;
    *result = result_of(library, rc);
    if (*result != 0)
        return true;
    *result = tg__context_make(caller);
    if (*result == 0)
        *addr = opened;
    else
        (void)!library->ipc_close(opened);
    return true;
}

int tg__hook_ipc_open(void **addr, struct tg__ipc_handle handle, unsigned flags) {
    const void *caller = TG__CALLER();
    tg__ipc_open_fn next = TG__NEXT(ipc_open);
    bool is_marked = memcmp(handle.bytes, TG_IPC_MAGIC, sizeof TG_IPC_MAGIC - 1) == 0;
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    if (!is_marked || !tg__mode_is_on() || addr == NULL || (flags & ~(unsigned)PEERS_TOO) != 0 ||
        !open_token(addr, &handle, caller, &result))
        return next(addr, handle, flags);
    return result == 0 ? 0 : tg__error_set(result, caller);
}

/* ---- closing --------------------------------------------------------------------------------- */

int tg__hook_ipc_close(void *addr) {
    const void *caller = TG__CALLER();
    const struct tg__library *library = addr == NULL ? NULL : tg__library_opened();
    tg__ipc_close_fn next;
    int device, result;

    if (library != NULL && library->ipc_find(addr, &device) == 0) {
        bool is_idle = tg__device_wait(device, caller, &result);

        if ((is_idle ? library->ipc_close_idle(addr) : library->ipc_close(addr)) == 0)
            return result;
    }
    next = TG__NEXT(ipc_close);
    return next == NULL ? TG__RUNTIME_NOT_INITIALIZED : next(addr);
}
