/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last error, where the last failure was ours. The runtime's older error is taken from
 * it when ours is set, so whatever the runtime has afterwards is newer. An error belongs to the
 * runtime of the caller that got it: there may be two. */
#include "preload/hooks.h"

/* Initial-exec, which needs no memory at the first use in a thread: the object is there from the
 * program's start. */
static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
    int result; /* 0: none of ours */
    tg__take_error_fn runtime;
} pending;

int tg__error_set(int result, const void *caller) {
    tg__take_error_fn next = TG__NEXT(take_error);

    if (next != NULL)
        (void)next();
    pending.result = result;
    pending.runtime = next;
    return result;
}

/* What the runtime has is newer than ours. */
static int newest(int result, tg__take_error_fn runtime, bool is_taken) {
    int ours = pending.runtime == runtime ? pending.result : 0;

    if (ours != 0 && is_taken)
        pending.result = 0;
    return result != 0 ? result : ours;
}

int tg__hook_take_error(void) {
    const void *caller = TG__CALLER();
    tg__take_error_fn next = TG__NEXT(take_error);

    return next == NULL ? TG__RUNTIME_NOT_INITIALIZED : newest(next(), next, true);
}

int tg__hook_peek_error(void) {
    const void *caller = TG__CALLER();
    tg__peek_error_fn next = TG__NEXT(peek_error);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return newest(next(), TG__NEXT(take_error), false);
}
