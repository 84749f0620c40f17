/* SPDX-License-Identifier: Apache-2.0 */
/* Trim: ranges of blocks that nobody wants the content of give their granules back: see move.c.
 * They come back with tg_memory_refill, which is a wake (wake.c), or with the wake of their tag. */
#include <errno.h>
#include <inttypes.h>

#include "base/error.h"
#include "base/receipt.h"
#include "device/captures.h"
#include "memory/move.h"

struct trim {
    struct tg_memory *memory;
    const struct tg_range *ranges;
    size_t count;
    struct tg_tag *chosen;  /* tags with something to trim */
    struct tg__ranges idle; /* whole granules of them */
    uint64_t left_bytes;    /* in blocks that are left alone */
};

static bool is_chosen(const struct trim *trim, const struct tg_tag *tag) {
    const struct tg_tag *chosen = trim->chosen;

    while (chosen != NULL && chosen != tag)
        chosen = chosen->next_chosen;
    return chosen != NULL;
}

/* A block that lies alone in its reservation, and that nobody else knows. */
static bool is_trimmable(const struct trim *trim, const struct tg__block *block) {
    const struct tg_tag *tag = block->tag;

    return !tag->params.packed && block->estate == NULL && block->chunk == NULL &&
           (tag->state == TG_TAG_AWAKE || is_chosen(trim, tag));
}

static struct tg__range granules_inside(const struct tg_memory *memory,
                                        const struct tg_range *range) {
    uint64_t unit = memory->granule_bytes, end = (range->addr + range->size_bytes) / unit * unit;
    struct tg__range inside = {.addr = (range->addr + unit - 1) / unit * unit};

    inside.size_bytes = end > inside.addr ? end - inside.addr : 0;
    return inside;
}

static int fail_order(const struct tg_range *range, uint64_t end) {
    return tg__fail(-EINVAL, "the range at %#" PRIx64 " begins before %#" PRIx64
                    ", the end of the one before it", range->addr, end);
}

static int check_inside(const struct tg__block *block, const struct tg_range *range) {
    uint64_t left_bytes;

    if (block == NULL || block->is_freed)
        return tg__fail(-EINVAL, "%#" PRIx64 " lies in no block of this memory", range->addr);
    left_bytes = block->range.addr + block->size_bytes;
    left_bytes = left_bytes > range->addr ? left_bytes - range->addr : 0;
    if (range->size_bytes == 0 || range->size_bytes > left_bytes)
        return tg__fail(-EINVAL,
                        "%" PRIu64 " bytes at %#" PRIx64 " are not inside the block there, which "
                        "has %" PRIu64 " from there on",
                        range->size_bytes, range->addr, left_bytes);
    return 0;
}

/* Before the tags are still: chooses them. With lock. */
static int look_at(struct trim *trim, const struct tg__block *block, struct tg__range inside) {
    if (!is_trimmable(trim, block)) {
        trim->left_bytes += inside.size_bytes;
    } else if (!is_chosen(trim, block->tag)) {
        block->tag->next_chosen = trim->chosen;
        trim->chosen = block->tag;
    }
    return 0;
}

/* Afterwards: nothing comes or goes in them any more. What is a hole already has no chunk, and is
 * passed over. With lock. */
static int take(struct trim *trim, const struct tg__block *block, struct tg__range inside) {
    if (!is_trimmable(trim, block) || !is_chosen(trim, block->tag))
        return 0;
    return tg__ranges_add(&trim->idle, inside, NULL);
}

static int each_range(struct trim *trim, int (*act)(struct trim *trim,
                                                    const struct tg__block *block,
                                                    struct tg__range inside)) {
    uint64_t end = 0;
    int rc = 0;

    pthread_mutex_lock(&trim->memory->lock);
    for (size_t i = 0; i < trim->count && rc == 0; i++) {
        const struct tg_range *range = &trim->ranges[i];
        const struct tg__block *block = tg__tag_block(trim->memory, range->addr, NULL);
        struct tg__range inside;

        rc = range->addr < end ? fail_order(range, end) : check_inside(block, range);
        if (rc != 0)
            break;
        end = range->addr + range->size_bytes;
        inside = granules_inside(trim->memory, range);
        if (inside.size_bytes > 0)
            rc = act(trim, block, inside);
    }
    pthread_mutex_unlock(&trim->memory->lock);
    return rc;
}

static int trim_chosen(struct tg__report *report, struct trim *trim, uint32_t wait_ms) {
    int rc = tg__quiet_begin(report, trim->chosen, wait_ms);

    if (rc != 0)
        return rc;
    rc = each_range(trim, take);
    if (rc == 0)
        rc = tg__chunks_move(report, trim->chosen, &trim->idle);
    tg__quiet_end(report, trim->chosen);
    tg__ranges_free(&trim->idle);
    return rc;
}

/* With turn. */
static int trim_ranges(struct tg__report *report, struct trim *trim, uint32_t wait_ms) {
    int rc;

    if (trim->memory->is_tried)
        return tg__fail(-EALREADY, "a wake of this memory waits for its end");
    if (tg__captures_are_open())
        return tg__fail(TG_ECAPTURE, "work of this process is being captured");
    rc = each_range(trim, look_at);
    if (rc == 0 && trim->left_bytes > 0)
        tg__receipt_add(report->receipt, "stays: cannot be trimmed", trim->left_bytes);
    return rc != 0 || trim->chosen == NULL ? rc : trim_chosen(report, trim, wait_ms);
}

int tg_memory_trim(struct tg_memory *memory, const struct tg_range *ranges, size_t count,
                   uint32_t wait_ms, struct tg_receipt *receipt) {
    struct trim trim = {.memory = memory, .ranges = ranges, .count = count};
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0 && ranges == NULL && count > 0)
        rc = tg__fail(-EINVAL, "%zu ranges are not at NULL", count);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = trim_ranges(&report, &trim, wait_ms);
        pthread_mutex_unlock(&memory->turn);
    }
    return tg__report_end(&report, rc);
}
