/* SPDX-License-Identifier: Apache-2.0 */
/* The pool from which a driver serves cudaMallocAsync. It is the program's: nothing of it is ours
 * but that what it keeps for later goes back when memory is short. */
#include "base/error.h"
#include "device/cuda_device.h"

/* 0 where the driver does not tell. */
static uint64_t held_bytes(struct tg__cuda *cuda, struct tg__cupool *pool) {
    uint64_t size_bytes = 0;

    if (cuda->calls.cuMemPoolGetAttribute(pool, TG__CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                          &size_bytes) != 0)
        return 0;
    return size_bytes;
}

/* What the driver does in a capture is not written down: nothing is asked of it then. A device
 * without pools has nothing in them. */
int tg__cudapool_trim(struct tg__cuda *cuda, uint64_t *gained_bytes) {
    const struct tg__cuda_calls *calls = &cuda->calls;
    struct tg__cupool *pool = NULL;
    uint64_t before_bytes, after_bytes;
    int rc = tg__cudafence_mind_captures(cuda);

    if (rc != 0)
        return rc;
    *gained_bytes = 0;
    if (calls->cuDeviceGetDefaultMemPool(&pool, cuda->number) != 0)
        return 0;
    before_bytes = held_bytes(cuda, pool);
    rc = tg__cuda_status(cuda, calls->cuMemPoolTrimTo(pool, 0), "cuMemPoolTrimTo");
    if (rc != 0)
        return rc;
    after_bytes = held_bytes(cuda, pool);
    *gained_bytes = before_bytes > after_bytes ? before_bytes - after_bytes : 0;
    return 0;
}
