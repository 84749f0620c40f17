/* SPDX-License-Identifier: Apache-2.0 */
/* A growing array of plain items, and a budget that several of them share.
 *
 * The budget bounds what hostile input can make us keep: each growth is taken from it, and where it
 * is spent the growth fails with TG_ELIMIT. Without a budget only the machine's memory bounds it.
 * Items are moved by growth: no pointer into a vec outlives the next push. */
#ifndef TG_BASE_VEC_H
#define TG_BASE_VEC_H

#include <stddef.h>
#include <stdint.h>

struct tg__budget {
    size_t left_bytes;
};

struct tg__vec {
    void *items;
    size_t count, capacity;
    size_t item_bytes;
    struct tg__budget *budget; /* NULL: none; outlives the vec's growth */
};

void tg__vec_init(struct tg__vec *vec, size_t item_bytes, struct tg__budget *budget);
void tg__vec_free(struct tg__vec *vec);

/* Makes room for `more` items beyond count; count stays. Errors: -ENOMEM, TG_ELIMIT. */
int tg__vec_reserve(struct tg__vec *vec, size_t more);

/* The same, quick where there is room already. */
static inline int tg__vec_room(struct tg__vec *vec, size_t more) {
    return vec->capacity - vec->count >= more ? 0 : tg__vec_reserve(vec, more);
}

/* Appends `more` zeroed items and points `*first` at them. Errors as above. */
int tg__vec_extend(struct tg__vec *vec, size_t more, void **first);

/* Appends a copy of *item. Errors as above. */
int tg__vec_push(struct tg__vec *vec, const void *item);

/* Gives unused capacity back. Cannot fail: at worst nothing is given. */
void tg__vec_trim(struct tg__vec *vec);

#endif
