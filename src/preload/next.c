/* SPDX-License-Identifier: Apache-2.0 */
/* The function that a caller would have had without us. Two runtimes may be in one process, and one
 * that came with RTLD_LOCAL is not where RTLD_NEXT looks, so it is the caller's module that
 * decides; another preload's function goes first, as it would.
 *
 * The answer is kept for each place of call, since one of the hooks follows every kernel launch.
 * The table is only ever added to, without a lock: a forked child may use it whatever other threads
 * did. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "preload/hooks.h"

enum { PLACES = 4096, PROBES = 16, HOOK_BITS = 7 };

struct place {
    _Atomic uint64_t key; /* set last */
    atomic_bool is_taken;
    tg__any_fn next;
};

static struct place places[PLACES];

_Static_assert(TG__HOOKS <= 1 << HOOK_BITS, "the number of a hook fits beside an address");

const char *tg__hook_symbol(enum tg__hook hook) {
    static const char *const symbols[] = {
#define TG__HOOK(name, symbol, ...) #symbol,
#define TG__USED(name, symbol, ...) #symbol,
#include "preload/hooks.def"
    };

    return symbols[hook];
}

/* ---- looking --------------------------------------------------------------------------------- */

/* Of all versions, also those that a wheel has renamed. */
static bool is_runtime(const char *path) {
    static const char prefix[] =
#define TG__RUNTIME(text) text;
#include "preload/hooks.def"
    const char *slash = strrchr(path, '/');

    return strncmp(slash == NULL ? path : slash + 1, prefix, strlen(prefix)) == 0;
}

static bool is_in_runtime(void *function) {
    Dl_info info;

    return dladdr(function, &info) != 0 && is_runtime(info.dli_fname);
}

static bool is_ours(const void *function) {
    Dl_info theirs, ours;

    return dladdr(function, &theirs) != 0 && dladdr(places, &ours) != 0 &&
           theirs.dli_fbase == ours.dli_fbase;
}

/* In an object that is loaded, and what it was linked to. */
static void *find_in(const char *path, const char *symbol) {
    void *object = dlopen(path, RTLD_LAZY | RTLD_NOLOAD), *found = NULL;

    if (object != NULL) {
        found = dlsym(object, symbol);
        dlclose(object);
    }
    return found == NULL || is_ours(found) ? NULL : found;
}

/* The program itself has no name: what it was linked to is where RTLD_NEXT looks. */
static void *find_by_caller(const char *symbol, const void *caller) {
    struct link_map *map = NULL;
    Dl_info info;

    if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL ||
        map->l_name[0] == '\0')
        return NULL;
    return find_in(map->l_name, symbol);
}

struct search {
    int wanted; /* which of the runtimes, from 0 */
    char path[PATH_MAX];
};

static int copy_wanted(struct dl_phdr_info *object, size_t size_bytes, void *argument) {
    struct search *search = argument;

    (void)size_bytes;
    if (object->dlpi_name == NULL || !is_runtime(object->dlpi_name) || search->wanted-- > 0)
        return 0;
    snprintf(search->path, sizeof search->path, "%s", object->dlpi_name);
    return 1;
}

/* Not from inside the walk: it holds a lock that opening takes, too. */
static void *find_loaded(const char *symbol) {
    void *found = NULL;
    struct search search;

    for (int i = 0; found == NULL; i++) {
        search.wanted = i;
        if (dl_iterate_phdr(copy_wanted, &search) == 0)
            break;
        found = find_in(search.path, symbol);
    }
    return found;
}

static void *look(const char *symbol, const void *caller) {
    void *behind = dlsym(RTLD_NEXT, symbol), *found;

    if (behind != NULL && !is_in_runtime(behind))
        return behind; /* another hook */
    found = find_by_caller(symbol, caller);
    if (found == NULL)
        found = behind;
    return found != NULL ? found : find_loaded(symbol);
}

/* ---- keeping --------------------------------------------------------------------------------- */

static size_t start_of(uint64_t key) {
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 52);
}

static tg__any_fn kept(uint64_t key) {
    for (size_t i = 0, at = start_of(key); i < PROBES; i++, at = (at + 1) % PLACES) {
        if (atomic_load_explicit(&places[at].key, memory_order_acquire) == key)
            return places[at].next;
    }
    return NULL;
}

/* What is kept must not be unloaded. */
static bool stays(void *function) {
    Dl_info info;
    void *object;

    if (dladdr(function, &info) == 0)
        return false;
    object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (object != NULL)
        dlclose(object);
    return object != NULL;
}

static void keep(uint64_t key, tg__any_fn next) {
    for (size_t i = 0, at = start_of(key); i < PROBES; i++, at = (at + 1) % PLACES) {
        if (atomic_exchange(&places[at].is_taken, true))
            continue;
        places[at].next = next;
        atomic_store_explicit(&places[at].key, key, memory_order_release);
        return;
    }
}

tg__any_fn tg__next(enum tg__hook hook, const void *caller) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    uint64_t key = (uint64_t)(uintptr_t)caller << HOOK_BITS | (uint64_t)hook;
    tg__any_fn next = kept(key);
    int saved = errno;
    void *found;

    if (next != NULL)
        return next;
    found = look(tg__hook_symbol(hook), caller);
    if (found == NULL)
        tg__warn_once(&has_warned, "%s was called, but no runtime is loaded that has it",
                      tg__hook_symbol(hook));
    memcpy(&next, &found, sizeof next);
    if (found != NULL && stays(found))
        keep(key, next);
    errno = saved;
    return next;
}
