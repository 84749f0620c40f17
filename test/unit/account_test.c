/* SPDX-License-Identifier: Apache-2.0 */
/* Joining the ledger, what tenants write down, what readers see, what is refused. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "suite.h"
#include "tenants.h"

static const struct tg_tag_view *tag_of(const struct tg_tenant_view *tenant, const char *tag) {
    static const struct tg_tag_view none;

    for (uint32_t i = 0; i < tenant->tag_count; i++) {
        if (strcmp(tenant->tags[i].name, tag) == 0)
            return &tenant->tags[i];
    }
    return &none;
}

static void ck_tag(struct tg_ledger *ledger, const char *tag, uint64_t reserved, uint64_t occupied,
                   uint64_t asleep, uint64_t host) {
    const struct tg_tag_view *view = tag_of(look_at(ledger, "one"), tag);

    ck_assert_uint_eq(view->reserved_bytes, reserved);
    ck_assert_uint_eq(view->occupied_bytes, occupied);
    ck_assert_uint_eq(view->asleep_bytes, asleep);
    ck_assert_uint_eq(view->host_bytes, host);
}

START_TEST(a_tenant_is_seen_until_it_leaves) {
    struct tg_ledger *ledger = open_ledger(), *reader = NULL;
    struct tg_tenant_params params = on_card(card, "trainer");
    struct tg_tenant *tenant = NULL;
    const struct tg_node_view *view;

    ck_ok(tg_ledger_open_reader(NULL, &reader));
    ck_assert_uint_eq(look(reader)->tenant_count, 0);
    params.role = "trainer role";
    params.rank = 3;
    atomic_store(&card->foreign_bytes, 5 * GIB);
    ck_ok(tg_ledger_join(ledger, &params, &tenant));
    ck_ok(tg_tenant_check(tenant));
    ck_ok(take(tenant, card, 0, 10 * GIB, 0));
    ck_ok(take(tenant, card, 0, GIB, 0));
    view = look(reader);
    ck_assert_uint_eq(view->tenant_count, 1);
    ck_assert_str_eq(view->tenants[0].name, "trainer");
    ck_assert_str_eq(view->tenants[0].role, "trainer role");
    ck_assert_int_eq(view->tenants[0].rank, 3);
    ck_assert_int_eq(view->tenants[0].pid, getpid());
    ck_assert_uint_eq(view->tenants[0].is_dead, 0);
    ck_assert_uint_gt(view->tenants[0].updated_ns, 0);
    ck_assert_uint_le(view->tenants[0].updated_ns, view->now_ns);
    ck_assert_uint_eq(view->device_count, 1);
    ck_assert_mem_eq(view->devices[0].uuid, card_uuid, 16);
    ck_assert_str_eq(view->devices[0].name, "test card");
    ck_assert_uint_eq(view->devices[0].total_bytes, CARD_BYTES);
    ck_assert_uint_eq(view->devices[0].free_bytes, CARD_BYTES - 15 * GIB);
    ck_assert_uint_eq(view->devices[0].unattributed_bytes, 5 * GIB);
    tg_tenant_leave(tenant);
    tg_tenant_leave(NULL);
    ck_assert_uint_eq(look(reader)->tenant_count, 0);
    tg_ledger_close(reader);
    tg_ledger_close(ledger);
    tg_ledger_close(NULL);
}
END_TEST

START_TEST(bytes_move_as_they_are_told) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");

    ck_ok(tg_tenant_reserve(one, "kv_cache", 10, 0));
    ck_tag(ledger, "kv_cache", 10, 0, 0, 0);
    tg_tenant_commit(one, "kv_cache", 6, 0);
    ck_tag(ledger, "kv_cache", 4, 6, 0, 0);
    tg_tenant_cancel(one, "kv_cache", 4);
    ck_tag(ledger, "kv_cache", 0, 6, 0, 0);
    tg_tenant_give(one, "kv_cache", 6, 5);
    ck_tag(ledger, "kv_cache", 0, 0, 5, 0);
    tg_tenant_forget(one, "kv_cache", 2);
    ck_tag(ledger, "kv_cache", 0, 0, 3, 0);
    ck_ok(tg_tenant_reserve(one, "kv_cache", 3, 0));
    tg_tenant_commit(one, "kv_cache", 3, 3);
    ck_tag(ledger, "kv_cache", 0, 3, 0, 0);
    ck_ok(tg_tenant_host_reserve(one, "weights", 4096));
    ck_tag(ledger, "weights", 0, 0, 0, 4096);
    tg_tenant_host_commit(one, "weights", 1024);
    ck_tag(ledger, "weights", 0, 0, 0, 4096);
    ck_assert_uint_eq(look(ledger)->host_bytes, 4096);
    tg_tenant_host_give(one, "weights", 3072, 0);
    ck_tag(ledger, "weights", 0, 0, 0, 1024);
    tg_tenant_host_give(one, "weights", 1024, 1);
    ck_assert_uint_eq(look_at(ledger, "one")->tag_count, 1);
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

/* Who counts wrongly harms its own figures, and those only to their ends. */
START_TEST(figures_stop_at_their_ends) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one"), *other = join(ledger, card, "other");

    ck_ok(tg_tenant_reserve(one, "a", 10, 0));
    tg_tenant_give(one, "a", 20, UINT64_MAX);
    tg_tenant_give(one, "a", 20, UINT64_MAX);
    ck_tag(ledger, "a", 10, 0, UINT64_MAX, 0);
    tg_tenant_commit(one, "a", UINT64_MAX, UINT64_MAX);
    tg_tenant_commit(one, "a", UINT64_MAX, 0);
    ck_tag(ledger, "a", 0, UINT64_MAX, 0, 0);
    tg_tenant_commit(one, "b", UINT64_MAX, 0);
    ck_assert_int_eq(tg_tenant_reserve(other, "c", 1, 0), TG_ENOFIT);
    tg_tenant_leave(one);
    ck_ok(tg_tenant_reserve(other, "c", CARD_BYTES, 0));
    tg_tenant_leave(other);
    tg_ledger_close(ledger);
}
END_TEST

static void ck_join_refused(struct tg_ledger *ledger, struct tg_tenant_params params,
                            const char *words) {
    struct tg_tenant *tenant = (void *)1;

    ck_assert_int_eq(tg_ledger_join(ledger, &params, &tenant), -EINVAL);
    ck_assert_ptr_eq(tenant, (void *)1);
    ck_says(words);
    ck_assert_uint_eq(look(ledger)->tenant_count, 0);
    ck_assert_uint_eq(look(ledger)->device_count, 0);
}

START_TEST(bad_parameters_join_nothing) {
    struct tg_ledger *ledger = open_ledger(), *reader = NULL;
    const struct tg_tenant_params good = on_card(card, "one");
    struct tg_tenant_params params = good;
    struct tg_tenant *tenant = NULL;

    params.name = NULL;
    ck_join_refused(ledger, params, "name is 1 to 47");
    params.name = "";
    ck_join_refused(ledger, params, "name is 1 to 47");
    params.name = "a line\nand another";
    ck_join_refused(ledger, params, "printable");
    params.name = "123456789012345678901234567890123456789012345678";
    ck_join_refused(ledger, params, "name is 1 to 47");
    params = good;
    params.role = "1234567890123456";
    ck_join_refused(ledger, params, "role is 1 to 15");
    params = good;
    params.rank = -2;
    ck_join_refused(ledger, params, "not -2");
    params = good;
    params.uuid = NULL;
    ck_join_refused(ledger, params, "uuid");
    params = good;
    params.gauge.ask = NULL;
    ck_join_refused(ledger, params, "gauge");
    params = good;
    params.device_name = "a name\twith control characters";
    ck_join_refused(ledger, params, "device's name");
    ck_ok(tg_ledger_open_reader(NULL, &reader));
    ck_join_refused(reader, good, "for reading");
    ck_assert_int_eq(tg_ledger_join(NULL, &good, &tenant), -EINVAL);
    tg_ledger_close(reader);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(bad_requests_change_nothing) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");
    const char *const bad[] = {NULL, "", "a\033b", "12345678901234567890123456789012"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(tg_tenant_reserve(one, bad[i], 1, 0), -EINVAL);
        ck_says("tag's name is 1 to 31");
        ck_assert_int_eq(tg_tenant_host_reserve(one, bad[i], 1), -EINVAL);
        ck_says("tag's name is 1 to 31");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tg_tenant_commit(one, bad[i], 5, 0);
        tg_tenant_give(one, bad[i], 5, 5);
        tg_tenant_host_commit(one, bad[i], 5);
    }
    ck_assert_int_eq(tg_tenant_reserve(one, "a", 0, 0), -EINVAL);
    ck_assert_int_eq(tg_tenant_reserve(NULL, "a", 1, 0), -EINVAL);
    ck_assert_int_eq(tg_tenant_reserve_all(one, NULL, 1, 0), -EINVAL);
    ck_says("NULL");
    ck_ok(tg_tenant_host_reserve(one, "a", 0));
    ck_assert_int_eq(tg_tenant_reserve(one, "a", CARD_BYTES + 1, 100000), TG_ENEVERFITS);
    ck_says("a needs 100.0 GiB");
    ck_assert_uint_eq(look_at(ledger, "one")->tag_count, 0);
    ck_assert_uint_eq(look_at(ledger, "one")->is_waiting, 0);
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(the_seventeenth_tag_finds_no_place) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");
    char name[8];

    for (int i = 0; i < TG_TENANT_TAGS; i++) {
        snprintf(name, sizeof name, "tag %d", i);
        ck_ok(tg_tenant_reserve(one, name, (uint64_t)i + 1, 0));
    }
    ck_assert_int_eq(tg_tenant_reserve(one, "more", 1, 0), TG_EFULL);
    ck_says("16 tags");
    ck_assert_int_eq(tg_tenant_reserve(one, "more", 1, 1000), TG_EFULL);
    ck_assert_int_eq(tg_tenant_host_reserve(one, "more", 1), TG_EFULL);
    ck_assert_uint_eq(look_at(ledger, "one")->is_waiting, 0);
    ck_ok(tg_tenant_reserve(one, "tag 7", 1, 0));
    tg_tenant_cancel(one, "tag 3", 4);
    ck_ok(tg_tenant_reserve(one, "more", 1, 0));
    for (int i = 0; i < TG_TENANT_TAGS; i++) {
        snprintf(name, sizeof name, "tag %d", i);
        ck_assert_uint_eq(tag_of(look_at(ledger, "one"), name)->reserved_bytes,
                          i == 3 ? 0 : (uint64_t)i + 1 + (i == 7));
    }
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(several_tags_are_had_together_or_not_at_all) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");
    struct tg_share shares[TG_TENANT_TAGS + 1] = {{"a", 60 * GIB}, {"b", 41 * GIB}};
    char names[TG_TENANT_TAGS][8];

    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, 2, 0), TG_ENEVERFITS);
    shares[1].size_bytes = 0;
    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, 2, 0), -EINVAL);
    shares[1].size_bytes = UINT64_MAX;
    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, 2, 0), TG_ENEVERFITS);
    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, 0, 0), -EINVAL);
    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, TG_TENANT_TAGS + 1, 0), -EINVAL);
    ck_assert_uint_eq(look_at(ledger, "one")->tag_count, 0);
    shares[1].size_bytes = 40 * GIB;
    ck_ok(tg_tenant_reserve_all(one, shares, 2, 0));
    ck_tag(ledger, "a", 60 * GIB, 0, 0, 0);
    ck_tag(ledger, "b", 40 * GIB, 0, 0, 0);
    tg_tenant_cancel(one, "a", 60 * GIB);
    for (int i = 0; i < TG_TENANT_TAGS; i++) {
        snprintf(names[i], sizeof names[i], "tag %d", i);
        shares[i] = (struct tg_share){names[i], 1};
    }
    ck_assert_int_eq(tg_tenant_reserve_all(one, shares, TG_TENANT_TAGS, 0), TG_EFULL);
    ck_ok(tg_tenant_reserve(one, "c", 1, 0));
    ck_assert_uint_eq(look_at(ledger, "one")->tag_count, 2);
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(the_sixty_fifth_tenant_finds_no_place) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenants[TG_LEDGER_TENANTS], *more = NULL;
    struct tg_tenant_params params = on_card(card, "more");

    for (int i = 0; i < TG_LEDGER_TENANTS; i++) {
        tenants[i] = join(ledger, card, "one of many");
        ck_ok(tg_tenant_reserve(tenants[i], "a", GIB, 0));
    }
    ck_assert_int_eq(tg_ledger_join(ledger, &params, &more), TG_EFULL);
    ck_says("64 tenants");
    ck_assert_int_eq(tg_tenant_reserve(tenants[5], "a", 37 * GIB, 0), TG_ENOFIT);
    tg_tenant_leave(tenants[17]);
    ck_ok(tg_tenant_reserve(tenants[5], "a", 37 * GIB, 0));
    ck_ok(tg_ledger_join(ledger, &params, &more));
    ck_assert_uint_eq(look(ledger)->tenant_count, TG_LEDGER_TENANTS);
    tenants[17] = more;
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        tg_tenant_leave(tenants[i]);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(the_seventeenth_device_finds_no_place) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenants[TG_LEDGER_DEVICES], *more = NULL;
    struct tg_tenant_params params = on_card(card, "one");
    uint8_t uuid[16] = {0};

    params.uuid = uuid;
    for (int i = 0; i < TG_LEDGER_DEVICES; i++) {
        uuid[3] = (uint8_t)i;
        ck_ok(tg_ledger_join(ledger, &params, &tenants[i]));
        ck_ok(tg_tenant_reserve(tenants[i], "a", CARD_BYTES, 0));
    }
    uuid[3] = 100;
    ck_assert_int_eq(tg_ledger_join(ledger, &params, &more), TG_EFULL);
    ck_says("16 devices");
    ck_assert_uint_eq(look(ledger)->tenant_count, TG_LEDGER_DEVICES);
    tg_tenant_leave(tenants[4]);
    ck_ok(tg_ledger_join(ledger, &params, &tenants[4])); /* the place of a device without tenants */
    ck_ok(tg_tenant_reserve(tenants[4], "a", CARD_BYTES, 0));
    for (int i = 0; i < TG_LEDGER_DEVICES; i++)
        tg_tenant_leave(tenants[i]);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(what_is_missing_is_named) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant_params params = on_card(card, "trainer");
    struct tg_tenant *trainer, *rollout;
    struct tg_shortfall shortfall;

    params.rank = 0;
    ck_ok(tg_ledger_join(ledger, &params, &trainer));
    rollout = join(ledger, card, "rollout");
    ck_ok(tg_tenant_reserve(trainer, "grads", 5 * GIB, 0));
    ck_ok(tg_tenant_reserve(trainer, "optimizer", 40 * GIB + 100 * (GIB >> 10), 0));
    ck_ok(tg_tenant_reserve(rollout, "weights", 14 * GIB, 0));
    atomic_store(&card->foreign_bytes, 3 * GIB);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv_cache", 61 * GIB, 0), TG_ENOFIT);
    ck_says("kv_cache needs 61.0 GiB, 37.9 GiB can be had");
    ck_says("trainer rank 0 optimizer 40.1 GiB");
    ck_says("trainer rank 0 grads 5.0 GiB");
    ck_says("unattributed 3.0 GiB");
    tg_tenant_shortfall(rollout, &shortfall);
    ck_assert_int_eq(shortfall.status, TG_ENOFIT);
    ck_assert_uint_eq(shortfall.asked_bytes, 61 * GIB);
    ck_assert_uint_eq(shortfall.available_bytes, 38 * GIB - 100 * (GIB >> 10));
    ck_assert_uint_eq(shortfall.missing_bytes, 23 * GIB + 100 * (GIB >> 10));
    ck_assert_str_eq(shortfall.holder, "trainer rank 0");
    ck_assert_str_eq(shortfall.tag, "optimizer");
    ck_assert_uint_eq(shortfall.unattributed_bytes, 3 * GIB);
    ck_assert_uint_eq(shortfall.orphaned_bytes, 0);
    ck_ok(tg_tenant_reserve(rollout, "kv_cache", 1, 0));
    tg_tenant_shortfall(rollout, &shortfall);
    ck_assert_int_eq(shortfall.status, 0);
    tg_tenant_leave(rollout);
    tg_tenant_leave(trainer);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(two_directories_are_two_ledgers) {
    char other[128];
    struct tg_ledger *one = open_ledger(), *two = NULL, *none = NULL;
    struct tg_tenant_params params = on_card(card, "there");
    struct tg_tenant *here = join(one, card, "here"), *there = NULL;

    snprintf(other, sizeof other, "%s/other", dir);
    ck_assert_int_eq(tg_ledger_open_reader(other, &none), -ENOENT);
    ck_ok(tg_ledger_open(other, &two));
    ck_ok(tg_ledger_join(two, &params, &there));
    ck_ok(tg_tenant_reserve(here, "a", CARD_BYTES, 0));
    ck_ok(tg_tenant_reserve(there, "a", CARD_BYTES, 0));
    ck_assert_ptr_null(look_at(one, "there"));
    ck_assert_ptr_null(look_at(two, "here"));
    tg_tenant_leave(here);
    tg_tenant_leave(there);
    tg_ledger_close(one);
    tg_ledger_close(two);
}
END_TEST

/* A container has 64 MiB of shared memory, and all of the file is had at its making. */
START_TEST(the_ledger_is_a_mebibyte_at_most) {
    struct tg_ledger *ledger = open_ledger();
    struct stat info;
    char path[128];

    snprintf(path, sizeof path, "%s/ledger", dir);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_le(info.st_size, 1 << 20);
    ck_assert_int_ge(info.st_blocks * 512, info.st_size);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(a_replaced_ledger_is_noticed) {
    char path[128];
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");

    snprintf(path, sizeof path, "%s/ledger", dir);
    ck_ok(tg_tenant_check(one));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(tg_tenant_check(one), TG_EREPLACED);
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

static struct tg_ledger *parents_ledger;
static struct tg_tenant *parents_tenant;

static int use_what_is_the_parents(int in, int out, void *argument) {
    struct tg_tenant_params params = on_card(card, "child");
    static struct tg_node_view view;
    struct tg_shortfall shortfall;
    struct tg_tenant *own = NULL;
    bool is_right;

    (void)in;
    (void)argument;
    is_right = tg_tenant_reserve(parents_tenant, "a", 1, 0) == TG_EFORKED &&
               tg_tenant_reserve(parents_tenant, "a", 1, 1000) == TG_EFORKED &&
               tg_tenant_host_reserve(parents_tenant, "a", 1) == TG_EFORKED &&
               tg_tenant_check(parents_tenant) == TG_EFORKED &&
               tg_ledger_read(parents_ledger, &view) == TG_EFORKED &&
               tg_ledger_join(parents_ledger, &params, &own) == TG_EFORKED;
    tg_tenant_shortfall(parents_tenant, &shortfall);
    tg_tenant_commit(parents_tenant, "a", 5, 0);
    tg_tenant_give(parents_tenant, "a", 5, 0);
    tg_tenant_cancel(parents_tenant, "a", 5);
    tg_tenant_host_give(parents_tenant, "a", 5, 0);
    tg_tenant_leave(parents_tenant);
    tg_ledger_close(parents_ledger);
    join(open_ledger(), card, "child");
    tell(out, 0);
    hear(in);
    return is_right ? 0 : 1;
}

START_TEST(a_forked_child_is_nobody) {
    struct child child;

    parents_ledger = open_ledger();
    parents_tenant = join(parents_ledger, card, "one");
    ck_ok(tg_tenant_reserve(parents_tenant, "a", 10, 0));
    child = start(use_what_is_the_parents, NULL);
    hear(child.in);
    ck_tag(parents_ledger, "a", 10, 0, 0, 0);
    ck_assert_ptr_nonnull(look_at(parents_ledger, "child"));
    ck_assert_int_eq(finish(&child), 0);
    ck_ok(tg_tenant_reserve(parents_tenant, "a", CARD_BYTES - 10, 0));
    tg_tenant_leave(parents_tenant);
    tg_ledger_close(parents_ledger);
}
END_TEST

START_TEST(the_shortfall_of_nobody_is_none) {
    struct tg_shortfall shortfall = {.status = 7};

    tg_tenant_shortfall(NULL, NULL);
    tg_tenant_shortfall(NULL, &shortfall);
    ck_assert_int_eq(shortfall.status, 0);
}
END_TEST

START_TEST(a_gauge_that_fails_is_passed_on) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one");

    atomic_store(&card->status, TG_EBROKEN);
    ck_assert_int_eq(tg_tenant_reserve(one, "a", 10, 0), TG_EBROKEN);
    ck_assert_int_eq(tg_last_error()->status, TG_EBROKEN);
    ck_says("failed for good");
    ck_assert_int_eq(tg_tenant_reserve(one, "a", 10, 60000), TG_EBROKEN);
    ck_assert_uint_eq(look_at(ledger, "one")->is_waiting, 0);
    atomic_store(&card->status, 0);
    ck_ok(tg_tenant_reserve(one, "a", CARD_BYTES, 0));
    tg_tenant_leave(one);
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("account");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_test(cases, a_tenant_is_seen_until_it_leaves);
    tcase_add_test(cases, bytes_move_as_they_are_told);
    tcase_add_test(cases, figures_stop_at_their_ends);
    tcase_add_test(cases, bad_parameters_join_nothing);
    tcase_add_test(cases, bad_requests_change_nothing);
    tcase_add_test(cases, the_seventeenth_tag_finds_no_place);
    tcase_add_test(cases, several_tags_are_had_together_or_not_at_all);
    tcase_add_test(cases, the_sixty_fifth_tenant_finds_no_place);
    tcase_add_test(cases, the_seventeenth_device_finds_no_place);
    tcase_add_test(cases, what_is_missing_is_named);
    tcase_add_test(cases, two_directories_are_two_ledgers);
    tcase_add_test(cases, the_ledger_is_a_mebibyte_at_most);
    tcase_add_test(cases, a_replaced_ledger_is_noticed);
    tcase_add_test(cases, a_forked_child_is_nobody);
    tcase_add_test(cases, the_shortfall_of_nobody_is_none);
    tcase_add_test(cases, a_gauge_that_fails_is_passed_on);
    return suite_run("account", cases);
}
