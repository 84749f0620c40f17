/* SPDX-License-Identifier: Apache-2.0 */
/* The book of a device's addresses: which ranges are reserved, and which mapping lies where in
 * them. A reserved range has a word for each granule: the owner's for the mapping that begins
 * there, a mark where it goes on, or NULL. So the checks of a map or unmap cost the granules that
 * they are about, not the number of mappings. */
#ifndef TG_DEVICE_GRID_H
#define TG_DEVICE_GRID_H

#include <stdint.h>

#include "device/spans.h"

struct tg__grid {
    struct tg__spans ranges;
    uint64_t granule_bytes;
};

/* Words of a piece of a reserved range; lent until the range goes. */
struct tg__gridpiece {
    struct tg__gridrange *range;
    void **words;
    uint64_t count;
};

void tg__grid_init(struct tg__grid *grid, uint64_t granule_bytes);
/* Frees the book; what it tells of is the owner's to undo before. */
void tg__grid_free(struct tg__grid *grid);

/* A table for a range that is about to be reserved, and room for it: the next insert cannot fail.
 * It is dropped again where there will be none. Errors: -ENOMEM. */
int tg__grid_prepare(struct tg__grid *grid, uint64_t size_bytes, struct tg__gridrange **range);
void tg__grid_drop(struct tg__gridrange *range);
void tg__grid_insert(struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                     struct tg__gridrange *range);
/* 0 where exactly this range is reserved and empty. Errors: -EINVAL. */
int tg__grid_check_empty(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes);
void tg__grid_remove(struct tg__grid *grid, uint64_t addr, uint64_t size_bytes);

/* A piece where nothing is mapped. Errors: -EINVAL. */
int tg__grid_find_vacant(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                         struct tg__gridpiece *piece);
/* A piece that whole mappings fill. Errors: -EINVAL. */
int tg__grid_find_whole(const struct tg__grid *grid, uint64_t addr, uint64_t size_bytes,
                        struct tg__gridpiece *piece);
void tg__grid_fill(const struct tg__gridpiece *piece, void *what);
/* The mapping that begins at this word, which is vacant then; NULL: none begins there. */
void *tg__grid_clear(const struct tg__gridpiece *piece, uint64_t index);
/* The mapped granules from `*first` on in a reserved range, as one run of whole mappings; 0: no
 * more. *first moves to the run's begin. */
uint64_t tg__grid_next_run(const struct tg__grid *grid, const struct tg__span *span,
                           uint64_t *first);

#endif
