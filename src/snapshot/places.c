/* SPDX-License-Identifier: Apache-2.0 */
/* See places.h. A file names the same few hundred places hundreds of thousands of times; each is
 * kept once, and numbers stand for it. */
#include "snapshot/places.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool same_text(const void *owner, uint32_t item, const void *wanted) {
    const struct tg_text *a = (const struct tg_text *)owner + item, *b = wanted;

    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static bool same_frame(const void *owner, uint32_t item, const void *wanted) {
    const struct tg_frame *a = (const struct tg_frame *)owner + item, *b = wanted;

    return a->function == b->function && a->file == b->file && a->line == b->line;
}

/* Here the owner is the whole: a stack's frames lie in a table beside it. */
static bool same_stack(const void *owner, uint32_t item, const void *wanted) {
    const struct tg__places *places = owner;
    const struct tg__range *a = (const struct tg__range *)places->stacks.items.items + item;
    const struct tg__range *b = wanted;
    const uint32_t *frames = places->stack_frames.items;

    return a->count == b->count &&
           memcmp(frames + a->first, frames + b->first, a->count * sizeof *frames) == 0;
}

void tg__interned_init(struct tg__interned *table, size_t item_bytes, struct tg__budget *budget) {
    tg__vec_init(&table->items, item_bytes, budget);
    tg__index_init(&table->index, budget);
}

void tg__interned_free(struct tg__interned *table) {
    tg__vec_free(&table->items);
    tg__index_free(&table->index);
}

void tg__interned_settle(struct tg__interned *table) {
    tg__vec_trim(&table->items);
    tg__index_free(&table->index);
}

int tg__intern(struct tg__interned *table, uint64_t hash, tg__same_fn same, const void *owner,
                  const void *wanted, uint32_t *number, bool *is_new) {
    uint32_t found = tg__index_find(&table->index, hash, same, owner, wanted);
    int rc;

    *is_new = found == UINT32_MAX;
    if (*is_new) {
        found = (uint32_t)table->items.count;
            /* Numbers travel in memo entries of 29 bits; see value.h. */
        if (table->items.count >= UINT32_C(1) << 28)
            return tg__fail(TG_ELIMIT, "too many distinct names or places");
        rc = tg__vec_push(&table->items, wanted);
        if (rc != 0)
            return rc;
        rc = tg__index_add(&table->index, hash, found);
        if (rc != 0) {
            table->items.count--;
            return rc;
        }
    }
    *number = found;
    return 0;
}

/* Replaces the lent bytes of a new text by a terminated copy. */
static int own_text(struct tg__places *places, uint32_t number) {
    struct tg_text *text = (struct tg_text *)places->texts.items.items + number;
    char *copy = malloc(text->length + 1);
    int rc;

    if (copy == NULL)
        return tg__fail_memory();
    memcpy(copy, text->bytes, text->length);
    copy[text->length] = '\0';
    rc = tg__vec_push(&places->copies, &copy);
    if (rc != 0) {
        free(copy);
        return rc;
    }
    text->bytes = copy;
    return 0;
}

int tg__intern_text(struct tg__places *places, const char *bytes, size_t length,
                    uint32_t *number) {
    struct tg_text text = {bytes, length};
    uint32_t *recent;
    bool is_new;
    int rc;

    if (length == 0) {
        *number = 0;
        return 0;
    }
    /* Writers repeat "N/A" and the like at every event, as a new text each time. */
    recent = &places->recent_texts[(length * 7 + (unsigned char)bytes[length - 1]) % 64];
    if (*recent != 0 && same_text(places->texts.items.items, *recent, &text)) {
        *number = *recent;
        return 0;
    }
    rc = tg__intern(&places->texts, tg__hash_bytes(bytes, length), same_text,
                    places->texts.items.items, &text, number, &is_new);
    if (rc == 0 && is_new && places->owns_texts)
        rc = own_text(places, *number);
    if (rc == 0)
        *recent = *number;
    return rc;
}

int tg__intern_frame(struct tg__places *places, const struct tg_frame *frame,
                     uint32_t *number) {
    uint64_t hash = tg__hash_pair((uint64_t)frame->function << 32 | frame->file, frame->line);
    bool is_new;

    return tg__intern(&places->frames, hash, same_frame,
                      places->frames.items.items, frame, number, &is_new);
}

int tg__intern_stack(struct tg__places *places, uint32_t base, const uint32_t *frames,
                     size_t count, uint32_t *number) {
    struct tg__vec *pool = &places->stack_frames;
    struct tg__range kept = ((const struct tg__range *)places->stacks.items.items)[base];
    struct tg__range range = {(uint32_t)pool->count, kept.count + (uint32_t)count};
    uint64_t hash;
    bool is_new;
    int rc;

    if (range.count == 0) {
        *number = 0;
        return 0;
    }
    if (pool->count + kept.count + count > UINT32_MAX)
        return tg__fail(TG_ELIMIT, "too many frames");
    rc = tg__vec_reserve(pool, kept.count + count);
    if (rc != 0)
        return rc;
    /* Written at the end of the pool first: if the stack is known, it is simply not kept. */
    if (kept.count > 0)
        memcpy((uint32_t *)pool->items + range.first, (uint32_t *)pool->items + kept.first,
               kept.count * sizeof *frames);
    memcpy((uint32_t *)pool->items + range.first + kept.count, frames, count * sizeof *frames);
    hash = tg__hash_bytes((uint32_t *)pool->items + range.first, range.count * sizeof *frames);
    rc = tg__intern(&places->stacks, hash, same_stack, places, &range, number, &is_new);
    if (rc == 0 && is_new)
        pool->count += range.count;
    return rc;
}

int tg__places_init(struct tg__places *places, struct tg__budget *budget, bool owns_texts) {
    static const struct tg__range no_stack;
    static const struct tg_text empty = {"", 0};
    int rc;

    memset(places, 0, sizeof *places);
    places->owns_texts = owns_texts;
    tg__interned_init(&places->texts, sizeof(struct tg_text), budget);
    tg__interned_init(&places->frames, sizeof(struct tg_frame), budget);
    tg__interned_init(&places->stacks, sizeof(struct tg__range), budget);
    tg__vec_init(&places->stack_frames, sizeof(uint32_t), budget);
    tg__vec_init(&places->copies, sizeof(char *), budget);
    if ((rc = tg__vec_push(&places->texts.items, &empty)) != 0 ||
        (rc = tg__vec_push(&places->stacks.items, &no_stack)) != 0 ||
        (rc = tg__vec_reserve(&places->frames.items, 1)) != 0)
        return rc;
    return tg__vec_reserve(&places->stack_frames, 1);
}

void tg__places_free(struct tg__places *places) {
    for (size_t i = 0; i < places->copies.count; i++)
        free(((char **)places->copies.items)[i]);
    tg__vec_free(&places->copies);
    tg__vec_free(&places->stack_frames);
    tg__interned_free(&places->texts);
    tg__interned_free(&places->frames);
    tg__interned_free(&places->stacks);
}

void tg__places_settle(struct tg__places *places) {
    tg__interned_settle(&places->texts);
    tg__interned_settle(&places->frames);
    tg__interned_settle(&places->stacks);
    tg__vec_trim(&places->stack_frames);
}

static int copy_text(struct tg__places *to, const struct tg__places *from, uint32_t text,
                     uint32_t *number) {
    struct tg_text t = tg__places_text(from, text);

    return tg__intern_text(to, t.bytes, t.length, number);
}

static int copy_frame(struct tg__places *to, const struct tg__places *from,
                      struct tg__map *frames, uint32_t number, uint32_t *copied) {
    struct tg_frame frame = *tg__places_frame(from, number);
    int rc;

    *copied = tg__map_get(frames, number);
    if (*copied != UINT32_MAX)
        return 0;
    if ((rc = copy_text(to, from, frame.function, &frame.function)) != 0 ||
        (rc = copy_text(to, from, frame.file, &frame.file)) != 0 ||
        (rc = tg__intern_frame(to, &frame, copied)) != 0)
        return rc;
    return tg__map_put(frames, number, *copied);
}

int tg__places_copy_stack(struct tg__places *to, const struct tg__places *from,
                          struct tg__map *frames, uint32_t stack, uint32_t *number) {
    size_t count;
    const uint32_t *original = tg__places_stack(from, stack, &count);
    struct tg__vec copied;
    int rc;

    tg__vec_init(&copied, sizeof(uint32_t), NULL);
    rc = tg__vec_reserve(&copied, count + 1);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = copy_frame(to, from, frames, original[i], (uint32_t *)copied.items + i);
    if (rc == 0)
        rc = tg__intern_stack(to, 0, copied.items, count, number);
    tg__vec_free(&copied);
    return rc;
}
