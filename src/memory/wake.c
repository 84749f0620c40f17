/* SPDX-License-Identifier: Apache-2.0 */
/* Wake: reserve, map everything, copy content meanwhile, publish, and only then drop the host
 * copies. Until the publish the new chunks are in tag->fresh and the tag is as it slept: undoing is
 * letting them go, when the copies given so far have ended. Fresh chunks are zero by the device's
 * contract, so what has no content needs no fill.
 *
 * A refill is a wake of what trims have given back: of awake tags, beside whose chunks the new ones
 * come, and without content. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/receipt.h"
#include "memory/report.h"

/* Between two tries to get memory that a foreign program has. */
#define PAUSE_NS (5 * TG__NS_PER_MS)

static bool is_asleep(const struct tg_tag *tag) {
    return tag->state == TG_TAG_ASLEEP;
}

static bool is_trimmed(const struct tg_tag *tag) {
    return tag->hole_bytes > 0;
}

/* ---- reserve --------------------------------------------------------------------------------- */

static int plan(struct tg_tag *chosen, uint64_t *planned_bytes) {
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        int rc = 0;

        if (tag->before == TG_TAG_AWAKE)
            rc = tg__arena_plan_holes(tag);
        else if (tag->chunks.count == 0) /* with its chunks it needs none */
            rc = tg__arena_plan(tag);
        if (rc != 0)
            return rc;
        for (size_t i = 0; i < tag->fresh.count; i++)
            *planned_bytes += tg__plots_range(&tag->fresh, i)->size_bytes;
    }
    return 0;
}

/* All tags in one request: two that took a tag each and waited for the next would wait for each
 * other. */
static int reserve(struct tg_memory *memory, struct tg_tag *chosen, uint64_t deadline_ns) {
    int rc;

    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        for (size_t i = 0; i < tag->fresh.count; i++)
            tag->reserved_bytes += tg__plots_range(&tag->fresh, i)->size_bytes;
    }
    rc = tg__charge_reserve_all(memory, chosen, tg__ms_left(deadline_ns));
    for (struct tg_tag *tag = chosen; tag != NULL && rc != 0; tag = tag->next_chosen)
        tag->reserved_bytes = 0;
    return rc;
}

/* ---- create, map, fill ----------------------------------------------------------------------- */

/* What a chunk is for can be copied as soon as it is mapped: the link works while the driver makes
 * the next one. */
static int back_saved(struct tg_tag *tag, uint64_t *copied_bytes) {
    struct tg__copying copying;
    int rc = 0;

    tg__copy_begin(&copying, tag, TG__COPY_FILL);
    for (size_t i = 0; i < tag->fresh.count && rc == 0; i++) {
        struct tg__chunk *chunk = tag->fresh.items[i];

        rc = tg__chunk_back(chunk);
        if (rc == 0)
            rc = tg__copy_until(&copying, tg__range_end(&chunk->range), copied_bytes);
    }
    return rc;
}

/* All are created before the first is mapped: by turns the driver takes longer. */
static int back_empty(struct tg_tag *tag) {
    int rc = 0;

    for (size_t i = 0; i < tag->fresh.count && rc == 0; i++)
        rc = tg__chunk_create(tag->fresh.items[i]);
    for (size_t i = 0; i < tag->fresh.count && rc == 0; i++)
        rc = tg__chunk_map(tag->fresh.items[i]);
    return rc;
}

/* Tags with content first: the link works while the chunks of the others are made. copied_bytes
 * NULL: nothing is copied. */
static int back_once(struct tg_tag *chosen, uint64_t *copied_bytes) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen)
        rc = tg__tag_map(tag);
    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        if (tag->is_saved && copied_bytes != NULL)
            rc = back_saved(tag, copied_bytes);
    }
    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        if (!tag->is_saved || copied_bytes == NULL)
            rc = back_empty(tag);
    }
    return rc;
}

/* Chunks that a stuck copy writes to stay. */
static int unback(struct tg_tag *chosen) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        for (size_t i = 0; i < tag->fresh.count && rc == 0; i++) {
            struct tg__chunk *chunk = tag->fresh.items[i];

            rc = tg__gate_is_open(tag->memory, &chunk->gate) ? tg__chunk_unback(chunk) : TG_EBUSY;
        }
    }
    return rc;
}

static bool has_content(const struct tg_tag *tag) {
    return tag->is_saved && tag->fresh.count > 0;
}

static int fill(struct tg_tag *chosen, uint64_t *copied_bytes) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        struct tg__copying copying;

        if (!has_content(tag))
            continue;
        tg__copy_begin(&copying, tag, TG__COPY_FILL);
        rc = tg__copy_until(&copying, UINT64_MAX, copied_bytes);
    }
    return rc;
}

static void pause_before(uint64_t deadline_ns) {
    uint64_t now = tg__clock_ns(), left_ns = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec pause = {.tv_nsec = (long)(left_ns < PAUSE_NS ? left_ns : PAUSE_NS)};

    nanosleep(&pause, NULL);
}

/* All of it, when the copies so far have ended. The sentence stays that of the failure. */
static int give_back(struct tg_memory *memory, struct tg_tag *chosen, uint64_t *copied_bytes) {
    struct tg_error why = *tg_last_error();
    int rc;

    (void)!tg__memory_note(memory, tg__copy_end(memory, chosen, *copied_bytes, 0));
    *copied_bytes = 0;
    rc = unback(chosen);
    tg__fail_as(&why);
    return rc;
}

/* The ledger knows tenants only: a foreign program may have what was reserved, and give it back. A
 * further try copies nothing before all is there: most of what it copied would be for nothing. */
static int back(struct tg__report *report, struct tg_tag *chosen, uint64_t deadline_ns,
                uint64_t *copied_bytes) {
    struct tg_memory *memory = report->memory;
    int rc = back_once(chosen, copied_bytes);

    while (rc == TG_EDEVICEMEMORY && tg__clock_ns() < deadline_ns &&
           give_back(memory, chosen, copied_bytes) == 0) {
        tg__report_mark(report, &report->receipt->map_ns);
        pause_before(deadline_ns);
        pthread_mutex_lock(&memory->lock);
        tg__memory_tidy(memory);
        pthread_mutex_unlock(&memory->lock);
        tg__report_mark(report, &report->receipt->wait_ns);
        rc = back_once(chosen, NULL);
        if (rc == 0)
            rc = fill(chosen, copied_bytes);
    }
    tg__report_mark(report, &report->receipt->map_ns);
    return rc;
}

/* While the device copies. */
static int verify(struct tg_tag *chosen) {
    int rc = 0;

    for (struct tg_tag *tag = chosen; tag != NULL && rc == 0; tag = tag->next_chosen) {
        if (has_content(tag) && tag->params.checked)
            rc = tg__copy_verify(tag);
    }
    return rc;
}

/* ---- the two ends ---------------------------------------------------------------------------- */

/* With lock. A chunk that does not go leaves later, and is occupied until then. */
static void let_fresh_go(struct tg_tag *tag) {
    for (size_t i = tag->fresh.count; i-- > 0;) {
        struct tg__chunk *chunk = tag->fresh.items[i];

        if (tg__gate_is_open(tag->memory, &chunk->gate) && tg__chunk_unback(chunk) == 0) {
            free(chunk);
            continue;
        }
        if (chunk->handle != 0) {
            if (tag->reserved_bytes > 0) {
                tg__charge_commit(tag, chunk->range.size_bytes, 0);
                tag->reserved_bytes -= chunk->range.size_bytes;
            }
            tag->tried_bytes -= tag->tried_bytes > 0 ? chunk->range.size_bytes : 0;
            tag->chunk_bytes += chunk->range.size_bytes;
            chunk->is_charged = true;
        }
        tg__chunk_leave(chunk);
    }
    tg__plots_free(&tag->fresh);
    tg__charge_cancel(tag, tag->reserved_bytes);
    tg__charge_give(tag, tag->tried_bytes, 0);
    tag->reserved_bytes = tag->tried_bytes = 0;
    tag->state = tag->before;
}

static void undo(struct tg_memory *memory, struct tg_tag *chosen) {
    struct tg_error why = *tg_last_error();

    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
        let_fresh_go(tag);
    tg__tags_rest(memory, chosen);
    pthread_mutex_unlock(&memory->lock);
    tg__fail_as(&why);
}

/* With lock. To the chunks that are there: of a sleeping tag none. */
static void take_fresh(struct tg_tag *tag) {
    for (size_t i = 0; i < tag->fresh.count; i++) {
        struct tg__chunk *chunk = tag->fresh.items[i];

        chunk->is_charged = true;
        tag->chunk_bytes += chunk->range.size_bytes;
        if (tag->before == TG_TAG_AWAKE)
            tg__plots_put(&tag->chunks, chunk);
    }
    if (tag->before == TG_TAG_AWAKE) {
        tg__plots_free(&tag->fresh);
        return;
    }
    tg__plots_free(&tag->chunks);
    tag->chunks = tag->fresh;
    tag->fresh = (struct tg__plots){0};
}

/* With lock. Host copies that are no longer needed go to the front of a list; of an awake tag they
 * are places for the next sleep. */
static void publish_tag(struct tg_tag *tag, struct tg__segment **detached) {
    bool was_asleep = tag->before == TG_TAG_ASLEEP, is_whole = tag->fresh.count > 0;

    if (was_asleep)
        tg__charge_commit(tag, 0, tag->tried_bytes);
    tag->tried_bytes = 0;
    if (is_whole)
        take_fresh(tag);
    tag->is_saved = false;
    if (was_asleep && !tag->params.keep_host)
        tg__segments_detach(tag, detached);
    if (is_whole)
        tg__tag_fill_holes(tag);
    tag->state = TG_TAG_AWAKE;
}

uint64_t tg__wake_end(struct tg_memory *memory, int publish) {
    struct tg_error before = *tg_last_error();
    struct tg__segment *detached = NULL;
    uint64_t later_bytes;

    if (!memory->is_tried)
        return 0;
    memory->is_tried = false;
    if (!publish) {
        undo(memory, memory->chosen);
        return 0;
    }
    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = memory->chosen; tag != NULL; tag = tag->next_chosen)
        publish_tag(tag, &detached);
    tg__tags_rest(memory, memory->chosen);
    pthread_mutex_unlock(&memory->lock);
    later_bytes = tg__handback_begin(memory, detached);
    tg__fail_as(&before);
    return later_bytes;
}

/* ---- try ------------------------------------------------------------------------------------- */

/* An earlier wake, or refill, failed and its chunks could not be unmapped: they are where ours must
 * go. */
static int check_leaving(const struct tg_tag *chosen) {
    for (const struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        if (tag->leaving_mapped > 0 && (tag->chunks.count == 0 || tag->before == TG_TAG_AWAKE))
            return tg__fail(TG_EBUSY, "tag '%s': the device still uses what an earlier wake mapped",
                            tag->name);
    }
    return 0;
}

/* With lock. Memory of ours that is on its way back may be what is needed. */
static int begin(struct tg_memory *memory, struct tg_tag *chosen, uint32_t wait_ms) {
    int rc;

    tg__limbo_settle(memory, wait_ms < TG__SETTLE_MS ? wait_ms : TG__SETTLE_MS);
    tg__memory_tidy(memory);
    rc = check_leaving(chosen);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
        tag->state = rc == 0 ? TG_TAG_MAPPING : tag->before;
    if (rc != 0)
        tg__tags_rest(memory, chosen);
    return rc;
}

static void report_gain(struct tg__report *report, const struct tg_tag *chosen) {
    for (const struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        uint64_t size_bytes = 0;

        for (size_t i = 0; i < tag->fresh.count; i++)
            size_bytes += tg__plots_range(&tag->fresh, i)->size_bytes;
        tg__receipt_add(report->receipt, tag->name, size_bytes);
        report->receipt->gained_bytes += size_bytes;
    }
}

/* The memory is there now, and so occupied, however long the copying and the end take: as only
 * reserved it would be counted a second time beside what the driver shows as used. */
static void commit(struct tg_tag *chosen) {
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        tg__charge_commit(tag, tag->reserved_bytes, 0);
        tag->tried_bytes = tag->reserved_bytes;
        tag->reserved_bytes = 0;
    }
}

static int wake_chosen(struct tg__report *report, struct tg_tag *chosen, uint64_t deadline_ns) {
    struct tg_memory *memory = report->memory;
    struct tg_receipt *receipt = report->receipt;
    uint64_t copied_bytes = 0;
    int rc = plan(chosen, &receipt->asked_bytes);

    tg__report_mark(report, &receipt->map_ns);
    if (rc == 0)
        rc = reserve(memory, chosen, deadline_ns);
    tg__report_mark(report, &receipt->wait_ns);
    if (rc == 0)
        rc = back(report, chosen, deadline_ns, &copied_bytes);
    if (rc == 0) {
        commit(chosen);
        tg__tags_move(memory, chosen, TG_TAG_FILLING);
        rc = verify(chosen);
    }
    rc = tg__copy_end(memory, chosen, copied_bytes, rc);
    tg__report_mark(report, &receipt->copy_ns);
    if (rc != 0) {
        undo(memory, chosen);
        return rc;
    }
    receipt->copied_bytes = copied_bytes;
    report_gain(report, chosen);
    memory->chosen = chosen;
    memory->is_tried = true;
    return 0;
}

/* What was trimmed of a tag that sleeps comes back with its wake. With lock. */
static int check_awake(const struct tg_tag *chosen) {
    for (const struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        if (tag->state != TG_TAG_AWAKE)
            return tg__fail(TG_EASLEEP, "tag '%s' was trimmed and sleeps: waking it brings all of "
                            "it back", tag->name);
    }
    return 0;
}

enum way { WAKES, TRIES, REFILLS };

static int choose(struct tg_memory *memory, const char *names, enum way way,
                  struct tg_tag **chosen) {
    int rc;

    if (memory->is_tried)
        return tg__fail(-EALREADY, "another wake of this memory waits for its end");
    rc = tg__names_choose(memory, names, chosen);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    tg__tags_keep(chosen, way == REFILLS ? is_trimmed : is_asleep);
    if (way == REFILLS)
        rc = check_awake(*chosen);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

/* With turn. */
static int try_named(struct tg__report *report, const char *names, uint32_t wait_ms, enum way way) {
    struct tg_memory *memory = report->memory;
    uint64_t deadline_ns = report->begin_ns + wait_ms * TG__NS_PER_MS;
    struct tg_tag *chosen;
    int rc = choose(memory, names, way, &chosen);

    if (rc == 0)
        rc = tg__charge_check(memory);
    if (rc == 0 && chosen != NULL)
        rc = tg__charge_quiet(memory, wait_ms);
    tg__report_mark(report, &report->receipt->wait_ns);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    if (way == REFILLS)
        rc = tg__tags_still(memory, chosen, deadline_ns);
    else
        for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
            tag->before = tag->state;
    if (rc == 0)
        rc = begin(memory, chosen, wait_ms);
    pthread_mutex_unlock(&memory->lock);
    tg__report_mark(report, &report->receipt->drain_ns);
    return rc != 0 ? rc : wake_chosen(report, chosen, deadline_ns);
}

static int wake(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                struct tg_receipt *receipt, enum way way) {
    struct tg__report report;
    int rc;

    tg__report_begin(&report, memory, receipt);
    rc = tg__memory_check(memory);
    if (rc == 0) {
        pthread_mutex_lock(&memory->turn);
        rc = try_named(&report, tags, wait_ms, way);
        if (rc == 0 && way != TRIES)
            tg__receipt_add(report.receipt, "stays: host copies, going back",
                            tg__wake_end(memory, 1));
        pthread_mutex_unlock(&memory->turn);
    }
    if (rc == 0 && report.is_measured && report.receipt->gained_bytes > 0)
        tg__charge_measure(memory);
    return tg__report_end(&report, rc);
}

int tg_memory_wake(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                   struct tg_receipt *receipt) {
    return wake(memory, tags, wait_ms, receipt, WAKES);
}

int tg_memory_wake_try(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                       struct tg_receipt *receipt) {
    return wake(memory, tags, wait_ms, receipt, TRIES);
}

int tg_memory_refill(struct tg_memory *memory, uint32_t wait_ms, struct tg_receipt *receipt) {
    return wake(memory, NULL, wait_ms, receipt, REFILLS);
}

void tg_memory_wake_end(struct tg_memory *memory, int publish) {
    int saved = errno;

    if (memory == NULL || tg__memory_check(memory) == TG_EFORKED)
        return;
    pthread_mutex_lock(&memory->turn);
    tg__wake_end(memory, publish);
    pthread_mutex_unlock(&memory->turn);
    errno = saved;
}
