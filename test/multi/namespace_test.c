/* SPDX-License-Identifier: Apache-2.0 */
/* Two tenants that are both process 1 of their own pid namespaces, as in two containers: neither is
 * taken for dead, and the lock keeps them apart. Skipped where the system refuses namespaces. */
#include <check.h>
#include <stdio.h>
#include <unistd.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

static const char uri[] = "host:capacity=64MiB,name=namespace";

static bool start(struct actor *actor, const char *name) {
    struct actor_params params = {.name = name, .uri = uri, .seed = 5, .is_pid_one = true};

    return actor_start(actor, &params);
}

START_TEST(both_are_process_one) {
    struct actor actors[2];

    stage_open();
    ck_assert(start(&actors[0], "one"));
    ck_assert(start(&actors[1], "uno"));
    ck_assert_int_eq(stage_view()->tenants[0].pid, 1);
    ck_assert_int_eq(stage_view()->tenants[1].pid, 1);
    for (int i = 0; i < 2; i++) {
        actor_must(&actors[i], order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
        actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, 5000));
    }
    actor_must(&actors[0], order_make(ORDER_WAKE, "", 0, 5000));
    for (int turn = 1; turn <= 100; turn++) {
        actor_order(&actors[turn % 2], order_make(ORDER_WAKE, "", 0, 20000));
        actor_must(&actors[1 - turn % 2], order_make(ORDER_SLEEP, "", 0, 5000));
        ck_assert_int_eq(actor_answer(&actors[turn % 2], 20000).status, 0);
        ck_assert_uint_eq(stage_view()->tenant_count, 2);
        ck_assert_uint_eq(stage_view()->tenants[0].is_dead + stage_view()->tenants[1].is_dead, 0);
        ck_assert_uint_eq(stage_used(uri), 40 * MIB);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(actor_must(&actors[i], order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    actor_leave(&actors[0]);
    actor_leave(&actors[1]);
    stage_close();
}
END_TEST

/* Tried before Check runs, which knows no skipping. */
static bool namespaces_are_allowed(void) {
    struct actor actor;
    bool is_allowed;

    stage_open();
    is_allowed = start(&actor, "trial");
    if (is_allowed)
        actor_leave(&actor);
    stage_close();
    return is_allowed;
}

int main(void) {
    TCase *cases = tcase_create("namespace");

    if (!namespaces_are_allowed()) {
        puts("skipped: this system refuses pid namespaces (root may make them)");
        return 77;
    }
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, both_are_process_one);
    return suite_run("namespace", cases);
}
