/* SPDX-License-Identifier: Apache-2.0 */
/* Two tenants that are both process 1 of their own pid namespaces, as in two containers: neither is
 * taken for dead, and the lock keeps them apart. Skipped where the system refuses namespaces. */
#include <check.h>
#include <string.h>
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

/* The living tenant of the name; NULL: there is none, or more than one. */
static const struct tg_tenant_view *living(const char *name) {
    const struct tg_node_view *view = stage_view();
    const struct tg_tenant_view *found = NULL;

    for (uint32_t i = 0; i < view->tenant_count; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        if (tenant->is_dead || strcmp(tenant->name, name) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = tenant;
    }
    return found;
}

/* A container is killed and starts again: the same name and the same pid, and all that the first
 * had is nobody's. */
START_TEST(a_restart_with_the_same_pid_is_another) {
    struct actor first, second;
    uint32_t first_id;

    stage_open();
    ck_assert(start(&first, "engine"));
    actor_must(&first, order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
    ck_assert_ptr_nonnull(living("engine"));
    first_id = living("engine")->id;
    actor_kill(&first);
    ck_assert(start(&second, "engine"));
    while (living("engine") == NULL) /* its kernel has not yet ended the first */
        stage_rest_ms(5);
    ck_assert_uint_ne(living("engine")->id, first_id);
    ck_assert_int_eq(living("engine")->pid, 1);
    ck_assert_uint_eq(stage_taken("engine"), 0);
    actor_must(&second, order_make(ORDER_RESERVE, "weights", 40 * MIB, 20000));
    actor_must(&second, order_make(ORDER_CANCEL, "weights", 40 * MIB, 0));
    actor_must(&second, order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
    ck_assert_uint_eq(stage_used(uri), 40 * MIB);
    ck_assert_uint_eq(stage_view()->tenant_count, 1);
    actor_leave(&second);
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
    tcase_add_test(cases, a_restart_with_the_same_pid_is_another);
    return suite_run("namespace", cases);
}
