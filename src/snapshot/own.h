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
    struct tg__map files; /* text number to 0 or 1: what is known of the files of one places */
};

/* Errors: TG_EPATTERN names the pattern; -ENOMEM. */
int tg__own_init(struct tg__own *own, const char *const *patterns, size_t count);
void tg__own_free(struct tg__own *own);

/* The index of the own frame in a stack; count: there is none. The places own their texts, and are
 * the same at each call. Errors: -ENOMEM. */
int tg__own_frame(struct tg__own *own, const struct tg__places *places, const uint32_t *frames,
                  size_t count, size_t *index);

#endif
