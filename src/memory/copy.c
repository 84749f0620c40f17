/* SPDX-License-Identifier: Apache-2.0 */
/* Content between the device and its host copies, in the memory's own queue. Blocks that are
 * neighbours here and there are one copy, so that its speed is that of the link. */
#include "memory/state.h"

#include <inttypes.h>

#include "base/error.h"
#include "memory/checksum.h"

/* A copy that takes longer than this is stuck: ten seconds, and 100 MiB/s. */
static uint32_t limit_ms(uint64_t size_bytes) {
    return 10000 + (uint32_t)(size_bytes >> 20) * 10;
}

/* Whether `next` continues, here and there, what begins with `first` and is size_bytes long so far.
 * Not over the end of a reservation. */
static bool continues(const struct tg__block *first, uint64_t size_bytes,
                      const struct tg__block *next) {
    return tg__is_one_reservation(first->tag, first->estate, next->estate) &&
           next->segment == first->segment &&
           next->range.addr == first->range.addr + size_bytes &&
           next->copy == first->copy + size_bytes;
}

/* Where what is `done_bytes` into a block's copy lies, and how much follows it there: the copy has
 * nothing of the block's holes. */
static struct tg__range saved_run(const struct tg__block *block, uint64_t done_bytes) {
    uint64_t end = block->range.addr + block->size_bytes;
    struct tg__range run = {.addr = block->range.addr};

    while (tg__ranges_gap(&block->holes, tg__range_end(&run), end, &run) &&
           done_bytes >= run.size_bytes)
        done_bytes -= run.size_bytes;
    return (struct tg__range){run.addr + done_bytes, run.size_bytes - done_bytes};
}

/* To the block that has what comes next. */
static void advance(struct tg__copying *copying, uint64_t size_bytes) {
    const struct tg__plots *blocks = &copying->tag->blocks;

    copying->done_bytes += size_bytes;
    for (; copying->number < blocks->count; copying->number++) {
        uint64_t saved_bytes = tg__block_saved(blocks->items[copying->number]);

        if (copying->done_bytes < saved_bytes)
            return;
        copying->done_bytes -= saved_bytes;
    }
}

void tg__copy_begin(struct tg__copying *copying, struct tg_tag *tag, enum tg__copy_way way) {
    *copying = (struct tg__copying){.tag = tag, .way = way};
    tg__segments_rewind(tag);
    advance(copying, 0);
}

/* How much can be copied at once from where it stands: at most `most_bytes`. Blocks with holes are
 * alone in their reservations. */
static uint64_t piece_bytes(const struct tg__copying *copying, uint64_t most_bytes) {
    const struct tg__plots *blocks = &copying->tag->blocks;
    const struct tg__block *first = blocks->items[copying->number];
    uint64_t run_bytes = saved_run(first, copying->done_bytes).size_bytes;

    for (size_t i = copying->number + 1; i < blocks->count && run_bytes < most_bytes; i++) {
        const struct tg__block *next = blocks->items[i];

        if (!continues(first, copying->done_bytes + run_bytes, next))
            break;
        run_bytes += next->size_bytes;
    }
    return run_bytes < most_bytes ? run_bytes : most_bytes;
}

/* One copy, inside one step of the segment, of what lies below `end`. */
static int copy_piece(struct tg__copying *copying, uint64_t end, uint64_t *copied_bytes) {
    struct tg_memory *memory = copying->tag->memory;
    const struct tg__block *block = copying->tag->blocks.items[copying->number];
    struct tg__segment *segment = block->segment;
    unsigned char *copy = block->copy + copying->done_bytes;
    uint64_t addr = saved_run(block, copying->done_bytes).addr;
    size_t step = (size_t)(copy - segment->map.bytes) / segment->step_bytes;
    uint64_t step_left = (uint64_t)(segment->map.bytes + (step + 1) * segment->step_bytes - copy);
    uint64_t size_bytes = piece_bytes(copying, step_left < end - addr ? step_left : end - addr);
    void *there = (void *)(uintptr_t)addr;
    int rc = tg__segment_ready(segment, step);

    if (rc == 0 && copying->way == TG__COPY_SAVE)
        rc = memory->ops->copy(memory->device, copy, there, size_bytes, memory->queue);
    else if (rc == 0)
        rc = memory->ops->copy(memory->device, there, copy, size_bytes, memory->queue);
    if (rc != 0)
        return rc;
    *copied_bytes += size_bytes;
    advance(copying, size_bytes);
    return 0;
}

int tg__copy_until(struct tg__copying *copying, uint64_t end, uint64_t *copied_bytes) {
    const struct tg__plots *blocks = &copying->tag->blocks;
    int rc = 0;

    while (rc == 0 && copying->number < blocks->count &&
           saved_run(blocks->items[copying->number], copying->done_bytes).addr < end)
        rc = copy_piece(copying, end, copied_bytes);
    return rc;
}

static void shut_chunks(struct tg_memory *memory, struct tg__plots *chunks) {
    for (size_t i = 0; i < chunks->count; i++) {
        struct tg__chunk *chunk = chunks->items[i];

        tg__gate_shut(memory, &chunk->gate, memory->queue);
    }
}

/* What a copy that is stuck may still read or write: a save reads the chunks of a tag that is awake
 * again at once, and whose blocks may be freed. */
static void shut_gates(struct tg_memory *memory, struct tg_tag *chosen) {
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        for (struct tg__segment *segment = tag->segments; segment != NULL;
             segment = segment->next)
            tg__gate_shut(memory, &segment->gate, memory->queue);
        shut_chunks(memory, &tag->chunks);
        shut_chunks(memory, &tag->fresh);
    }
}

static int wait_for_queue(struct tg_memory *memory, uint64_t size_bytes) {
    struct tg_fence fence;
    int rc = memory->ops->fence(memory->device, memory->queue, &fence);

    if (rc == 0)
        rc = memory->ops->wait(memory->device, &fence, limit_ms(size_bytes));
    return rc;
}

int tg__copy_end(struct tg_memory *memory, struct tg_tag *chosen, uint64_t copied_bytes,
                 int status) {
    struct tg_error why = *tg_last_error();
    int rc = copied_bytes == 0 ? 0 : wait_for_queue(memory, copied_bytes);

    if (rc != 0) {
        if (status == 0)
            why = *tg_last_error();
        shut_gates(memory, chosen);
    }
    if (status == 0)
        status = rc;
    if (status != 0)
        tg__fail_as(&why);
    return status;
}

int tg__copy_zero(struct tg_memory *memory, struct tg__range range) {
    int rc = memory->ops->fill(memory->device, range.addr, 0, range.size_bytes, memory->queue);

    return rc != 0 ? rc : wait_for_queue(memory, range.size_bytes);
}

void tg__copy_sum(struct tg_tag *tag) {
    for (size_t i = 0; i < tag->blocks.count; i++) {
        struct tg__block *block = tag->blocks.items[i];

        if (block->segment != NULL) /* else all of it is a hole */
            block->checksum = tg__checksum(block->copy, tg__block_saved(block));
    }
}

int tg__copy_verify(struct tg_tag *tag) {
    for (size_t i = 0; i < tag->blocks.count; i++) {
        const struct tg__block *block = tag->blocks.items[i];

        if (block->segment != NULL &&
            tg__checksum(block->copy, tg__block_saved(block)) != block->checksum)
            return tg__fail(TG_ECONTENT,
                            "the host copy of the block at %#" PRIx64 " (%" PRIu64
                            " bytes, tag '%s') is not what was saved",
                            block->range.addr, block->size_bytes, tag->name);
    }
    return 0;
}
