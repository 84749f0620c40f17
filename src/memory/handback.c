/* SPDX-License-Identifier: Apache-2.0 */
/* What a wake no longer needs of host memory goes back after its call: unpinning and unmapping take
 * as long as the copies took, and whoever woke has its content already.
 *
 * One thread, that ends with its list. Whatever makes host memory of this memory waits for it
 * first, and so does the close. Until a segment is gone it counts as held, for all readers. */
#include "memory/state.h"

#include "base/error.h"
#include "base/threads.h"

static uint64_t held_bytes(const struct tg__segment *segments) {
    uint64_t size_bytes = 0;

    for (; segments != NULL; segments = segments->next)
        size_bytes += segments->held_bytes;
    return size_bytes;
}

static void *give_back(void *argument) {
    struct tg_memory *memory = argument;

    tg__segments_bury(memory, memory->handback.segments);
    return NULL;
}

uint64_t tg__handback_begin(struct tg_memory *memory, struct tg__segment *detached) {
    struct tg__handback *handback = &memory->handback;
    uint64_t size_bytes = held_bytes(detached);

    if (detached == NULL)
        return 0;
    tg__handback_end(memory);
    handback->segments = detached;
    /* Where host memory is short, others are told only when there is some. */
    handback->is_begun = size_bytes >= handback->least_bytes &&
                         tg__charge_has_host_room(detached, size_bytes) &&
                         tg__thread_start(&handback->thread, give_back, memory) == 0;
    if (handback->is_begun)
        return size_bytes;
    tg__segments_bury(memory, detached);
    return 0;
}

void tg__handback_end(struct tg_memory *memory) {
    if (memory->handback.is_begun)
        pthread_join(memory->handback.thread, NULL);
    memory->handback.is_begun = false;
}
