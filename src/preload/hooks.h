/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the preload share. Each hook of the table is a function tg__hook_NAME here, and
 * is exported under the runtime's name; a call's next function is what the caller would have had
 * without us. */
#ifndef TG_PRELOAD_HOOKS_H
#define TG_PRELOAD_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include <tidegate/error.h>
#include <tidegate/ipc.h>
#include <tidegate/pages.h>
#include <tidegate/process.h>

/* The runtime's numbers that we answer or compare with. */
enum {
    TG__RUNTIME_INVALID_VALUE = 1,
    TG__RUNTIME_OUT_OF_MEMORY = 2,
    TG__RUNTIME_NOT_INITIALIZED = 3,
    TG__RUNTIME_INVALID_CONTEXT = 201,
    TG__RUNTIME_MAP_FAILED = 205,
    TG__RUNTIME_INVALID_HANDLE = 400,
    TG__RUNTIME_PEER_IS_ENABLED = 704
};

/* The runtime's handle of memory for other processes, which it passes by value. */
struct tg__ipc_handle {
    unsigned char bytes[TG_IPC_TOKEN_BYTES];
};

/* ---- the table: hooks.def -------------------------------------------------------------------- */

enum tg__hook {
#define TG__HOOK(name, symbol, ...) TG__HOOK_##name,
#define TG__USED(name, symbol, ...) TG__HOOK_##name,
#include "preload/hooks.def"
    TG__HOOKS
};

#define TG__HOOK(name, symbol, ...)                             \
    TG_API int tg__hook_##name(__VA_ARGS__) __asm__(#symbol);   \
    typedef int (*tg__##name##_fn)(__VA_ARGS__);
#define TG__USED(name, symbol, ...) typedef int (*tg__##name##_fn)(__VA_ARGS__);
#include "preload/hooks.def"

/* The runtime's name of it. */
const char *tg__hook_symbol(enum tg__hook hook);

/* ---- next.c ---------------------------------------------------------------------------------- */

typedef void (*tg__any_fn)(void); /* what every function may be cast to */

/* The function behind a hook for the caller with this return address. NULL: there is no runtime,
 * which a line on stderr says once. Keeps errno. */
tg__any_fn tg__next(enum tg__hook hook, const void *caller);
/* The same as the function's own type; `caller` is one of the hook's own variables. */
#define TG__NEXT(name) ((tg__##name##_fn)tg__next(TG__HOOK_##name, caller))
#define TG__CALLER() __builtin_return_address(0)

/* ---- mode.c ---------------------------------------------------------------------------------- */

/* TIDEGATE is on. Read at the first call. */
bool tg__mode_is_on(void);
/* Of the program as a whole; NULL: none. */
const char *tg__mode_default_tag(void);
/* The folder for what is recorded; NULL: none. */
const char *tg__mode_out(void);

/* ---- library.c ------------------------------------------------------------------------------- */

/* The calls into libtidegate.so: our short name, and its own. */
#define TG__LIBRARY_CALLS(CALL)               \
    CALL(version, tg_version)                 \
    CALL(last_error, tg_last_error)           \
    CALL(alloc, tg_process_alloc)             \
    CALL(find, tg_process_find)               \
    CALL(look, tg_process_look)               \
    CALL(free, tg_process_free)               \
    CALL(free_idle, tg_process_free_idle)     \
    CALL(captures, tg_process_captures)       \
    CALL(peers, tg_process_peers)             \
    CALL(peers_end, tg_process_peers_end)     \
    CALL(pages_reserve, tg_pages_reserve)     \
    CALL(pages_unreserve, tg_pages_unreserve) \
    CALL(pages_unmap, tg_pages_unmap)         \
    CALL(pages_access, tg_pages_access)       \
    CALL(pages_hold, tg_pages_hold)           \
    CALL(page_create, tg_page_create)         \
    CALL(page_release, tg_page_release)       \
    CALL(page_map, tg_page_map)               \
    CALL(page_hold, tg_page_hold)             \
    CALL(ipc_token, tg_ipc_token)             \
    CALL(ipc_open, tg_ipc_open)               \
    CALL(ipc_close, tg_ipc_close)             \
    CALL(ipc_close_idle, tg_ipc_close_idle)   \
    CALL(ipc_find, tg_ipc_find)

struct tg__library {
#define TG__CALL(name, symbol) __typeof__(&symbol) name;
    TG__LIBRARY_CALLS(TG__CALL)
#undef TG__CALL
};

/* NULL: not in use yet. */
const struct tg__library *tg__library_opened(void);
/* Opens it if a tag is named for the program, else uses it if somebody has opened it: who pushed a
 * scope has. NULL: nobody has, or it cannot be used, which a line on stderr says once. Keeps errno.
 */
const struct tg__library *tg__library_open(void);
/* The same where a call is ours whether a tag is named or not. */
const struct tg__library *tg__library_need(void);
/* Of the library's statuses: what a program understands as out of memory; */
bool tg__is_out_of_memory(int status);
/* and where it gets the same answer from the runtime or the driver. */
bool tg__is_runtimes(int status);

/* ---- refusal.c ------------------------------------------------------------------------------- */

/* A request is answered with out of memory, for the thread's last error of the library: a line of
 * who holds what goes where TIDEGATE_OUT says. Keeps errno. */
void tg__refusal_note(const struct tg__library *library, const struct tg_process_request *request);

/* ---- lasterror.c ----------------------------------------------------------------------------- */

/* Makes `result` the thread's last error in the caller's runtime; returns it. */
int tg__error_set(int result, const void *caller);

/* ---- peers.c --------------------------------------------------------------------------------- */

/* Tells a library that has just been opened what peers were given before. */
void tg__peers_tell(const struct tg__library *library);

/* ---- allochook.c ----------------------------------------------------------------------------- */

/* As the runtime's own calls that give memory, makes the device's context the thread's, and answers
 * what is wrong with it. Not in a capture: then there is a context. */
int tg__context_make(const void *caller);
/* As the runtime's own calls that take memory back, waits for a device, and answers what is wrong
 * with work that was given to it before. Not in a capture: then the memory rests. True: all has
 * ended. */
bool tg__device_wait(int device, const void *caller, int *result);

/* ---- capture.c ------------------------------------------------------------------------------- */

/* Captures of this process that are under way. */
extern int tg__captures;

#endif
