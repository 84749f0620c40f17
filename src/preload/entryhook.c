/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's answers to who asks for the driver's functions by name: in mode on ours for the
 * names of the table, which remember the driver's; all else as it came. The driver's are the same
 * whichever runtime is asked. */
#include <stdatomic.h>
#include <string.h>

#include "preload/entries.h"

static _Atomic(tg__any_fn) drivers[TG__ENTRIES];

tg__any_fn tg__entry_driver(enum tg__entry entry) {
    return atomic_load(&drivers[entry]);
}

static void answer(const char *symbol, void **function) {
    static const struct {
        const char *symbol;
        tg__any_fn ours;
    } entries[] = {
#define TG__ENTRY(name, symbol, ...) {#symbol, (tg__any_fn)tg__entry_##name},
#include "preload/hooks.def"
    };

    for (size_t i = 0; symbol != NULL && i < TG__ENTRIES; i++) {
        tg__any_fn theirs;

        if (strcmp(entries[i].symbol, symbol) != 0)
            continue;
        memcpy(&theirs, function, sizeof theirs);
        if (theirs != entries[i].ours) /* another hook that asks us may be asked by us */
            atomic_store(&drivers[i], theirs);
        memcpy(function, &entries[i].ours, sizeof *function);
    }
}

/* Two forms, each for the streams of the process and of the thread: for our names no difference. */
static int answered(int result, const char *symbol, void **function) {
    if (result == 0 && function != NULL && *function != NULL && tg__mode_is_on())
        answer(symbol, function);
    return result;
}

int tg__hook_entry(const char *symbol, void **function, unsigned long long flags, int *status) {
    const void *caller = TG__CALLER();
    tg__entry_fn next = TG__NEXT(entry);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return answered(next(symbol, function, flags, status), symbol, function);
}

int tg__hook_entry_own(const char *symbol, void **function, unsigned long long flags,
                       int *status) {
    const void *caller = TG__CALLER();
    tg__entry_own_fn next = TG__NEXT(entry_own);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return answered(next(symbol, function, flags, status), symbol, function);
}

int tg__hook_entry_by(const char *symbol, void **function, unsigned version,
                      unsigned long long flags, int *status) {
    const void *caller = TG__CALLER();
    tg__entry_by_fn next = TG__NEXT(entry_by);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return answered(next(symbol, function, version, flags, status), symbol, function);
}

int tg__hook_entry_by_own(const char *symbol, void **function, unsigned version,
                          unsigned long long flags, int *status) {
    const void *caller = TG__CALLER();
    tg__entry_by_own_fn next = TG__NEXT(entry_by_own);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return answered(next(symbol, function, version, flags, status), symbol, function);
}
