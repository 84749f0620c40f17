/* SPDX-License-Identifier: Apache-2.0 */
/* Pages: created, mapped, unmapped and released by the program, in any order that a driver takes.
 *
 * A page that is mapped has its block and its chunk in the tables of its tag, where sleep and wake
 * find them as any other; the chunk may be another one after that. One that is not mapped has both
 * itself, and counts as an alloc under way: so none is there while the tag is in motion. A held one
 * has both itself, too, and is nothing to a sleep. */
#include "memory/page.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/device.h"

/* A number is that of its memory, and below this the table's. */
enum { NUMBER_SHIFT = 57 };

/* A map waits so many times, TG__SETTLE_MS each, for what was unmapped just there. */
enum { WAY_TRIES = 10 };

/* ---- finding --------------------------------------------------------------------------------- */

/* The driver's handles have not the highest bit. */
static uint64_t number_of(const struct tg_memory *memory, uint64_t handle) {
    return TG_PAGE_BIT | (uint64_t)(memory->number % 64) << NUMBER_SHIFT |
           (handle & ((UINT64_C(1) << NUMBER_SHIFT) - 1));
}

static struct tg__page *find_page(struct tg_memory *memory, uint64_t number) {
    const struct tg__handle *handles = memory->pages.vec.items;
    uint32_t place = (uint32_t)number;
    struct tg__page *page = place < memory->pages.vec.count ? handles[place].what : NULL;

    return page != NULL && page->number == number ? page : NULL;
}

/* The first page of an estate's range, or count. */
static size_t first_in(const struct tg__estate *estate, struct tg__range range) {
    size_t i = tg__plots_from(&estate->pages, range.addr);

    return i < estate->pages.count &&
                   tg__plots_range(&estate->pages, i)->addr < tg__range_end(&range)
               ? i
               : estate->pages.count;
}

/* Whether pages fill the range exactly. */
static bool is_filled(const struct tg__estate *estate, struct tg__range range) {
    uint64_t at = range.addr;

    for (size_t i = first_in(estate, range); i < estate->pages.count && at < tg__range_end(&range);
         i++) {
        const struct tg__range *page = tg__plots_range(&estate->pages, i);

        if (page->addr != at)
            return false;
        at = tg__range_end(page);
    }
    return at == tg__range_end(&range);
}

/* ---- coming ---------------------------------------------------------------------------------- */

static int back(struct tg__page *page) {
    struct tg_memory *memory = page->tag->memory;
    uint64_t given_bytes = tg__shortage_begin(memory);
    int rc = tg__chunk_make_unmapped(page->chunk);

    if (tg__is_short(rc) && tg__shortage_settle(memory, given_bytes))
        rc = tg__chunk_make_unmapped(page->chunk);
    return rc;
}

/* What a page has when it is mapped nowhere goes with it. With lock. */
static void free_page(struct tg__page *page) {
    struct tg_tag *tag = page->tag;

    if (page->is_entered)
        tg__tag_leave(tag);
    if (page->is_held)
        tag->held_bytes -= page->range.size_bytes;
    if (page->chunk != NULL)
        tg__chunk_leave(page->chunk);
    free(page->block);
    free(page);
}

/* With lock, which it gives up meanwhile. */
static int make(struct tg__page *page) {
    struct tg_tag *tag = page->tag;
    struct tg_memory *memory = tag->memory;
    struct tg_error why;
    int rc;

    tg__memory_tidy(memory);
    rc = tg__tag_enter(tag);
    page->is_entered = rc == 0;
    if (rc == 0) {
        pthread_mutex_unlock(&memory->lock);
        rc = back(page);
        pthread_mutex_lock(&memory->lock);
        if (page->chunk->is_charged)
            tag->chunk_bytes += page->range.size_bytes;
    }
    if (rc == 0)
        rc = tg__handles_room(&memory->pages);
    if (rc == 0) {
        page->number = number_of(memory, tg__handles_add(&memory->pages, page, true));
        return 0;
    }
    why = *tg_last_error();
    free_page(page);
    tg__fail_as(&why);
    return rc;
}

static struct tg__page *new_page(struct tg_tag *tag, uint64_t size_bytes, uint32_t flags) {
    struct tg__page *page = calloc(1, sizeof *page);
    struct tg__block *block = calloc(1, sizeof *block);
    struct tg__chunk *chunk = tg__chunk_new(tag, (struct tg__range){0, size_bytes});

    if (page == NULL || block == NULL || chunk == NULL) {
        free(page);
        free(block);
        free(chunk);
        return NULL;
    }
    chunk->flags = block->flags = flags;
    block->tag = tag;
    block->size_bytes = size_bytes;
    *page = (struct tg__page){
        .range = {0, size_bytes}, .tag = tag, .block = block, .chunk = chunk};
    return page;
}

int tg__page_create(struct tg_tag *tag, uint64_t size_bytes, uint32_t flags, uint64_t *number) {
    struct tg_memory *memory = tag->memory;
    const struct tg_error before = *tg_last_error();
    struct tg__page *page;
    int saved = errno, rc = tg__memory_check(memory);

    if (rc == 0 && (size_bytes == 0 || size_bytes % memory->granule_bytes != 0))
        rc = tg__fail(-ENOTSUP, "%" PRIu64 " bytes of memory are no whole granules", size_bytes);
    if (rc != 0)
        return rc;
    page = new_page(tag, size_bytes, flags);
    errno = saved;
    if (page == NULL)
        return tg__fail_memory();
    pthread_mutex_lock(&memory->lock);
    rc = make(page);
    if (rc == 0)
        *number = page->number;
    pthread_mutex_unlock(&memory->lock);
    tg__shortage_ask(memory, size_bytes, rc);
    errno = saved;
    return tg__memory_done(memory, rc, &before);
}

/* ---- mapping --------------------------------------------------------------------------------- */

/* Into the tables of its tag, which has room since the page entered it. */
static void place(struct tg__page *page) {
    struct tg_tag *tag = page->tag;

    page->block->range = page->range;
    page->block->estate = page->estate;
    page->block->page = page;
    tg__plots_put(&tag->blocks, page->block);
    tg__plots_put(&tag->chunks, page->chunk);
    tag->size_bytes += page->block->size_bytes;
    page->block = NULL;
    page->chunk = NULL;
    page->is_entered = false;
    tg__tag_leave(tag);
}

static int map_page(struct tg_memory *memory, struct tg__page *page, struct tg__range range) {
    struct tg__estate *estate = tg__estate_find(memory, range);
    int rc;

    if (page->estate != NULL || estate == NULL || range.size_bytes != page->range.size_bytes)
        return tg__fail(-ENOTSUP, "not a whole page, once, in one estate");
    if (page->chunk == NULL)
        return tg__fail(-EINVAL, "the page was unmapped while its tag slept: it has no content");
    if (first_in(estate, range) < estate->pages.count)
        return tg__fail(-EINVAL, "a page is mapped at %#" PRIx64 " already", range.addr);
    rc = tg__plots_room(&estate->pages, 1);
    if (rc != 0)
        return rc;
    page->chunk->range.addr = range.addr;
    page->chunk->estate = estate;
    rc = tg__chunk_map_kept(page->chunk);
    if (rc != 0)
        return rc;
    page->range = range;
    page->estate = estate;
    tg__plots_put(&estate->pages, page);
    if (!page->is_held)
        place(page);
    return 0;
}

static int unmap_chunk(struct tg__chunk *chunk) {
    struct tg_memory *memory = chunk->tag->memory;
    int rc;

    if (!chunk->is_mapped)
        return 0;
    rc = memory->ops->unmap(memory->device, chunk->range.addr, chunk->range.size_bytes);
    chunk->is_mapped = rc != 0;
    return rc;
}

/* Says which it is: somebody uses it still, or the device does not let it go. */
static int unmap_leaving(struct tg__chunk *chunk) {
    struct tg_error why;
    int rc;

    if (!tg__gate_is_open(chunk->tag->memory, &chunk->gate))
        return tg__fail(TG_EBUSY, "what was unmapped at %#" PRIx64 " is still in use",
                        chunk->range.addr);
    rc = unmap_chunk(chunk);
    chunk->tag->leaving_mapped -= rc == 0;
    if (rc == 0)
        return 0;
    why = *tg_last_error();
    return tg__fail_native(rc, why.native, "the device keeps what was unmapped at %#" PRIx64 ": %s",
                           chunk->range.addr, why.text);
}

/* The driver unmaps what is still in use; here it leaves when its users are through. Waits for
 * these, without the lock; a call that failed on the way is made again. */
static int clear_the_way(struct tg_memory *memory, struct tg__range range) {
    struct tg__chunk *chunk;
    int rc = 0;

    for (int tries = 0; tries < WAY_TRIES && tg__chunk_leaving_in(memory, range) != NULL; tries++) {
        tg__limbo_settle(memory, TG__SETTLE_MS);
        tg__memory_tidy(memory);
    }
    while (rc == 0 && (chunk = tg__chunk_leaving_in(memory, range)) != NULL)
        rc = unmap_leaving(chunk);
    return rc;
}

int tg__page_map(struct tg_memory *memory, uint64_t number, struct tg__range range) {
    const struct tg_error before = *tg_last_error();
    struct tg__page *page;
    int saved = errno, rc = tg__memory_check(memory);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    rc = clear_the_way(memory, range);
    page = find_page(memory, number);
    if (rc == 0)
        rc = page == NULL ? -ENOENT : map_page(memory, page, range);
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return rc == -ENOENT ? rc : tg__memory_done(memory, rc, &before);
}

/* ---- out of the tag's tables ----------------------------------------------------------------- */

/* Takes the block out, and its chunk, if it has one: NULL. */
static struct tg__chunk *take_out(struct tg__block *block, size_t number) {
    struct tg_tag *tag = block->tag;
    size_t chunk_number;
    struct tg__chunk *chunk = tg__plots_find(&tag->chunks, block->range.addr, &chunk_number);

    tg__plots_drop(&tag->blocks, number);
    tag->size_bytes -= block->size_bytes;
    if (tag->state == TG_TAG_ASLEEP && tag->chunks.count == 0)
        tg__charge_forget(tag, block->range.size_bytes);
    tg__segment_release(block);
    if (chunk != NULL)
        tg__plots_drop(&tag->chunks, chunk_number);
    return chunk;
}

static void leave_estate(struct tg__page *page) {
    size_t number;

    if (tg__plots_find(&page->estate->pages, page->range.addr, &number) != NULL)
        tg__plots_drop(&page->estate->pages, number);
    page->estate = NULL;
    page->range.addr = 0;
    if (page->is_released)
        free_page(page);
}

void tg__page_retire(struct tg__block *block, size_t number) {
    struct tg__chunk *chunk = take_out(block, number);
    struct tg__page *page = block->page;

    if (page != NULL) { /* the memory is closed, and nobody has waited for its users */
        if (chunk != NULL)
            chunk->gate = block->gate;
        page->block = block;
        leave_estate(page);
    } else {
        block->estate->unmapping--;
        free(block);
    }
    if (chunk != NULL)
        tg__chunk_leave(chunk);
}

/* ---- unmapping ------------------------------------------------------------------------------- */

/* Its memory is the page's again, if it is awake and nothing of ours uses it: else it goes. */
static void take_back(struct tg__page *page, struct tg__chunk *chunk) {
    if (chunk == NULL)
        return;
    if (page->tag->state != TG_TAG_AWAKE || chunk->is_mapped) {
        tg__chunk_leave(chunk);
        return;
    }
    chunk->estate = NULL;
    page->chunk = chunk;
    page->is_entered = true;
    page->tag->allocs++; /* the room that it needs is what it leaves */
}

static int unmap_placed(struct tg__page *page) {
    struct tg_tag *tag = page->tag;
    size_t number;
    struct tg__block *block = tg__plots_find(&tag->blocks, page->range.addr, &number);
    struct tg__chunk *chunk = tg__plots_find(&tag->chunks, page->range.addr, NULL);
    int rc = 0;

    if (tg__tag_is_moving(tag)) {
        block->is_freed = true;
        block->page = NULL;
        page->estate->unmapping++;
        return 0;
    }
    if (chunk != NULL && tg__gate_is_open(tag->memory, &chunk->gate))
        rc = unmap_chunk(chunk);
    if (rc != 0)
        return rc;
    take_back(page, take_out(block, number));
    page->block = block;
    return 0;
}

/* With lock. */
static int unmap_page(struct tg__page *page) {
    int rc = page->is_held ? unmap_chunk(page->chunk) : unmap_placed(page);

    if (rc == 0)
        leave_estate(page);
    return rc;
}

static int unmap_range(struct tg_memory *memory, struct tg__range range) {
    struct tg__estate *estate = tg__estate_find(memory, range);
    size_t i = estate == NULL ? 0 : first_in(estate, range);
    int rc = 0;

    if (estate == NULL || i == estate->pages.count)
        return -ENOENT;
    if (!is_filled(estate, range))
        return tg__fail(-EINVAL, "whole pages do not fill %#" PRIx64 " and %" PRIu64 " bytes",
                        range.addr, range.size_bytes);
    while (rc == 0 && i < estate->pages.count &&
           tg__plots_range(&estate->pages, i)->addr < tg__range_end(&range))
        rc = unmap_page(estate->pages.items[i]);
    return rc;
}

int tg__pages_unmap(struct tg_memory *memory, struct tg__range range) {
    const struct tg_error before = *tg_last_error();
    int saved = errno, rc;

    pthread_mutex_lock(&memory->lock);
    rc = unmap_range(memory, range);
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return rc == -ENOENT ? rc : tg__memory_done(memory, rc, &before);
}

int tg__page_release(struct tg_memory *memory, uint64_t number) {
    const struct tg_error before = *tg_last_error();
    int saved = errno;
    struct tg__page *page;

    pthread_mutex_lock(&memory->lock);
    page = find_page(memory, number);
    if (page != NULL) {
        tg__handles_remove(&memory->pages, number);
        page->is_released = true;
        if (page->estate == NULL)
            free_page(page);
        tg__memory_tidy(memory);
    }
    pthread_mutex_unlock(&memory->lock);
    tg__fail_as(&before);
    errno = saved;
    return page == NULL ? -ENOENT : 0;
}

/* ---- others ---------------------------------------------------------------------------------- */

/* With lock. */
static int hold(struct tg__page *page) {
    struct tg_tag *tag = page->tag;
    size_t number;

    if (page->is_held)
        return 0;
    if (page->estate != NULL && tag->state != TG_TAG_AWAKE)
        return tg__fail(TG_EASLEEP, "tag '%s' sleeps, or is on its way: none of it can be shared",
                        tag->name);
    if (page->estate != NULL) {
        page->block = tg__plots_find(&tag->blocks, page->range.addr, &number);
        page->chunk = take_out(page->block, number);
    }
    if (page->chunk == NULL)
        return tg__fail(-EINVAL, "the page was unmapped while its tag slept: it has no content");
    if (page->is_entered)
        tg__tag_leave(tag);
    page->is_entered = false;
    page->is_held = true;
    tag->held_bytes += page->range.size_bytes;
    return 0;
}

int tg__page_hold(struct tg_memory *memory, uint64_t number, uint64_t *native) {
    struct tg__page *page;
    int saved = errno, rc = tg__memory_check(memory);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    page = find_page(memory, number);
    rc = page == NULL ? -ENOENT : hold(page);
    if (rc == 0)
        rc = tg__device_native(memory->device, page->chunk->handle, native);
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return rc;
}

/* One after the other, until an answer is not 0. -ENOENT where they do not fill the range. */
static int each_in(struct tg_memory *memory, struct tg__range range,
                   int (*act)(struct tg__page *page, uint64_t devices), uint64_t devices) {
    struct tg__estate *estate;
    int saved = errno, rc = 0;

    pthread_mutex_lock(&memory->lock);
    estate = tg__estate_find(memory, range);
    for (size_t i = estate == NULL ? 0 : first_in(estate, range);
         estate != NULL && rc == 0 && i < estate->pages.count &&
         tg__plots_range(&estate->pages, i)->addr < tg__range_end(&range);
         i++)
        rc = act(estate->pages.items[i], devices);
    if (rc == 0 && (estate == NULL || !is_filled(estate, range)))
        rc = -ENOENT;
    pthread_mutex_unlock(&memory->lock);
    errno = saved;
    return rc;
}

static int hold_it(struct tg__page *page, uint64_t devices) {
    (void)devices;
    return hold(page);
}

int tg__pages_hold(struct tg_memory *memory, struct tg__range range) {
    return each_in(memory, range, hold_it, 0);
}

/* Of a tag in motion or asleep: at the end of that, or by the wake. */
static int let_in(struct tg__page *page, uint64_t devices) {
    struct tg_tag *tag = page->tag;
    struct tg__block *block = page->block;
    struct tg__chunk *chunk = page->chunk;

    if (block == NULL)
        block = tg__plots_find(&tag->blocks, page->range.addr, NULL);
    if (chunk == NULL && !tg__tag_is_moving(tag))
        chunk = tg__plots_find(&tag->chunks, page->range.addr, NULL);
    block->devices |= devices;
    if (chunk == NULL)
        return 0;
    chunk->devices |= devices;
    return tg__chunk_access(chunk);
}

int tg__pages_access(struct tg_memory *memory, struct tg__range range, uint64_t devices) {
    return each_in(memory, range, let_in, devices);
}

void tg__pages_free(struct tg_memory *memory) {
    struct tg__handle *handles = memory->pages.vec.items;

    for (size_t i = 0; i < memory->estates.count; i++) {
        struct tg__estate *estate = memory->estates.items[i];

        while (estate->pages.count > 0)
            leave_estate(estate->pages.items[0]);
    }
    for (size_t i = 0; i < memory->pages.vec.count; i++) {
        if (handles[i].what != NULL)
            free_page(handles[i].what);
    }
    tg__handles_free(&memory->pages);
}
