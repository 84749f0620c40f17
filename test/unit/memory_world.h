/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the memory stand on: a host device of their own behind fault and spy, a ledger in a
 * new directory, and content that can be computed again from a seed. */
#ifndef TEST_MEMORY_WORLD_H
#define TEST_MEMORY_WORLD_H

#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/memory.h>

#include "device/fault.h"
#include "device/spy.h"

enum { MIB = 1 << 20, GRANULE = 2 * MIB };

#define ck_assert_ok(call)                                                                \
    do {                                                                                  \
        int status_ = (call);                                                             \
        ck_assert_msg(status_ == 0, "%s: %d, %s", #call, status_, tg_last_error()->text); \
    } while (0)

/* The call answers `wanted`, and the sentence contains `words`. */
#define ck_assert_says(call, wanted, words)                                                 \
    do {                                                                                    \
        int status_ = (call);                                                               \
        ck_assert_msg(status_ == (wanted), "%s: %d (%s) instead of %d", #call, status_,     \
                      tg_last_error()->text, wanted);                                       \
        ck_assert_int_eq(tg_last_error()->status, wanted);                                  \
        ck_assert_msg(strstr(tg_last_error()->text, words) != NULL, "\"%s\" lacks \"%s\"",  \
                      tg_last_error()->text, words);                                        \
    } while (0)

struct world {
    char dir[64];
    struct tg_device *spy, *fault; /* spy is the outermost: what the memory uses */
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;
    struct tg_memory *memory;
};

/* options: of the host device, "capacity=64MiB,lag=5". */
void world_open(struct world *world, const char *options, bool has_ledger);
/* For a forked child that may die: a tenant beside the parent's, in the same directory. */
void world_enter(struct world *world, const char *options);
/* Also checks that nothing is left on the device and in the ledger. */
void world_close(struct world *world);

/* Another tenant of the same device; the caller's. */
struct tg_tenant *world_peer(struct world *world, const char *name);
struct tg_tag *world_tag(struct world *world, const char *name, struct tg_tag_params params);
void *world_alloc(struct tg_tag *tag, uint64_t size_bytes);
struct tg_tag_info world_info(struct tg_tag *tag);
uint64_t world_free_bytes(struct world *world);
/* Of this tenant, for all its tags together. */
struct tg_tag_view world_view(struct world *world);
/* Every call of an entry, or the nth, answers `status` (0: the entry's usual one) until disarm. */
void world_arm(struct world *world, enum tg__op op, enum tg__fault_mode mode, uint64_t nth,
               int status);
void world_disarm(struct world *world);
/* Forks children that enter and are killed before or after their first call, their second, …, until
 * one lives through it. Wherever one dies, the device is whole for who comes next: `tag` can have
 * all of it. Returns how many died. */
int world_deaths(struct world *world, struct tg_tag *tag, uint64_t capacity_bytes,
                 enum tg__fault_mode mode, void (*live)(enum tg__fault_mode mode, uint64_t nth));
/* How many calls of an entry the spy has seen. */
size_t world_calls(struct world *world, enum tg__op op);

/* One word of content is written, and looked at, in so many bytes: 8 is all of them. */
extern uint64_t content_step;
void content_write(void *block, uint64_t size_bytes, uint64_t seed);
bool content_is(const void *block, uint64_t size_bytes, uint64_t seed);
bool content_is_zero(const void *block, uint64_t size_bytes);

#endif
