/* SPDX-License-Identifier: Apache-2.0 */
/* Whose a call was shows by what it did: a block is one that libtidegate.so beside the preload
 * knows, a capture is counted if nothing can sleep while it is open, a function of the driver lies
 * in the preload. The calls are found as a program's are, in the order of its objects. */
#include "preload_probe.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/ipc.h>
#include <tidegate/process.h>

#include "verb.h"

#define MIB ((size_t)1 << 20)
enum { NON_BLOCKING = 1, RELAXED = 2, SLEEP_MS = 20000, DRIVER_VERSION = 12000 };
enum { OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201 };

typedef void (*any_fn)(void);

static struct {
    void *runtime;       /* its handle */
    const void *preload; /* where it lies; NULL: it is not in the process */
    const char *preload_path;
    void *library; /* NULL: the preload has not opened it */
    __typeof__(&tg_process_find) find;
    __typeof__(&tg_process_memory) process_memory;
    __typeof__(&tg_memory_sleep) sleep;
    __typeof__(&tg_memory_wake) wake;
    struct tg_memory *memory;
    void *stream;
} probe;

/* ---- finding --------------------------------------------------------------------------------- */

static any_fn front(const char *symbol) {
    void *found = dlsym(RTLD_DEFAULT, symbol);
    any_fn function;

    memcpy(&function, &found, sizeof function);
    return function;
}

/* The call under the runtime's name, for these parameters. */
#define CALLED(symbol, ...) ((int (*)(__VA_ARGS__))front(symbol))

const char *preload_call_symbol(unsigned call) {
    static const char *const symbols[] = {
#define CALL(name, symbol, what, expected) #symbol,
#include "preload_calls.def"
#undef CALL
    };

    return symbols[call];
}

static const void *base_of(const void *function, const char **path) {
    Dl_info info;

    if (function == NULL || dladdr(function, &info) == 0)
        return NULL;
    *path = info.dli_fname;
    return info.dli_fbase;
}

static bool is_there(enum preload_call call) {
    return dlsym(probe.runtime, preload_call_symbol(call)) != NULL;
}

static void tell(enum preload_call call, enum preload_outcome outcome, int code) {
    const char *path = "";

    if (outcome != OUTCOME_MISSING)
        (void)base_of(dlsym(RTLD_DEFAULT, preload_call_symbol(call)), &path);
    printf(PRELOAD_PROBE_MARK "call %d %d %d %s\n", (int)call, (int)outcome, code, path);
    fflush(stdout);
}

/* Of a call that answered `code`. */
static void tell_done(enum preload_call call, int code, bool is_ours) {
    tell(call, code != 0 ? OUTCOME_FAILED : is_ours ? OUTCOME_OURS : OUTCOME_PASSED_ON, code);
}

/* True: it is missing, which is told. */
static bool tell_missing(enum preload_call call) {
    if (!is_there(call))
        tell(call, OUTCOME_MISSING, 0);
    return !is_there(call);
}

static int note_object(struct dl_phdr_info *object, size_t size_bytes, void *argument) {
    size_t length = (size_t)(strrchr(probe.preload_path, '/') - probe.preload_path) + 1;

    (void)size_bytes;
    if (strcmp(object->dlpi_name, probe.preload_path) == 0)
        probe.preload = (const void *)object->dlpi_addr;
    if (strncmp(object->dlpi_name, probe.preload_path, length) == 0 &&
        strncmp(object->dlpi_name + length, "libtidegate.so", strlen("libtidegate.so")) == 0)
        *(const char **)argument = object->dlpi_name;
    return 0;
}

/* The library that the preload has opened, if it has. */
static void find_library(void) {
    const char *path = NULL;

    dl_iterate_phdr(note_object, &path);
    if (path == NULL || probe.library != NULL)
        return;
    probe.library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (probe.library == NULL)
        return;
    *(void **)&probe.find = dlsym(probe.library, "tg_process_find");
    *(void **)&probe.process_memory = dlsym(probe.library, "tg_process_memory");
    *(void **)&probe.sleep = dlsym(probe.library, "tg_memory_sleep");
    *(void **)&probe.wake = dlsym(probe.library, "tg_memory_wake");
    if (probe.process_memory == NULL || probe.process_memory(0, &probe.memory) != 0)
        probe.memory = NULL;
}

static bool is_block(void *addr) {
    int device;

    return probe.find != NULL && probe.find(addr, &device) == 0;
}

/* ---- memory and errors ----------------------------------------------------------------------- */

static int alloc(size_t size_bytes, void **addr) {
    *addr = NULL;
    return CALLED("cudaMalloc", void **, size_t)(addr, size_bytes);
}

static int release(void *addr) {
    return CALLED("cudaFree", void *)(addr);
}

static int take_error(void) {
    return CALLED("cudaGetLastError", void)();
}

static void try_memory(void) {
    bool was_ours;
    void *addr;
    int code = alloc(2 * MIB, &addr);

    find_library();
    was_ours = is_block(addr);
    tell_done(PRELOAD_CALL_alloc, code, was_ours);
    code = code == 0 ? release(addr) : code;
    tell_done(PRELOAD_CALL_free, code, was_ours && !is_block(addr));
    code = alloc(MIB / 2, &addr);
    was_ours = is_block(addr);
    tell_done(PRELOAD_CALL_alloc_small, code, was_ours);
    tell_done(PRELOAD_CALL_free_small, code == 0 ? release(addr) : code, was_ours);
    (void)take_error();
}

static void try_free_async(enum preload_call call) {
    bool was_ours;
    void *addr;
    int code;

    if (tell_missing(call))
        return;
    code = alloc(2 * MIB, &addr);
    was_ours = is_block(addr);
    if (code == 0)
        code = CALLED(preload_call_symbol(call), void *, void *)(addr, NULL);
    tell_done(call, code, was_ours && !is_block(addr));
    (void)take_error();
}

/* Whose a handle is stands in it. No process opens its own: who says so knows it. */
static void try_handles(void) {
    struct handle {
        char bytes[TG_IPC_TOKEN_BYTES];
    } handle = {{0}};
    bool is_missing = tell_missing(PRELOAD_CALL_ipc_token), is_ours;
    void *addr, *opened;
    int code;

    is_missing |= tell_missing(PRELOAD_CALL_ipc_open);
    is_missing |= tell_missing(PRELOAD_CALL_ipc_close);
    if (is_missing)
        return;
    code = alloc(2 * MIB, &addr);
    if (code == 0)
        code = CALLED("cudaIpcGetMemHandle", struct handle *, void *)(&handle, addr);
    is_ours = memcmp(handle.bytes, TG_IPC_MAGIC, strlen(TG_IPC_MAGIC)) == 0;
    tell_done(PRELOAD_CALL_ipc_token, code, is_ours);
    code = CALLED("cudaIpcOpenMemHandle", void **, struct handle, unsigned)(&opened, handle, 1);
    tell(PRELOAD_CALL_ipc_open, code == INVALID_CONTEXT && is_ours ? OUTCOME_OURS
                                : code == INVALID_CONTEXT          ? OUTCOME_PASSED_ON
                                                                   : OUTCOME_FAILED, code);
    code = CALLED("cudaIpcCloseMemHandle", void *)(addr);
    tell(PRELOAD_CALL_ipc_close, OUTCOME_PASSED_ON, code);
    (void)release(addr);
    (void)take_error();
}

static int lie_down(void) {
    return probe.memory == NULL ? TG_EASLEEP : probe.sleep(probe.memory, NULL, SLEEP_MS, NULL);
}

static int get_up(void) {
    return probe.wake(probe.memory, NULL, SLEEP_MS, NULL);
}

/* The runtime has room for it: who says no is the preload. */
static void try_errors(void) {
    bool sleeps = lie_down() == 0;
    void *addr;
    int code = alloc(2 * MIB, &addr), taken;

    tell(PRELOAD_CALL_alloc_asleep, code == OUT_OF_MEMORY ? OUTCOME_OURS
                                    : code == 0           ? OUTCOME_PASSED_ON
                                                          : OUTCOME_FAILED, code);
    taken = CALLED("cudaPeekAtLastError", void)();
    tell(PRELOAD_CALL_peek_error, taken == OUT_OF_MEMORY ? OUTCOME_OURS : OUTCOME_PASSED_ON, taken);
    taken = take_error();
    tell(PRELOAD_CALL_take_error,
         taken == OUT_OF_MEMORY && take_error() == 0 ? OUTCOME_OURS : OUTCOME_PASSED_ON, taken);
    if (code == 0)
        (void)release(addr);
    if (sleeps)
        (void)get_up();
}

/* ---- captures -------------------------------------------------------------------------------- */

/* While one is open nothing may wait for the device, and so nothing can sleep. */
static bool is_counted(void) {
    int status = lie_down();

    if (status == 0)
        (void)get_up();
    return status == TG_ECAPTURE;
}

static void *make_graph(void) {
    void *graph = NULL;

    if (dlsym(probe.runtime, "cudaGraphCreate") != NULL &&
        CALLED("cudaGraphCreate", void **, unsigned)(&graph, 0) != 0)
        return NULL;
    return graph;
}

static int begin_capture(enum preload_call call, void *stream) {
    if (call == PRELOAD_CALL_begin_capture || call == PRELOAD_CALL_begin_capture_own)
        return CALLED(preload_call_symbol(call), void *, int)(stream, RELAXED);
    return CALLED(preload_call_symbol(call), void *, void *, const void *, const void *, size_t,
                  int)(stream, make_graph(), NULL, NULL, 0, RELAXED);
}

/* `end` is told of where `tells`: two begins end by the same call. */
static void try_capture(enum preload_call begin, enum preload_call end, bool tells) {
    bool is_own = end == PRELOAD_CALL_end_capture_own, was_counted;
    void *stream = is_own ? NULL : probe.stream, *graph = NULL;
    int code;

    if (tell_missing(begin)) {
        if (tells)
            tell(end, is_there(end) ? OUTCOME_UNTRIED : OUTCOME_MISSING, 0);
        return;
    }
    code = begin_capture(begin, stream);
    was_counted = code == 0 && is_counted();
    tell_done(begin, code, was_counted);
    if (code == 0)
        code = CALLED(preload_call_symbol(end), void *, void **)(stream, &graph);
    if (tells)
        tell_done(end, code, was_counted && !is_counted());
    if (graph != NULL && dlsym(probe.runtime, "cudaGraphDestroy") != NULL)
        (void)CALLED("cudaGraphDestroy", void *)(graph);
    (void)take_error();
}

static void try_captures(void) {
    void *addr; /* what has to be waited for, before it can sleep */
    int code = alloc(2 * MIB, &addr);

    if (code == 0)
        code = CALLED("cudaStreamCreateWithFlags", void **, unsigned)(&probe.stream, NON_BLOCKING);
    try_capture(PRELOAD_CALL_begin_capture, PRELOAD_CALL_end_capture, true);
    try_capture(PRELOAD_CALL_begin_capture_own, PRELOAD_CALL_end_capture_own, true);
    try_capture(PRELOAD_CALL_begin_capture_to, PRELOAD_CALL_end_capture, false);
    try_capture(PRELOAD_CALL_begin_capture_to_own, PRELOAD_CALL_end_capture_own, false);
    tell_done(PRELOAD_CALL_destroy_stream,
              code == 0 ? CALLED("cudaStreamDestroy", void *)(probe.stream) : code, false);
    (void)release(addr);
}

/* ---- the driver's functions, and peers ------------------------------------------------------- */

static void try_entry(enum preload_call call, const char *name, bool takes_version) {
    const char *path = "";
    void *function = NULL;
    int code, status = 0;

    if (tell_missing(call))
        return;
    if (takes_version)
        code = CALLED(preload_call_symbol(call), const char *, void **, unsigned,
                      unsigned long long, int *)(name, &function, DRIVER_VERSION, 0, &status);
    else
        code = CALLED(preload_call_symbol(call), const char *, void **, unsigned long long, int *)(
            name, &function, 0, &status);
    tell_done(call, code, probe.preload != NULL && base_of(function, &path) == probe.preload);
}

/* Where there is no second device the runtime says so, and that it does is the answer. */
static void try_peer(void) {
    int code;

    if (tell_missing(PRELOAD_CALL_enable_peer) || tell_missing(PRELOAD_CALL_disable_peer))
        return;
    code = CALLED(preload_call_symbol(PRELOAD_CALL_enable_peer), int, unsigned)(1, 0);
    tell(PRELOAD_CALL_enable_peer, OUTCOME_PASSED_ON, code);
    code = CALLED(preload_call_symbol(PRELOAD_CALL_disable_peer), int)(1);
    tell(PRELOAD_CALL_disable_peer, OUTCOME_PASSED_ON, code);
    (void)take_error();
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Who has a cudaMalloc, in the order in which the loader looks. */
static void tell_order(void) {
    const struct link_map *object = dlopen(NULL, RTLD_LAZY);

    for (; object != NULL; object = object->l_next) {
        void *handle = object->l_name[0] == '\0' ? NULL
                                                 : dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
        const char *path = "";

        if (handle == NULL)
            continue;
        (void)base_of(dlsym(handle, "cudaMalloc"), &path);
        if (strcmp(path, object->l_name) == 0)
            printf(PRELOAD_PROBE_MARK "order %s\n", path);
        dlclose(handle);
    }
}

/* A name that the loader does not know is none that programs use. */
static void tell_unloaded(const char *path, const char *why) {
    if (strchr(path, '/') == NULL && strstr(why, "cannot open shared object file") != NULL)
        puts(PRELOAD_PROBE_MARK "absent");
    else
        printf(PRELOAD_PROBE_MARK "refused %s\n", why);
}

/* ": TEXT", of a runtime that has words for its errors. */
static const char *text_of(int code) {
    static char text[256];

    if (dlsym(probe.runtime, "cudaGetErrorString") != NULL)
        snprintf(text, sizeof text, ": %s",
                 ((const char *(*)(int))front("cudaGetErrorString"))(code));
    return text;
}

static bool open_runtime(const char *path) {
    const char *library = NULL;
    struct link_map *map;
    int version = 0, code;

    probe.runtime = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (probe.runtime == NULL) {
        tell_unloaded(path, dlerror());
        return false;
    }
    if (dlinfo(probe.runtime, RTLD_DI_LINKMAP, &map) == 0)
        printf(PRELOAD_PROBE_MARK "path %s\n", map->l_name);
    dl_iterate_phdr(note_object, &library);
    if (dlsym(probe.runtime, "cudaRuntimeGetVersion") != NULL &&
        CALLED("cudaRuntimeGetVersion", int *)(&version) == 0)
        printf(PRELOAD_PROBE_MARK "version %d\n", version);
    code = dlsym(probe.runtime, "cudaFree") == NULL ? -1 : release(NULL);
    if (code == 0)
        return true;
    printf(PRELOAD_PROBE_MARK "refused it answers %d%s\n", code, text_of(code));
    return false;
}

int preload_probe(char **argv) {
    if (argv[1] == NULL || argv[2] == NULL || strrchr(argv[2], '/') == NULL)
        return EXIT_WRONG;
    probe.preload_path = argv[2];
    if (!open_runtime(argv[1]))
        return EXIT_ANSWERED;
    tell_order();
    try_memory();
    try_free_async(PRELOAD_CALL_free_async);
    try_free_async(PRELOAD_CALL_free_async_own);
    try_handles();
    try_errors();
    try_captures();
    try_entry(PRELOAD_CALL_entry, "cuMemCreate", false);
    try_entry(PRELOAD_CALL_entry_own, "cuMemCreate", false);
    try_entry(PRELOAD_CALL_entry_by, "cuMemCreate", true);
    try_entry(PRELOAD_CALL_entry_by_own, "cuMemCreate", true);
    try_entry(PRELOAD_CALL_entry_other, "cuMemGetInfo", true);
    try_peer();
    return EXIT_ANSWERED;
}
