/* SPDX-License-Identifier: Apache-2.0 */
/* 200 SIGKILLs from outside, at random moments of a hand-over: the other side loses nothing. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "../unit/suite.h"
#include "actor.h"
#include "content.h"
#include "stage.h"

static const char uri[] = "host:capacity=64MiB,name=kill";

#define BYTES (40 * MIB)

enum { KILLS = 200, WAIT_MS = 10000 };

static void begin(struct actor *actor, int side, uint64_t seed) {
    struct actor_params params = {
        .name = side == 0 ? "trainer" : "rollout", .uri = uri, .seed = seed};

    ck_assert(actor_start(actor, &params));
}

static void fill(struct actor *actor) {
    actor_must(actor, order_make(ORDER_ALLOC, "weights", BYTES / 2, 0));
    actor_must(actor, order_make(ORDER_ALLOC, "optimizer", BYTES / 4, 0));
    actor_must(actor, order_make(ORDER_ALLOC, "kv_cache", BYTES / 4, 0));
}

/* One hand-over in which the victim dies; the other side must end awake, whole and alone. */
static void hand_over_with_a_death(struct actor *sleeper, struct actor *waker, bool kill_sleeper,
                                   uint64_t delay_ns) {
    struct actor *victim = kill_sleeper ? sleeper : waker;
    struct actor *other = kill_sleeper ? waker : sleeper;
    struct timespec delay = {.tv_sec = 0, .tv_nsec = (long)delay_ns};

    actor_order(waker, order_make(ORDER_WAKE, "", 0, WAIT_MS));
    actor_order(sleeper, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
    nanosleep(&delay, NULL);
    actor_kill(victim);
    ck_assert_int_eq(actor_answer(other, 2 * WAIT_MS).status, 0);
    actor_must(other, order_make(ORDER_WAKE, "", 0, WAIT_MS));
    ck_assert_uint_eq(actor_must(other, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    ck_assert_uint_eq(actor_must(other, order_make(ORDER_VERIFY, "optimizer", 0, 0)), 0);
    ck_assert_uint_eq(stage_used(uri), BYTES);
    ck_assert_uint_eq(stage_taken(NULL), BYTES);
}

START_TEST(two_hundred_deaths) {
    struct actor actors[2];
    uint64_t seed = 4711;
    int awake = 0;

    stage_open();
    for (int i = 0; i < 2; i++) {
        begin(&actors[i], i, random_next(&seed));
        fill(&actors[i]);
        actor_must(&actors[i], order_make(ORDER_SLEEP, "", 0, WAIT_MS));
    }
    actor_must(&actors[awake], order_make(ORDER_WAKE, "", 0, WAIT_MS));
    for (int kills = 0; kills < KILLS; kills++) {
        uint64_t dice = random_next(&seed);
        bool kill_sleeper = (dice & 1) != 0;
        int dead = kill_sleeper ? awake : 1 - awake;
        hand_over_with_a_death(&actors[awake], &actors[1 - awake], kill_sleeper,
                               (dice >> 8) % 12000000);
        /* The dead one comes back with new content, while the other sleeps for a moment. */
        begin(&actors[dead], dead, random_next(&seed));
        actor_must(&actors[1 - dead], order_make(ORDER_SLEEP, "", 0, WAIT_MS));
        fill(&actors[dead]);
        awake = dead;
    }
    actor_leave(&actors[0]);
    actor_leave(&actors[1]);
    ck_assert_uint_eq(stage_used(uri), 0);
    stage_wait_forgotten();
    stage_close();
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("kill");

    tcase_set_timeout(cases, 240);
    tcase_add_test(cases, two_hundred_deaths);
    return suite_run("kill", cases);
}
