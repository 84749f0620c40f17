/* SPDX-License-Identifier: Apache-2.0 */
/* Places that are free are a list through the table. */
#include "device/handles.h"

#include <errno.h>
#include <inttypes.h>

#include "base/error.h"

#define NO_PLACE UINT32_MAX

void tg__handles_init(struct tg__handles *handles) {
    tg__vec_init(&handles->vec, sizeof(struct tg__handle), NULL);
    handles->first_free = NO_PLACE;
}

void tg__handles_free(struct tg__handles *handles) {
    tg__vec_free(&handles->vec);
}

static struct tg__handle *at(const struct tg__handles *handles, uint32_t place) {
    return (struct tg__handle *)handles->vec.items + place;
}

int tg__handles_room(struct tg__handles *handles) {
    return handles->first_free != NO_PLACE ? 0 : tg__vec_room(&handles->vec, 1);
}

uint64_t tg__handles_add(struct tg__handles *handles, void *what, bool is_created) {
    uint32_t place = handles->first_free;
    struct tg__handle *handle;

    if (place == NO_PLACE) {
        place = (uint32_t)handles->vec.count++;
        *at(handles, place) = (struct tg__handle){.next_free = NO_PLACE};
    }
    handle = at(handles, place);
    handles->first_free = handle->next_free;
    handle->what = what;
    handle->is_created = is_created;
    handle->uses++;
    return (uint64_t)handle->uses << 32 | place;
}

struct tg__handle *tg__handles_find(const struct tg__handles *handles, uint64_t number) {
    uint32_t place = (uint32_t)number;

    if (place < handles->vec.count) {
        struct tg__handle *handle = at(handles, place);

        if (handle->what != NULL && handle->uses == number >> 32)
            return handle;
    }
    tg__fail(-EINVAL, "%#" PRIx64 " is no chunk of this device", number);
    return NULL;
}

void tg__handles_remove(struct tg__handles *handles, uint64_t number) {
    struct tg__handle *handle = at(handles, (uint32_t)number);

    handle->what = NULL;
    handle->next_free = handles->first_free;
    handles->first_free = (uint32_t)number;
}
