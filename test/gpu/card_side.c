/* SPDX-License-Identifier: Apache-2.0 */
#include "card_side.h"

#include <stdlib.h>

#include "children.h"
#include "suite.h"

#define MOST_BLOCK_BYTES (64 * MIB)

static int ask(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    return tg_device_ops(argument)->memory(argument, free_bytes, total_bytes);
}

void side_open_on(struct side *side, const char *name, struct tg_device *device) {
    struct tg_device_info info;
    struct tg_tenant_params params = {.name = name, .rank = -1, .uuid = info.uuid};

    side->device = device;
    params.gauge = (struct tg_gauge){ask, side->device};
    ck_assert_ok(tg_device_ops(side->device)->info(side->device, &info));
    ck_assert_ok(tg_ledger_open(NULL, &side->ledger));
    ck_assert_ok(tg_ledger_join(side->ledger, &params, &side->tenant));
    ck_assert_ok(tg_memory_open(side->device, side->tenant, &side->memory));
    device_settle(side->device); /* the context is made */
    ck_assert_ok(ask(side->device, &side->free_bytes, &side->total_bytes));
}

void side_open(struct side *side, const char *name) {
    side_open_on(side, name, device_open("cuda:0"));
}

void side_close(struct side *side) {
    tg_memory_close(side->memory);
    tg_device_close(side->device);
    tg_tenant_leave(side->tenant);
    tg_ledger_close(side->ledger);
}

struct tg_tag *open_tag(struct side *side, const char *name, struct tg_tag_params params) {
    struct tg_tag *tag;

    ck_assert_ok(tg_tag_open(side->memory, name, &params, &tag));
    return tag;
}

/* ---- content --------------------------------------------------------------------------------- */

void write_pattern(struct side *side, const void *block, uint64_t size_bytes, uint64_t seed) {
    uint64_t *words = malloc(size_bytes);

    ck_assert_ptr_nonnull(words);
    for (uint64_t i = 0; i < size_bytes / 8; i++)
        words[i] = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    device_write(side->device, (uint64_t)(uintptr_t)block, words, size_bytes / 8 * 8);
    free(words);
}

int is_pattern(struct side *side, const void *block, uint64_t size_bytes, uint64_t seed) {
    uint64_t *words = malloc(size_bytes);
    int is_right = 1;

    ck_assert_ptr_nonnull(words);
    device_read(side->device, (uint64_t)(uintptr_t)block, words, size_bytes / 8 * 8);
    for (uint64_t i = 0; i < size_bytes / 8 && is_right; i++)
        is_right = words[i] == (seed == 0 ? 0 : (i + seed) * UINT64_C(0x9e3779b97f4a7c15));
    free(words);
    return is_right;
}

uint64_t block_bytes(const struct side *side, int i) {
    uint64_t most = side->total_bytes / 64;

    return (most < MOST_BLOCK_BYTES ? most : MOST_BLOCK_BYTES) - (uint64_t)i * 40000 / 8 * 8;
}

/* ---- running --------------------------------------------------------------------------------- */

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

int side_run(const char *name, TCase *cases) {
    /* Contexts of other processes come and go. */
    device_slack_bytes = getenv("TIDEGATE_STANDIN") != NULL ? 0 : 1024 * MIB;
    tcase_set_timeout(cases, 120);
    tcase_add_unchecked_fixture(cases, set_up, tear_down);
    return suite_run(name, cases);
}
