/* SPDX-License-Identifier: Apache-2.0 */
/* One tenant on a card for the tests of this folder: a device with a ledger and a memory, and
 * content that is written and read by copies alone. */
#ifndef TEST_GPU_CARD_SIDE_H
#define TEST_GPU_CARD_SIDE_H

#include <tidegate/memory.h>

#include "device_suite.h"

enum { LONG_MS = 60000 };

struct side {
    struct tg_device *device;
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;
    struct tg_memory *memory;
    uint64_t free_bytes, total_bytes; /* when it came */
};

void side_open(struct side *side, const char *name);
/* The same on a device that the caller has opened, and whose calls it may watch or have fail. */
void side_open_on(struct side *side, const char *name, struct tg_device *device);
void side_close(struct side *side);
struct tg_tag *open_tag(struct side *side, const char *name, struct tg_tag_params params);

void write_pattern(struct side *side, const void *block, uint64_t size_bytes, uint64_t seed);
/* Whether the pattern of the seed stands there; seed 0: zeroes. */
int is_pattern(struct side *side, const void *block, uint64_t size_bytes, uint64_t seed);
/* A block that is no whole number of granules, and differs from its neighbours. */
uint64_t block_bytes(const struct side *side, int i);

/* Runs the cases, all in one new directory; main's status. */
int side_run(const char *name, TCase *cases);

#endif
