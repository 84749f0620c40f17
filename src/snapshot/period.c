/* SPDX-License-Identifier: Apache-2.0 */
/* Steps without a mark: the places that allocate once in each step.
 *
 * A training loop allocates at hundreds of places, most of them once a layer or micro batch, many
 * once a step. All places of the last kind share one count, and their allocations lie at regular
 * distances. The smallest count that enough regular places share is taken for the number of steps,
 * and the most regular of them for the mark. */
#include <stdlib.h>

#include "base/error.h"
#include "snapshot/steps.h"

#define COUNT_MIN 3      /* steps seen */
#define COUNT_MAX 20000
#define SHARERS_MIN 3    /* places that agree on the count */
#define SHARE_MIN 0.1    /* of the places of the count that most share */
#define UNEVEN_MAX 2.5   /* longest over shortest distance of a regular place */

struct rhythm {
    uint32_t count, first, last;
    uint32_t shortest, longest; /* distance between two allocations, in events */
};

static void note(struct rhythm *r, uint32_t position) {
    if (r->count > 0) {
        uint32_t distance = position - r->last;
        r->shortest = r->count == 1 || distance < r->shortest ? distance : r->shortest;
        r->longest = distance > r->longest ? distance : r->longest;
    } else {
        r->first = position;
    }
    r->last = position;
    r->count++;
}

/* Even, and all over the history: what a place does once in each step. */
static bool is_regular(const struct rhythm *r, size_t events) {
    double step = (double)(r->last - r->first) / (r->count - 1);

    return r->longest <= UNEVEN_MAX * r->shortest && r->first <= 1.5 * step &&
           (double)(events - r->last) <= 1.5 * step + 1;
}

/* sharers[c]: regular places that allocate c times. */
static uint32_t smallest_shared_count(const uint32_t *sharers) {
    uint32_t most = 0;

    for (uint32_t c = COUNT_MIN; c <= COUNT_MAX; c++)
        most = sharers[c] > most ? sharers[c] : most;
    for (uint32_t c = COUNT_MIN; c <= COUNT_MAX; c++) {
        if (sharers[c] >= SHARERS_MIN && sharers[c] >= SHARE_MIN * most)
            return c;
    }
    return 0;
}

static void choose_anchor(const struct rhythm *rhythms, size_t stacks, size_t events,
                          const uint32_t *sharers, uint32_t *anchor, double *confidence) {
    uint32_t count = smallest_shared_count(sharers);
    double most_even = 0, near;

    for (size_t i = 1; count != 0 && i < stacks; i++) {
        const struct rhythm *r = &rhythms[i];
        double even = r->longest > 0 ? (double)r->shortest / r->longest : 0;
        if (r->count != count || !is_regular(r, events) || even <= most_even)
            continue;
        most_even = even;
        *anchor = (uint32_t)i;
    }
    if (*anchor == 0)
        return;
    /* Places that missed a step or had one more speak against the count. */
    near = (double)sharers[count] + sharers[count - 1] + sharers[count + 1];
    *confidence = most_even * sharers[count] / near;
}

int tg__period_find(const struct tg_event *events, size_t count, size_t stacks, uint32_t *anchor,
                    double *confidence) {
    struct rhythm *rhythms = calloc(stacks, sizeof *rhythms);
    uint32_t *sharers = calloc(COUNT_MAX + 2, sizeof *sharers);
    int rc = 0;

    *anchor = 0;
    *confidence = 0;
    if (rhythms == NULL || sharers == NULL) {
        rc = tg__fail_memory();
        goto free_tables;
    }
    for (size_t i = 0; i < count; i++) {
        if (events[i].action == TG_ACTION_ALLOC && events[i].stack != 0)
            note(&rhythms[events[i].stack], (uint32_t)i);
    }
    for (size_t i = 1; i < stacks; i++) {
        const struct rhythm *r = &rhythms[i];
        if (r->count >= COUNT_MIN && r->count <= COUNT_MAX && is_regular(r, count))
            sharers[r->count]++;
    }
    choose_anchor(rhythms, stacks, count, sharers, anchor, confidence);
free_tables:
    free(rhythms);
    free(sharers);
    return rc;
}
