/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory comes and goes: from a tag where one has a say, else from the runtime. */
#include <stdatomic.h>

#include "base/log.h"
#include "preload/hooks.h"

static bool is_captured(void) {
    return __atomic_load_n(&tg__captures, __ATOMIC_SEQ_CST) > 0;
}

int tg__context_make(const void *caller) {
    tg__free_fn next = TG__NEXT(free);

    if (next == NULL || is_captured())
        return 0;
    return next(NULL);
}

/* True: answered, with *result. */
static bool answer(const struct tg__library *library, int status, void *block, const void *caller,
                   int *result) {
    if (block == NULL && !tg__is_out_of_memory(status))
        return false;
    *result = tg__context_make(caller);
    if (*result != 0) {
        if (block != NULL)
            (void)!library->free(block);
    } else if (block == NULL) {
        *result = tg__error_set(TG__RUNTIME_OUT_OF_MEMORY, caller);
    }
    return true;
}

/* True: it was ours, and *result is the answer. */
static bool alloc(void **addr, size_t size_bytes, const void *caller, int *result) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    const struct tg__library *library = tg__library_open();
    tg__current_device_fn current_device;
    struct tg_process_request request = {.size_bytes = size_bytes};
    void *block = NULL;
    int status;

    if (library == NULL)
        return false;
    current_device = TG__NEXT(current_device);
    if (current_device == NULL || current_device(&request.device) != 0)
        return false;
    request.usual_tag = tg__mode_default_tag();
    status = library->alloc(&request, &block);
    if (status != 0 && !tg__is_out_of_memory(status) && !tg__is_runtimes(status))
        tg__warn_once(&has_warned, "the runtime is asked for memory, without a tag: %.300s",
                      library->last_error()->text);
    if (!answer(library, status, block, caller, result))
        return false;
    if (block == NULL)
        tg__refusal_note(library, &request);
    *addr = *result == 0 ? block : NULL;
    return true;
}

int tg__hook_alloc(void **addr, size_t size_bytes) {
    const void *caller = TG__CALLER();
    tg__alloc_fn next = TG__NEXT(alloc);
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    if (addr == NULL || !tg__mode_is_on() || !alloc(addr, size_bytes, caller, &result))
        return next(addr, size_bytes);
    return result;
}

bool tg__device_wait(int device, const void *caller, int *result) {
    tg__current_device_fn current_device = TG__NEXT(current_device);
    tg__set_device_fn set_device = TG__NEXT(set_device);
    tg__synchronize_fn synchronize = TG__NEXT(synchronize);
    int current;

    *result = 0;
    if (current_device == NULL || set_device == NULL || synchronize == NULL || is_captured() ||
        current_device(&current) != 0)
        return false;
    if (current != device)
        *result = set_device(device);
    if (*result == 0)
        *result = synchronize();
    if (current != device)
        (void)set_device(current);
    return *result == 0;
}

/* The library, if this is a block of ours, whose device is told; else NULL. In every mode: the
 * block may be older than that. */
static const struct tg__library *owner_of(const void *addr, int *device) {
    const struct tg__library *library = addr == NULL ? NULL : tg__library_opened();

    return library != NULL && library->find(addr, device) == 0 ? library : NULL;
}

/* The block is freed whatever the wait answers. */
int tg__hook_free(void *addr) {
    const void *caller = TG__CALLER();
    int device, result;
    const struct tg__library *library = owner_of(addr, &device);
    tg__free_fn next;

    if (library != NULL) {
        bool is_idle = tg__device_wait(device, caller, &result);

        if ((is_idle ? library->free_idle(addr) : library->free(addr)) == 0)
            return result;
    }
    next = TG__NEXT(free);
    return next == NULL ? TG__RUNTIME_NOT_INITIALIZED : next(addr);
}

/* The runtime takes what cudaMalloc gave here, too. A block of ours rests until all that the device
 * has been given has ended: so its stream's work is over by then. */
static int free_later(void *addr, void *stream, const void *caller, tg__free_async_fn next) {
    const struct tg__library *library;
    int device, result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    library = owner_of(addr, &device);
    if (library == NULL)
        return next(addr, stream);
    result = tg__context_make(caller);
    return result != 0 || library->free(addr) == 0 ? result : next(addr, stream);
}

int tg__hook_free_async(void *addr, void *stream) {
    const void *caller = TG__CALLER();

    return free_later(addr, stream, caller, TG__NEXT(free_async));
}

int tg__hook_free_async_own(void *addr, void *stream) {
    const void *caller = TG__CALLER();

    return free_later(addr, stream, caller, TG__NEXT(free_async_own));
}
