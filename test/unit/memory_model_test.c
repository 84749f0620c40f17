/* SPDX-License-Identifier: Apache-2.0 */
/* Random allocs, frees, sleeps and wakes against a model; and from several threads at once. What a
 * block must hold is computed from its seed, never kept. A failure prints the run's seed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/map.h"
#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

enum { TAGS = 6, BLOCKS = 60, STEPS = 1500 };

struct held {
    void *block; /* NULL: none */
    uint64_t size_bytes, seed;
    int tag;
    uint64_t cut_at, cut_bytes; /* without content since a trim, */
    bool is_trimmed;            /* and without memory */
};

static struct world world;
static struct tg_tag *tags[TAGS];
static struct tg_tag_params params[TAGS];
static const char *const names[TAGS] = {"a", "b", "c", "d", "e", "f"};

static void open_all(const char *options) {
    world_open(&world, options, true);
    content_step = 256;
    for (int i = 0; i < TAGS; i++) {
        params[i] = (struct tg_tag_params){.backup = i % 3 == 0 ? TG_BACKUP_NONE : TG_BACKUP_HOST,
                                           .packed = i % 2,
                                           .keep_host = i == 4,
                                           .checked = i == 5};
        tags[i] = world_tag(&world, names[i], params[i]);
    }
}

/* ---- one thread, against the model ----------------------------------------------------------- */

struct model {
    struct held held[BLOCKS];
    bool sleeps[TAGS], dropped[TAGS];
    uint64_t random, seeds;
};

static uint64_t draw(struct model *model, uint64_t below) {
    return tg__hash_u64(++model->random) % below;
}

static void check_part(const struct held *held, const char *content, uint64_t from, uint64_t end) {
    if (held->seed == 0)
        ck_assert(content_is_zero(content + from, end - from));
    else
        ck_assert(content_is(content + from, end - from, held->seed + from));
}

static void check_held(const struct model *model, const struct held *held) {
    const char *content = held->block;
    uint64_t size_bytes;

    if (model->sleeps[held->tag]) {
        if (params[held->tag].backup == TG_BACKUP_NONE)
            return;
        if (model->dropped[held->tag] || held->is_trimmed) {
            ck_assert_int_eq(
                tg_memory_hostcopy(world.memory, held->block, (const void **)&content,
                                        &size_bytes), -ENODATA);
            return;
        }
        ck_assert_ok(tg_memory_hostcopy(world.memory, held->block, (const void **)&content,
                                        &size_bytes));
        ck_assert_uint_eq(size_bytes, held->size_bytes);
    }
    check_part(held, content, 0, held->cut_at);
    check_part(held, content, held->cut_at + held->cut_bytes, held->size_bytes);
    if (!held->is_trimmed)
        ck_assert(content_is_zero(content + held->cut_at, held->cut_bytes));
}

static void alloc_one(struct model *model, struct held *held) {
    int tag = (int)draw(model, TAGS);
    uint64_t size_bytes = 1 + draw(model, draw(model, 3) == 0 ? 8 * MIB : 70000);
    void *block;
    int rc = tg_tag_alloc(tags[tag], size_bytes, &block);

    if (model->sleeps[tag]) {
        ck_assert_int_eq(rc, TG_EASLEEP);
        return;
    }
    if (rc == TG_ENOFIT || rc == TG_ENEVERFITS || rc == TG_EDEVICEMEMORY)
        return;
    ck_assert_ok(rc);
    ck_assert(content_is_zero(block, size_bytes));
    *held = (struct held){
        .block = block, .size_bytes = size_bytes, .seed = ++model->seeds << 20, .tag = tag};
    content_write(block, size_bytes, held->seed);
}

static void free_one(struct model *model, struct held *held) {
    check_held(model, held);
    ck_assert_ok(tg_memory_free(world.memory, held->block, NULL));
    held->block = NULL;
}

static void list_names(unsigned mask, char *list) {
    list[0] = 0;
    for (int i = 0; i < TAGS; i++) {
        if (mask >> i & 1) {
            strcat(list, list[0] == 0 ? "" : ",");
            strcat(list, names[i]);
        }
    }
}

/* Some tags by name; which ones is in the mask. */
static unsigned draw_names(struct model *model, char *list) {
    unsigned mask = 1 + (unsigned)draw(model, (1 << TAGS) - 1);

    list_names(mask, list);
    return mask;
}

static void put_to_sleep(struct model *model) {
    char list[64], drop_list[64];
    unsigned mask = draw_names(model, list), drop = mask & (unsigned)draw(model, 1 << TAGS);
    bool is_lost[TAGS];

    list_names(drop, drop_list);
    ck_assert_ok(tg_memory_sleep_drop(world.memory, list, drop != 0 ? drop_list : NULL, 10000,
                                      NULL));
    for (int i = 0; i < TAGS; i++) {
        bool falls_asleep = mask >> i & 1 && !model->sleeps[i];

        is_lost[i] = falls_asleep && (params[i].backup == TG_BACKUP_NONE || drop >> i & 1);
        if (falls_asleep)
            model->dropped[i] = is_lost[i];
        model->sleeps[i] = model->sleeps[i] || falls_asleep;
    }
    for (int i = 0; i < BLOCKS; i++) {
        struct held *held = &model->held[i];

        if (held->block != NULL && is_lost[held->tag])
            held->seed = 0;
    }
}

/* After a refill, or a wake, that has happened. */
static void fill_in(struct model *model, unsigned mask) {
    for (int i = 0; i < BLOCKS; i++) {
        struct held *held = &model->held[i];

        if (held->block != NULL && mask >> held->tag & 1)
            held->is_trimmed = false;
    }
}

/* By one call or by two, and sometimes back again. */
static void wake_up(struct model *model) {
    char list[64];
    unsigned mask = draw_names(model, list);
    uint64_t way = draw(model, 3);
    int rc;

    if (way == 0)
        rc = tg_memory_wake(world.memory, list, 0, NULL);
    else
        rc = tg_memory_wake_try(world.memory, list, 0, NULL);
    if (way != 0)
        tg_memory_wake_end(world.memory, way == 1);
    if (rc == TG_ENOFIT || rc == TG_ENEVERFITS || rc == TG_EDEVICEMEMORY)
        return;
    ck_assert_ok(rc);
    for (int i = 0; i < TAGS && way != 2; i++) {
        if (model->sleeps[i] && mask >> i & 1)
            fill_in(model, 1U << i);
        model->sleeps[i] = model->sleeps[i] && !(mask >> i & 1);
    }
}

static void repack_some(struct model *model) {
    char list[64];

    draw_names(model, list);
    ck_assert_ok(tg_memory_repack(world.memory, list, 10000, NULL));
}

/* What the tables say of a block, against what the model has of it. */
static bool has_holes(const struct held *held) {
    return tg__tag_block(world.memory, (uintptr_t)held->block, NULL)->holes.count > 0;
}

/* One hole a block: where it is trimmed again, the same. A tag that is packed, or sleeps, stays. */
static int trim(const struct model *model, struct held *held, uint64_t from, uint64_t count) {
    struct tg_range range = {(uintptr_t)held->block + from * GRANULE, count * GRANULE};
    bool may_be = !model->sleeps[held->tag] && !params[held->tag].packed;
    int rc;

    if (held->cut_bytes > 0)
        range = (struct tg_range){(uintptr_t)held->block + held->cut_at, held->cut_bytes};
    rc = tg_memory_trim(world.memory, &range, 1, 10000, NULL);
    ck_assert(may_be || rc != 0 || has_holes(held) == held->is_trimmed);
    if (held->is_trimmed || !has_holes(held))
        return rc;
    ck_assert(may_be);
    held->is_trimmed = true;
    held->cut_at = range.addr - (uintptr_t)held->block;
    held->cut_bytes = range.size_bytes;
    return rc;
}

/* Granules of a block at random, if it has any. */
static int trim_some(struct model *model, struct held *held) {
    uint64_t granules = held->size_bytes / GRANULE, from, count;

    if (granules == 0)
        return 0;
    from = draw(model, granules);
    count = 1 + draw(model, granules - from);
    return trim(model, held, from, count);
}

/* All trimmed blocks of tags that are awake; none where one sleeps. */
static int refill(struct model *model) {
    bool is_asleep = false;
    int rc = tg_memory_refill(world.memory, 0, NULL);

    for (int i = 0; i < BLOCKS; i++) {
        const struct held *held = &model->held[i];

        if (held->block != NULL && held->is_trimmed)
            is_asleep = is_asleep || model->sleeps[held->tag];
    }
    if (is_asleep)
        ck_assert_int_eq(rc, TG_EASLEEP);
    if (rc == 0)
        fill_in(model, (1 << TAGS) - 1);
    return rc;
}

static void check_books(const struct model *model) {
    uint64_t device_bytes = 0, host_bytes = 0, asleep_bytes = 0;
    struct tg_tag_view view = world_view(&world);

    for (int i = 0; i < TAGS; i++) {
        struct tg_tag_info info = world_info(tags[i]);

        ck_assert_int_eq(info.state, model->sleeps[i] ? TG_TAG_ASLEEP : TG_TAG_AWAKE);
        device_bytes += info.device_bytes;
        host_bytes += info.host_bytes;
    }
    for (int i = 0; i < BLOCKS; i++) {
        const struct held *held = &model->held[i];

        if (held->block != NULL && model->sleeps[held->tag])
            asleep_bytes += (held->size_bytes + GRANULE - 1) / GRANULE * GRANULE;
    }
    ck_assert_uint_eq(view.occupied_bytes, device_bytes);
    ck_assert_uint_eq(view.asleep_bytes, asleep_bytes);
    ck_assert_uint_eq(view.reserved_bytes, 0);
    ck_assert_uint_eq(view.host_bytes, host_bytes);
    ck_assert_uint_eq(world_free_bytes(&world), 128 * MIB - device_bytes);
}

static void check_refill(int rc) {
    ck_assert_msg(rc == 0 || rc == TG_EASLEEP || rc == TG_ENOFIT || rc == TG_ENEVERFITS ||
                      rc == TG_EDEVICEMEMORY, "%d, %s", rc, tg_last_error()->text);
}

START_TEST(a_memory_is_what_its_model_says) {
    const char *given = getenv("TEST_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)_i + 1;
    struct model *model = calloc(1, sizeof *model);

    printf("seed %lu\n", (unsigned long)seed);
    fflush(stdout);
    ck_assert_ptr_nonnull(model);
    model->random = seed << 32;
    open_all("capacity=128MiB");
    for (int step = 0; step < STEPS; step++) {
        struct held *held = &model->held[draw(model, BLOCKS)];
        uint64_t what = draw(model, 46);

        if (what == 0)
            put_to_sleep(model);
        else if (what <= 2)
            wake_up(model);
        else if (what >= 44)
            repack_some(model);
        else if (what == 43)
            check_refill(refill(model));
        else if (held->block == NULL)
            alloc_one(model, held);
        else if (what <= 20)
            free_one(model, held);
        else if (what >= 40)
            ck_assert_ok(trim_some(model, held));
        else
            check_held(model, held);
        if (step % 16 == 0)
            check_books(model);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (model->held[i].block != NULL)
            check_held(model, &model->held[i]);
    }
    free(model);
    world_close(&world);
}
END_TEST

/* ---- the same, where calls of the device fail ------------------------------------------------ */

enum { CALLS = 20000, FAILS_EACH = 50 };

/* The device's next failure is so many calls ahead. */
static void arm_next(void) {
    world_arm(&world, TG__OP_ANY, TG__FAULT_ONCE, FAILS_EACH, TG_EDEVICE);
}

/* Whether the call has changed what it was to. Where the way back was refused too a tag sleeps
 * with its chunks, and a wake that no call fails in has it back. */
static bool has_happened(const struct model *model, int rc) {
    ck_assert_msg(rc == 0 || rc == TG_EDEVICE || rc == TG_ENOFIT || rc == TG_ENEVERFITS ||
                      rc == TG_EDEVICEMEMORY || rc == TG_EBUSY || rc == TG_EASLEEP,
                  "%d, %s", rc, tg_last_error()->text);
    if (tg__fault_failed(world.fault, TG__OP_ANY) == 0)
        return rc == 0;
    world_disarm(&world);
    for (int i = 0; i < TAGS && rc != 0; i++) {
        if (!model->sleeps[i] && world_info(tags[i]).state == TG_TAG_ASLEEP)
            ck_assert_ok(tg_memory_wake(world.memory, names[i], 1000, NULL));
    }
    arm_next();
    return rc == 0;
}

static void alloc_or_not(struct model *model, struct held *held) {
    int tag = (int)draw(model, TAGS);
    uint64_t size_bytes = 1 + draw(model, draw(model, 3) == 0 ? 8 * MIB : 70000);
    void *block;
    int rc;

    if (model->sleeps[tag])
        return;
    rc = tg_tag_alloc(tags[tag], size_bytes, &block);
    if (!has_happened(model, rc))
        return;
    *held = (struct held){
        .block = block, .size_bytes = size_bytes, .seed = ++model->seeds << 20, .tag = tag};
    content_write(block, size_bytes, held->seed);
}

static void sleep_or_not(struct model *model) {
    char list[64];
    unsigned mask = draw_names(model, list);

    if (!has_happened(model, tg_memory_sleep(world.memory, list, 10000, NULL)))
        return;
    for (int i = 0; i < BLOCKS; i++) {
        struct held *held = &model->held[i];

        if (held->block != NULL && mask >> held->tag & 1 && !model->sleeps[held->tag] &&
            params[held->tag].backup == TG_BACKUP_NONE)
            held->seed = 0;
    }
    for (int i = 0; i < TAGS; i++)
        model->sleeps[i] = model->sleeps[i] || mask >> i & 1;
}

static void wake_or_not(struct model *model) {
    char list[64];
    unsigned mask = draw_names(model, list);

    if (!has_happened(model, tg_memory_wake(world.memory, list, 0, NULL)))
        return;
    for (int i = 0; i < TAGS; i++) {
        if (model->sleeps[i] && mask >> i & 1)
            fill_in(model, 1U << i);
        model->sleeps[i] = model->sleeps[i] && !(mask >> i & 1);
    }
}

static void repack_or_not(struct model *model) {
    char list[64];

    draw_names(model, list);
    (void)!has_happened(model, tg_memory_repack(world.memory, list, 10000, NULL));
}

static void check_or_free(struct model *model, struct held *held, bool is_freed) {
    check_held(model, held);
    if (!is_freed)
        return;
    /* It cannot fail. */
    ck_assert(has_happened(model, tg_memory_free(world.memory, held->block, NULL)));
    held->block = NULL;
}

/* A copy whose wait was made to fail may be under way still: its chunks leave after it. */
static void wait_for_device(void) {
    const struct tg_device_ops *ops = tg_device_ops(world.spy);
    struct tg_fence fence;

    ck_assert_ok(ops->fence(world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(world.spy, &fence, 20000));
}

START_TEST(no_call_that_fails_changes_the_model) {
    struct model *model = calloc(1, sizeof *model);

    ck_assert_ptr_nonnull(model);
    model->random = UINT64_C(77) << 32;
    open_all("capacity=128MiB");
    arm_next();
    for (int step = 0; step < CALLS; step++) {
        struct held *held = &model->held[draw(model, BLOCKS)];
        uint64_t what = draw(model, 44);

        if (what == 0)
            sleep_or_not(model);
        else if (what <= 2)
            wake_or_not(model);
        else if (what == 3)
            repack_or_not(model);
        else if (what == 4)
            (void)!has_happened(model, refill(model));
        else if (held->block == NULL)
            alloc_or_not(model, held);
        else if (what >= 40)
            (void)!has_happened(model, trim_some(model, held));
        else
            check_or_free(model, held, what <= 20);
    }
    world_disarm(&world);
    wait_for_device();
    for (int i = 0; i < TAGS; i++) /* which also has what stayed tried again */
        ck_assert_ok(tg_memory_sleep(world.memory, names[i], 10000, NULL));
    for (int i = 0; i < TAGS; i++)
        ck_assert_uint_eq(world_info(tags[i]).device_bytes, 0);
    free(model);
    world_close(&world);
}
END_TEST

/* ---- several threads ------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 150 };

static atomic_bool is_over;

/* Allocates and frees in all tags; what sleeps is left alone. A block can fall asleep at any time,
 * so only blocks of a tag that never sleeps are written and read. */
static void *use(void *argument) {
    uint64_t random = (uintptr_t)argument << 40, seeds = random;
    struct held mine[8] = {{0}};

    for (int i = 0; i < ROUNDS; i++) {
        struct held *held = &mine[tg__hash_u64(++random) % 8];
        int tag = (int)(tg__hash_u64(++random) % TAGS);

        if (held->block != NULL) {
            if (held->tag == 1)
                ck_assert(content_is(held->block, held->size_bytes, held->seed));
            ck_assert_ok(tg_memory_free(world.memory, held->block, NULL));
            held->block = NULL;
            continue;
        }
        held->size_bytes = 1 + tg__hash_u64(++random) % 100000;
        if (tg_tag_alloc(tags[tag], held->size_bytes, &held->block) != 0) {
            ck_assert_int_eq(tg_last_error()->status, TG_EASLEEP);
            held->block = NULL;
            continue;
        }
        held->tag = tag;
        held->seed = ++seeds;
        if (tag == 1)
            content_write(held->block, held->size_bytes, held->seed);
    }
    for (int i = 0; i < 8; i++) {
        if (mine[i].block != NULL)
            ck_assert_ok(tg_memory_free(world.memory, mine[i].block, NULL));
    }
    return NULL;
}

static void *look(void *argument) {
    (void)argument;
    while (!atomic_load(&is_over)) {
        for (int i = 0; i < TAGS; i++)
            ck_assert_uint_le(world_info(tags[i]).block_count, 8 * THREADS);
        usleep(100);
    }
    return NULL;
}

/* All tags but "b". */
static void *turn(void *argument) {
    (void)argument;
    while (!atomic_load(&is_over)) {
        ck_assert_ok(tg_memory_sleep(world.memory, "a,c,d,e", 10000, NULL));
        ck_assert_ok(tg_memory_sleep(world.memory, "f", 10000, NULL));
        ck_assert_ok(tg_memory_wake_try(world.memory, "a,e,f", 0, NULL));
        tg_memory_wake_end(world.memory, 0);
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 0, NULL));
    }
    return NULL;
}

START_TEST(threads_do_not_meet_in_the_tables) {
    pthread_t users[THREADS], looker, turner;

    open_all("capacity=512MiB");
    atomic_store(&is_over, false);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&users[i], NULL, use, (void *)(uintptr_t)(i + 1)), 0);
    ck_assert_int_eq(pthread_create(&looker, NULL, look, NULL), 0);
    ck_assert_int_eq(pthread_create(&turner, NULL, turn, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(users[i], NULL);
    atomic_store(&is_over, true);
    pthread_join(looker, NULL);
    pthread_join(turner, NULL);
    for (int i = 0; i < TAGS; i++)
        ck_assert_uint_eq(world_info(tags[i]).block_count, 0);
    world_close(&world);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("memory_model");

    tcase_set_timeout(tcase, 280);
    tcase_add_loop_test(tcase, a_memory_is_what_its_model_says, 0, 4);
    tcase_add_test(tcase, no_call_that_fails_changes_the_model);
    tcase_add_test(tcase, threads_do_not_meet_in_the_tables);
    return suite_run("memory_model", tcase);
}
