/* SPDX-License-Identifier: Apache-2.0 */
/* Other ways to end or to be doubled: fork, exit, exec, a straggler, a ledger that is deleted. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

#define BYTES (40 * MIB)

enum { STRAGGLER_MS = 200 };

static const char uri[] = "host:capacity=64MiB,name=life";
static const char straggling[] = "host:capacity=64MiB,name=life,straggler=200";

static struct actor start(const char *name, const char *device) {
    struct actor actor;
    struct actor_params params = {.name = name, .uri = device, .seed = 9};

    ck_assert(actor_start(&actor, &params));
    return actor;
}

/* Someone asleep that needs what the other holds. */
static struct actor start_survivor(void) {
    struct actor survivor = start("survivor", uri);

    actor_must(&survivor, order_make(ORDER_ALLOC, "weights", BYTES, 0));
    actor_must(&survivor, order_make(ORDER_SLEEP, "", 0, 5000));
    return survivor;
}

static void survivor_wakes(struct actor *survivor) {
    actor_must(survivor, order_make(ORDER_WAKE, "", 0, 10000));
    ck_assert_uint_eq(actor_must(survivor, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    ck_assert_uint_eq(stage_used(uri), BYTES);
    actor_leave(survivor);
    stage_close();
}

/* A forked child is no tenant, and keeps neither its parent's memory nor its place. */
START_TEST(a_forked_child_keeps_nothing) {
    struct actor survivor, parent;
    pid_t child;

    stage_open();
    survivor = start_survivor();
    parent = start("parent", uri);
    actor_must(&parent, order_make(ORDER_ALLOC, "kv_cache", BYTES, 0));
    child = (pid_t)actor_must(&parent, order_make(ORDER_FORK, "", 0, 0));
    ck_assert_int_gt(child, 0);
    /* While the child lives, the parent's own sleep gives the memory back, too. */
    actor_must(&parent, order_make(ORDER_SLEEP, "", 0, 5000));
    ck_assert_uint_eq(stage_used(uri), 0);
    actor_must(&parent, order_make(ORDER_WAKE, "", 0, 5000));
    actor_kill(&parent);
    ck_assert_int_eq(kill(child, 0), 0);
    survivor_wakes(&survivor);
    kill(child, SIGKILL);
}
END_TEST

/* A program that returns from main and has closed nothing. */
START_TEST(exit_without_leaving_ends_a_tenant) {
    struct actor survivor, other;

    stage_open();
    survivor = start_survivor();
    other = start("other", uri);
    actor_must(&other, order_make(ORDER_ALLOC, "kv_cache", BYTES, 0));
    actor_order(&other, order_make(ORDER_EXIT, "", 0, 0));
    survivor_wakes(&survivor);
    ck_assert_int_eq(actor_gone(&other, 10000), 0);
}
END_TEST

START_TEST(exec_ends_a_tenant) {
    struct actor survivor, other;

    stage_open();
    survivor = start_survivor();
    other = start("other", uri);
    actor_must(&other, order_make(ORDER_ALLOC, "kv_cache", BYTES, 0));
    actor_order(&other, order_make(ORDER_EXEC, "", 0, 0));
    survivor_wakes(&survivor);
    ck_assert_int_eq(kill(other.pid, 0), 0); /* the process goes on, as sleep */
    actor_kill(&other);
}
END_TEST

/* After a death, a helper holds the memory and writes to it, as a card's kernels do. The survivor
 * waits for its end, and is served within 50 ms after it; how much later than told this process
 * itself wakes is what the machine adds. */
START_TEST(a_straggler_is_waited_for) {
    struct actor survivor, other;
    struct answer answer;
    uint64_t killed_ns, due_ns, late_ns;

    stage_open();
    survivor = start_survivor();
    other = start("other", straggling);
    actor_must(&other, order_make(ORDER_ALLOC, "kv_cache", BYTES, 0));
    actor_order(&survivor, order_make(ORDER_RESERVE, "weights", BYTES, 10000));
    stage_rest_ms(20);
    killed_ns = stage_now_ns();
    actor_kill(&other);
    while (stage_now_ns() < killed_ns + (STRAGGLER_MS - 60) * UINT64_C(1000000)) {
        ck_assert_uint_le(stage_used(uri), 64 * MIB);
        ck_assert_uint_ge(stage_used(uri), BYTES);
        stage_rest_ms(5);
    }
    due_ns = killed_ns + STRAGGLER_MS * UINT64_C(1000000);
    stage_rest_ms(STRAGGLER_MS - (uint32_t)((stage_now_ns() - killed_ns) / 1000000));
    late_ns = stage_now_ns() > due_ns ? stage_now_ns() - due_ns : 0;
    answer = actor_answer(&survivor, 10000);
    ck_assert_int_eq(answer.status, 0);
    ck_assert_uint_ge(stage_now_ns(), due_ns);
    ck_assert_uint_le(stage_now_ns() - due_ns, late_ns + UINT64_C(500000000)); /* a busy machine */
    actor_must(&survivor, order_make(ORDER_CANCEL, "weights", BYTES, 0));
    survivor_wakes(&survivor);
}
END_TEST

/* Who finds the ledger gone goes on alone; who comes later makes a new one. */
START_TEST(a_deleted_ledger_is_left) {
    struct actor old, young;
    char path[128];
    const char *dir = stage_open();

    old = start("old", uri);
    actor_must(&old, order_make(ORDER_ALLOC, "weights", BYTES, 0));
    actor_must(&old, order_make(ORDER_SLEEP, "", 0, 5000));
    snprintf(path, sizeof path, "%s/ledger", dir);
    ck_assert_int_eq(unlink(path), 0);
    young = start("young", uri);
    actor_must(&old, order_make(ORDER_WAKE, "", 0, 5000));
    ck_assert_uint_eq(actor_must(&old, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    ck_assert_uint_eq(stage_taken(NULL), 0); /* the new ledger knows nothing of it */
    /* but the device does: the driver's view keeps the young one from failing midway. */
    ck_assert_int_eq(actor_do(&young, order_make(ORDER_RESERVE, "weights", BYTES, 0)).status,
                     TG_ENOFIT);
    actor_must(&old, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_must(&young, order_make(ORDER_RESERVE, "weights", BYTES, 1000));
    actor_leave(&old);
    actor_leave(&young);
    stage_close();
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("life");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, a_forked_child_keeps_nothing);
    tcase_add_test(cases, exit_without_leaving_ends_a_tenant);
    tcase_add_test(cases, exec_ends_a_tenant);
    tcase_add_test(cases, a_straggler_is_waited_for);
    tcase_add_test(cases, a_deleted_ledger_is_left);
    return suite_run("life", cases);
}
