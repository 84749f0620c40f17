/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that the program reserved, in the books of the device, so that chunks can be mapped
 * there. The program may leave an estate while the device still has something mapped in it that is
 * on its way out: then it goes later. */
#include "memory/page.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"

int tg__estate_reserve(struct tg_memory *memory, uint64_t size_bytes, uint64_t *addr) {
    struct tg__estate *estate;
    int rc;

    if (size_bytes == 0 || size_bytes % memory->granule_bytes != 0)
        return tg__fail(-ENOTSUP, "%" PRIu64 " bytes of addresses are no whole granules",
                        size_bytes);
    estate = calloc(1, sizeof *estate);
    if (estate == NULL)
        return tg__fail_memory();
    estate->range.size_bytes = size_bytes;
    pthread_mutex_lock(&memory->lock);
    rc = tg__plots_room(&memory->estates, 1);
    if (rc == 0)
        rc = memory->ops->reserve(memory->device, size_bytes, &estate->range.addr);
    if (rc == 0) {
        *addr = estate->range.addr;
        tg__plots_put(&memory->estates, estate);
    }
    pthread_mutex_unlock(&memory->lock);
    if (rc != 0)
        free(estate);
    return rc;
}

struct tg__estate *tg__estate_find(struct tg_memory *memory, struct tg__range range) {
    struct tg__estate *estate = tg__plots_find(&memory->estates, range.addr, NULL);

    if (estate == NULL || estate->is_left ||
        range.size_bytes > tg__range_end(&estate->range) - range.addr)
        return NULL;
    return estate;
}

static int let_go(struct tg_memory *memory, size_t number) {
    struct tg__estate *estate = memory->estates.items[number];
    int rc = memory->ops->unreserve(memory->device, estate->range.addr, estate->range.size_bytes);

    if (rc != 0)
        return rc;
    tg__plots_drop(&memory->estates, number);
    tg__plots_free(&estate->pages);
    free(estate);
    return 0;
}

/* With lock. */
static int unreserve(struct tg_memory *memory, struct tg__range range) {
    size_t number;
    struct tg__estate *estate = tg__plots_find(&memory->estates, range.addr, &number);
    int rc;

    if (estate == NULL || estate->is_left)
        return -ENOENT;
    if (estate->range.addr != range.addr || estate->range.size_bytes != range.size_bytes)
        return tg__fail(-EINVAL, "%#" PRIx64 " and %" PRIu64 " bytes are not all that was reserved "
                        "there", range.addr, range.size_bytes);
    if (estate->pages.count > 0)
        return tg__fail(-EINVAL, "%zu pages are mapped at the addresses that are freed",
                        estate->pages.count);
    rc = estate->unmapping > 0 ? TG_EBUSY : let_go(memory, number);
    if (rc == 0 || (estate->unmapping == 0 && memory->leaving == NULL))
        return rc;
    estate->is_left = true;
    return 0;
}

int tg__estate_unreserve(struct tg_memory *memory, struct tg__range range) {
    const struct tg_error before = *tg_last_error();
    int rc;

    pthread_mutex_lock(&memory->lock);
    tg__memory_tidy(memory);
    rc = unreserve(memory, range);
    pthread_mutex_unlock(&memory->lock);
    if (rc == 0)
        tg__fail_as(&before);
    return rc;
}

void tg__estates_retry(struct tg_memory *memory) {
    for (size_t i = memory->estates.count; i-- > 0;) {
        const struct tg__estate *estate = memory->estates.items[i];

        if (estate->is_left && estate->unmapping == 0)
            (void)!let_go(memory, i);
    }
}

void tg__estates_free(struct tg_memory *memory) {
    for (size_t i = memory->estates.count; i-- > 0;) {
        struct tg__estate *estate = memory->estates.items[i];

        if (let_go(memory, i) == 0)
            continue;
        tg__plots_free(&estate->pages); /* the addresses go with the device */
        free(estate);
    }
    tg__plots_free(&memory->estates);
}
