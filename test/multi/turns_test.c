/* SPDX-License-Identifier: Apache-2.0 */
/* Two and more processes take turns on one device, and nothing is lost. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

static const char uri[] = "host:capacity=128MiB,name=turns";

static struct actor start(const char *name, uint64_t seed) {
    struct actor actor;
    struct actor_params params = {.name = name, .uri = uri, .seed = seed};

    ck_assert(actor_start(&actor, &params));
    return actor;
}

/* Each needs 96 of 128 MiB: the waker waits in the ledger until the other sleeps. */
START_TEST(two_take_turns) {
    struct actor actors[2];

    stage_open();
    for (int i = 0; i < 2; i++) {
        actors[i] = start(i == 0 ? "trainer" : "rollout", 11 + (uint64_t)i);
        actor_must(&actors[i], order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_ALLOC, "optimizer", 8 * MIB + 8, 0));
        actor_must(&actors[i], order_make(ORDER_ALLOC, "kv_cache", 46 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, 5000));
    }
    ck_assert_uint_eq(stage_taken(NULL), 0);
    ck_assert_uint_eq(stage_used(uri), 0);
    actor_must(&actors[0], order_make(ORDER_WAKE, "", 0, 5000));
    for (int turn = 1; turn <= 20; turn++) {
        struct actor *sleeper = &actors[(turn - 1) % 2], *waker = &actors[turn % 2];
        actor_order(waker, order_make(ORDER_WAKE, "", 0, 20000));
        ck_assert_uint_eq(actor_must(sleeper, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
        ck_assert_uint_eq(actor_must(sleeper, order_make(ORDER_VERIFY, "optimizer", 0, 0)), 0);
        actor_must(sleeper, order_make(ORDER_SLEEP, "", 0, 5000));
        ck_assert_int_eq(actor_answer(waker, 20000).status, 0);
        ck_assert_uint_eq(stage_taken(sleeper->name), 0);
        ck_assert_uint_ge(stage_taken(waker->name), 94 * MIB);
        ck_assert_uint_eq(stage_taken(waker->name), stage_used(uri));
    }
    actor_leave(&actors[0]);
    actor_leave(&actors[1]);
    ck_assert_uint_eq(stage_used(uri), 0);
    stage_close();
}
END_TEST

/* Eight want more than half each: one at a time, everyone gets a turn. */
START_TEST(eight_take_turns) {
    struct actor actors[8];
    char name[16];

    stage_open();
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "tenant%d", i);
        actors[i] = start(name, 100 + (uint64_t)i);
        actor_must(&actors[i], order_make(ORDER_ALLOC, "weights", 66 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, 5000));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++)
            actor_order(&actors[i], order_make(ORDER_WAKE, "", 0, 30000));
        for (int served = 0; served < 8; served++) {
            int i = actor_first(actors, 8, 30000);
            ck_assert_int_eq(actor_answer(&actors[i], 0).status, 0);
            ck_assert_uint_eq(actor_must(&actors[i], order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
            ck_assert_uint_le(stage_used(uri), 128 * MIB);
            actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, 5000));
        }
    }
    for (int i = 0; i < 8; i++)
        actor_leave(&actors[i]);
    ck_assert_uint_eq(stage_used(uri), 0);
    stage_close();
}
END_TEST

/* A wake that does not fit leaves everything as it was and names the holder; later it succeeds. */
START_TEST(what_does_not_fit_is_named_and_changes_nothing) {
    struct actor trainer, rollout;
    struct answer answer;

    stage_open();
    trainer = start("trainer", 1);
    rollout = start("rollout", 2);
    actor_must(&rollout, order_make(ORDER_ALLOC, "weights", 80 * MIB, 0));
    actor_must(&rollout, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_must(&trainer, order_make(ORDER_ALLOC, "weights", 100 * MIB, 0));
    answer = actor_do(&rollout, order_make(ORDER_WAKE, "", 0, 150));
    ck_assert_int_eq(answer.status, TG_ENOFIT);
    ck_assert_msg(strstr(answer.text, "trainer") != NULL && strstr(answer.text, "weights") != NULL,
                  "%s", answer.text);
    ck_assert_uint_ge(answer.took_ns, UINT64_C(150000000));
    ck_assert_uint_eq(stage_taken("rollout"), 0);
    actor_must(&trainer, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_must(&rollout, order_make(ORDER_WAKE, "", 0, 5000));
    ck_assert_uint_eq(actor_must(&rollout, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    actor_leave(&trainer);
    actor_leave(&rollout);
    stage_close();
}
END_TEST

/* What could never fit, and two that wait for each other, are told at once. */
START_TEST(the_impossible_is_told_at_once) {
    struct actor a, b;
    struct answer answer;

    stage_open();
    a = start("first", 1);
    b = start("second", 2);
    answer = actor_do(&a, order_make(ORDER_RESERVE, "kv_cache", 130 * MIB, 10000));
    ck_assert_int_eq(answer.status, TG_ENEVERFITS);
    ck_assert_uint_lt(answer.took_ns, UINT64_C(2000000000));
    actor_must(&a, order_make(ORDER_ALLOC, "weights", 60 * MIB, 0));
    actor_must(&b, order_make(ORDER_ALLOC, "weights", 60 * MIB, 0));
    actor_order(&a, order_make(ORDER_RESERVE, "kv_cache", 40 * MIB, 3000));
    while (stage_view()->tenants[0].is_waiting == 0 && stage_view()->tenants[1].is_waiting == 0)
        stage_rest_ms(1);
    answer = actor_do(&b, order_make(ORDER_RESERVE, "kv_cache", 40 * MIB, 10000));
    ck_assert_int_eq(answer.status, TG_ECYCLE);
    ck_assert_msg(strstr(answer.text, "first") != NULL && strstr(answer.text, "second") != NULL,
                  "%s", answer.text);
    ck_assert_uint_lt(answer.took_ns, UINT64_C(2000000000));
    actor_must(&b, order_make(ORDER_SLEEP, "", 0, 5000));
    ck_assert_int_eq(actor_answer(&a, 20000).status, 0);
    actor_must(&a, order_make(ORDER_CANCEL, "kv_cache", 40 * MIB, 0));
    actor_leave(&a);
    actor_leave(&b);
    stage_close();
}
END_TEST

/* Each needs two tags, and there is room for one tag of each: nobody takes half and waits. */
START_TEST(all_tags_are_one_request) {
    struct actor holder, actors[2];
    int first;

    stage_open();
    holder = start("holder", 3);
    for (int i = 0; i < 2; i++) {
        actors[i] = start(i == 0 ? "first" : "second", (uint64_t)i);
        actor_must(&actors[i], order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_ALLOC, "kv_cache", 46 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, 5000));
    }
    actor_must(&holder, order_make(ORDER_RESERVE, "weights", 60 * MIB, 0));
    for (int i = 0; i < 2; i++)
        actor_order(&actors[i], order_make(ORDER_WAKE, "", 0, 20000));
    stage_rest_ms(30);
    ck_assert_uint_eq(stage_taken("first") + stage_taken("second"), 0);
    actor_must(&holder, order_make(ORDER_CANCEL, "weights", 60 * MIB, 0));
    first = actor_first(actors, 2, 20000);
    ck_assert_int_eq(actor_answer(&actors[first], 0).status, 0);
    actor_must(&actors[first], order_make(ORDER_SLEEP, "", 0, 5000));
    ck_assert_int_eq(actor_answer(&actors[1 - first], 20000).status, 0);
    actor_leave(&holder);
    actor_leave(&actors[0]);
    actor_leave(&actors[1]);
    stage_close();
}
END_TEST

/* The two halves of a wake: not published, it is as if it had not been. */
START_TEST(a_wake_can_be_taken_back) {
    struct actor actor;
    struct order end = {.kind = ORDER_WAKE_END};

    stage_open();
    actor = start("engine", 5);
    actor_must(&actor, order_make(ORDER_ALLOC, "weights", 30 * MIB, 0));
    actor_must(&actor, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_must(&actor, order_make(ORDER_WAKE_TRY, "", 0, 5000));
    ck_assert_uint_eq(stage_taken(NULL), 30 * MIB);
    actor_must(&actor, end);
    ck_assert_uint_eq(stage_taken(NULL), 0);
    ck_assert_uint_eq(stage_used(uri), 0);
    actor_must(&actor, order_make(ORDER_WAKE_TRY, "", 0, 5000));
    end.number = 1;
    actor_must(&actor, end);
    ck_assert_uint_eq(actor_must(&actor, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    ck_assert_uint_eq(stage_taken("engine"), 30 * MIB);
    actor_leave(&actor);
    stage_close();
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("turns");

    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, two_take_turns);
    tcase_add_test(cases, eight_take_turns);
    tcase_add_test(cases, what_does_not_fit_is_named_and_changes_nothing);
    tcase_add_test(cases, the_impossible_is_told_at_once);
    tcase_add_test(cases, all_tags_are_one_request);
    tcase_add_test(cases, a_wake_can_be_taken_back);
    return suite_run("turns", cases);
}
