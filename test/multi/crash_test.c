/* SPDX-License-Identifier: Apache-2.0 */
/* A process is killed before and after every store that others can see, and killed or aborted
 * before and after every device call, of alloc and free, of prepare, of sleep, of repack, of wake
 * and of its halves, and of the recovery of another dead one. Each point is reached, and each time
 * the survivor gets the memory, has all its bytes, and no byte and no file stays. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

static const char uri[] = "host:capacity=32MiB,name=crash";

#define SURVIVOR_BYTES (24 * MIB)

enum { WAIT_MS = 10000, POINTS_MAX = 500 };

struct scene {
    const char *name;
    void (*prepare)(struct actor *victim); /* alive and with 16 MiB on the device or asleep */
    struct order last;                     /* in the middle of which the victim dies */
};

static void weights_and_cache_awake(struct actor *victim) {
    actor_must(victim, order_make(ORDER_ALLOC, "weights", 6 * MIB, 0));
    actor_must(victim, order_make(ORDER_ALLOC, "optimizer", 4 * MIB, 0));
    actor_must(victim, order_make(ORDER_ALLOC, "kv_cache", 6 * MIB, 0));
}

static void weights_and_cache_asleep(struct actor *victim) {
    weights_and_cache_awake(victim);
    actor_must(victim, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
}

static void prepared(struct actor *victim) {
    weights_and_cache_awake(victim);
    actor_must(victim, order_make(ORDER_PREPARE, "", 0, 0));
}

/* A chunk with a hole, for a repack. */
static void pieces_freed(struct actor *victim) {
    uint64_t numbers[5];

    for (int i = 0; i < 5; i++)
        numbers[i] = actor_must(victim, order_make(ORDER_ALLOC, "optimizer", 2 * MIB, 0));
    /* A wake puts all of it into one chunk. */
    actor_must(victim, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
    actor_must(victim, order_make(ORDER_WAKE, "", 0, WAIT_MS));
    for (int i = 1; i < 5; i += 2) {
        struct order order = {.kind = ORDER_FREE, .number = numbers[i]};

        actor_must(victim, order);
    }
    actor_must(victim, order_make(ORDER_ALLOC, "weights", 2 * MIB, 0));
}

static void half_awake(struct actor *victim) {
    weights_and_cache_asleep(victim);
    actor_must(victim, order_make(ORDER_WAKE_TRY, "", 0, WAIT_MS));
}

/* Somebody else has died with 20 MiB: the victim's wake is the first that notices. */
static void another_is_dead(struct actor *victim) {
    struct actor other;
    struct actor_params params = {.name = "dead", .uri = uri, .seed = 3};

    weights_and_cache_asleep(victim);
    ck_assert(actor_start(&other, &params));
    actor_must(&other, order_make(ORDER_ALLOC, "weights", 20 * MIB, 0));
    actor_kill(&other);
}

/* How and where a victim ends. */
struct end {
    bool is_call; /* at device calls, not at shared stores */
    int signal;
};

static void trap_set(struct actor *victim, struct end end, bool is_after, uint64_t number) {
    struct order trap = {.kind = end.is_call ? ORDER_SIGNAL_AT_CALL : ORDER_SIGNAL_AT_STORE,
                         .number = number,
                         .is_after = is_after,
                         .signal = end.signal};

    actor_must(victim, trap);
}

static void survivor_has_all(struct actor *survivor) {
    actor_must(survivor, order_make(ORDER_WAKE, "", 0, WAIT_MS));
    ck_assert_uint_eq(actor_must(survivor, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
    ck_assert_uint_eq(stage_used(uri), SURVIVOR_BYTES);
    ck_assert_uint_eq(stage_taken(NULL), SURVIVOR_BYTES);
    actor_must(survivor, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
}

/* One victim with one trap; whether the trap was reached. */
static bool victim_dies(const struct scene *scene, struct actor *survivor, struct end end,
                        bool is_after, uint64_t number) {
    struct actor victim;
    struct actor_params params = {
        .name = "victim", .uri = uri, .seed = number, .has_faults = end.is_call};
    bool is_dead;

    ck_assert(actor_start(&victim, &params));
    scene->prepare(&victim);
    trap_set(&victim, end, is_after, number);
    is_dead = actor_do(&victim, scene->last).status == -ESRCH;
    if (is_dead)
        ck_assert_msg(actor_gone(&victim, WAIT_MS) == end.signal, "%s: the victim ended otherwise",
                      scene->name);
    else
        actor_kill(&victim); /* has done all, and dies with what it holds */
    survivor_has_all(survivor);
    return is_dead;
}

static uint64_t scene_play(const struct scene *scene, struct end end) {
    struct actor survivor;
    struct actor_params params = {.name = "survivor", .uri = uri, .seed = 77};
    uint64_t points = 0;
    uint32_t files;

    stage_open();
    ck_assert(actor_start(&survivor, &params));
    actor_must(&survivor, order_make(ORDER_ALLOC, "weights", SURVIVOR_BYTES, 0));
    actor_must(&survivor, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
    files = stage_files();
    for (int is_after = 0; is_after <= 1; is_after++) {
        uint64_t number = 1;
        while (victim_dies(scene, &survivor, end, is_after != 0, number)) {
            points++;
            ck_assert_uint_lt(++number, POINTS_MAX);
        }
    }
    actor_leave(&survivor);
    ck_assert_uint_eq(stage_used(uri), 0);
    stage_wait_forgotten();
    ck_assert_uint_eq(stage_files(), files);
    stage_close();
    printf("%s: signal %d at %llu points of %s\n", scene->name, end.signal,
           (unsigned long long)points, end.is_call ? "device calls" : "shared stores");
    return points;
}

static const struct scene scenes[] = {
    {"alloc", weights_and_cache_awake,
     {.kind = ORDER_ALLOC, .tag = "weights", .size_bytes = 3 * MIB}},
    {"free", weights_and_cache_awake, {.kind = ORDER_FREE, .number = 0}},
    {"repack", pieces_freed, {.kind = ORDER_REPACK, .wait_ms = WAIT_MS}},
    {"sleep", weights_and_cache_awake, {.kind = ORDER_SLEEP, .wait_ms = WAIT_MS}},
    {"sleep, dropping", weights_and_cache_awake,
     {.kind = ORDER_SLEEP, .drop = "weights", .wait_ms = WAIT_MS}},
    {"prepare", weights_and_cache_awake, {.kind = ORDER_PREPARE}},
    {"sleep, prepared", prepared, {.kind = ORDER_SLEEP, .wait_ms = WAIT_MS}},
    {"wake", weights_and_cache_asleep, {.kind = ORDER_WAKE, .wait_ms = WAIT_MS}},
    {"wake, the first half", weights_and_cache_asleep,
     {.kind = ORDER_WAKE_TRY, .wait_ms = WAIT_MS}},
    {"wake, the second half", half_awake, {.kind = ORDER_WAKE_END, .number = 1}},
    {"wake, taken back", half_awake, {.kind = ORDER_WAKE_END, .number = 0}},
    {"recover", another_is_dead, {.kind = ORDER_WAKE, .wait_ms = WAIT_MS}},
};

START_TEST(killed_at_every_store) {
    ck_assert_uint_ge(scene_play(&scenes[_i], (struct end){false, SIGKILL}), 4);
}
END_TEST

START_TEST(killed_at_every_device_call) {
    ck_assert_uint_ge(scene_play(&scenes[_i], (struct end){true, SIGKILL}), 4);
}
END_TEST

/* As a driver ends a process whose device is lost: with its locks held and nothing closed. */
START_TEST(aborted_at_every_device_call) {
    ck_assert_uint_ge(scene_play(&scenes[_i], (struct end){true, SIGABRT}), 4);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("crash");
    const int count = sizeof scenes / sizeof scenes[0];

    tcase_set_timeout(cases, 240);
    tcase_add_loop_test(cases, killed_at_every_store, 0, count);
    tcase_add_loop_test(cases, killed_at_every_device_call, 0, count);
    tcase_add_loop_test(cases, aborted_at_every_device_call, 0, count);
    return suite_run("crash", cases);
}
