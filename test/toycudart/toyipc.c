/* SPDX-License-Identifier: Apache-2.0 */
/* The toy runtime's own handles of memory for other processes, with the real one's numbers. What an
 * open gives is memory of its own, full of 90: enough to see whose a handle is. */
#include "toyipc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "toycudart.h"

#define MAGIC "toycuipc"

enum { PLACES = 256, LAZY_PEERS = 1 };

struct place {
    uintptr_t addr;
    size_t size_bytes;
    toyipc_handle opened; /* of what another process gave */
    int count;            /* opens; 0: our own */
};

struct content {
    char magic[8];
    int pid;
    uint64_t addr, size_bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct place places[PLACES];

static struct place *find(uintptr_t addr) {
    for (int i = 0; i < PLACES; i++) {
        if (places[i].addr != 0 && addr - places[i].addr < places[i].size_bytes)
            return &places[i];
    }
    return NULL;
}

static struct place *add(uintptr_t addr, size_t size_bytes) {
    for (int i = 0; i < PLACES; i++) {
        if (places[i].addr == 0) {
            places[i] = (struct place){.addr = addr, .size_bytes = size_bytes};
            return &places[i];
        }
    }
    return NULL;
}

void toyipc_note(void *addr, size_t size_bytes) {
    pthread_mutex_lock(&mutex);
    (void)add((uintptr_t)addr, size_bytes);
    pthread_mutex_unlock(&mutex);
}

void toyipc_forget(void *addr) {
    struct place *place;

    pthread_mutex_lock(&mutex);
    place = find((uintptr_t)addr);
    if (place != NULL && place->addr == (uintptr_t)addr)
        place->addr = 0;
    pthread_mutex_unlock(&mutex);
}

int cudaIpcGetMemHandle(toyipc_handle *handle, void *addr) {
    struct content content = {.magic = MAGIC, .pid = getpid()};
    const struct place *place;

    if (handle == NULL)
        return toy_fail(TOY_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    place = find((uintptr_t)addr);
    if (place != NULL) {
        content.addr = place->addr;
        content.size_bytes = place->size_bytes;
    }
    pthread_mutex_unlock(&mutex);
    if (place == NULL)
        return toy_fail(TOY_INVALID_VALUE);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &content, sizeof content);
    return 0;
}

/* What is open already, once more. */
static bool open_again(const toyipc_handle *handle, void **addr) {
    bool found = false;

    pthread_mutex_lock(&mutex);
    for (int i = 0; i < PLACES && !found; i++) {
        found = places[i].count > 0 && memcmp(&places[i].opened, handle, sizeof *handle) == 0;
        if (found) {
            places[i].count++;
            *addr = (void *)places[i].addr;
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

int cudaIpcOpenMemHandle(void **addr, toyipc_handle handle, unsigned flags) {
    struct content content;
    struct place *place;
    void *opened = NULL;
    int result;

    memcpy(&content, &handle, sizeof content);
    if (addr == NULL || (flags & ~(unsigned)LAZY_PEERS) != 0)
        return toy_fail(TOY_INVALID_VALUE);
    if (memcmp(content.magic, MAGIC, sizeof content.magic) != 0)
        return toy_fail(TOY_INVALID_HANDLE);
    if (content.pid == getpid())
        return toy_fail(TOY_INVALID_CONTEXT);
    if (open_again(&handle, addr))
        return 0;
    result = cudaMalloc(&opened, content.size_bytes);
    if (result != 0)
        return result;
    memset(opened, 90, content.size_bytes);
    pthread_mutex_lock(&mutex);
    place = find((uintptr_t)opened);
    place->opened = handle;
    place->count = 1;
    pthread_mutex_unlock(&mutex);
    *addr = opened;
    return 0;
}

int cudaIpcCloseMemHandle(void *addr) {
    struct place *place;
    int left = -1;

    pthread_mutex_lock(&mutex);
    place = find((uintptr_t)addr);
    if (place != NULL && place->count > 0 && place->addr == (uintptr_t)addr)
        left = --place->count;
    pthread_mutex_unlock(&mutex);
    if (left < 0)
        return toy_fail(TOY_INVALID_VALUE);
    return left > 0 ? 0 : cudaFree(addr);
}
