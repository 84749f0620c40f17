/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that give back what is idle in them, in a quiet section: its beginning, the moves, its
 * end. All with turn, on a report. */
#ifndef TG_MEMORY_MOVE_H
#define TG_MEMORY_MOVE_H

#include "memory/report.h"

/* Waits up to wait_ms for peers that start up, allocs in the awake tags, and the device's work;
 * then the tags' content is the caller's. Errors, which change nothing: those of
 * tg_memory_repack. */
int tg__quiet_begin(struct tg__report *report, struct tg_tag *chosen, uint32_t wait_ms);
/* From all chunks of the tags: `idle` is whole granules, in general tags inside blocks' sizes;
 * NULL: what each tag has spare. */
int tg__chunks_move(struct tg__report *report, struct tg_tag *chosen,
                    const struct tg__ranges *idle);
/* The tags are awake, or, where something is not mapped again, asleep with their chunks. */
void tg__quiet_end(struct tg__report *report, struct tg_tag *chosen);

#endif
