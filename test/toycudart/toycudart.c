/* SPDX-License-Identifier: Apache-2.0 */
/* Errors stay with the thread until they are asked for; a success leaves them. The context is the
 * device's primary one, made at the first call that needs it and the thread's from then on. */
#include "toycudart.h"
#include "toyipc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 8 };

/* A thread's own stream; the `_ptsz` forms mean it by NULL. */
#define OWN_STREAM ((void *)(uintptr_t)2)

static struct {
    int (*cuInit)(unsigned flags);
    int (*cuDeviceGetCount)(int *count);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuCtxSynchronize)(void);
    int (*cuMemAlloc_v2)(unsigned long long *addr, size_t size_bytes);
    int (*cuMemAllocAsync)(unsigned long long *addr, size_t size_bytes, void *stream);
    int (*cuMemFree_v2)(unsigned long long addr);
    int (*cuMemsetD8Async)(unsigned long long addr, unsigned char byte, size_t size_bytes,
                           void *stream);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamDestroy_v2)(void *stream);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuStreamIsCapturing)(void *stream, int *status);
    int (*cuGetProcAddress_v2)(const char *base, void **function, int version,
                               unsigned long long flags, int *query_status);
} driver;

static const struct {
    const char *name;
    void *call;
} wanted[] = {
    {"cuInit", &driver.cuInit},
    {"cuDeviceGetCount", &driver.cuDeviceGetCount},
    {"cuDevicePrimaryCtxRetain", &driver.cuDevicePrimaryCtxRetain},
    {"cuCtxGetCurrent", &driver.cuCtxGetCurrent},
    {"cuCtxSetCurrent", &driver.cuCtxSetCurrent},
    {"cuCtxSynchronize", &driver.cuCtxSynchronize},
    {"cuMemAlloc_v2", &driver.cuMemAlloc_v2},
    {"cuMemAllocAsync", &driver.cuMemAllocAsync},
    {"cuMemFree_v2", &driver.cuMemFree_v2},
    {"cuMemsetD8Async", &driver.cuMemsetD8Async},
    {"cuStreamCreate", &driver.cuStreamCreate},
    {"cuStreamDestroy_v2", &driver.cuStreamDestroy_v2},
    {"cuStreamBeginCapture_v2", &driver.cuStreamBeginCapture_v2},
    {"cuStreamEndCapture", &driver.cuStreamEndCapture},
    {"cuStreamIsCapturing", &driver.cuStreamIsCapturing},
    {"cuGetProcAddress_v2", &driver.cuGetProcAddress_v2},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next three */
static int started = -1; /* what starting answered; -1: not tried */
static pid_t owner;
static void *contexts[DEVICES];
static atomic_int allocs, frees;

static _Thread_local int last_error, current_device;

static int fail(int result) {
    if (result != 0)
        last_error = result;
    return result;
}

int toy_fail(int result) {
    return fail(result);
}

/* ---- starting -------------------------------------------------------------------------------- */

static int load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *call = library == NULL ? NULL : dlsym(library, wanted[i].name);

        if (call == NULL)
            return 35; /* insufficient driver */
        memcpy(wanted[i].call, &call, sizeof call);
    }
    return driver.cuInit(0);
}

static int make_context(void) {
    if (started == -1) {
        started = load();
        owner = getpid();
    }
    if (started != 0)
        return started;
    if (owner != getpid())
        return TOY_NOT_INITIALIZED;
    return contexts[current_device] != NULL
               ? 0
               : driver.cuDevicePrimaryCtxRetain(&contexts[current_device], current_device);
}

static int begin(void) {
    int result;

    pthread_mutex_lock(&mutex);
    result = make_context();
    pthread_mutex_unlock(&mutex);
    return result != 0 ? result : driver.cuCtxSetCurrent(contexts[current_device]);
}

int cudaRuntimeGetVersion(int *version) {
    *version = TOY_VERSION * 1000;
    return 0;
}

int cudaGetDevice(int *device) {
    *device = current_device;
    return 0;
}

int cudaSetDevice(int device) {
    int count = 0, result = begin();

    if (result == 0)
        result = driver.cuDeviceGetCount(&count);
    if (result == 0 && (device < 0 || device >= count))
        result = TOY_INVALID_DEVICE;
    if (result == 0) {
        current_device = device;
        result = begin();
    }
    return fail(result);
}

int cudaDeviceSynchronize(void) {
    int result = begin();

    return fail(result != 0 ? result : driver.cuCtxSynchronize());
}

/* ---- the driver's functions by name ---------------------------------------------------------- */

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status) {
    int result = begin();

    if (result != 0)
        return fail(result);
    /* What is not there is no error: the function is NULL. */
    (void)!driver.cuGetProcAddress_v2(symbol, function, (int)version, flags, status);
    return 0;
}

int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                            int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, TOY_VERSION * 1000, flags, status);
}

int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
                                 int *status) {
    return cudaGetDriverEntryPoint(symbol, function, flags, status);
}

int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned version,
                                          unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status);
}

/* The current device's access to its peer's memory. */
static int change_peer(int peer, bool is_on) {
    static atomic_uint enabled[DEVICES];
    int count = 0, result = begin();
    unsigned bit = 1U << (peer & 31);
    bool was_on;

    if (result == 0)
        result = driver.cuDeviceGetCount(&count);
    if (result == 0 && (peer < 0 || peer >= count || peer == current_device))
        result = TOY_INVALID_DEVICE;
    if (result != 0)
        return fail(result);
    was_on = ((is_on ? atomic_fetch_or(&enabled[current_device], bit)
                     : atomic_fetch_and(&enabled[current_device], ~bit)) & bit) != 0;
    if (is_on && was_on)
        return fail(TOY_PEER_IS_ENABLED);
    return is_on || was_on ? 0 : fail(TOY_PEER_IS_NOT_ENABLED);
}

int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)flags;
    return change_peer(peer, true);
}

int cudaDeviceDisablePeerAccess(int peer) {
    return change_peer(peer, false);
}

/* ---- memory ---------------------------------------------------------------------------------- */

int cudaMalloc(void **addr, size_t size_bytes) {
    unsigned long long made = 0;
    int result = begin();
    bool began = result == 0;

    allocs++;
    if (result == 0 && addr == NULL)
        result = TOY_INVALID_VALUE;
    if (result == 0 && size_bytes > 0)
        result = driver.cuMemAlloc_v2(&made, size_bytes);
    if (began && addr != NULL) /* NULL, where there is no memory */
        *addr = (void *)(uintptr_t)made;
    if (result == 0 && made != 0)
        toyipc_note(*addr, size_bytes);
    return fail(result);
}

/* From the driver's pool, to which each free of it goes back. */
int cudaMallocAsync(void **addr, size_t size_bytes, void *stream) {
    unsigned long long made = 0;
    int result = begin();

    if (result == 0 && addr == NULL)
        result = TOY_INVALID_VALUE;
    if (result == 0 && size_bytes > 0)
        result = driver.cuMemAllocAsync(&made, size_bytes, stream);
    if (addr != NULL)
        *addr = (void *)(uintptr_t)made;
    return fail(result);
}

/* Of whatever device: the stand-in frees only what is the current context's. */
static int free_anywhere(void *addr) {
    int result = TOY_INVALID_VALUE;

    for (int i = 0; i < DEVICES && result == TOY_INVALID_VALUE; i++) {
        if (contexts[i] != NULL && driver.cuCtxSetCurrent(contexts[i]) == 0)
            result = driver.cuMemFree_v2((uintptr_t)addr);
    }
    driver.cuCtxSetCurrent(contexts[current_device]);
    return result;
}

int cudaFree(void *addr) {
    int result = begin();

    frees += addr != NULL;
    if (result == 0) /* a free waits, if only for nothing */
        result = addr != NULL ? free_anywhere(addr) : driver.cuCtxSynchronize();
    if (result == 0 && addr != NULL)
        toyipc_forget(addr);
    return fail(result);
}

int cudaMemsetAsync(void *addr, int byte, size_t size_bytes, void *stream) {
    int result = begin();

    return fail(result != 0 ? result
                            : driver.cuMemsetD8Async((uintptr_t)addr, (unsigned char)byte,
                                                     size_bytes, stream));
}

void toyCalls(int *allocs_seen, int *frees_seen) {
    *allocs_seen = allocs;
    *frees_seen = frees;
}

int cudaGetLastError(void) {
    int result = last_error;

    last_error = 0;
    return result;
}

int cudaPeekAtLastError(void) {
    return last_error;
}

/* ---- streams --------------------------------------------------------------------------------- */

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    int result = begin();

    return fail(result != 0 ? result : driver.cuStreamCreate(stream, flags));
}

int cudaStreamDestroy(void *stream) {
    int result = begin();

    return fail(result != 0 ? result : driver.cuStreamDestroy_v2(stream));
}

/* The thread's own, under its name. */
static void *named(void *stream) {
    static _Thread_local void *own;

    if (stream != OWN_STREAM)
        return stream;
    if (own == NULL)
        driver.cuStreamCreate(&own, TOY_NON_BLOCKING);
    return own;
}

static void *own(void *stream) {
    return stream == NULL ? OWN_STREAM : stream;
}

int cudaStreamBeginCapture(void *stream, int mode) {
    int result = begin();

    return fail(result != 0 ? result : driver.cuStreamBeginCapture_v2(named(stream), mode));
}

int cudaStreamBeginCapture_ptsz(void *stream, int mode) {
    return cudaStreamBeginCapture(own(stream), mode);
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t node_count, int mode) {
    (void)graph;
    (void)nodes;
    (void)edges;
    (void)node_count;
    return cudaStreamBeginCapture(stream, mode);
}

int cudaStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *nodes,
                                       const void *edges, size_t node_count, int mode) {
    return cudaStreamBeginCaptureToGraph(own(stream), graph, nodes, edges, node_count, mode);
}

/* Without a place for the graph the capture goes on. */
int cudaStreamEndCapture(void *stream, void **graph) {
    int result = begin();

    if (result == 0 && graph == NULL)
        result = TOY_INVALID_VALUE;
    return fail(result != 0 ? result : driver.cuStreamEndCapture(named(stream), graph));
}

int cudaStreamEndCapture_ptsz(void *stream, void **graph) {
    return cudaStreamEndCapture(own(stream), graph);
}

int cudaStreamIsCapturing(void *stream, int *status) {
    int result = begin();

    return fail(result != 0 ? result : driver.cuStreamIsCapturing(named(stream), status));
}
