/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

void tg__vec_init(struct tg__vec *vec, size_t item_bytes, struct tg__budget *budget) {
    memset(vec, 0, sizeof *vec);
    vec->item_bytes = item_bytes;
    vec->budget = budget;
}

void tg__vec_free(struct tg__vec *vec) {
    if (vec->budget != NULL)
        vec->budget->left_bytes += vec->capacity * vec->item_bytes;
    free(vec->items);
    vec->items = NULL;
    vec->count = vec->capacity = 0;
}

/* Half as much again, not double: most of the growth of a large array would else stay untouched,
 * and count against the budget. */
static size_t grown_capacity(const struct tg__vec *vec, size_t needed) {
    size_t capacity = vec->capacity + vec->capacity / 2;

    if (capacity < 16)
        capacity = 16;
    return capacity < needed ? needed : capacity;
}

int tg__vec_reserve(struct tg__vec *vec, size_t more) {
    size_t needed, capacity, added_bytes;
    void *items;

    if (__builtin_add_overflow(vec->count, more, &needed))
        return tg__fail(TG_ELIMIT, "too many items");
    if (needed <= vec->capacity)
        return 0;
    capacity = grown_capacity(vec, needed);
    if (capacity > SIZE_MAX / vec->item_bytes)
        return tg__fail(TG_ELIMIT, "too many items");
    added_bytes = (capacity - vec->capacity) * vec->item_bytes;
    /* Old and new may be there together for a while: the whole new array must be to be had. */
    if (vec->budget != NULL && vec->budget->left_bytes < capacity * vec->item_bytes)
        return tg__fail(TG_ELIMIT, "it would take more memory than it is allowed");
    items = realloc(vec->items, capacity * vec->item_bytes);
    if (items == NULL)
        return tg__fail_memory();
    if (vec->budget != NULL)
        vec->budget->left_bytes -= added_bytes;
    vec->items = items;
    vec->capacity = capacity;
    return 0;
}

int tg__vec_extend(struct tg__vec *vec, size_t more, void **first) {
    int rc = tg__vec_reserve(vec, more);

    if (rc != 0)
        return rc;
    *first = (char *)vec->items + vec->count * vec->item_bytes;
    if (more > 0)
        memset(*first, 0, more * vec->item_bytes);
    vec->count += more;
    return 0;
}

int tg__vec_push(struct tg__vec *vec, const void *item) {
    int rc = tg__vec_reserve(vec, 1);

    if (rc != 0)
        return rc;
    memcpy((char *)vec->items + vec->count * vec->item_bytes, item, vec->item_bytes);
    vec->count++;
    return 0;
}

void tg__vec_trim(struct tg__vec *vec) {
    void *items;

    if (vec->count == vec->capacity || vec->count == 0)
        return;
    items = realloc(vec->items, vec->count * vec->item_bytes);
    if (items == NULL)
        return;
    if (vec->budget != NULL)
        vec->budget->left_bytes += (vec->capacity - vec->count) * vec->item_bytes;
    vec->items = items;
    vec->capacity = vec->count;
}
