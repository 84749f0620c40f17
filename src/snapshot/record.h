/* SPDX-License-Identifier: Apache-2.0 */
/* The records: which keys tell what a dictionary is, and what of it is kept. */
#ifndef TG_SNAPSHOT_RECORD_H
#define TG_SNAPSHOT_RECORD_H

#include "snapshot/model.h"

/* What an object is. From TG__FIRST_RECORD on its number is that of a record in a table. */
enum tg__kind {
    TG__NO_OBJECT,
    TG__NEW_DICT,
    TG__DICT,       /* pairs, not yet told */
    TG__PLAIN_DICT, /* pairs that tell nothing: put somewhere, and looked at no more */
    TG__NEW_LIST,
    TG__LIST,
    TG__STACK,
    TG__TOP,
    TG__FRAME,
    TG__EVENT,
    TG__BLOCK,
    TG__SEGMENT,
    TG__ANNOTATION,
    TG__HISTORY,
    TG__FIRST_RECORD = TG__FRAME
};

/* What the blocks of torch 2.0 say in place of frames and requested_size. */
struct tg__history {
    uint64_t real_size;
    uint32_t stack;
};

/* The values of one dictionary by key; only those whose bit is set in `has` are filled. */
struct tg__fields {
    uint64_t has;
    uint64_t value[TG__KEY_COUNT];
};

/* Reads pairs; unknown keys are passed over, of a key given twice the last counts. */
void tg__fields_read(const uint64_t *pairs, size_t count, struct tg__fields *fields);
/* What the keys tell: a record's kind or TG__TOP; TG__DICT: nothing. */
enum tg__kind tg__fields_kind(const struct tg__fields *fields);
/* Adds the record to its table. Errors: TG_EFORMAT names the key; TG_ELIMIT, -ENOMEM. */
int tg__record_make(struct tg__builder *builder, enum tg__kind kind,
                    const struct tg__fields *fields, size_t *number);

/* Whether value is a list that holds this kind only (or nothing), and where. */
bool tg__list_of(const struct tg__builder *builder, uint64_t value, enum tg__kind kind,
                 struct tg__range *range);

static inline enum tg__kind tg__kind(const struct tg__builder *b, uint64_t value) {
    if (!tg__is_object(value))
        return TG__NO_OBJECT;
    return (enum tg__kind)(((const uint32_t *)b->objects.items)[tg__number(value)] & 15);
}

static inline uint32_t tg__object_number(const struct tg__builder *b, uint64_t value) {
    return ((const uint32_t *)b->objects.items)[tg__number(value)] >> 4;
}

#endif
