/* SPDX-License-Identifier: Apache-2.0 */
/* Places: texts, frames made of them, stacks made of frames. Interned: equal content, equal number.
 * Number 0 is the empty text, and the stack of which nothing is known. */
#ifndef TG_SNAPSHOT_PLACES_H
#define TG_SNAPSHOT_PLACES_H

#include <assert.h>

#include <tidegate/snapshot.h>

#include "base/map.h"
#include "base/vec.h"

/* A run of entries in another table. */
struct tg__range {
    uint32_t first, count;
};

/* An interned table: the items and the way to find one by content. */
struct tg__interned {
    struct tg__vec items;
    struct tg__index index;
};

void tg__interned_init(struct tg__interned *table, size_t item_bytes, struct tg__budget *budget);
void tg__interned_free(struct tg__interned *table);
/* Nothing more comes: gives unused capacity and the index back. */
void tg__interned_settle(struct tg__interned *table);
/* Finds or adds *wanted; *is_new says which. Errors: -ENOMEM, TG_ELIMIT. */
int tg__intern(struct tg__interned *table, uint64_t hash, tg__same_fn same, const void *owner,
               const void *wanted, uint32_t *number, bool *is_new);

struct tg__places {
    struct tg__interned texts;   /* struct tg_text */
    struct tg__interned frames;  /* struct tg_frame */
    struct tg__interned stacks;  /* struct tg__range in stack_frames */
    struct tg__vec stack_frames; /* uint32_t, innermost first */
    struct tg__vec copies;       /* char *: the texts' bytes, where they are owned */
    bool owns_texts;             /* else they are lent, and not terminated */
    uint32_t recent_texts[64];   /* the last text of a length and ending, for the fast path */
};

/* Errors of all: -ENOMEM, TG_ELIMIT. Free after a failed init, too. */
int tg__places_init(struct tg__places *places, struct tg__budget *budget, bool owns_texts);
void tg__places_free(struct tg__places *places);
void tg__places_settle(struct tg__places *places);

int tg__intern_text(struct tg__places *places, const char *bytes, size_t length,
                    uint32_t *number);
int tg__intern_frame(struct tg__places *places, const struct tg_frame *frame, uint32_t *number);
/* The frames of stack `base` (0: none) followed by `count` more. */
int tg__intern_stack(struct tg__places *places, uint32_t base, const uint32_t *frames,
                     size_t count, uint32_t *number);
/* The stack of other places that has the same content. `frames` remembers frame by frame what was
 * copied from the same places before. */
int tg__places_copy_stack(struct tg__places *to, const struct tg__places *from,
                          struct tg__map *frames, uint32_t stack, uint32_t *number);

static inline struct tg_text tg__places_text(const struct tg__places *places, uint32_t text) {
    assert(text < places->texts.items.count);
    return ((const struct tg_text *)places->texts.items.items)[text];
}

static inline const struct tg_frame *tg__places_frame(const struct tg__places *places,
                                                      uint32_t frame) {
    assert(frame < places->frames.items.count);
    return (const struct tg_frame *)places->frames.items.items + frame;
}

static inline const uint32_t *tg__places_stack(const struct tg__places *places, uint32_t stack,
                                               size_t *count) {
    const struct tg__range *range = (const struct tg__range *)places->stacks.items.items + stack;

    assert(stack < places->stacks.items.count);
    *count = range->count;
    return (const uint32_t *)places->stack_frames.items + range->first;
}

#endif
