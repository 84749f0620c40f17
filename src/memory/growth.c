/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/growth.h"

enum { SHARE = 8 };

static uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Less than a block more would save no chunk. */
static uint64_t whole_blocks(const struct tg__growth *growth, uint64_t extra) {
    return extra / growth->block_bytes * growth->block_bytes;
}

uint64_t tg__growth_extra(const struct tg__growth *growth) {
    uint64_t share = growth->used_bytes / SHARE;
    uint64_t extra = share > growth->spare_bytes ? share - growth->spare_bytes : 0;

    if (growth->need_bytes >= TG__LARGEST_CHUNK_BYTES)
        return 0;
    return whole_blocks(growth, least_of(extra, TG__LARGEST_CHUNK_BYTES - growth->need_bytes));
}

uint64_t tg__growth_chunk(const struct tg__growth *growth, uint64_t free_bytes) {
    uint64_t extra = least_of(tg__growth_extra(growth), free_bytes / SHARE);
    uint64_t chunk_bytes = growth->need_bytes + whole_blocks(growth, extra);

    return chunk_bytes > growth->least_bytes ? chunk_bytes : growth->least_bytes;
}

uint64_t tg__growth_less(const struct tg__growth *growth, uint64_t chunk_bytes) {
    return growth->need_bytes + whole_blocks(growth, (chunk_bytes - growth->need_bytes) / 2);
}
