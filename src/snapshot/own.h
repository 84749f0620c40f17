/* SPDX-License-Identifier: Apache-2.0 */
/* Which frame of a stack is the user's own code: the innermost one that is neither Python's, nor
 * C++, nor a library's. The rule stands in doc/design/snapshot.md. */
#ifndef TG_SNAPSHOT_OWN_H
#define TG_SNAPSHOT_OWN_H

#include <regex.h>

#include "snapshot/places.h"

struct tg__own {
    regex_t *patterns; /* where there are some, they replace the rule */
    size_t count;
};

/* Errors: TG_EPATTERN names the pattern; -ENOMEM. */
int tg__own_init(struct tg__own *own, const char *const *patterns, size_t count);
void tg__own_free(struct tg__own *own);

/* The index of the own frame in a stack of places that own their texts; count: there is none. */
size_t tg__own_frame(const struct tg__own *own, const struct tg__places *places,
                     const uint32_t *frames, size_t count);

#endif
