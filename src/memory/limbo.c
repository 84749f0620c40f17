/* SPDX-License-Identifier: Apache-2.0 */
/* Limbo: freed blocks whose last users may still run. Unmapping does not wait for the device, and
 * callers free what queued work still uses; so a freed range is touched only when a fence that
 * began after its free has passed. */
#include "memory/state.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"

/* Blocks whose fence has not passed are asked about one by one, the oldest first; after so many the
 * rest is left for later. */
enum { LOOKS = 4 };

void tg__gate_shut(struct tg_memory *memory, struct tg__gate *gate, struct tg_queue *queue) {
    gate->is_shut = true;
    gate->is_fenced = memory->ops->fence(memory->device, queue, &gate->fence) == 0;
}

bool tg__gate_is_open(struct tg_memory *memory, struct tg__gate *gate) {
    int rc = 0;

    if (!gate->is_shut)
        return true;
    if (!gate->is_fenced)
        tg__gate_shut(memory, gate, NULL);
    if (gate->is_fenced)
        rc = memory->ops->wait(memory->device, &gate->fence, 0);
    if (rc != 0 && rc != TG_EBUSY)
        (void)!tg__memory_note(memory, rc);
    gate->is_shut = !gate->is_fenced || rc != 0;
    return !gate->is_shut;
}

void tg__limbo_add(struct tg__block *block) {
    struct tg_memory *memory = block->tag->memory;

    block->tag->limbo_bytes += block->range.size_bytes;
    block->next = NULL;
    *memory->limbo_end = block;
    memory->limbo_end = &block->next;
}

/* By a sleep or a wake. One that still drains has not begun to use the tables. */
static bool is_owned(const struct tg_tag *tag) {
    return tg__tag_is_moving(tag) && tag->state != TG_TAG_DRAINING;
}

void tg__limbo_look(struct tg_memory *memory) {
    struct tg__block **at = &memory->limbo;
    int looks = 0;

    while (*at != NULL) {
        struct tg__block *block = *at, *next = block->next;

        if (is_owned(block->tag) || (looks >= LOOKS && block->gate.is_shut)) {
            at = &block->next;
        } else if (!tg__gate_is_open(memory, &block->gate)) {
            looks++;
            at = &block->next;
        } else if (tg__arena_settle(block) != 0) {
            at = &block->next;
        } else {
            block->tag->limbo_bytes -= block->range.size_bytes;
            free(block);
            *at = next;
        }
    }
    memory->limbo_end = at;
}

void tg__limbo_settled(struct tg_memory *memory, uint64_t order) {
    for (struct tg__block *block = memory->limbo; block != NULL; block = block->next) {
        if (block->order <= order)
            block->gate.is_shut = false;
    }
}

void tg__limbo_settle(struct tg_memory *memory, uint32_t wait_ms) {
    uint64_t order = memory->frees;
    struct tg_fence fence;
    int rc;

    if (memory->limbo == NULL && memory->leaving == NULL && memory->graves == NULL)
        return;
    rc = memory->ops->fence(memory->device, NULL, &fence);
    if (rc == 0) {
        pthread_mutex_unlock(&memory->lock);
        rc = memory->ops->wait(memory->device, &fence, wait_ms);
        pthread_mutex_lock(&memory->lock);
    }
    if (rc == 0)
        tg__limbo_settled(memory, order);
    else
        (void)!tg__memory_note(memory, rc);
    tg__limbo_look(memory);
}
