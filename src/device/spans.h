/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses that do not overlap, in order: what is reserved, what is pinned. */
#ifndef TG_DEVICE_SPANS_H
#define TG_DEVICE_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vec.h"

struct tg__span {
    uint64_t addr, size_bytes;
    void *what; /* the owner's */
};

struct tg__spans {
    struct tg__vec vec; /* of struct tg__span, by address */
};

void tg__spans_init(struct tg__spans *spans);
void tg__spans_free(struct tg__spans *spans);
/* The one that holds the whole range, or NULL. Lent until the next insert or remove. */
struct tg__span *tg__spans_find(const struct tg__spans *spans, uint64_t addr, uint64_t size_bytes);
/* The one that is exactly this range, or NULL. Lent likewise. */
struct tg__span *tg__spans_exact(const struct tg__spans *spans, uint64_t addr, uint64_t size_bytes);
bool tg__spans_overlap(const struct tg__spans *spans, uint64_t addr, uint64_t size_bytes);
/* Room for one more, so that the next insert cannot fail. Errors: -ENOMEM. */
int tg__spans_room(struct tg__spans *spans);
void tg__spans_insert(struct tg__spans *spans, const struct tg__span *span);
void tg__spans_remove(struct tg__spans *spans, struct tg__span *span);

#endif
