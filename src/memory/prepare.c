/* SPDX-License-Identifier: Apache-2.0 */
/* Prepare: what a first sleep spends on host memory is spent ahead of it. The tags stay awake, so
 * blocks come and go meanwhile: a segment is made, touched and pinned beside its tag, and only then
 * given to the blocks that need it, all at once. */
#include <errno.h>

#include "base/error.h"
#include "base/receipt.h"
#include "memory/report.h"

/* For each chosen tag one, at the front of the list, if it needs one. */
static int make_all(struct tg_memory *memory, struct tg_tag *chosen, struct tg__segment **made) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        struct tg__segment *segment = NULL;
        uint64_t size_bytes = 0;

        pthread_mutex_lock(&memory->lock);
        if (tag->state == TG_TAG_AWAKE && tag->params.backup == TG_BACKUP_HOST)
            size_bytes = tg__segment_missing(tag);
        pthread_mutex_unlock(&memory->lock);
        if (size_bytes == 0)
            continue;
        rc = tg__segment_new(tag, size_bytes, &segment);
        if (rc != 0)
            break;
        segment->next = *made;
        *made = segment;
    }
    return rc;
}

static int make_ready(struct tg__segment *segment) {
    int rc = 0;

    tg__segment_touch_begin(segment);
    for (size_t step = 0; step < segment->step_count && rc == 0; step++)
        rc = tg__segment_ready(segment, step);
    tg__segment_touch_end(segment);
    return rc;
}

/* What no block needs any more stays in the list. */
static void adopt_all(struct tg__report *report, struct tg__segment **made) {
    struct tg__segment *left = NULL;

    pthread_mutex_lock(&report->memory->lock);
    while (*made != NULL) {
        struct tg__segment *segment = *made;

        *made = segment->next;
        tg__segment_touched(segment);
        if (tg__segment_adopt(segment)) {
            tg__receipt_add(report->receipt, segment->tag->name, segment->held_bytes);
        } else {
            segment->next = left;
            left = segment;
        }
    }
    pthread_mutex_unlock(&report->memory->lock);
    *made = left;
}

/* With turn. */
static int prepare_named(struct tg__report *report, const char *names) {
    struct tg_memory *memory = report->memory;
    struct tg__segment *made = NULL;
    struct tg_tag *chosen;
    int rc;

    if (memory->is_tried)
        return tg__fail(-EALREADY, "a wake of this memory waits for its end");
    rc = tg__names_choose(memory, names, &chosen);
    if (rc != 0)
        return rc;
    tg__handback_end(memory);
    rc = make_all(memory, chosen, &made);
    for (struct tg__segment *segment = made; segment != NULL && rc == 0; segment = segment->next) {
        report->receipt->asked_bytes += segment->size_bytes;
        rc = make_ready(segment);
    }
    if (rc == 0)
        adopt_all(report, &made);
    if (made != NULL) {
        struct tg_error why = *tg_last_error();

        tg__segments_bury(memory, made);
        tg__fail_as(&why);
    }
    tg__report_mark(report, &report->receipt->copy_ns);
    return rc;
}

int tg_memory_prepare(struct tg_memory *memory, const char *tags, struct tg_receipt *receipt) {
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = prepare_named(&report, tags);
        pthread_mutex_unlock(&memory->turn);
    }
    return tg__report_end(&report, rc);
}
