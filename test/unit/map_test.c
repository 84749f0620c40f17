/* SPDX-License-Identifier: Apache-2.0 */
/* vec, map and index against plain models. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/map.h"
#include "base/vec.h"
#include "suite.h"

enum { KEYS = 512, TURNS = 200000 };

/* A small, fixed generator: the same turns every time. */
static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

START_TEST(map_against_an_array) {
    uint32_t model[KEYS], state = 7;
    struct tg__map map;
    size_t count = 0;

    tg__map_init(&map);
    for (size_t i = 0; i < KEYS; i++)
        model[i] = UINT32_MAX;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t i = next(&state) % KEYS;
        uint64_t key = (uint64_t)i * 512 + (UINT64_C(0x7f) << 40); /* as addresses are */
        if (next(&state) % 2 == 0) {
            ck_assert_int_eq(tg__map_put(&map, key, turn), 0);
            count += model[i] == UINT32_MAX;
            model[i] = turn;
        } else {
            ck_assert_uint_eq(tg__map_take(&map, key), model[i]);
            count -= model[i] != UINT32_MAX;
            model[i] = UINT32_MAX;
        }
        ck_assert_uint_eq(map.count, count);
        ck_assert_uint_eq(tg__map_get(&map, key), model[i]);
    }
    for (uint64_t i = 0; i < KEYS; i++)
        ck_assert_uint_eq(tg__map_get(&map, i * 512 + (UINT64_C(0x7f) << 40)), model[i]);
    tg__map_free(&map);
    ck_assert_uint_eq(tg__map_get(&map, 1), UINT32_MAX);
    ck_assert_uint_eq(tg__map_take(&map, 1), UINT32_MAX);
}
END_TEST

static bool same(const void *owner, uint32_t item, const void *wanted) {
    return ((const uint64_t *)owner)[item] == *(const uint64_t *)wanted;
}

START_TEST(index_finds_what_was_added) {
    enum { ITEMS = 3000 };
    static uint64_t items[ITEMS];
    struct tg__index index;

    tg__index_init(&index, NULL);
    for (uint32_t i = 0; i < ITEMS; i++) {
        items[i] = (uint64_t)i * i;
        /* Every hash twice, so that equality decides. */
        ck_assert_uint_eq(tg__index_find(&index, i / 2, same, items, &items[i]), UINT32_MAX);
        ck_assert_int_eq(tg__index_add(&index, i / 2, i), 0);
    }
    for (uint32_t i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(tg__index_find(&index, i / 2, same, items, &items[i]), i);
    tg__index_free(&index);
}
END_TEST

START_TEST(vec_keeps_to_its_budget) {
    struct tg__budget budget = {1000};
    struct tg__vec vec;
    uint64_t item = 0;
    void *first;

    tg__vec_init(&vec, sizeof item, &budget);
    while (tg__vec_push(&vec, &item) == 0)
        item++;
    ck_assert_int_eq(tg_last_error()->status, TG_ELIMIT);
    ck_assert_uint_le(vec.capacity * sizeof item, 1000);
    for (size_t i = 0; i < vec.count; i++)
        ck_assert_uint_eq(((uint64_t *)vec.items)[i], i);
    ck_assert_int_eq(tg__vec_extend(&vec, SIZE_MAX, &first), TG_ELIMIT);
    ck_assert_int_eq(tg__vec_reserve(&vec, SIZE_MAX / 4), TG_ELIMIT);
    tg__vec_trim(&vec);
    tg__vec_free(&vec);
    ck_assert_uint_eq(budget.left_bytes, 1000);
}
END_TEST

/* While a table grows, its old and its new half are both there: both must fit. */
START_TEST(growth_counts_both_halves) {
    struct tg__budget budget = {1000};
    struct tg__vec vec;
    struct tg__index index;
    uint64_t item = 0;

    tg__vec_init(&vec, sizeof item, &budget);
    while (tg__vec_push(&vec, &item) == 0)
        item++;
    ck_assert_uint_le(vec.capacity * sizeof item, 600);
    tg__vec_free(&vec);
    budget.left_bytes = 1600; /* 64 slots of 8 bytes, and then 128 beside them */
    tg__index_init(&index, &budget);
    for (uint32_t i = 0; i < 96; i++)
        ck_assert_int_eq(tg__index_add(&index, i, i), 0);
    ck_assert_int_eq(tg__index_add(&index, 96, 96), TG_ELIMIT);
    tg__index_free(&index);
}
END_TEST

START_TEST(index_keeps_to_its_budget) {
    struct tg__budget budget = {600};
    struct tg__index index;
    uint32_t i = 0;

    tg__index_init(&index, &budget);
    while (tg__index_add(&index, i, i) == 0)
        i++;
    ck_assert_int_eq(tg_last_error()->status, TG_ELIMIT);
    tg__index_free(&index);
    ck_assert_uint_eq(budget.left_bytes, 600);
}
END_TEST

START_TEST(errors_have_texts) {
    errno = 5;
    ck_assert_int_eq(tg__fail(TG_EFORMAT, "at %d", 3), TG_EFORMAT);
    ck_assert_int_eq(errno, 5);
    ck_assert_str_eq(tg_last_error()->text, "at 3");
    ck_assert_int_eq(tg_last_error()->native, 0);
    ck_assert_int_eq(tg__fail_memory(), -ENOMEM);
    ck_assert_int_eq(tg_last_error()->native, ENOMEM);
    ck_assert_str_eq(tg_error_text(TG_EUNSAFE), "the data asks to construct an object");
    ck_assert_str_eq(tg_error_text(0), "no error");
    ck_assert_ptr_nonnull(tg_error_text(-ENOENT));
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("base");

    tcase_add_test(cases, map_against_an_array);
    tcase_add_test(cases, index_finds_what_was_added);
    tcase_add_test(cases, vec_keeps_to_its_budget);
    tcase_add_test(cases, growth_counts_both_halves);
    tcase_add_test(cases, index_keeps_to_its_budget);
    tcase_add_test(cases, errors_have_texts);
    return suite_run("base", cases);
}
