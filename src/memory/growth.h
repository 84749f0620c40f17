/* SPDX-License-Identifier: Apache-2.0 */
/* How large a new chunk of a packed tag is: pure. A device's calls cost by the chunk, so a chunk is
 * larger than its first block, and the more so the more the tag has; what is not used of it is
 * memory that nobody else can have. */
#ifndef TG_MEMORY_GROWTH_H
#define TG_MEMORY_GROWTH_H

#include <stdint.h>

/* Larger ones cost no less a byte, and the driver is slow to take them back. */
#define TG__LARGEST_CHUNK_BYTES (UINT64_C(1) << 30)

/* All in whole granules. */
struct tg__growth {
    uint64_t block_bytes; /* of the block that it is made for */
    uint64_t need_bytes;  /* what of them is not there yet */
    uint64_t least_bytes; /* of a chunk, whatever the tag has */
    uint64_t used_bytes;  /* of the tag, without this block and without what is spare */
    uint64_t spare_bytes; /* of the tag */
};

/* By how much the chunk may be larger than is needed: by whole blocks like this one, as long as the
 * tag has an eighth of what it uses to spare. */
uint64_t tg__growth_extra(const struct tg__growth *growth);
/* The chunk, where the device has `free_bytes`, of which no growth takes more than an eighth. */
uint64_t tg__growth_chunk(const struct tg__growth *growth, uint64_t free_bytes);
/* The next smaller chunk to try; in the end what is needed. */
uint64_t tg__growth_less(const struct tg__growth *growth, uint64_t chunk_bytes);

#endif
