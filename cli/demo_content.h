/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo writes into its blocks, and looks for afterwards. The content of a block follows
 * from a key alone, word by word, so nothing has to be kept to compare with: what comes back right
 * has come back from where it was put. Pure. */
#ifndef CLI_DEMO_CONTENT_H
#define CLI_DEMO_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* The key of a block: other seeds, owners and blocks have other contents. */
uint64_t demo_content_key(uint64_t seed, uint64_t owner, uint64_t block);

/* The key of what lies offset_bytes, a multiple of 8, behind a block's beginning. */
uint64_t demo_content_key_at(uint64_t key, size_t offset_bytes);

/* Word i is key + i times an odd number: each word tells its place, each bit matters. `at` is at
 * least 8-byte aligned. */
void demo_content_fill(void *at, size_t size_bytes, uint64_t key);

/* How many bytes are not what was filled in. */
uint64_t demo_content_lost(const void *at, size_t size_bytes, uint64_t key);

/* How many bytes are not zero. */
uint64_t demo_content_not_zero(const void *at, size_t size_bytes);

#endif
