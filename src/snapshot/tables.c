/* SPDX-License-Identifier: Apache-2.0 */
/* See tables.h. */
#include <string.h>

#include "base/error.h"
#include "snapshot/tables.h"

static bool same_pool(const void *owner, uint32_t item, const void *wanted) {
    const struct tg__pool *a = (const struct tg__pool *)owner + item, *b = wanted;

    return a->id[0] == b->id[0] && a->id[1] == b->id[1];
}

static bool same_context(const void *owner, uint32_t item, const void *wanted) {
    const struct tg__context *a = (const struct tg__context *)owner + item, *b = wanted;

    return a->stream == b->stream && a->pool == b->pool &&
           a->user_metadata == b->user_metadata && a->compile_context == b->compile_context;
}

#define KEY(name, text) [TG__TEXT_##name] = TG__KEY_##name,
#define VALUE(name, text, word) [TG__TEXT_##name] = (word),
const uint16_t tg__text_words[TG__TEXT_COUNT] = {
#include "snapshot/words.def"
};
#undef KEY
#undef VALUE

#define KEY(name, text) [TG__TEXT_##name] = text,
#define VALUE(name, text, word) [TG__TEXT_##name] = text,
static const char *const texts[TG__TEXT_COUNT] = {
    [0] = "",
#include "snapshot/words.def"
};
#undef KEY
#undef VALUE

int tg__intern_pool(struct tg_snapshot *snapshot, uint64_t a, uint64_t b, uint32_t *number) {
    struct tg__pool pool = {{a, b}};
    bool is_new;

    if ((a | b) == 0) { /* the default pool: nearly every event's */
        *number = 0;
        return 0;
    }
    return tg__intern(&snapshot->pools, tg__hash_pair(a, b), same_pool,
                      snapshot->pools.items.items, &pool, number, &is_new);
}

int tg__intern_context(struct tg_snapshot *snapshot, const struct tg__context *context,
                       uint32_t *number) {
    uint64_t hash = (uint64_t)context->user_metadata << 32 | context->compile_context;
    bool is_new;
    int rc;

    if (same_context(snapshot->contexts.items.items, snapshot->recent_context, context)) {
        *number = snapshot->recent_context;
        return 0;
    }
    if (same_context(snapshot->contexts.items.items, 0, context)) {
        *number = 0;
        return 0;
    }
    hash = tg__hash_pair(tg__hash_pair(hash, context->stream), context->pool);
    if (snapshot->contexts.items.count >= UINT32_C(1) << 24)
        return tg__fail(TG_ELIMIT, "too many distinct annotations of events");
    rc = tg__intern(&snapshot->contexts, hash, same_context,
                    snapshot->contexts.items.items, context, number, &is_new);
    if (rc == 0)
        snapshot->recent_context = *number;
    return rc;
}

static void plain_tables(struct tg_snapshot *s, struct tg__vec *list[5]) {
    list[0] = &s->events;
    list[1] = &s->traces;
    list[2] = &s->segments;
    list[3] = &s->blocks;
    list[4] = &s->annotations;
}

/* Number 0 of each table; and the known words as the first texts, so that a text's number tells
 * whether it is one. */
static int fill(struct tg_snapshot *s) {
    static const struct tg__context no_context;
    static const struct tg__pool default_pool;
    uint32_t number;
    int rc;

    if ((rc = tg__vec_push(&s->pools.items, &default_pool)) != 0 ||
        (rc = tg__vec_push(&s->contexts.items, &no_context)) != 0)
        return rc;
    for (uint32_t i = 1; rc == 0 && i < TG__TEXT_COUNT; i++) {
        rc = tg__intern_text(&s->places, texts[i], strlen(texts[i]), &number);
        assert(rc != 0 || number == i);
    }
    return rc;
}

int tg__tables_init(struct tg_snapshot *s, size_t budget_bytes) {
    static const size_t item_bytes[5] = {
        sizeof(struct tg_event), sizeof(struct tg__range),
        sizeof(struct tg_segment), sizeof(struct tg_block), sizeof(struct tg_annotation)};
    struct tg__vec *plain[5];
    int rc;

    memset(s, 0, sizeof *s);
    s->budget.left_bytes = budget_bytes;
    rc = tg__places_init(&s->places, &s->budget, false);
    tg__interned_init(&s->pools, sizeof(struct tg__pool), &s->budget);
    tg__interned_init(&s->contexts, sizeof(struct tg__context), &s->budget);
    plain_tables(s, plain);
    for (size_t i = 0; i < 5; i++) {
        tg__vec_init(plain[i], item_bytes[i], &s->budget);
        /* So that an empty table has an address too. */
        if (rc == 0)
            rc = tg__vec_reserve(plain[i], 1);
    }
    return rc != 0 ? rc : fill(s);
}

void tg__tables_free(struct tg_snapshot *s) {
    struct tg__vec *plain[5];

    plain_tables(s, plain);
    for (size_t i = 0; i < 5; i++)
        tg__vec_free(plain[i]);
    tg__interned_free(&s->pools);
    tg__interned_free(&s->contexts);
    tg__places_free(&s->places);
}

void tg__tables_settle(struct tg_snapshot *s) {
    struct tg__vec *plain[5];

    plain_tables(s, plain);
    for (size_t i = 0; i < 5; i++)
        tg__vec_trim(plain[i]);
    tg__interned_settle(&s->pools);
    tg__interned_settle(&s->contexts);
    tg__places_settle(&s->places);
}
