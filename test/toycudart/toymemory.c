/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that cudaMalloc did not give: the preload has nothing to do with it, and a program mixes
 * it with what it gave. What a call is not for is an invalid value, as on a card. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "toycudart.h"

enum { PLACES = 64, PITCH_BYTES = 512 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards of_host */
static void *of_host[PLACES];

static bool replace(const void *before, void *after) {
    bool is_done = false;

    pthread_mutex_lock(&mutex);
    for (int i = 0; i < PLACES && !is_done; i++) {
        is_done = of_host[i] == before;
        if (is_done)
            of_host[i] = after;
    }
    pthread_mutex_unlock(&mutex);
    return is_done;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    int (*get_info)(size_t *free_bytes, size_t *total_bytes) = NULL;
    int result = cudaFree(NULL); /* makes the context */
    void *library, *found;

    if (result != 0)
        return result;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    found = dlsym(library, "cuMemGetInfo_v2");
    memcpy(&get_info, &found, sizeof found);
    result = get_info(free_bytes, total_bytes);
    dlclose(library);
    return toy_fail(result);
}

int cudaMallocManaged(void **addr, size_t size_bytes, unsigned flags) {
    return addr == NULL || flags == 0 ? toy_fail(TOY_INVALID_VALUE) : cudaMalloc(addr, size_bytes);
}

int cudaMallocHost(void **addr, size_t size_bytes) {
    void *made = addr == NULL ? NULL : malloc(size_bytes);

    if (made == NULL || !replace(NULL, made)) {
        free(made);
        return toy_fail(addr == NULL ? TOY_INVALID_VALUE : TOY_OUT_OF_MEMORY);
    }
    *addr = made;
    return 0;
}

int cudaFreeHost(void *addr) {
    if (addr != NULL && !replace(addr, NULL))
        return toy_fail(TOY_INVALID_VALUE);
    free(addr);
    return 0;
}

/* What cudaMalloc gave, too. */
int cudaFreeAsync(void *addr, void *stream) {
    (void)stream;
    return addr == NULL ? toy_fail(TOY_INVALID_VALUE) : cudaFree(addr);
}

int cudaFreeAsync_ptsz(void *addr, void *stream) {
    return cudaFreeAsync(addr, stream);
}

int cudaMallocPitch(void **addr, size_t *pitch, size_t width, size_t height) {
    size_t wide = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    int result = pitch == NULL ? toy_fail(TOY_INVALID_VALUE) : cudaMalloc(addr, wide * height);

    if (result == 0)
        *pitch = wide;
    return result;
}
