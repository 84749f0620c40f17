/* SPDX-License-Identifier: Apache-2.0 */
#include "device/pins.h"

#include <errno.h>
#include <inttypes.h>

#include "base/error.h"

static uint64_t addr_of(const void *memory) {
    return (uint64_t)(uintptr_t)memory;
}

int tg__pins_check(struct tg__spans *pins, const void *memory, uint64_t size_bytes, int on) {
    uint64_t addr = addr_of(memory);

    if (memory == NULL || size_bytes == 0 || size_bytes > UINT64_MAX - addr)
        return tg__fail(-EINVAL, "%p and %" PRIu64 " bytes are no range of memory", memory,
                        size_bytes);
    if (on && tg__spans_overlap(pins, addr, size_bytes))
        return tg__fail(-EINVAL, "memory at %p is pinned already", memory);
    if (on)
        return tg__spans_room(pins);
    if (tg__spans_exact(pins, addr, size_bytes) == NULL)
        return tg__fail(-EINVAL, "%p and %" PRIu64 " bytes were not pinned as one range", memory,
                        size_bytes);
    return 0;
}

void tg__pins_note(struct tg__spans *pins, const void *memory, uint64_t size_bytes, int on) {
    struct tg__span span = {.addr = addr_of(memory), .size_bytes = size_bytes};

    if (on)
        tg__spans_insert(pins, &span);
    else
        tg__spans_remove(pins, tg__spans_exact(pins, span.addr, size_bytes));
}
