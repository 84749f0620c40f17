/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed data: told by its first bytes, never by a name, and unpacked into memory. */
#ifndef CLI_DECOMPRESS_H
#define CLI_DECOMPRESS_H

#include <stddef.h>

#include "buffer.h"
#include "say.h"

enum packing { PACKING_NONE, PACKING_GZIP, PACKING_XZ, PACKING_ZSTD };

enum packing packing_detect(const unsigned char *bytes, size_t size_bytes);

/* "gz", "xz", "zst"; "" for none. Static. */
const char *packing_name(enum packing packing);

enum unpack_result {
    UNPACKED,
    UNPACK_LATER, /* memory is held by others: see BUDGET_LATER */
    UNPACK_FAILED /* why has the sentence, with the byte of the compressed data */
};

/* Unpacks all members of the data into an empty buffer. It stops where the first unpacked byte
 * cannot begin a pickle: the reader says so, and a bomb of zeros costs nothing. */
enum unpack_result unpack(enum packing packing, const unsigned char *bytes, size_t size_bytes,
                          struct buffer *out, struct sentence *why);

/* Says in *why that memory is short: by the budget's limit, or the system's. Not for LATER. */
enum unpack_result unpack_short_of_memory(enum buffer_result result, const struct buffer *out,
                                          size_t at, struct sentence *why);

#endif
