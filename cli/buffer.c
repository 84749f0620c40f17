/* SPDX-License-Identifier: Apache-2.0 */
#include "buffer.h"

#include <string.h>
#include <sys/mman.h>

/* A multiple of every page size in use. */
#define STEP_BYTES ((size_t)64 << 10)
#define FIRST_BYTES ((size_t)4 << 20)

void buffer_init(struct buffer *buffer, struct budget_share *share) {
    memset(buffer, 0, sizeof *buffer);
    buffer->share = share;
}

static size_t whole_steps(size_t bytes) {
    return (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

/* By a quarter: a larger part would mostly stay empty, and count against the budget. */
enum buffer_result buffer_grow(struct buffer *buffer) {
    size_t wanted = buffer->room_bytes == 0 ? FIRST_BYTES : whole_steps(buffer->room_bytes / 4);
    uint64_t taken;
    size_t added;
    void *moved;

    switch (budget_take(buffer->share, STEP_BYTES, wanted, &taken)) {
    case BUDGET_TAKEN:
        break;
    case BUDGET_LATER:
        return BUFFER_LATER;
    case BUDGET_NEVER:
        return BUFFER_AT_LIMIT;
    }
    added = (size_t)taken / STEP_BYTES * STEP_BYTES;
    budget_return(buffer->share, taken - added);
    if (buffer->bytes == NULL)
        moved = mmap(NULL, added, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else
        moved = mremap(buffer->bytes, buffer->room_bytes, buffer->room_bytes + added,
                       MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        budget_return(buffer->share, added);
        return BUFFER_NO_MEMORY;
    }
    buffer->bytes = moved;
    buffer->room_bytes += added;
    /* Fewer faults while it is filled; a kernel without huge pages goes on without them. */
    (void)madvise(moved, buffer->room_bytes, MADV_HUGEPAGE);
    return BUFFER_GROWN;
}

void buffer_trim(struct buffer *buffer) {
    size_t kept = whole_steps(buffer->size_bytes);

    if (kept == 0 || kept == buffer->room_bytes)
        return;
    if (munmap(buffer->bytes + kept, buffer->room_bytes - kept) != 0)
        return; /* it stays mapped and counted */
    budget_return(buffer->share, buffer->room_bytes - kept);
    buffer->room_bytes = kept;
}

void buffer_free(struct buffer *buffer) {
    if (buffer->bytes != NULL) {
        munmap(buffer->bytes, buffer->room_bytes);
        budget_return(buffer->share, buffer->room_bytes);
    }
    buffer_init(buffer, buffer->share);
}
