/* SPDX-License-Identifier: Apache-2.0 */
/* What the leak search keeps of one snapshot: for each stack that outlives a step's end, what it
 * held at each sample. Samples are moments of the history, the same for all devices:
 *
 *   0                 the start: where the first step began, or the history does
 *   1 ... steps       the end of each step found inside the file
 *   steps + 1         the end of the file, by its blocks */
#ifndef TG_SNAPSHOT_DIGEST_H
#define TG_SNAPSHOT_DIGEST_H

#include "base/saturate.h"
#include "snapshot/tables.h"

/* What one stack held at one moment. Signed: while a history is replayed, differences. */
struct tg__held {
    int64_t bytes, blocks;
};

/* Sums of a hostile file's sizes may pass 2^63: they wrap, and mean nothing, but are no fault. */
static inline int64_t tg__plus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t tg__minus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static inline uint64_t tg__not_negative(int64_t n) {
    return n > 0 ? (uint64_t)n : 0;
}

static inline void tg__held_add(struct tg__held *sum, struct tg__held more) {
    sum->bytes = tg__plus(sum->bytes, more.bytes);
    sum->blocks = tg__plus(sum->blocks, more.blocks);
}

struct tg_digest {
    struct tg_digest_info info;
    struct tg__budget budget; /* of `held`: places times steps */
    struct tg__places places; /* owns its texts */
    struct tg__vec stacks;    /* uint32_t: row to stack in places */
    struct tg__vec held;      /* struct tg__held, by row, then by sample */
    struct tg__vec old;       /* struct tg__held by sample: blocks from before the history that are
                                 freed in it; nobody knows their stacks */
    size_t samples;           /* steps + 2 */
    uint64_t oom_us;          /* of the event that info tells; without a clock 0 */
    uint64_t last_step_peak_bytes; /* of live bytes within the last whole step, else of all */
};

static inline const struct tg__held *tg__digest_row(const struct tg_digest *digest, size_t row) {
    return (const struct tg__held *)digest->held.items + row * digest->samples;
}

#endif
