/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime that is none, over whatever libcuda.so.1 is there: what the preload's tests need
 * of it, with the real one's numbers, names and versions of names. It is built as libcudart.so.12
 * and as libcudart.so.13, which know nothing of each other. */
#ifndef TEST_TOYCUDART_H
#define TEST_TOYCUDART_H

#include <stddef.h>

enum {
    TOY_SUCCESS = 0,
    TOY_INVALID_VALUE = 1,
    TOY_OUT_OF_MEMORY = 2,
    TOY_NOT_INITIALIZED = 3,
    TOY_INVALID_DEVICE = 101,
    TOY_INVALID_CONTEXT = 201,
    TOY_MAP_FAILED = 205,
    TOY_INVALID_HANDLE = 400,
    TOY_PEER_IS_ENABLED = 704,
    TOY_PEER_IS_NOT_ENABLED = 705,
    TOY_CAPTURE_INVALIDATED = 901
};

enum { TOY_NON_BLOCKING = 1, TOY_GLOBAL = 0, TOY_RELAXED = 2, TOY_LAZY_PEERS = 1 };

int cudaRuntimeGetVersion(int *version);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaDeviceSynchronize(void);
int cudaMalloc(void **addr, size_t size_bytes);
int cudaFree(void *addr);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaMallocManaged(void **addr, size_t size_bytes, unsigned flags);
int cudaMallocHost(void **addr, size_t size_bytes);
int cudaFreeHost(void *addr);
int cudaMallocAsync(void **addr, size_t size_bytes, void *stream);
int cudaFreeAsync(void *addr, void *stream);
int cudaFreeAsync_ptsz(void *addr, void *stream);
int cudaMallocPitch(void **addr, size_t *pitch, size_t width, size_t height);
int cudaMemsetAsync(void *addr, int byte, size_t size_bytes, void *stream);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamBeginCapture_ptsz(void *stream, int mode);
int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t node_count, int mode);
int cudaStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *nodes,
                                       const void *edges, size_t node_count, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamEndCapture_ptsz(void *stream, void **graph);
int cudaStreamIsCapturing(void *stream, int *status);

int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                            int *status);
int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
                                 int *status);
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status);
int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned version,
                                          unsigned long long flags, int *status);
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cudaDeviceDisablePeerAccess(int peer);

typedef struct {
    char reserved[64];
} toyipc_handle;

int cudaIpcGetMemHandle(toyipc_handle *handle, void *addr);
int cudaIpcOpenMemHandle(void **addr, toyipc_handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *addr);

/* How many calls of cudaMalloc and of cudaFree, that of NULL left out, have come to this one. */
void toyCalls(int *allocs, int *frees);

/* Inside: makes what is not 0 the thread's last error; returns it. */
int toy_fail(int result);

#endif
