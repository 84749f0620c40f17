/* SPDX-License-Identifier: Apache-2.0 */
/* What lies at an address, and reading a host copy while its tag sleeps. */
#include "memory/state.h"

#include <errno.h>
#include <inttypes.h>

#include "base/error.h"

static int find_copy(struct tg_memory *memory, uint64_t addr, const struct tg__block **found) {
    const struct tg__block *block = tg__tag_block(memory, addr, NULL);

    if (block == NULL || block->range.addr != addr || block->is_freed)
        return tg__fail(-EINVAL, "no block of this memory begins at %#" PRIx64, addr);
    if (block->tag->params.backup != TG_BACKUP_HOST)
        return tg__fail(-ENODATA, "tag '%s' has no host backup", block->tag->name);
    if (block->tag->state != TG_TAG_ASLEEP || block->chunk != NULL)
        return tg__fail(-ENODATA, "tag '%s' does not sleep: read the block itself",
                        block->tag->name);
    if (!block->tag->is_saved)
        return tg__fail(-ENODATA, "tag '%s' sleeps without its content", block->tag->name);
    if (block->holes.count > 0)
        return tg__fail(-ENODATA, "the block at %#" PRIx64 " was trimmed before it slept: what is "
                        "kept of it is not in one piece", addr);
    *found = block;
    return 0;
}

int tg_memory_hostcopy(struct tg_memory *memory, const void *block, const void **copy,
                       uint64_t *size_bytes) {
    const struct tg__block *found = NULL;
    int saved = errno, rc = tg__memory_check(memory);

    /* A broken device is no reason to withhold what was saved from it. */
    if (rc != 0 && rc != TG_EBROKEN)
        return rc;
    if (copy == NULL || size_bytes == NULL)
        return tg__fail(-EINVAL, "a host copy is told through two pointers, not through NULL");
    pthread_mutex_lock(&memory->lock);
    rc = find_copy(memory, (uintptr_t)block, &found);
    if (rc == 0) {
        *copy = found->copy;
        *size_bytes = found->size_bytes;
    }
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return rc;
}

int tg_memory_find(struct tg_memory *memory, const void *addr, struct tg_tag **tag, void **block,
                   uint64_t *size_bytes) {
    const struct tg__block *found;
    int saved = errno, rc = tg__memory_check(memory);

    if (rc != 0 && rc != TG_EBROKEN)
        return rc;
    pthread_mutex_lock(&memory->lock);
    found = tg__tag_block(memory, (uintptr_t)addr, NULL);
    rc = found != NULL && !found->is_freed ? 0 : -EINVAL;
    if (rc == 0 && tag != NULL)
        *tag = found->tag;
    if (rc == 0 && block != NULL)
        *block = (void *)(uintptr_t)found->range.addr;
    if (rc == 0 && size_bytes != NULL)
        *size_bytes = found->size_bytes;
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    if (rc != 0)
        return tg__fail(rc, "%p lies in no block of this memory", addr);
    return 0;
}
