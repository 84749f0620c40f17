/* SPDX-License-Identifier: Apache-2.0 */
/* The public face of one parsed file: parse, close, and the tables. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "snapshot/tables.h"
#include "snapshot/unpickle.h"

/* Hostile bytes may ask for this much beside twice their own size. */
#define BUDGET_BASE_BYTES ((size_t)64 << 20)

/* Puts the place before the sentence. */
static int fail_at(int rc, size_t at_byte) {
    char reason[sizeof tg_last_error()->text];

    if (rc == -ENOMEM)
        return rc;
    strcpy(reason, tg_last_error()->text);
    return tg__fail(rc, "at byte %zu: %s", at_byte, reason);
}

int tg_snapshot_parse_mapped(const void *data, size_t size_bytes, tg_passed_fn passed,
                             void *argument, struct tg_snapshot **snapshot) {
    const struct tg__pickle pickle = {data, size_bytes, passed, argument};
    struct tg__builder builder;
    struct tg_snapshot *made;
    size_t budget_bytes, at_byte = 0;
    int rc, builder_rc;

    if (data == NULL || snapshot == NULL)
        return tg__fail(-EINVAL, "tg_snapshot_parse: a pointer is NULL");
    made = malloc(sizeof *made);
    if (made == NULL)
        return tg__fail_memory();
    if (__builtin_mul_overflow(size_bytes, 2, &budget_bytes) ||
        __builtin_add_overflow(budget_bytes, BUDGET_BASE_BYTES, &budget_bytes))
        budget_bytes = SIZE_MAX;
    rc = tg__tables_init(made, budget_bytes);
    builder_rc = tg__builder_init(&builder, made);
    if (rc == 0)
        rc = builder_rc;
    if (rc == 0)
        rc = tg__unpickle(&builder, &pickle, &at_byte);
    tg__builder_free(&builder);
    if (rc != 0) {
        tg__tables_free(made);
        free(made);
        return fail_at(rc, at_byte);
    }
    tg__tables_settle(made);
    *snapshot = made;
    return 0;
}

int tg_snapshot_parse(const void *data, size_t size_bytes, struct tg_snapshot **snapshot) {
    return tg_snapshot_parse_mapped(data, size_bytes, NULL, NULL, snapshot);
}

void tg_snapshot_close(struct tg_snapshot *snapshot) {
    if (snapshot == NULL)
        return;
    tg__tables_free(snapshot);
    free(snapshot);
}

void tg_snapshot_info(const struct tg_snapshot *s, struct tg_snapshot_info *info) {
    *info = (struct tg_snapshot_info){
        .protocol = s->protocol,
        .is_list = s->is_list,
        .segments = s->segments.count,
        .blocks = s->blocks.count,
        .events = s->events.count,
        .devices = s->traces.count,
        .frames = s->places.frames.items.count,
        .stacks = s->places.stacks.items.count,
        .contexts = s->contexts.items.count,
        .texts = s->places.texts.items.count,
        .annotations = s->annotations.count,
    };
}

const struct tg_event *tg_snapshot_events(const struct tg_snapshot *s) {
    return s->events.items;
}

const struct tg_segment *tg_snapshot_segments(const struct tg_snapshot *s) {
    return s->segments.items;
}

const struct tg_block *tg_snapshot_blocks(const struct tg_snapshot *s) {
    return s->blocks.items;
}

const struct tg_frame *tg_snapshot_frames(const struct tg_snapshot *s) {
    return s->places.frames.items.items;
}

const struct tg_annotation *tg_snapshot_annotations(const struct tg_snapshot *s) {
    return s->annotations.items;
}

const struct tg_event *tg_snapshot_trace(const struct tg_snapshot *s, size_t device,
                                         size_t *count) {
    const struct tg__range *traces = s->traces.items;

    if (device >= s->traces.count) {
        *count = 0;
        return NULL;
    }
    *count = traces[device].count;
    return (const struct tg_event *)s->events.items + traces[device].first;
}

const uint32_t *tg_snapshot_stack(const struct tg_snapshot *s, uint32_t stack, size_t *count) {
    return tg__places_stack(&s->places, stack < s->places.stacks.items.count ? stack : 0, count);
}

struct tg_text tg_snapshot_text(const struct tg_snapshot *s, uint32_t text) {
    return tg__places_text(&s->places, text < s->places.texts.items.count ? text : 0);
}

void tg_snapshot_context(const struct tg_snapshot *s, uint32_t number, struct tg_context *out) {
    const struct tg__context *context;
    const struct tg__pool *pool;

    context = (const struct tg__context *)s->contexts.items.items +
              (number < s->contexts.items.count ? number : 0);
    pool = (const struct tg__pool *)s->pools.items.items + context->pool;
    out->stream = context->stream;
    memcpy(out->pool, pool->id, sizeof out->pool);
    out->user_metadata = tg_snapshot_text(s, context->user_metadata);
    out->compile_context = tg_snapshot_text(s, context->compile_context);
}
