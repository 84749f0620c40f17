/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls against a model: chunks and a range of places where they are mapped, one byte value
 * per granule of a chunk. After every call the device's free memory is what the model says; content
 * is looked at wherever a chunk is mapped. */
#include "device_suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNKS = 12, PLACES = 24, MOST = 3, CALLS = 1500 };

struct chunk {
    uint64_t handle; /* 0: released */
    int granules;    /* 0: does not exist */
    int mappings;
    unsigned char bytes[MOST];
};

struct model {
    uint64_t random, base, free_bytes;
    struct chunk chunks[CHUNKS];
    int at[PLACES]; /* which chunk, or -1 */
    int nth[PLACES]; /* which of its granules */
};

static const struct device_suite *kind;
static struct tg_device *device;
static const struct tg_device_ops *ops;

static unsigned draw(struct model *model, unsigned below) {
    model->random ^= model->random << 13;
    model->random ^= model->random >> 7;
    model->random ^= model->random << 17;
    return (unsigned)(model->random >> 33) % below;
}

static uint64_t place_addr(const struct model *model, int place) {
    return model->base + (uint64_t)place * GRANULE;
}

static void drop_if_gone(struct model *model, struct chunk *chunk) {
    if (chunk->handle != 0 || chunk->mappings != 0)
        return;
    model->free_bytes += (uint64_t)chunk->granules * GRANULE;
    chunk->granules = 0;
}

static void try_create(struct model *model, struct chunk *chunk) {
    int granules = 1 + (int)draw(model, MOST);
    uint32_t flags = draw(model, 2) == 0 ? 0 : TG_CHUNK_EXPORTABLE;

    if (chunk->granules != 0)
        return;
    ck_assert_ok(ops->create(device, (uint64_t)granules * GRANULE, flags, &chunk->handle));
    chunk->granules = granules;
    memset(chunk->bytes, 0, sizeof chunk->bytes);
    model->free_bytes -= (uint64_t)granules * GRANULE;
}

static void try_release(struct model *model, struct chunk *chunk) {
    if (chunk->handle == 0)
        return;
    ck_assert_ok(ops->release(device, chunk->handle));
    chunk->handle = 0;
    drop_if_gone(model, chunk);
}

static void try_map(struct model *model, int number, int place) {
    struct chunk *chunk = &model->chunks[number];
    int wanted = 0;

    if (chunk->handle == 0)
        return;
    for (int i = 0; i < chunk->granules; i++) {
        if (place + i >= PLACES || model->at[place + i] >= 0)
            wanted = -EINVAL;
    }
    ck_assert_int_eq(ops->map(device, place_addr(model, place), chunk->handle, 0), wanted);
    if (wanted != 0)
        return;
    chunk->mappings++;
    for (int i = 0; i < chunk->granules; i++) {
        model->at[place + i] = number;
        model->nth[place + i] = i;
    }
}

/* Whether whole mappings fill these places. */
static int are_whole(const struct model *model, int place, int count) {
    if (place + count > PLACES || model->nth[place] != 0)
        return 0;
    for (int i = place; i < place + count; i++) {
        if (model->at[i] < 0)
            return 0;
    }
    return place + count == PLACES || model->at[place + count] < 0 ||
           model->nth[place + count] == 0;
}

static void try_unmap(struct model *model, int place, int count) {
    int wanted = are_whole(model, place, count) ? 0 : -EINVAL;

    ck_assert_int_eq(ops->unmap(device, place_addr(model, place), (uint64_t)count * GRANULE),
                     wanted);
    for (int i = place; i < place + count && wanted == 0; i++) {
        struct chunk *chunk = &model->chunks[model->at[i]];

        if (model->nth[i] == 0)
            chunk->mappings--;
        if (model->nth[i] == 0)
            drop_if_gone(model, chunk);
        model->at[i] = -1;
        model->nth[i] = 0;
    }
}

static void try_fill(struct model *model, int place) {
    unsigned char byte = (unsigned char)draw(model, 256);

    if (model->at[place] < 0)
        return;
    ck_assert_ok(ops->fill(device, place_addr(model, place), byte, GRANULE, NULL));
    model->chunks[model->at[place]].bytes[model->nth[place]] = byte;
}

static void try_copy(struct model *model, int to, int from) {
    if (model->at[to] < 0 || model->at[from] < 0)
        return;
    ck_assert_ok(ops->copy(device, (void *)(uintptr_t)place_addr(model, to),
                           (void *)(uintptr_t)place_addr(model, from), GRANULE, NULL));
    model->chunks[model->at[to]].bytes[model->nth[to]] =
        model->chunks[model->at[from]].bytes[model->nth[from]];
}

static void look(const struct model *model, int place) {
    unsigned char ends[2], wanted;

    if (model->at[place] < 0)
        return;
    wanted = model->chunks[model->at[place]].bytes[model->nth[place]];
    device_read(device, place_addr(model, place), ends, 1);
    device_read(device, place_addr(model, place) + GRANULE - 1, ends + 1, 1);
    ck_assert_uint_eq(ends[0], wanted);
    ck_assert_uint_eq(ends[1], wanted);
}

static void step(struct model *model) {
    int chunk = (int)draw(model, CHUNKS), place = (int)draw(model, PLACES);

    switch (draw(model, 7)) {
    case 0:
        try_create(model, &model->chunks[chunk]);
        break;
    case 1:
        try_release(model, &model->chunks[chunk]);
        break;
    case 2:
    case 3:
        try_map(model, chunk, place);
        break;
    case 4:
        device_settle(device);
        try_unmap(model, place, 1 + (int)draw(model, 4));
        break;
    case 5:
        try_fill(model, place);
        break;
    default:
        try_copy(model, place, (int)draw(model, PLACES));
        break;
    }
    look(model, (int)draw(model, PLACES));
}

static void unmap_all(struct model *model) {
    for (int i = 0; i < PLACES; i++) {
        if (model->at[i] >= 0)
            try_unmap(model, i, model->chunks[model->at[i]].granules);
    }
}

START_TEST(random_calls_do_what_the_model_does) {
    struct model model = {.random = UINT64_C(0x1234567) * (uint64_t)(_i + 1)};
    uint64_t before;

    fprintf(stderr, "seed %d\n", _i);
    ck_assert_ok(kind->open(&device));
    ops = tg_device_ops(device);
    before = model.free_bytes = device_free_bytes(device);
    ck_assert_ok(ops->reserve(device, PLACES * (uint64_t)GRANULE, &model.base));
    memset(model.at, 0xff, sizeof model.at);
    for (int i = 0; i < CALLS; i++) {
        step(&model);
        device_check_free(device, model.free_bytes);
    }
    device_settle(device);
    unmap_all(&model);
    for (int i = 0; i < CHUNKS; i++)
        try_release(&model, &model.chunks[i]);
    ck_assert_uint_eq(model.free_bytes, before);
    device_check_free(device, before);
    ck_assert_ok(ops->unreserve(device, model.base, PLACES * (uint64_t)GRANULE));
    tg_device_close(device);
}
END_TEST

TCase *device_random(const struct device_suite *suite) {
    TCase *cases = tcase_create("random");

    kind = suite;
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, random_calls_do_what_the_model_does, 0, 6);
    return cases;
}
