/* SPDX-License-Identifier: Apache-2.0 */
/* What containers do to a shared file: no room in /dev/shm, and clocks that are not the same. Each
 * case makes its own file system or gives actors their own clock; skipped where that is refused. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit/suite.h"
#include "actor.h"
#include "stage.h"

#define BYTES (40 * MIB)

enum { DAY_S = 86400, WAIT_MS = 20000 };

static const char uri[] = "host:capacity=64MiB,name=containers";

static bool start(struct actor *actor, const char *name, uint32_t clock_ahead_s) {
    struct actor_params params = {
        .name = name, .uri = uri, .seed = 6, .clock_ahead_s = clock_ahead_s};

    return actor_start(actor, &params);
}

static bool own_mounts(void) {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* A stage on a file system of so many bytes, which no other process sees. */
static const char *stage_within(const char *options) {
    const char *dir = stage_open();

    ck_assert(own_mounts());
    ck_assert_int_eq(mount("tmpfs", dir, "tmpfs", 0, options), 0);
    ck_assert_int_eq(chmod(dir, 0700), 0);
    return dir;
}

static void stage_within_close(const char *dir) {
    ck_assert_int_eq(umount2(dir, MNT_DETACH), 0);
    stage_close();
}

START_TEST(a_full_shm_is_said_and_leaves_nothing) {
    const char *dir = stage_within("size=64k,mode=0700");
    struct tg_ledger *ledger = NULL;

    ck_assert_int_eq(tg_ledger_open(NULL, &ledger), -ENOSPC);
    ck_assert_msg(strstr(tg_last_error()->text, "TIDEGATE_DIR") != NULL, "%s",
                  tg_last_error()->text);
    ck_assert_ptr_null(ledger);
    ck_assert_uint_eq(stage_files(), 0);
    stage_within_close(dir);
}
END_TEST

/* Takes what is left, to the last byte. */
static void fill_up(const char *dir) {
    static const char bytes[1 << 12];
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/full", dir);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    while (write(fd, bytes, sizeof bytes) > 0) {
    }
    ck_assert_int_eq(errno, ENOSPC);
    close(fd);
}

/* The first is asleep, the second awake: they change places so often. */
static void take_turns(struct actor actors[2], int turns) {
    for (int turn = 0; turn < turns; turn++) {
        struct actor *next = &actors[turn % 2], *last = &actors[1 - turn % 2];

        actor_order(next, order_make(ORDER_WAKE, "", 0, WAIT_MS));
        actor_must(last, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
        ck_assert_int_eq(actor_answer(next, WAIT_MS).status, 0);
        ck_assert_uint_eq(actor_must(next, order_make(ORDER_VERIFY, "weights", 0, 0)), 0);
        ck_assert_uint_eq(stage_used(uri), BYTES);
    }
}

static void with_weights(struct actor *actor) {
    actor_must(actor, order_make(ORDER_ALLOC, "weights", BYTES, 0));
    actor_must(actor, order_make(ORDER_SLEEP, "", 0, WAIT_MS));
}

START_TEST(a_shm_that_fills_up_stops_nobody) {
    const char *dir = stage_within("size=8m,mode=0700");
    struct actor actors[2], late;

    ck_assert(start(&actors[0], "one", 0));
    ck_assert(start(&actors[1], "two", 0));
    with_weights(&actors[0]);
    with_weights(&actors[1]);
    fill_up(dir);
    actor_must(&actors[1], order_make(ORDER_WAKE, "", 0, WAIT_MS));
    take_turns(actors, 20);
    ck_assert(start(&late, "late", 0));
    actor_must(&actors[1], order_make(ORDER_SLEEP, "", 0, WAIT_MS));
    actor_must(&late, order_make(ORDER_ALLOC, "weights", BYTES, 0));
    actor_leave(&late);
    actor_leave(&actors[0]);
    actor_leave(&actors[1]);
    stage_within_close(dir);
}
END_TEST

/* Each looks to the other as one of yesterday, or of tomorrow: as after a jump of the clock. */
START_TEST(clocks_a_day_apart_change_no_turn) {
    struct actor actors[2];

    stage_open();
    ck_assert(start(&actors[0], "today", 0));
    ck_assert(start(&actors[1], "tomorrow", DAY_S));
    with_weights(&actors[0]);
    with_weights(&actors[1]);
    actor_must(&actors[1], order_make(ORDER_WAKE, "", 0, WAIT_MS));
    take_turns(actors, 20);
    actor_kill(&actors[1]);
    actor_must(&actors[0], order_make(ORDER_WAKE, "", 0, WAIT_MS));
    ck_assert(start(&actors[1], "tomorrow", DAY_S));
    actor_kill(&actors[0]);
    actor_must(&actors[1], order_make(ORDER_RESERVE, "weights", BYTES, WAIT_MS));
    actor_leave(&actors[1]);
    stage_wait_forgotten();
    stage_close();
}
END_TEST

/* A death is written down as of tomorrow, or as of before the machine's last start. */
static void death_of_tomorrow(void) {
    struct actor dead, other;

    stage_open();
    ck_assert(start(&dead, "dead", 0));
    actor_must(&dead, order_make(ORDER_ALLOC, "weights", BYTES, 0));
    actor_kill(&dead);
    ck_assert(start(&other, "tomorrow", DAY_S)); /* who joins notes it */
    actor_leave(&other);
}

START_TEST(a_death_of_tomorrow_is_forgotten_today) {
    death_of_tomorrow();
    stage_wait_forgotten();
    stage_close();
}
END_TEST

START_TEST(a_death_of_tomorrow_holds_no_bytes_today) {
    struct actor actor;

    death_of_tomorrow();
    ck_assert(start(&actor, "today", 0));
    actor_must(&actor, order_make(ORDER_RESERVE, "weights", BYTES, WAIT_MS));
    actor_leave(&actor);
    stage_close();
}
END_TEST

/* Tried before Check runs, which knows no skipping; the mounts are the cases' own. */
static bool namespaces_are_allowed(void) {
    struct actor actor;
    bool is_allowed;

    stage_open();
    is_allowed = start(&actor, "trial", DAY_S);
    if (is_allowed)
        actor_leave(&actor);
    stage_close();
    return is_allowed && own_mounts();
}

int main(void) {
    TCase *cases = tcase_create("containers");

    if (!namespaces_are_allowed()) {
        puts("skipped: this system refuses mount or time namespaces (root may make them)");
        return 77;
    }
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, a_full_shm_is_said_and_leaves_nothing);
    tcase_add_test(cases, a_shm_that_fills_up_stops_nobody);
    tcase_add_test(cases, clocks_a_day_apart_change_no_turn);
    tcase_add_test(cases, a_death_of_tomorrow_is_forgotten_today);
    tcase_add_test(cases, a_death_of_tomorrow_holds_no_bytes_today);
    return suite_run("containers", cases);
}
