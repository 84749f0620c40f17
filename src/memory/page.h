/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program maps itself: estates are addresses that it reserved, pages what it made
 * to be mapped there. A page that is mapped in an estate is a block and a chunk of its tag, of
 * exactly its size, and sleeps with it: doc/design/expandable.md. All take the memory's lock. */
#ifndef TG_MEMORY_PAGE_H
#define TG_MEMORY_PAGE_H

#include <tidegate/pages.h>

#include "memory/state.h"

struct tg__estate {
    struct tg__range range; /* first */
    struct tg__plots pages; /* that the program has mapped */
    uint32_t unmapping;     /* unmapped by the program while their tag was in motion */
    bool is_left;           /* by the program; goes as soon as the device lets it */
};

struct tg__page {
    struct tg__range range; /* first; addr only where it is mapped */
    uint64_t number;        /* what the program knows it by */
    struct tg_tag *tag;
    struct tg__estate *estate; /* NULL: not mapped, or not there */
    struct tg__block *block;   /* NULL: in the tag's table */
    struct tg__chunk *chunk;   /* NULL: in the tag's table, or asleep, or gone */
    bool is_entered;  /* counts as an alloc of its tag that is under way */
    bool is_held;     /* never sleeps */
    bool is_released; /* by the program: goes when it is unmapped */
};

/* ---- estate.c -------------------------------------------------------------------------------- */

/* Errors: -ENOTSUP (no whole granules), -ENOMEM, the device's. */
int tg__estate_reserve(struct tg_memory *memory, uint64_t size_bytes, uint64_t *addr);
/* Errors: -ENOENT (none of this memory's), -EINVAL (not all of it, or pages are in it), the
 * device's. */
int tg__estate_unreserve(struct tg_memory *memory, struct tg__range range);
/* The one in which all of a range lies; NULL: none. With lock. */
struct tg__estate *tg__estate_find(struct tg_memory *memory, struct tg__range range);
/* Tries again what the program has left. With lock. */
void tg__estates_retry(struct tg_memory *memory);
/* The memory is closed. */
void tg__estates_free(struct tg_memory *memory);

/* ---- page.c ---------------------------------------------------------------------------------- */

/* flags: enum tg_chunk_flags. Errors: those of tg_tag_alloc, -ENOTSUP (no whole granules). */
int tg__page_create(struct tg_tag *tag, uint64_t size_bytes, uint32_t flags, uint64_t *number);
/* Errors of all that follows: -ENOENT (no page of this memory has that number, or is there). */
int tg__page_release(struct tg_memory *memory, uint64_t number);
/* Errors: -ENOTSUP (mapped already, not as large, or in no estate), -EINVAL (another page is there,
 * or its content went with a sleep), TG_EBUSY (what was unmapped there is still in use after a
 * second), -ENOMEM, the device's, also where it keeps what was unmapped there. */
int tg__page_map(struct tg_memory *memory, uint64_t number, struct tg__range range);
/* Unmaps the pages that fill the range. Errors: -EINVAL (they do not), the device's: those before
 * are unmapped. */
int tg__pages_unmap(struct tg_memory *memory, struct tg__range range);
/* Of the pages in the range. Errors: -ENOENT also where they do not fill it, the device's. */
int tg__pages_access(struct tg_memory *memory, struct tg__range range, uint64_t devices);
/* The page stays where it is from now on. *native is the driver's handle. Errors: TG_EASLEEP (its
 * tag sleeps, or is in motion), -EINVAL (its content is gone), those of tg__device_native. */
int tg__page_hold(struct tg_memory *memory, uint64_t number, uint64_t *native);
/* The same for all pages in the range. */
int tg__pages_hold(struct tg_memory *memory, struct tg__range range);

/* ---- for the tag's own files ----------------------------------------------------------------- */

/* A block that is a page's leaves its tag, and its memory with it: it was unmapped while the tag
 * was in motion, or the memory is closed. With lock. */
void tg__page_retire(struct tg__block *block, size_t number);
/* Of all that are not mapped, or held. */
void tg__pages_free(struct tg_memory *memory);

#endif
