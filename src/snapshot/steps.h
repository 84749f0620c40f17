/* SPDX-License-Identifier: Apache-2.0 */
/* Where the steps of a program end inside one history.
 *
 * Sources, the first that says anything: a mark that the user names; ProfilerStep#N; the
 * optimizer's own annotations; a period found in the events. A boundary is a moment: a time where
 * the events have one, else a position in the longest history. */
#ifndef TG_SNAPSHOT_STEPS_H
#define TG_SNAPSHOT_STEPS_H

#include "base/vec.h"
#include "snapshot/tables.h"

struct tg__steps {
    enum tg_step_source source;
    double confidence;
    bool start_known;         /* the first boundary is where the first step begins */
    bool by_time;             /* else by position in `trace` */
    size_t trace;
    struct tg__vec boundaries; /* uint64_t, ascending */
};

/* Finds the boundaries. mark: see tg_digest_make; NULL: by itself. Errors: -ENOMEM. Free in any
 * case. */
int tg__steps_find(const struct tg_snapshot *snapshot, const char *mark, struct tg__steps *steps);
void tg__steps_free(struct tg__steps *steps);

/* Whole steps between the boundaries, the start of the history being one unless start_known. */
size_t tg__steps_count(const struct tg__steps *steps);

/* How many events of history `trace` come before each of the tg__steps_count + 1 moments that
 * begin or end a step. */
void tg__steps_place(const struct tg__steps *steps, const struct tg_snapshot *snapshot,
                     size_t trace, size_t *positions);

/* A period in the events (period.c). *anchor is the stack whose allocations mark it, 0: none. */
int tg__period_find(const struct tg_event *events, size_t count, size_t stacks, uint32_t *anchor,
                    double *confidence);

#endif
