/* SPDX-License-Identifier: Apache-2.0 */
/* As many processes as the ledger has places: they take turns, and those that are killed make room.
 */
#include <check.h>

#include "../unit/suite.h"
#include "../unit/tenants.h"

enum { TURNS = 3, WAIT_MS = 60000 };

#define TURN_BYTES (60 * GIB)

/* 0 if all its turns came. */
static int take_turns(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "one of many");
    int failed = 0;

    (void)argument;
    tell(out, 0);
    hear(in);
    for (int turn = 0; turn < TURNS && failed == 0; turn++) {
        failed = take(tenant, card, 0, TURN_BYTES, WAIT_MS);
        if (failed == 0 && atomic_load(&card->used_bytes[0]) > CARD_BYTES)
            failed = 1;
        if (failed == 0)
            put_back(tenant, card, 0, TURN_BYTES);
    }
    tell(out, 0);
    hear(in);
    return failed == 0 ? 0 : 1;
}

static void start_all(struct child children[TG_LEDGER_TENANTS],
                      int (*run)(int in, int out, void *argument)) {
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        children[i] = start(run, NULL);
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        hear(children[i].in);
}

static void tell_all(struct child children[TG_LEDGER_TENANTS]) {
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        tell(children[i].out, 0);
}

START_TEST(sixty_four_processes_all_have_their_turns) {
    struct child children[TG_LEDGER_TENANTS];
    struct tg_ledger *reader;

    start_all(children, take_turns);
    ck_ok(tg_ledger_open_reader(NULL, &reader));
    ck_assert_uint_eq(look(reader)->tenant_count, TG_LEDGER_TENANTS);
    tell_all(children);
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        hear(children[i].in);
    ck_assert_uint_eq(atomic_load(&card->used_bytes[0]), 0);
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        ck_assert_int_eq(finish(&children[i]), 0);
    tg_ledger_close(reader);
}
END_TEST

static int hold(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "one of many");

    (void)argument;
    ck_ok(take(tenant, card, 0, GIB, 0));
    tell(out, 0);
    hear(in);
    return 0;
}

/* Their bytes count for up to two seconds, and so long each keeps its place: who comes waits. */
START_TEST(who_comes_after_sixty_four_deaths_has_a_place) {
    struct child children[TG_LEDGER_TENANTS];
    struct tg_tenant *tenant;
    struct tg_ledger *ledger;

    start_all(children, hold);
    for (int i = 0; i < TG_LEDGER_TENANTS; i++)
        kill_and_finish(&children[i]);
    atomic_store(&card->used_bytes[0], 0);
    ledger = open_ledger();
    tenant = join(ledger, card, "restarted");
    ck_ok(tg_tenant_reserve(tenant, "tag", CARD_BYTES, 10000));
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

/* The living keep theirs: no wait helps, and none is made. */
START_TEST(the_sixty_fifth_process_is_told_at_once) {
    struct child children[TG_LEDGER_TENANTS];
    struct tg_tenant_params params = on_card(card, "more");
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *more = NULL;

    start_all(children, hold);
    ck_assert_int_eq(tg_ledger_join(ledger, &params, &more), TG_EFULL);
    ck_says("64 tenants");
    kill_and_finish(&children[20]);
    atomic_fetch_sub(&card->used_bytes[0], GIB);
    ck_ok(tg_ledger_join(ledger, &params, &more));
    tg_tenant_leave(more);
    tg_ledger_close(ledger);
    for (int i = 0; i < TG_LEDGER_TENANTS; i++) {
        if (i != 20)
            kill_and_finish(&children[i]);
    }
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("crowd");

    tcase_set_timeout(cases, 240);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_test(cases, sixty_four_processes_all_have_their_turns);
    tcase_add_test(cases, who_comes_after_sixty_four_deaths_has_a_place);
    tcase_add_test(cases, the_sixty_fifth_process_is_told_at_once);
    return suite_run("crowd", cases);
}
