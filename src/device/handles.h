/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for what a device hands out. A number is a place in a table and how often the place has
 * been used, so that one that was released is never taken for a later one. */
#ifndef TG_DEVICE_HANDLES_H
#define TG_DEVICE_HANDLES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/vec.h"

struct tg__handle {
    void *what;         /* the owner's; NULL: the place is free, */
    uint32_t next_free; /* and this the next such */
    uint32_t uses;      /* from 1 */
    bool is_created;    /* the owner's: by this process, as exportable */
};

struct tg__handles {
    struct tg__vec vec; /* of struct tg__handle */
    uint32_t first_free;
};

void tg__handles_init(struct tg__handles *handles);
void tg__handles_free(struct tg__handles *handles);
/* Room for one more, so that the next add cannot fail. Errors: -ENOMEM. */
int tg__handles_room(struct tg__handles *handles);
/* The number of a new handle; never 0. */
uint64_t tg__handles_add(struct tg__handles *handles, void *what, bool is_created);
/* NULL and a sentence if there is none. Lent until the next room or remove. */
struct tg__handle *tg__handles_find(const struct tg__handles *handles, uint64_t number);
void tg__handles_remove(struct tg__handles *handles, uint64_t number);

#endif
