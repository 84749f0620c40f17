/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of a checked block. xxHash is a header alone; where none is at hand a build can be
 * made without (TG__NO_CHECKSUMS), and tags cannot be checked in it. */
#ifndef TG_MEMORY_CHECKSUM_H
#define TG_MEMORY_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef TG__NO_CHECKSUMS

enum { TG__HAS_CHECKSUMS = 0 };

static inline uint64_t tg__checksum(const void *bytes, size_t size_bytes) {
    (void)bytes;
    return size_bytes;
}

#else

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { TG__HAS_CHECKSUMS = 1 };

static inline uint64_t tg__checksum(const void *bytes, size_t size_bytes) {
    return XXH3_64bits(bytes, size_bytes);
}

#endif

#endif
