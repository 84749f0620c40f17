/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's rollout engine: weights, which sleep keeps, and a cache of keys and values, which it
 * drops. In each turn the weights must be what was loaded and the cache zero; then the cache is
 * filled and read, as decoding would. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "demo_content.h"
#include "demo_side.h"

struct rollout {
    struct tg_tag *weights, *kv_cache;
    void *weights_blocks[DEMO_WEIGHTS_BLOCKS];
    void *kv_cache_blocks[DEMO_KV_CACHE_BLOCKS];
    uint64_t turn;
    bool is_loaded;
};

static uint64_t needed_bytes(const struct demo_setup *setup) {
    return DEMO_WEIGHTS_BLOCKS * setup->weights_bytes +
           DEMO_KV_CACHE_BLOCKS * setup->kv_cache_bytes;
}

static int rollout_open(struct demo_side *side, void **state) {
    struct tg_tag_params weights_params = {.backup = TG_BACKUP_HOST, .packed = 1, .keep_host = 1};
    struct tg_tag_params kv_cache_params = {.backup = TG_BACKUP_NONE};
    struct rollout *rollout = calloc(1, sizeof *rollout);
    int status;

    if (rollout == NULL)
        return -ENOMEM;
    *state = rollout;
    status = tg_tag_open(side->memory, "weights", &weights_params, &rollout->weights);
    if (status != 0)
        return status;
    return tg_tag_open(side->memory, demo_rollout_role.tag, &kv_cache_params, &rollout->kv_cache);
}

static int blocks_alloc(struct tg_tag *tag, uint64_t size_bytes, void **blocks, size_t count) {
    int status = 0;

    for (size_t i = 0; status == 0 && i < count; i++)
        status = tg_tag_alloc(tag, size_bytes, &blocks[i]);
    return status;
}

static int rollout_begin(struct demo_side *side, void *state) {
    struct rollout *rollout = state;
    int status = blocks_alloc(rollout->weights, side->setup->weights_bytes,
                              rollout->weights_blocks, DEMO_WEIGHTS_BLOCKS);

    if (status == 0)
        status = blocks_alloc(rollout->kv_cache, side->setup->kv_cache_bytes,
                              rollout->kv_cache_blocks, DEMO_KV_CACHE_BLOCKS);
    demo_side_measure(side, needed_bytes(side->setup));
    return status;
}

/* Other weights in each process, and another cache in each turn. */
static uint64_t key_of(const struct demo_side *side, uint64_t turn, uint64_t block) {
    uint64_t owner = (uint64_t)DEMO_ROLLOUT << 32 | (uint32_t)getpid();

    return demo_content_key(side->setup->options.seed, owner, turn << 8 | block);
}

static void weights_run(struct demo_side *side, struct rollout *rollout) {
    uint64_t size_bytes = side->setup->weights_bytes;

    for (size_t i = 0; i < DEMO_WEIGHTS_BLOCKS && !demo_side_must_stop(side); i++) {
        if (rollout->is_loaded)
            demo_side_verify(side, rollout->weights_blocks[i], size_bytes, key_of(side, 0, i));
        else
            demo_side_fill(side, rollout->weights_blocks[i], size_bytes, key_of(side, 0, i));
    }
    rollout->is_loaded = true;
}

static void kv_cache_run(struct demo_side *side, struct rollout *rollout) {
    uint64_t size_bytes = side->setup->kv_cache_bytes;

    for (size_t i = 0; i < DEMO_KV_CACHE_BLOCKS && !demo_side_must_stop(side); i++) {
        void *block = rollout->kv_cache_blocks[i];

        demo_side_touch(side, block, size_bytes);
        demo_side_verify_zero(side, block, size_bytes);
        demo_side_fill(side, block, size_bytes, key_of(side, rollout->turn, i));
    }
    for (size_t i = 0; i < DEMO_KV_CACHE_BLOCKS && !demo_side_must_stop(side); i++)
        demo_side_verify(side, rollout->kv_cache_blocks[i], size_bytes,
                         key_of(side, rollout->turn, i));
}

static int rollout_run(struct demo_side *side, void *state, uint32_t step) {
    struct rollout *rollout = state;

    (void)step; /* one turn is like the other */
    rollout->turn++;
    weights_run(side, rollout);
    kv_cache_run(side, rollout);
    demo_side_measure(side, needed_bytes(side->setup));
    return 0;
}

const struct demo_role demo_rollout_role = {
    .name = "rollout",
    .tag = "kv_cache",
    .open = rollout_open,
    .needed_bytes = needed_bytes,
    .begin = rollout_begin,
    .run = rollout_run,
    .close = free,
};
