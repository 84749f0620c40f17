/* SPDX-License-Identifier: Apache-2.0 */
/* A process that is stopped holds up nobody longer than promised, and goes on when it is let. */
#include <check.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

static const char uri[] = "host:capacity=64MiB,name=stop";

/* Bounds are the promised ones and half a second for a busy machine. */
#define SLACK_NS UINT64_C(500000000)

static struct actor start(const char *name) {
    struct actor actor;
    struct actor_params params = {.name = name, .uri = uri, .seed = 9};

    ck_assert(actor_start(&actor, &params));
    return actor;
}

static void wait_until_stopped(struct actor *actor) {
    int status = 0;

    ck_assert_int_eq(waitpid(actor->pid, &status, WUNTRACED), actor->pid);
    ck_assert(WIFSTOPPED(status));
}

static void wait_until_waiting(const char *name) {
    for (;;) {
        const struct tg_node_view *view = stage_view();
        for (uint32_t i = 0; i < view->tenant_count; i++) {
            if (strcmp(view->tenants[i].name, name) == 0 && view->tenants[i].is_waiting)
                return;
        }
        stage_rest_ms(1);
    }
}

/* The waiter fails at its deadline and names the holder; after SIGCONT all finishes. */
START_TEST(a_stopped_holder_of_memory_is_named) {
    struct actor trainer, rollout;
    struct answer answer;

    stage_open();
    trainer = start("trainer");
    rollout = start("rollout");
    actor_must(&rollout, order_make(ORDER_ALLOC, "weights", 40 * MIB, 0));
    actor_must(&rollout, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_must(&trainer, order_make(ORDER_ALLOC, "optimizer", 40 * MIB, 0));
    actor_signal(&trainer, SIGSTOP);
    wait_until_stopped(&trainer);
    answer = actor_do(&rollout, order_make(ORDER_WAKE, "", 0, 300));
    ck_assert_int_eq(answer.status, TG_ENOFIT);
    ck_assert_msg(strstr(answer.text, "trainer") != NULL, "%s", answer.text);
    ck_assert_msg(strstr(answer.text, "optimizer") != NULL, "%s", answer.text);
    ck_assert_uint_ge(answer.took_ns, UINT64_C(300000000));
    ck_assert_uint_le(answer.took_ns, UINT64_C(350000000) + SLACK_NS);
    actor_order(&rollout, order_make(ORDER_WAKE, "", 0, 20000));
    actor_order(&trainer, order_make(ORDER_SLEEP, "", 0, 5000));
    actor_signal(&trainer, SIGCONT);
    ck_assert_int_eq(actor_answer(&trainer, 20000).status, 0);
    ck_assert_int_eq(actor_answer(&rollout, 20000).status, 0);
    ck_assert_uint_eq(actor_must(&rollout, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    actor_leave(&trainer);
    actor_leave(&rollout);
    stage_close();
}
END_TEST

/* Stopped at its first store of a reserve, it holds the lock. */
START_TEST(stopped_inside_the_lock_it_is_named_in_100_ms) {
    struct actor trainer, rollout;
    struct answer answer;
    struct order trap = {.kind = ORDER_SIGNAL_AT_STORE, .number = 1, .signal = SIGSTOP};

    stage_open();
    trainer = start("trainer");
    rollout = start("rollout");
    actor_must(&rollout, order_make(ORDER_ALLOC, "kv_cache", 20 * MIB, 0));
    actor_must(&trainer, trap);
    actor_order(&trainer, order_make(ORDER_RESERVE, "optimizer", 4 * MIB, 0));
    wait_until_stopped(&trainer);
    answer = actor_do(&rollout, order_make(ORDER_RESERVE, "kv_cache", 4 * MIB, 0));
    ck_assert_int_eq(answer.status, TG_EHELD);
    ck_assert_msg(strstr(answer.text, "trainer") != NULL, "%s", answer.text);
    ck_assert_uint_ge(answer.took_ns, UINT64_C(90000000));
    ck_assert_uint_le(answer.took_ns, UINT64_C(100000000) + SLACK_NS);
    /* What only lowers its own bytes needs no lock; readers neither. */
    ck_assert_uint_ge(stage_taken("rollout"), 20 * MIB);
    actor_must(&rollout, order_make(ORDER_SLEEP, "", 0, 5000));
    ck_assert_uint_eq(stage_taken("rollout"), 0);
    actor_signal(&trainer, SIGCONT);
    ck_assert_int_eq(actor_answer(&trainer, 20000).status, 0);
    actor_must(&rollout, order_make(ORDER_WAKE, "", 0, 5000));
    actor_leave(&trainer);
    actor_leave(&rollout);
    stage_close();
}
END_TEST

/* Stopped at the head of the queue, it does not hold up those behind; let go, it is first again. */
START_TEST(a_stopped_waiter_is_passed) {
    struct actor holder, first, second;
    struct answer answer;

    stage_open();
    holder = start("holder");
    first = start("first");
    second = start("second");
    actor_must(&holder, order_make(ORDER_RESERVE, "weights", 60 * MIB, 0));
    actor_order(&first, order_make(ORDER_RESERVE, "weights", 40 * MIB, 30000));
    wait_until_waiting("first");
    actor_order(&second, order_make(ORDER_RESERVE, "weights", 40 * MIB, 30000));
    wait_until_waiting("second");
    actor_signal(&first, SIGSTOP);
    wait_until_stopped(&first);
    stage_rest_ms(50); /* now it is late */
    actor_must(&holder, order_make(ORDER_CANCEL, "weights", 60 * MIB, 0));
    answer = actor_answer(&second, 5000);
    ck_assert_int_eq(answer.status, 0);
    actor_signal(&first, SIGCONT);
    actor_must(&second, order_make(ORDER_CANCEL, "weights", 40 * MIB, 0));
    ck_assert_int_eq(actor_answer(&first, 5000).status, 0);
    actor_leave(&holder);
    actor_leave(&first);
    actor_leave(&second);
    stage_close();
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("stop");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, a_stopped_holder_of_memory_is_named);
    tcase_add_test(cases, stopped_inside_the_lock_it_is_named_in_100_ms);
    tcase_add_test(cases, a_stopped_waiter_is_passed);
    return suite_run("stop", cases);
}
