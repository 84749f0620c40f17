/* SPDX-License-Identifier: Apache-2.0 */
/* A memory from its opening to its closing, and what every function of it begins and ends with: may
 * this process use it, has the device failed for good, what can be given back meanwhile. */
#include "memory/page.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numa.h"
#include "base/threads.h"
#include "device/device.h"
#include "memory/agent.h"
#include "memory/export.h"
#include "memory/import.h"

/* A packed tag's smallest chunk: small against the device, no more than a few small blocks need. */
#define LEAST_CHUNK_BYTES (UINT64_C(64) << 20)
#define LEAST_CHUNK_SHARE 64
/* Host memory is touched, pinned and copied in steps of this size: below it pinning costs more by
 * the byte, above it the link waits longer for the first. */
#define STEP_BYTES ((size_t)256 << 20)
/* Another process may be late, and a program cannot wait for one that is stopped. */
enum { OPEN_WAIT_MS = 10000 };

/* ---- opening --------------------------------------------------------------------------------- */

static int ask_device(struct tg_memory *memory) {
    struct tg_device_info info;
    uint64_t free_bytes, share_bytes;
    int rc = memory->ops->info(memory->device, &info);

    if (rc == 0)
        rc = memory->ops->memory(memory->device, &free_bytes, &memory->total_bytes);
    if (rc == 0)
        rc = memory->ops->queue_open(memory->device, &memory->queue);
    if (rc != 0)
        return rc;
    memory->can_export = (info.can & TG_DEVICE_EXPORT) != 0;
    memory->granule_bytes = info.granule_bytes;
    share_bytes = memory->total_bytes / LEAST_CHUNK_SHARE / info.granule_bytes *
                  info.granule_bytes;
    memory->least_chunk_bytes = share_bytes < LEAST_CHUNK_BYTES ? share_bytes : LEAST_CHUNK_BYTES;
    return 0;
}

static atomic_uint numbers;

int tg_memory_open(struct tg_device *device, struct tg_tenant *tenant, struct tg_memory **memory) {
    struct tg_memory *opened;
    int rc;

    if (device == NULL || memory == NULL)
        return tg__fail(-EINVAL, "a memory needs a device, and is opened into a pointer");
    opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return tg__fail_memory();
    opened->device = device;
    opened->ops = tg_device_ops(device);
    opened->tenant = tenant;
    opened->step_bytes = STEP_BYTES;
    opened->open_wait_ms = OPEN_WAIT_MS;
    opened->handback.least_bytes = STEP_BYTES;
    opened->has_near = tg__numa_cpus("", tg__device_pci(device), &opened->near);
    opened->pid = getpid();
    opened->limbo_end = &opened->limbo;
    opened->number = atomic_fetch_add(&numbers, 1);
    tg__handles_init(&opened->pages);
    atomic_init(&opened->is_alone, tenant == NULL);
    atomic_flag_clear(&opened->has_warned);
    rc = ask_device(opened);
    if (rc != 0) {
        free(opened);
        return rc;
    }
    pthread_mutex_init(&opened->turn, NULL);
    pthread_mutex_init(&opened->lock, NULL);
    tg__condition_init(&opened->left);
    *memory = opened;
    return 0;
}

/* ---- for all --------------------------------------------------------------------------------- */

int tg__memory_check(struct tg_memory *memory) {
    if (memory == NULL)
        return tg__fail(-EINVAL, "there is no memory: NULL was given");
    if (getpid() != memory->pid)
        return tg__fail(TG_EFORKED, "this memory is its parent's: a forked child has none");
    if (atomic_load(&memory->is_broken))
        return tg__fail(TG_EBROKEN, "the device has failed for good: blocks can only be freed");
    return 0;
}

int tg__memory_note(struct tg_memory *memory, int status) {
    if (status == TG_EBROKEN)
        atomic_store(&memory->is_broken, true);
    return status;
}

int tg__memory_done(struct tg_memory *memory, int status, const struct tg_error *before) {
    if (status == 0)
        tg__fail_as(before);
    return tg__memory_note(memory, status);
}

void tg__memory_tidy(struct tg_memory *memory) {
    const struct tg_error before = *tg_last_error();

    tg__exports_look(memory);
    tg__imports_retry(memory);
    tg__limbo_look(memory);
    tg__chunks_retry(memory);
    tg__segments_retry(memory);
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        if (tag->blocks.count == 0 && tag->chunks.count == 0 && tag->allocs == 0)
            tg__arena_shrink(tag);
    }
    tg__estates_retry(memory);
    tg__fail_as(&before);
}

uint32_t tg__ms_left(uint64_t deadline_ns) {
    uint64_t now = tg__clock_ns();

    return now >= deadline_ns ? 0
                              : (uint32_t)((deadline_ns - now + TG__NS_PER_MS - 1) / TG__NS_PER_MS);
}

/* ---- closing --------------------------------------------------------------------------------- */

static void retire_all(struct tg_tag *tag) {
    while (tag->blocks.count > 0) {
        struct tg__block *block = tag->blocks.items[tag->blocks.count - 1];

        block->order = ++tag->memory->frees;
        block->gate.is_shut = true;
        tg__block_retire(block, tag->blocks.count - 1);
    }
}

/* What the device still uses or did not take back stays with it: chunks go when it is closed, and
 * host copies, which it may still read, with the process. */
static void free_lists(struct tg_memory *memory) {
    while (memory->limbo != NULL) {
        struct tg__block *block = memory->limbo;

        memory->limbo = block->next;
        free(block);
    }
    while (memory->leaving != NULL) {
        struct tg__chunk *chunk = memory->leaving;

        memory->leaving = chunk->next;
        free(chunk);
    }
    while (memory->graves != NULL) {
        struct tg__segment *segment = memory->graves;

        memory->graves = segment->next;
        tg__ranges_free(&segment->gaps);
        free(segment);
    }
}

static void free_tag(struct tg_tag *tag) {
    tg__segments_drop(tag);
    tg__arena_shrink(tag);
    for (size_t i = 0; i < tag->chunks.count; i++)
        free(tag->chunks.items[i]);
    tg__plots_free(&tag->blocks);
    tg__plots_free(&tag->kept);
    tg__plots_free(&tag->chunks);
    tg__plots_free(&tag->fresh);
    tg__ranges_free(&tag->spans);
    tg__ranges_free(&tag->vacant);
    tg__ranges_free(&tag->spare);
    tg__ranges_free(&tag->blank);
    free(tag);
}

void tg_memory_close(struct tg_memory *memory) {
    int saved = errno;

    if (memory == NULL || getpid() != memory->pid)
        return;
    tg__memory_unlist(memory);
    tg_memory_wake_end(memory, 0);
    tg__handback_end(memory);
    tg__agent_leave(memory);
    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next)
        retire_all(tag);
    tg__imports_drop(memory);
    tg__pages_free(memory);
    tg__limbo_settle(memory, TG__CLOSE_MS);
    tg__memory_tidy(memory);
    while (memory->tags != NULL) {
        struct tg_tag *tag = memory->tags;

        memory->tags = tag->next;
        free_tag(tag);
    }
    free_lists(memory);
    tg__estates_free(memory);
    pthread_mutex_unlock(&memory->lock);
    (void)!memory->ops->queue_close(memory->device, memory->queue);
    pthread_cond_destroy(&memory->left);
    pthread_mutex_destroy(&memory->lock);
    pthread_mutex_destroy(&memory->turn);
    free(memory);
    errno = saved;
}
