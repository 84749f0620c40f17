/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of ranges and tables of what lies at one, against a model that has a byte for each unit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/ranges.h"
#include "suite.h"

enum { UNITS = 200, ROUNDS = 20000 };

static uint64_t random_state;

static uint64_t next_random(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % below;
}

/* The set is what the model marks, as few ranges as can be, in order. */
static void check_against(const struct tg__ranges *ranges, const char *is_free) {
    size_t i = 0;
    uint64_t size_bytes = 0;

    for (uint64_t at = 0; at < UNITS;) {
        uint64_t end = at;

        while (end < UNITS && is_free[end])
            end++;
        if (end == at) {
            at++;
            continue;
        }
        ck_assert_uint_lt(i, ranges->count);
        ck_assert_uint_eq(ranges->items[i].addr, at);
        ck_assert_uint_eq(ranges->items[i].size_bytes, end - at);
        size_bytes += end - at;
        i++;
        at = end;
    }
    ck_assert_uint_eq(i, ranges->count);
    ck_assert_uint_eq(size_bytes, ranges->size_bytes);
}

/* The lowest of the smallest free runs that have that much. */
static uint64_t best_fit(const char *is_free, uint64_t size) {
    uint64_t best = UNITS, best_size = UNITS + 1;

    for (uint64_t at = 0; at < UNITS;) {
        uint64_t end = at;

        while (end < UNITS && is_free[end])
            end++;
        if (end - at >= size && end > at && end - at < best_size) {
            best = at;
            best_size = end - at;
        }
        at = end + 1;
    }
    return best;
}

static void add_some(struct tg__ranges *ranges, char *is_free) {
    uint64_t addr = next_random(UNITS), end = addr;
    struct tg__range merged = {0, 0};

    while (end < UNITS && !is_free[end] && end - addr < 9)
        end++;
    if (end == addr)
        return;
    memset(is_free + addr, 1, end - addr);
    ck_assert_int_eq(tg__ranges_add(ranges, (struct tg__range){addr, end - addr}, &merged), 0);
    ck_assert_uint_le(merged.addr, addr);
    ck_assert_uint_ge(tg__range_end(&merged), end);
    ck_assert(merged.addr == 0 || !is_free[merged.addr - 1]);
    ck_assert(tg__range_end(&merged) == UNITS || !is_free[tg__range_end(&merged)]);
}

static void cut_some(struct tg__ranges *ranges, char *is_free) {
    uint64_t addr = next_random(UNITS), end = addr;

    while (end < UNITS && is_free[end] && end - addr < 5)
        end++;
    if (end == addr)
        return;
    memset(is_free + addr, 0, end - addr);
    ck_assert_int_eq(tg__ranges_cut(ranges, (struct tg__range){addr, end - addr}), 0);
}

static void take_some(struct tg__ranges *ranges, char *is_free) {
    uint64_t size = 1 + next_random(12), expected = best_fit(is_free, size), addr = UNITS;
    bool has = tg__ranges_take(ranges, size, &addr);

    ck_assert(has == (expected != UNITS));
    ck_assert_uint_eq(addr, expected);
    if (has)
        memset(is_free + addr, 0, size);
}

/* Some of it may be in the set, and it may reach into ranges that go on at one end. */
static void clip_some(struct tg__ranges *ranges, char *is_free) {
    uint64_t addr = next_random(UNITS), end = addr + 1 + next_random(UNITS - addr), taken = 0;

    while (addr > 0 && is_free[addr - 1] && is_free[addr]) /* not in the middle of one */
        addr--;
    for (uint64_t at = addr; at < end; at++)
        taken += (uint64_t)is_free[at];
    memset(is_free + addr, 0, end - addr);
    ck_assert_uint_eq(tg__ranges_clip(ranges, (struct tg__range){addr, end - addr}), taken);
}

static void ask_for_some(const struct tg__ranges *ranges, const char *is_free) {
    uint64_t addr = next_random(UNITS), end = addr;

    if (addr == 0 || !is_free[addr - 1]) {
        while (end < UNITS && is_free[end])
            end++;
    }
    ck_assert_uint_eq(tg__ranges_at(ranges, addr), end - addr);
}

static void ask_for_a_gap(const struct tg__ranges *ranges, const char *is_free) {
    uint64_t from = next_random(UNITS), end = from + 1 + next_random(UNITS - from), to;
    struct tg__range gap = {UNITS, UNITS};
    bool has = tg__ranges_gap(ranges, from, end, &gap);

    while (from < end && is_free[from])
        from++;
    for (to = from; to < end && !is_free[to];)
        to++;
    ck_assert(has == (from < end));
    ck_assert_uint_eq(gap.addr, has ? from : UNITS);
    ck_assert_uint_eq(gap.size_bytes, has ? to - from : UNITS);
}

START_TEST(a_set_is_what_was_added_and_not_taken) {
    struct tg__ranges ranges = {0};
    char is_free[UNITS] = {0};

    random_state = 5;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t what = next_random(6);

        if (what == 0)
            take_some(&ranges, is_free);
        else if (what == 1)
            cut_some(&ranges, is_free);
        else if (what == 2 && next_random(4) == 0)
            clip_some(&ranges, is_free);
        else if (what == 2 && next_random(2) == 0)
            ask_for_some(&ranges, is_free);
        else if (what == 2)
            ask_for_a_gap(&ranges, is_free);
        else
            add_some(&ranges, is_free);
        check_against(&ranges, is_free);
    }
    tg__ranges_free(&ranges);
}
END_TEST

START_TEST(room_once_made_lasts) {
    struct tg__ranges ranges = {0};
    struct tg__range *items;

    ck_assert_int_eq(tg__ranges_room(&ranges, 40), 0);
    items = ranges.items;
    for (uint64_t i = 0; i < 40; i++)
        ck_assert_int_eq(tg__ranges_add(&ranges, (struct tg__range){i * 10, 5}, NULL), 0);
    ck_assert_ptr_eq(ranges.items, items);
    ck_assert_uint_eq(ranges.count, 40);
    tg__ranges_free(&ranges);
}
END_TEST

START_TEST(a_plot_is_found_by_any_address_in_it) {
    struct tg__range items[50];
    struct tg__plots plots = {0};
    size_t number = 99;

    ck_assert_int_eq(tg__plots_room(&plots, 50), 0);
    for (size_t i = 0; i < 50; i++) { /* 37 and 50 have no common divisor: all, in no order */
        struct tg__range *item = &items[i * 37 % 50];

        *item = (struct tg__range){100 + (i * 37 % 50) * 10, 6};
        tg__plots_put(&plots, item);
    }
    ck_assert_ptr_null(tg__plots_find(&plots, 99, &number));
    ck_assert_uint_eq(number, 99);
    ck_assert_ptr_eq(tg__plots_find(&plots, 100, &number), &items[0]);
    ck_assert_uint_eq(number, 0);
    ck_assert_ptr_eq(tg__plots_find(&plots, 125, &number), &items[2]);
    ck_assert_ptr_null(tg__plots_find(&plots, 126, NULL));
    ck_assert_ptr_null(tg__plots_find(&plots, 596, NULL));
    ck_assert_uint_eq(tg__plots_from(&plots, 126), 3);
    ck_assert_uint_eq(tg__plots_from(&plots, 596), 50);
    tg__plots_drop(&plots, 2);
    ck_assert_ptr_null(tg__plots_find(&plots, 120, NULL));
    ck_assert_ptr_eq(tg__plots_find(&plots, 130, &number), &items[3]);
    ck_assert_uint_eq(number, 2);
    tg__plots_free(&plots);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("ranges");

    tcase_add_test(tcase, a_set_is_what_was_added_and_not_taken);
    tcase_add_test(tcase, room_once_made_lasts);
    tcase_add_test(tcase, a_plot_is_found_by_any_address_in_it);
    return suite_run("ranges", tcase);
}
