/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a program maps itself, as torch's expandable segments do: with their tag asleep and
 * awake, in every order that a driver takes; each call of the device failing once; and 20,000
 * random steps against a model, where every fiftieth call of the device fails. */
#include "memory/page.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../api/tested_device.h"
#include "base/map.h"
#include "device/cuda_abi.h"
#include "memory_world.h"
#include "preload/entries.h"
#include "suite.h"

enum { PAGES = 12, CAPACITY = 64 };

/* The preload may not include the driver's interface, and has its own words for these. */
_Static_assert(sizeof(struct tg__entry_prop) == sizeof(struct tg__cuprop) &&
                   offsetof(struct tg__entry_prop, rdma) ==
                       offsetof(struct tg__cuprop, alloc_flags.gpu_direct_rdma_capable),
               "what is asked for is read where the driver reads it");
_Static_assert(sizeof(struct tg__entry_access) == sizeof(struct tg__cuaccess), "access, too");

static const struct tg_tag_params saved = {.backup = TG_BACKUP_HOST};
static struct world world;
static struct tg_tag *tag;
static uint64_t estate;

static void open_world(const char *options) {
    world_open(&world, options, true);
    content_step = 256;
    tag = world_tag(&world, "expandable", saved);
    /* As torch: an eighth more than the device has. */
    ck_assert_ok(tg__estate_reserve(world.memory, (CAPACITY + CAPACITY / 8) * MIB, &estate));
}

static void set_up(void) {
    open_world("capacity=64MiB");
}

static void tear_down(void) {
    world_close(&world);
}

static struct tg__range place(int number) {
    return (struct tg__range){estate + (uint64_t)number * GRANULE, GRANULE};
}

static void *at(int number) {
    return (void *)(uintptr_t)place(number).addr;
}

static uint64_t make_page(void) {
    uint64_t page = 0;

    ck_assert_ok(tg__page_create(tag, GRANULE, 0, &page));
    ck_assert(page >= TG_PAGE_BIT);
    return page;
}

static uint64_t map_new(int number, uint64_t seed) {
    uint64_t page = make_page();

    ck_assert_ok(tg__page_map(world.memory, page, place(number)));
    ck_assert(content_is_zero(at(number), GRANULE));
    content_write(at(number), GRANULE, seed);
    return page;
}

static void sleep_all(void) {
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 5000, NULL));
    ck_assert_int_eq(world_info(tag).state, TG_TAG_ASLEEP);
}

static void wake_all(void) {
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 5000, NULL));
    ck_assert_int_eq(world_info(tag).state, TG_TAG_AWAKE);
}

START_TEST(pages_sleep_and_wake_at_their_addresses) {
    uint64_t pages[PAGES];

    for (int i = 0; i < PAGES; i++)
        pages[i] = map_new(i + (i >= 6), (uint64_t)i << 20); /* a hole after the sixth */
    ck_assert_uint_eq(world_view(&world).occupied_bytes, PAGES * GRANULE);
    tg__spy_clear(world.spy);
    sleep_all();
    ck_assert_uint_eq(world_calls(&world, TG__OP_unmap), 2);
    ck_assert_uint_eq(world_calls(&world, TG__OP_copy), 1 + 1);
    ck_assert_uint_eq(world_free_bytes(&world), CAPACITY * MIB);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, PAGES * GRANULE);
    wake_all();
    for (int i = 0; i < PAGES; i++)
        ck_assert(content_is(at(i + (i >= 6)), GRANULE, (uint64_t)i << 20));
    ck_assert_says(tg_memory_free(world.memory, at(2), NULL), -EINVAL, "mapped by the program");
    /* Each is unmapped by itself, which needs a chunk of its own, and mapped again elsewhere. */
    ck_assert_ok(tg__pages_unmap(world.memory, place(3)));
    ck_assert_ok(tg__page_map(world.memory, pages[3], place(30)));
    ck_assert(content_is(at(30), GRANULE, 3 << 20));
    sleep_all();
    wake_all();
    ck_assert(content_is(at(30), GRANULE, 3 << 20));
    ck_assert(content_is(at(4), GRANULE, 4 << 20));
}
END_TEST

START_TEST(out_of_memory_is_told_and_what_is_freed_serves) {
    uint64_t pages[CAPACITY / 2], page = 0;

    for (int i = 0; i < CAPACITY / 2; i++)
        pages[i] = map_new(i, 1);
    ck_assert(tg__is_short(tg__page_create(tag, GRANULE, 0, &page)));
    ck_assert_uint_eq(page, 0);
    ck_assert_ok(tg__pages_unmap(world.memory, place(7)));
    ck_assert_ok(tg__page_release(world.memory, pages[7]));
    map_new(32, 2); /* behind the others: the estate is larger than the device */
    ck_assert_int_eq(tg__page_release(world.memory, pages[7]), -ENOENT);
}
END_TEST

START_TEST(unmapped_while_asleep_is_forgotten) {
    uint64_t page = map_new(0, 5), other = map_new(1, 6);

    sleep_all();
    ck_assert_int_eq(tg__page_create(tag, GRANULE, 0, &page), TG_EASLEEP);
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_int_eq(tg__pages_unmap(world.memory, place(0)), -ENOENT);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, GRANULE);
    ck_assert_says(tg__page_map(world.memory, page, place(0)), -EINVAL, "slept");
    ck_assert_ok(tg__page_release(world.memory, page));
    wake_all();
    ck_assert_says(tg__page_map(world.memory, other, place(0)), -ENOTSUP, "once");
    ck_assert(content_is(at(1), GRANULE, 6));
    map_new(0, 7);
    ck_assert_says(tg__page_map(world.memory, make_page(), place(0)), -EINVAL, "already");
}
END_TEST

START_TEST(a_page_that_is_not_mapped_keeps_its_tag_awake) {
    uint64_t page = make_page();

    ck_assert_says(tg_memory_sleep(world.memory, NULL, 20, NULL), TG_EBUSY, "did not end");
    ck_assert_ok(tg__page_map(world.memory, page, place(2)));
    sleep_all();
    wake_all();
    ck_assert_ok(tg__pages_unmap(world.memory, place(2)));
    ck_assert_says(tg_memory_sleep(world.memory, NULL, 20, NULL), TG_EBUSY, "did not end");
    ck_assert_ok(tg__page_release(world.memory, page));
    sleep_all();
}
END_TEST

START_TEST(released_while_mapped_lives_until_it_is_unmapped) {
    uint64_t page = map_new(0, 3);

    ck_assert_ok(tg__page_release(world.memory, page));
    sleep_all();
    wake_all();
    ck_assert(content_is(at(0), GRANULE, 3));
    ck_assert_says(tg__estate_unreserve(world.memory, (struct tg__range){estate, 72 * MIB}),
                   -EINVAL, "1 pages");
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_uint_eq(world_free_bytes(&world), CAPACITY * MIB);
    ck_assert_ok(tg__estate_unreserve(world.memory, (struct tg__range){estate, 72 * MIB}));
    ck_assert_int_eq(tg__estate_unreserve(world.memory, (struct tg__range){estate, 72 * MIB}),
                     -ENOENT);
}
END_TEST

START_TEST(a_held_page_stays_when_its_tag_sleeps) {
    struct tg_receipt receipt;
    uint64_t page = map_new(0, 8), other = map_new(1, 9);

    ck_assert_ok(tg__pages_hold(world.memory, place(0)));
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 5000, &receipt));
    ck_assert(content_is(at(0), GRANULE, 8));
    ck_assert_uint_eq(world_view(&world).occupied_bytes, GRANULE);
    ck_assert_uint_eq(receipt.gained_bytes, GRANULE);
    ck_assert_str_eq(receipt.items[1].name, "stays: shared");
    ck_assert_uint_eq(receipt.items[1].size_bytes, GRANULE);
    ck_assert_says(tg__pages_hold(world.memory, place(1)), TG_EASLEEP, "sleeps");
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_ok(tg__page_map(world.memory, page, place(5)));
    ck_assert(content_is(at(5), GRANULE, 8));
    wake_all();
    ck_assert_ok(tg__page_release(world.memory, page));
    ck_assert_ok(tg__pages_unmap(world.memory, place(5)));
    ck_assert_ok(tg__page_release(world.memory, other));
    ck_assert_uint_eq(world_free_bytes(&world), (CAPACITY - 2) * MIB);
    ck_assert_ok(tg__pages_hold(world.memory, place(1))); /* is left for the memory's end */
}
END_TEST

START_TEST(access_is_given_again) {
    struct tg__chunk *chunk;

    map_new(0, 1);
    map_new(1, 1);
    ck_assert_ok(tg__pages_access(world.memory, (struct tg__range){estate, 2 * GRANULE}, 1));
    ck_assert_int_eq(
        tg__pages_access(world.memory, (struct tg__range){estate, 3 * GRANULE}, 1), -ENOENT);
    sleep_all();
    ck_assert_ok(tg__pages_access(world.memory, place(0), 1));
    tg__spy_clear(world.spy);
    wake_all();
    chunk = tg__plots_find(&tag->chunks, estate, NULL);
    ck_assert_uint_eq(chunk->granted, 1);
    /* With the map itself: nobody who may reads a page that is there and cannot. */
    ck_assert_uint_eq(world_calls(&world, TG__OP_access), 0);
    ck_assert(tg__pages_access(world.memory, place(0), 2) != 0); /* no such device */
}
END_TEST

/* What a packed tag's blocks that lie there would be backed by, lowest first. The device leaves
 * room between what it reserves, so the blocks are made up. */
static size_t plan(struct tg__block *blocks, size_t count, struct tg__chunk chunks[4]) {
    struct tg_tag *packed = world_tag(&world, "packed", (struct tg_tag_params){.packed = 1});
    size_t planned;

    ck_assert_ok(tg__plots_room(&packed->blocks, count));
    for (size_t i = 0; i < count; i++) {
        blocks[i].tag = packed;
        blocks[i].size_bytes = GRANULE;
        tg__plots_put(&packed->blocks, &blocks[i]);
    }
    ck_assert_ok(tg__arena_plan(packed));
    planned = packed->fresh.count;
    for (size_t i = 0; i < planned; i++) {
        chunks[i] = *(struct tg__chunk *)packed->fresh.items[i];
        free(packed->fresh.items[i]);
    }
    while (packed->blocks.count > 0)
        tg__plots_drop(&packed->blocks, 0);
    tg__plots_free(&packed->fresh);
    return planned;
}

START_TEST(a_page_is_never_backed_together_with_a_neighbour) {
    struct tg__estate *own = tg__estate_find(world.memory, place(0));
    struct tg__block blocks[4];
    struct tg__chunk chunks[4];

    for (int i = 0; i < 4; i++) /* ordinary ones; a page between, or at an end */
        blocks[i] = (struct tg__block){.range = place(i), .estate = i == _i ? own : NULL,
                                       .devices = i == _i ? 1 : 0};
    ck_assert_uint_eq(plan(blocks, 4, chunks), _i == 0 || _i == 3 ? 2 : 3);
    for (int i = 0, at = 0; at < 4; i++) {
        bool is_page = chunks[i].estate != NULL;

        ck_assert_uint_eq(chunks[i].range.addr, place(at).addr);
        ck_assert_int_eq(is_page, at == _i);
        ck_assert_uint_eq(chunks[i].devices, is_page ? 1 : 0);
        at += is_page ? 1 : (int)(chunks[i].range.size_bytes / GRANULE);
        ck_assert_uint_eq(tg__range_end(&chunks[i].range), place(at).addr);
    }
}
END_TEST

/* A wake between its halves. */
START_TEST(unmapped_in_motion_goes_at_its_end) {
    uint64_t page = map_new(0, 4), rest[2] = {map_new(1, 5), map_new(2, 6)};

    sleep_all();
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_ok(tg__page_release(world.memory, page));
    if (_i == 1) {
        ck_assert_ok(tg__pages_unmap(world.memory, place(1)));
        ck_assert_ok(tg__pages_unmap(world.memory, place(2)));
        ck_assert_ok(tg__estate_unreserve(world.memory, (struct tg__range){estate, 72 * MIB}));
    }
    tg_memory_wake_end(world.memory, _i != 2);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    ck_assert_uint_eq(world_info(tag).block_count, _i == 1 ? 0 : 2);
    ck_assert_uint_eq(world_free_bytes(&world),
                      (uint64_t)(_i == 1 ? CAPACITY : CAPACITY - 4) * MIB);
    ck_assert_int_eq(tg__page_map(world.memory, rest[0], place(3)), -ENOTSUP);
    if (_i == 1)
        ck_assert_int_eq(
            tg__estate_unreserve(world.memory, (struct tg__range){estate, 72 * MIB}), -ENOENT);
}
END_TEST

/* What is unmapped while a wake moves leaves at its end; the device refuses that, and again when a
 * page is mapped there: then it is asked once more. */
START_TEST(what_has_not_left_is_waited_for) {
    uint64_t old = map_new(0, 4), page;

    sleep_all();
    ck_assert_ok(tg_memory_wake_try(world.memory, NULL, 1000, NULL));
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_ok(tg__page_release(world.memory, old));
    world_arm(&world, TG__OP_unmap, TG__FAULT_AFTER, 1, TG_EDEVICE);
    tg_memory_wake_end(world.memory, true);
    page = make_page();
    ck_assert_says(tg__page_map(world.memory, page, place(0)), TG_EDEVICE,
                   "the device keeps what was unmapped");
    world_arm(&world, TG__OP_unmap, TG__FAULT_ONCE, 1, TG_EDEVICE);
    ck_assert_ok(tg__page_map(world.memory, page, place(0)));
    ck_assert_uint_eq(tg__fault_failed(world.fault, TG__OP_unmap), 1);
    ck_assert(content_is_zero(at(0), GRANULE));
    world_disarm(&world);
    ck_assert_uint_eq(world_free_bytes(&world), (CAPACITY - 2) * MIB);
}
END_TEST

/* A page is unmapped whose save did not end in time: a copy still reads it. */
static void unmap_under_a_copy(void) {
    uint64_t page = map_new(0, 4);

    world_arm(&world, TG__OP_wait, TG__FAULT_ONCE, 2, TG_EBUSY); /* the first one is the drain */
    ck_assert_int_eq(tg_memory_sleep(world.memory, NULL, 1000, NULL), TG_EBUSY);
    world_arm(&world, TG__OP_wait, TG__FAULT_EVERY, 1, TG_EBUSY);
    ck_assert_ok(tg__pages_unmap(world.memory, place(0)));
    ck_assert_ok(tg__page_release(world.memory, page));
}

START_TEST(what_is_still_in_use_is_told) {
    uint64_t page;

    unmap_under_a_copy();
    page = make_page();
    ck_assert_says(tg__page_map(world.memory, page, place(0)), TG_EBUSY, "still in use");
    world_disarm(&world);
    ck_assert_ok(tg__page_map(world.memory, page, place(0)));
    ck_assert(content_is_zero(at(0), GRANULE));
    ck_assert_uint_eq(world_free_bytes(&world), (CAPACITY - 2) * MIB);
}
END_TEST

static void *map_first(void *page) {
    return (void *)(intptr_t)tg__page_map(world.memory, *(uint64_t *)page, place(0));
}

/* Both wait for the same copy, and one of them has the place. */
START_TEST(of_two_that_wait_for_one_place_one_has_it) {
    uint64_t pages[2];
    pthread_t threads[2];
    void *answers[2];

    tear_down();
    open_world("capacity=64MiB,lag=300");
    unmap_under_a_copy();
    for (int i = 0; i < 2; i++)
        pages[i] = make_page();
    world_disarm(&world);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, map_first, &pages[i]), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_join(threads[i], &answers[i]), 0);
    ck_assert((intptr_t)answers[0] == 0 || (intptr_t)answers[1] == 0);
    ck_assert_int_eq((intptr_t)answers[0] + (intptr_t)answers[1], -EINVAL);
    ck_assert(content_is_zero(at(0), GRANULE));
    for (int i = 0; i < 2; i++)
        ck_assert_ok(tg__page_release(world.memory, pages[i]));
    ck_assert_uint_eq(world_info(tag).block_count, 1);
    ck_assert_uint_eq(world_free_bytes(&world), (CAPACITY - 2) * MIB);
}
END_TEST

/* ---- each call of the device fails once ------------------------------------------------------ */

static int story(void) {
    uint64_t pages[3] = {0};
    int rc = 0;

    for (int i = 0; i < 3 && rc == 0; i++)
        rc = tg__page_create(tag, GRANULE, 0, &pages[i]);
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = tg__page_map(world.memory, pages[i], place(i));
    if (rc == 0)
        content_write(at(1), GRANULE, 33);
    if (rc == 0)
        rc = tg_memory_sleep(world.memory, NULL, 1000, NULL);
    if (rc == 0)
        rc = tg_memory_wake(world.memory, NULL, 0, NULL);
    if (rc == 0 && !content_is(at(1), GRANULE, 33))
        rc = 1;
    world_disarm(&world);
    if (rc != 0 && world_info(tag).state == TG_TAG_ASLEEP)
        ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    for (int i = 0; i < 3; i++) {
        int unmapped = pages[i] == 0 ? -ENOENT : tg__pages_unmap(world.memory, place(i));

        ck_assert(unmapped == 0 || unmapped == -ENOENT);
        if (pages[i] != 0)
            ck_assert_ok(tg__page_release(world.memory, pages[i]));
    }
    return rc;
}

START_TEST(a_call_that_fails_leaves_nothing_behind) {
    uint64_t count, failures = 0;

    ck_assert_ok(story());
    world_arm(&world, TG__OP_ANY, TG__FAULT_NONE, 0, 0);
    ck_assert_ok(story());
    for (count = 1; count < 200; count++) {
        world_arm(&world, TG__OP_ANY, TG__FAULT_ONCE, count, 0);
        failures += story() != 0;
        ck_assert_ok(story());
        ck_assert_uint_eq(world_free_bytes(&world), CAPACITY * MIB);
        ck_assert_uint_eq(world_view(&world).occupied_bytes, 0);
        ck_assert_uint_eq(world_view(&world).asleep_bytes, 0);
        ck_assert_uint_eq(world_info(tag).device_bytes, 0);
    }
    ck_assert_uint_gt(failures, 12);
}
END_TEST

/* ---- against a model ------------------------------------------------------------------------- */

enum { PLACES = 36, STEPS = 20000, FAILS_EACH = 50 };

struct model {
    struct {
        uint64_t page, seed; /* page 0: nothing is there */
    } places[PLACES];
    bool sleeps;
    uint64_t random, seeds;
};

static uint64_t draw(struct model *model, uint64_t below) {
    return tg__hash_u64(++model->random) % below;
}

static void arm_next(void) {
    world_arm(&world, TG__OP_ANY, TG__FAULT_ONCE, FAILS_EACH, TG_EDEVICE);
}

/* Where the way back was refused too the tag sleeps with its chunks: a wake has it back. */
static bool has_happened(const struct model *model, int rc) {
    ck_assert_msg(rc == 0 || rc == TG_EDEVICE || rc == TG_EBUSY || tg__is_short(rc), "%d, %s", rc,
                  tg_last_error()->text);
    if (tg__fault_failed(world.fault, TG__OP_ANY) > 0) {
        world_disarm(&world);
        if (rc != 0 && !model->sleeps && world_info(tag).state == TG_TAG_ASLEEP)
            ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
        arm_next();
    }
    return rc == 0;
}

static void map_one(struct model *model, int number) {
    uint64_t page = 0;
    int rc = tg__page_create(tag, GRANULE, 0, &page);

    if (model->sleeps) {
        ck_assert_int_eq(rc, TG_EASLEEP);
        return;
    }
    if (!has_happened(model, rc))
        return;
    if (!has_happened(model, tg__page_map(world.memory, page, place(number)))) {
        ck_assert_ok(tg__page_release(world.memory, page));
        return;
    }
    model->places[number].page = page;
    model->places[number].seed = ++model->seeds << 20;
    content_write(at(number), GRANULE, model->places[number].seed);
}

static void unmap_one(struct model *model, int number) {
    if (!has_happened(model, tg__pages_unmap(world.memory, place(number))))
        return;
    ck_assert_ok(tg__page_release(world.memory, model->places[number].page));
    model->places[number].page = 0;
}

static void check_places(const struct model *model) {
    uint64_t mapped = 0;

    for (int i = 0; i < PLACES; i++) {
        if (model->places[i].page == 0)
            continue;
        mapped++;
        if (!model->sleeps)
            ck_assert(content_is(at(i), GRANULE, model->places[i].seed));
    }
    ck_assert_uint_eq(world_info(tag).block_count, mapped);
    ck_assert_uint_eq(world_view(&world).asleep_bytes, model->sleeps ? mapped * GRANULE : 0);
    ck_assert_uint_eq(world_view(&world).occupied_bytes, world_info(tag).device_bytes);
}

START_TEST(no_call_that_fails_changes_the_model) {
    struct model *model = calloc(1, sizeof *model);

    ck_assert_ptr_nonnull(model);
    model->random = UINT64_C(25) << 32;
    arm_next();
    for (int step = 0; step < STEPS; step++) {
        int number = (int)draw(model, PLACES);
        uint64_t what = draw(model, 60);

        if (what == 0)
            model->sleeps |=
                has_happened(model, tg_memory_sleep(world.memory, NULL, 10000, NULL));
        else if (what <= 3)
            model->sleeps &= !has_happened(model, tg_memory_wake(world.memory, NULL, 0, NULL));
        else if (model->places[number].page == 0)
            map_one(model, number);
        else if (what < 25)
            unmap_one(model, number);
        if (step % 64 == 0)
            check_places(model);
    }
    world_disarm(&world);
    ck_assert_ok(tg_memory_wake(world.memory, NULL, 1000, NULL));
    model->sleeps = false;
    check_places(model);
    for (int i = 0; i < PLACES; i++) {
        if (model->places[i].page != 0)
            unmap_one(model, i);
    }
    ck_assert_uint_eq(world_free_bytes(&world), CAPACITY * MIB);
    free(model);
}
END_TEST

/* ---- a death at each call of the device ------------------------------------------------------ */

struct life {
    const char *options; /* of the device */
    void (*act)(uint64_t nth, enum tg__fault_mode mode);
};

static void tell_story(uint64_t nth, enum tg__fault_mode mode) {
    world_arm(&world, TG__OP_ANY, mode, nth, 0);
    (void)!story();
}

/* A map waits for what was unmapped there. */
static void wait_for_the_way(uint64_t nth, enum tg__fault_mode mode) {
    uint64_t page;

    unmap_under_a_copy();
    page = make_page();
    world_arm(&world, TG__OP_wait, mode, nth, 0);
    (void)!tg__page_map(world.memory, page, place(0));
}

static const struct life whole = {"capacity=64MiB", tell_story};
static const struct life waiting = {"capacity=64MiB,hang=1", wait_for_the_way};

static void live_and_die(const struct life *life, uint64_t nth, enum tg__fault_mode mode) {
    world_enter(&world, life->options);
    tag = world_tag(&world, "expandable", saved);
    ck_assert_ok(tg__estate_reserve(world.memory, 72 * MIB, &estate));
    life->act(nth, mode);
    _exit(0);
}

/* By a process that opens the device afterwards. */
static void check_after_death(void) {
    uint64_t free_bytes, total_bytes;
    char command[96];
    pid_t child = fork();
    int status;

    if (child == 0) {
        struct tg_device *device;

        if (tg_device_open(tested_uri("", "capacity=64MiB"), &device) != 0 ||
            tg_device_ops(device)->memory(device, &free_bytes, &total_bytes) != 0)
            _exit(1);
        _exit(free_bytes == total_bytes ? 0 : 2);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    snprintf(command, sizeof command, "rm -rf %s", world.dir);
    ck_assert_int_eq(system(command), 0);
}

/* Whether the process died of it. */
static bool dies(const struct life *life, uint64_t nth, enum tg__fault_mode mode) {
    pid_t child;
    int status;

    memset(&world, 0, sizeof world);
    strcpy(world.dir, "/dev/shm/tidegate-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world.dir));
    setenv("TIDEGATE_DIR", world.dir, 1);
    child = fork();
    if (child == 0)
        live_and_die(life, nth, mode);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    check_after_death();
    return WIFSIGNALED(status);
}

START_TEST(a_death_leaves_nothing_behind) {
    enum tg__fault_mode mode = _i == 0 ? TG__FAULT_KILL_BEFORE : TG__FAULT_KILL_AFTER;
    int deaths = 0;

    for (uint64_t nth = 1; nth < 64; nth += 3)
        deaths += dies(&whole, nth, mode);
    ck_assert_int_gt(deaths, 4);
}
END_TEST

START_TEST(a_death_while_a_map_waits_leaves_nothing_behind) {
    enum tg__fault_mode mode = _i == 0 ? TG__FAULT_KILL_BEFORE : TG__FAULT_KILL_AFTER;

    for (uint64_t nth = 1; nth <= 3; nth++)
        ck_assert(dies(&waiting, nth, mode));
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("page"), *deaths = tcase_create("deaths");
    int status;

    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, pages_sleep_and_wake_at_their_addresses);
    tcase_add_test(tcase, out_of_memory_is_told_and_what_is_freed_serves);
    tcase_add_test(tcase, unmapped_while_asleep_is_forgotten);
    tcase_add_test(tcase, a_page_that_is_not_mapped_keeps_its_tag_awake);
    tcase_add_test(tcase, released_while_mapped_lives_until_it_is_unmapped);
    tcase_add_test(tcase, a_held_page_stays_when_its_tag_sleeps);
    tcase_add_test(tcase, access_is_given_again);
    tcase_add_loop_test(tcase, a_page_is_never_backed_together_with_a_neighbour, 0, 4);
    tcase_add_loop_test(tcase, unmapped_in_motion_goes_at_its_end, 0, 3);
    tcase_add_test(tcase, what_has_not_left_is_waited_for);
    tcase_add_test(tcase, what_is_still_in_use_is_told);
    tcase_add_test(tcase, of_two_that_wait_for_one_place_one_has_it);
    tcase_add_test(tcase, a_call_that_fails_leaves_nothing_behind);
    tcase_add_test(tcase, no_call_that_fails_changes_the_model);
    tcase_set_timeout(deaths, 120);
    tcase_add_loop_test(deaths, a_death_leaves_nothing_behind, 0, 2);
    tcase_add_loop_test(deaths, a_death_while_a_map_waits_leaves_nothing_behind, 0, 2);
    status = suite_run("page", tcase);
    return suite_run("deaths", deaths) + status;
}
