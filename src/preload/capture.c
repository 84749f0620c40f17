/* SPDX-License-Identifier: Apache-2.0 */
/* Captures that are under way, by stream: whoever would wait for the whole device asks the count.
 * A begin counts before it begins, so that nobody waits in between. An end that fails may have
 * ended its capture or not: the runtime knows. No lock, as everywhere here. */
#include <stdatomic.h>
#include <stdint.h>

#include "preload/hooks.h"

enum { STREAMS = 256 };

/* The runtime's name of a thread's own stream, which NULL means to the `_own` forms. */
#define OWN_STREAM ((void *)(uintptr_t)2)

/* One entry for each open capture; 0: free. Own streams of several threads have the same name. */
static _Atomic uintptr_t streams[STREAMS];

int tg__captures;

static void count(int change) {
    __atomic_add_fetch(&tg__captures, change, __ATOMIC_SEQ_CST);
}

static bool replace(uintptr_t before, uintptr_t after) {
    for (int i = 0; i < STREAMS; i++) {
        uintptr_t expected = before;

        if (atomic_compare_exchange_strong(&streams[i], &expected, after))
            return true;
    }
    return false;
}

static void forget(void *stream) {
    if (replace((uintptr_t)stream, 0))
        count(-1);
}

/* What finds no room in the list is not counted: no program has so many. */
static int begun(int result, void *stream) {
    if (result != 0 || !replace(0, (uintptr_t)stream))
        count(-1);
    return result;
}

static int ended(int result, void *stream, tg__is_capturing_fn is_capturing) {
    int status = 0;

    if (result == 0 || is_capturing == NULL || is_capturing(stream, &status) != 0 || status == 0)
        forget(stream);
    return result;
}

static void *own(void *stream) {
    return stream == NULL ? OWN_STREAM : stream;
}

int tg__hook_begin_capture(void *stream, int mode) {
    const void *caller = TG__CALLER();
    tg__begin_capture_fn next = TG__NEXT(begin_capture);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    count(1);
    return begun(next(stream, mode), stream);
}

int tg__hook_begin_capture_own(void *stream, int mode) {
    const void *caller = TG__CALLER();
    tg__begin_capture_own_fn next = TG__NEXT(begin_capture_own);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    count(1);
    return begun(next(stream, mode), own(stream));
}

int tg__hook_begin_capture_to(void *stream, void *graph, const void *nodes, const void *edges,
                              size_t node_count, int mode) {
    const void *caller = TG__CALLER();
    tg__begin_capture_to_fn next = TG__NEXT(begin_capture_to);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    count(1);
    return begun(next(stream, graph, nodes, edges, node_count, mode), stream);
}

int tg__hook_begin_capture_to_own(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t node_count, int mode) {
    const void *caller = TG__CALLER();
    tg__begin_capture_to_own_fn next = TG__NEXT(begin_capture_to_own);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    count(1);
    return begun(next(stream, graph, nodes, edges, node_count, mode), own(stream));
}

int tg__hook_end_capture(void *stream, void **graph) {
    const void *caller = TG__CALLER();
    tg__end_capture_fn next = TG__NEXT(end_capture);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return ended(next(stream, graph), stream, TG__NEXT(is_capturing));
}

int tg__hook_end_capture_own(void *stream, void **graph) {
    const void *caller = TG__CALLER();
    tg__end_capture_own_fn next = TG__NEXT(end_capture_own);

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    return ended(next(stream, graph), own(stream), TG__NEXT(is_capturing));
}

int tg__hook_destroy_stream(void *stream) {
    const void *caller = TG__CALLER();
    tg__destroy_stream_fn next = TG__NEXT(destroy_stream);
    int result;

    if (next == NULL)
        return TG__RUNTIME_NOT_INITIALIZED;
    result = next(stream);
    if (result == 0 && stream != NULL)
        forget(stream);
    return result;
}
