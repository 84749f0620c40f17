/* SPDX-License-Identifier: Apache-2.0 */
/* Replays the history of one device and says, for each stretch of life of a block, which samples it
 * spans. The final blocks are the truth: what the history does not explain was there before it. */
#ifndef TG_SNAPSHOT_REPLAY_H
#define TG_SNAPSHOT_REPLAY_H

#include "snapshot/digest.h"

struct tg__replay {
    /* In. */
    const struct tg_snapshot *snapshot;
    size_t device;
    const size_t *positions; /* by sample but the last: how many events come before it; ascending */
    size_t samples;
    struct tg_digest *digest; /* its rows are added to, by stack number of the snapshot */
    struct tg__map *rows;     /* stack number to row */
    /* Out. */
    uint64_t live_bytes, peak_bytes, last_step_peak_bytes;
    uint64_t oom_us, oom_asked_bytes, oom_free_bytes, oom_live_bytes; /* of the last one */
    bool has_oom;
};

/* Errors: -ENOMEM; TG_ELIMIT: more places times steps than a digest may hold. */
int tg__replay_run(struct tg__replay *replay);

/* What ends a block's life in this history: free_requested, or free_completed where the writer left
 * the other out (skip_actions). */
enum tg_action tg__freeing_action(const struct tg_event *events, size_t count);

/* Sizes are counted as torch rounds requests: to 512 bytes. */
static inline uint64_t tg__rounded(uint64_t size_bytes) {
    return size_bytes == 0 ? 512 : (size_bytes + 511) & ~(uint64_t)511;
}

#endif
