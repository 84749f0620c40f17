/* SPDX-License-Identifier: Apache-2.0 */
/* The pools of cudaMallocAsync: each device has its default one, which keeps all that was freed
 * into it, as one whose threshold is without a limit does, until it is trimmed. A request is served
 * with what is kept of exactly its size, else with new memory. Streams are not looked at: a free
 * waits. */
#include <stdbool.h>

#include "standin.h"

enum { PIECES = 64 };

struct tg__cupool {
    int device;
};

struct piece {
    unsigned long long addr; /* 0: none */
    size_t size_bytes;
    int device;
    bool is_idle;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next */
static struct piece pieces[PIECES];
static struct tg__cupool pools[STANDIN_DEVICES];

int cuDeviceGetDefaultMemPool(struct tg__cupool **pool, int device) {
    int result = standin_begin();

    if (result == 0 && standin_device(device) == NULL)
        return TG__CU_ERROR_INVALID_DEVICE;
    if (result == 0) {
        pools[device].device = device;
        *pool = &pools[device];
    }
    return result;
}

int cuMemPoolGetAttribute(struct tg__cupool *pool, int attribute, void *value) {
    int result = standin_begin();
    uint64_t *size_bytes = value;

    if (result != 0 || attribute != TG__CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        return result != 0 ? result : TG__CU_ERROR_INVALID_VALUE;
    *size_bytes = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < PIECES; i++)
        *size_bytes += pieces[i].device == pool->device ? pieces[i].size_bytes : 0;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* It keeps all in any case. */
int cuMemPoolSetAttribute(struct tg__cupool *pool, int attribute, void *value) {
    (void)pool;
    (void)attribute;
    (void)value;
    return standin_begin();
}

int cuMemPoolTrimTo(struct tg__cupool *pool, size_t kept_bytes) {
    struct tg_device *device = standin_device(pool->device);
    int result = standin_begin();

    if (result == 0 && kept_bytes != 0)
        return TG__CU_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < PIECES && result == 0; i++) {
        if (!pieces[i].is_idle || pieces[i].device != pool->device)
            continue;
        result = standin_free(device, pieces[i].addr);
        if (result == 0)
            pieces[i] = (struct piece){0};
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* With the mutex. */
static struct piece *find_piece(unsigned long long addr) {
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i].addr == addr)
            return &pieces[i];
    }
    return NULL;
}

/* With the mutex; what the pool keeps, else memory of its own. */
static int serve(int device, size_t size_bytes, unsigned long long *addr) {
    struct piece *place = find_piece(0);
    int result;

    for (int i = 0; i < PIECES; i++) {
        if (pieces[i].is_idle && pieces[i].device == device &&
            pieces[i].size_bytes == size_bytes) {
            pieces[i].is_idle = false;
            *addr = pieces[i].addr;
            return 0;
        }
    }
    if (place == NULL)
        return TG__CU_ERROR_OUT_OF_MEMORY;
    result = cuMemAlloc_v2(addr, size_bytes);
    if (result == 0)
        *place = (struct piece){*addr, size_bytes, device, false};
    return result;
}

int cuMemAllocAsync(unsigned long long *addr, size_t size_bytes, struct tg__custream *stream) {
    int device, result = cuCtxGetDevice(&device);

    (void)stream;
    if (result != 0)
        return result;
    if (size_bytes == 0)
        return TG__CU_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    result = serve(device, size_bytes, addr);
    pthread_mutex_unlock(&mutex);
    return result;
}

int standin_pool_keep(uint64_t addr) {
    struct piece *piece;
    int result = TG__CU_ERROR_NOT_FOUND;

    pthread_mutex_lock(&mutex);
    piece = find_piece(addr);
    if (piece != NULL) {
        result = piece->is_idle ? TG__CU_ERROR_INVALID_VALUE : 0;
        piece->is_idle = true;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Of what a pool gave, or not. */
int cuMemFreeAsync(unsigned long long addr, struct tg__custream *stream) {
    (void)stream;
    return addr == 0 ? TG__CU_ERROR_INVALID_VALUE : cuMemFree_v2(addr);
}
