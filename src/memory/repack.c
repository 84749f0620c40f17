/* SPDX-License-Identifier: Apache-2.0 */
/* Repack: what is spare inside a packed tag's chunks goes back to the device: see move.c. */
#include <errno.h>

#include "base/error.h"
#include "memory/move.h"

static bool is_repackable(const struct tg_tag *tag) {
    return tag->state == TG_TAG_AWAKE && tag->params.packed;
}

/* With turn. */
static int repack_named(struct tg__report *report, const char *names, uint32_t wait_ms) {
    struct tg_memory *memory = report->memory;
    struct tg_tag *chosen;
    int rc;

    if (memory->is_tried)
        return tg__fail(-EALREADY, "a wake of this memory waits for its end");
    rc = tg__names_choose(memory, names, &chosen);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    tg__memory_tidy(memory);
    tg__tags_keep(&chosen, is_repackable);
    pthread_mutex_unlock(&memory->lock);
    if (chosen == NULL)
        return 0;
    rc = tg__quiet_begin(report, chosen, wait_ms);
    if (rc != 0)
        return rc;
    rc = tg__chunks_move(report, chosen, NULL);
    tg__quiet_end(report, chosen);
    return rc;
}

int tg_memory_repack(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                     struct tg_receipt *receipt) {
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = repack_named(&report, tags, wait_ms);
        pthread_mutex_unlock(&memory->turn);
    }
    return tg__report_end(&report, rc);
}
