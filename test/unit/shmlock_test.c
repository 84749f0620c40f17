/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of the shared file: it excludes, and nobody's death or stop keeps the others. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/shmhead.h"
#include "children.h"
#include "suite.h"

enum { TURNS = 20000 };

static char *dir;

struct body {
    uint64_t count; /* under the lock: plain, so that a lock that lets two in loses some */
    _Atomic uint32_t inherited;
    _Atomic uint32_t round;
    uint64_t rest[500];
};

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static void name_of(const void *body, uint32_t ticket, char *text, size_t text_bytes) {
    (void)body;
    snprintf(text, text_bytes, "tenant %u", ticket);
}

static struct tg__shmfile *open_file(void) {
    struct tg__shmfile_params params = {
        .name = "file", .body_bytes = sizeof(struct body), .name_of = name_of};
    struct tg__shmfile *file;

    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    return file;
}

static struct body *body_of(struct tg__shmfile *file) {
    return tg__shmfile_body(file);
}

/* Until it has it: on a busy machine a living owner may be away for longer than one wait. */
static void lock(struct tg__shmfile *file) {
    bool has_inherited = false;
    int rc;

    do {
        rc = tg__shmfile_lock(file, &has_inherited);
    } while (rc == TG_EHELD);
    ck_assert_msg(rc == 0, "%s", tg_last_error()->text);
    if (has_inherited)
        atomic_fetch_add(&body_of(file)->inherited, 1);
}

static void *count_up(void *argument) {
    struct tg__shmfile *file = argument;

    for (int i = 0; i < TURNS; i++) {
        lock(file);
        body_of(file)->count++;
        tg__shmfile_unlock(file);
    }
    return NULL;
}

/* Two threads that share one open. */
static int count_in_threads(int in, int out, void *argument) {
    struct tg__shmfile *file = open_file();
    pthread_t other;

    (void)argument;
    tell(out, tg__shmfile_ticket(file));
    hear(in);
    ck_assert_int_eq(pthread_create(&other, NULL, count_up, file), 0);
    count_up(file);
    pthread_join(other, NULL);
    tg__shmfile_close(file);
    return 0;
}

START_TEST(it_excludes_processes_and_threads) {
    enum { PROCESSES = 4 };
    struct tg__shmfile *file = open_file();
    struct child children[PROCESSES];

    for (int i = 0; i < PROCESSES; i++)
        children[i] = start(count_in_threads, NULL);
    for (int i = 0; i < PROCESSES; i++)
        hear(children[i].in);
    for (int i = 0; i < PROCESSES; i++)
        tell(children[i].out, 0);
    for (int i = 0; i < PROCESSES; i++)
        ck_assert_int_eq(waitpid(children[i].pid, NULL, 0), children[i].pid);
    ck_assert_uint_eq(body_of(file)->count, PROCESSES * 2 * TURNS);
    ck_assert_uint_eq(body_of(file)->inherited, 0);
    ck_assert_uint_eq(file->head->lock & 0x7fffffffu, 0);
    tg__shmfile_close(file);
}
END_TEST

/* Takes the lock and says so; then does what it is told: 0 unlocks and ends, else keeps it. */
static int hold(int in, int out, void *argument) {
    struct tg__shmfile *file = open_file();

    (void)argument;
    lock(file);
    tell(out, tg__shmfile_ticket(file));
    if (hear(in) == 0)
        tg__shmfile_unlock(file);
    tell(out, 0);
    hear(in);
    return 0;
}

/* Waits for the lock; answers how often it is held by then. */
static int wait_for_it(int in, int out, void *argument) {
    struct tg__shmfile *file = open_file();

    (void)argument;
    tell(out, tg__shmfile_ticket(file));
    lock(file);
    body_of(file)->count++;
    tg__shmfile_unlock(file);
    tell(out, 0);
    hear(in);
    return 0;
}

START_TEST(a_dead_owner_is_inherited_from_once) {
    enum { WAITERS = 4 };
    struct tg__shmfile *file = open_file();
    struct child owner = start(hold, NULL), waiters[WAITERS];

    hear(owner.in);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = start(wait_for_it, NULL);
        hear(waiters[i].in);
    }
    kill_and_finish(&owner);
    for (int i = 0; i < WAITERS; i++) {
        ck_assert_uint_eq(hear(waiters[i].in), 0);
        finish(&waiters[i]);
    }
    ck_assert_uint_eq(body_of(file)->count, WAITERS);
    ck_assert_uint_eq(body_of(file)->inherited, 1);
    tg__shmfile_close(file);
}
END_TEST

enum { ROUNDS = 300, DEAD = 0x7fffff00 };

/* Both begin each round at the same time. */
static int race_for_it(int in, int out, void *argument) {
    struct tg__shmfile *file = open_file();

    (void)in;
    (void)argument;
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        tell(out, round);
        while (atomic_load(&body_of(file)->round) < round)
            ;
        lock(file);
        body_of(file)->count++;
        tg__shmfile_unlock(file);
    }
    return 0;
}

START_TEST(of_two_heirs_one_inherits) {
    struct tg__shmfile *file = open_file();
    struct child one = start(race_for_it, NULL), other = start(race_for_it, NULL);

    for (uint32_t round = 1; round <= ROUNDS; round++) {
        ck_assert_uint_eq(hear(one.in), round);
        ck_assert_uint_eq(hear(other.in), round);
        file->head->lock = DEAD;
        atomic_store(&body_of(file)->round, round);
    }
    ck_assert_int_eq(finish(&one), 0);
    ck_assert_int_eq(finish(&other), 0);
    ck_assert_uint_eq(body_of(file)->count, 2 * ROUNDS);
    ck_assert_uint_eq(body_of(file)->inherited, ROUNDS);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(an_heir_that_dies_leaves_it_to_the_next) {
    struct tg__shmfile *file = open_file();

    for (uint32_t i = 0; i < 5; i++) {
        struct child owner = start(hold, NULL);

        hear(owner.in);
        ck_assert_uint_eq(body_of(file)->inherited, i);
        kill_and_finish(&owner);
    }
    lock(file);
    ck_assert_uint_eq(body_of(file)->inherited, 5);
    tg__shmfile_unlock(file);
    lock(file);
    ck_assert_uint_eq(body_of(file)->inherited, 5);
    tg__shmfile_unlock(file);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(a_stopped_owner_is_named) {
    struct tg__shmfile *file = open_file();
    struct child owner = start(hold, NULL);
    unsigned ticket = hear(owner.in);
    uint64_t began_ns;
    bool has_inherited = false;
    char name[32];
    int status;

    kill(owner.pid, SIGSTOP);
    waitpid(owner.pid, &status, WUNTRACED);
    snprintf(name, sizeof name, "tenant %u:", ticket);
    errno = 5;
    for (int i = 0; i < 3; i++) {
        began_ns = tg__clock_ns();
        ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), TG_EHELD);
        ck_assert_uint_ge(tg__clock_ns() - began_ns, 90 * TG__NS_PER_MS);
        ck_assert_uint_le(tg__clock_ns() - began_ns, 2000 * TG__NS_PER_MS);
        ck_assert_msg(strstr(tg_last_error()->text, name) != NULL, "%s", tg_last_error()->text);
    }
    ck_assert_int_eq(errno, 5);
    kill(owner.pid, SIGCONT);
    tell(owner.out, 0);
    hear(owner.in);
    lock(file);
    ck_assert_uint_eq(body_of(file)->inherited, 0);
    tg__shmfile_unlock(file);
    finish(&owner);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(a_killed_waiter_changes_nothing) {
    struct tg__shmfile *file = open_file();

    lock(file);
    for (int i = 0; i < 20; i++) {
        struct child waiter = start(wait_for_it, NULL);

        hear(waiter.in);
        while ((file->head->lock >> 31) == 0 && i == 0)
            sched_yield();
        kill_and_finish(&waiter);
        ck_assert_uint_eq(file->head->lock & 0x7fffffffu, tg__shmfile_ticket(file));
    }
    tg__shmfile_unlock(file);
    lock(file);
    tg__shmfile_unlock(file);
    ck_assert_uint_eq(body_of(file)->inherited + body_of(file)->count, 0);
    tg__shmfile_close(file);
}
END_TEST

static void *lock_in_thread(void *argument) {
    struct tg__shmfile *file = argument;
    bool has_inherited = false;
    int rc = tg__shmfile_lock(file, &has_inherited);

    ck_assert_int_eq(has_inherited, false);
    if (rc == 0)
        tg__shmfile_unlock(file);
    return (void *)(intptr_t)rc;
}

START_TEST(a_thread_waits_for_its_sister_no_longer) {
    struct tg__shmfile *file = open_file();
    pthread_t thread;
    void *rc;

    lock(file);
    ck_assert_int_eq(pthread_create(&thread, NULL, lock_in_thread, file), 0);
    pthread_join(thread, &rc);
    ck_assert_int_eq((int)(intptr_t)rc, TG_EHELD);
    tg__shmfile_unlock(file);
    ck_assert_int_eq(pthread_create(&thread, NULL, lock_in_thread, file), 0);
    pthread_join(thread, &rc);
    ck_assert_int_eq((int)(intptr_t)rc, 0);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(two_opens_of_one_process_exclude_each_other) {
    struct tg__shmfile *one = open_file(), *other = open_file();
    bool has_inherited = false;

    lock(one);
    ck_assert_int_eq(tg__shmfile_lock(other, &has_inherited), TG_EHELD);
    tg__shmfile_unlock(one);
    lock(other);
    tg__shmfile_close(other); /* as if it had died inside */
    lock(one);
    ck_assert_uint_eq(body_of(one)->inherited, 1);
    tg__shmfile_close(one);
}
END_TEST

START_TEST(a_child_forked_inside_does_not_unlock) {
    struct tg__shmfile *file = open_file();
    bool has_inherited = false;
    int status;
    pid_t pid;

    lock(file);
    pid = fork();
    if (pid == 0) {
        tg__shmfile_unlock(file);
        tg__shmfile_close(file);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(file->head->lock & 0x7fffffffu, tg__shmfile_ticket(file));
    tg__shmfile_unlock(file);
    ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), 0);
    tg__shmfile_unlock(file);
    tg__shmfile_close(file);
}
END_TEST

/* No ticket lives that the word can then hold: it is taken over, as from the dead. */
START_TEST(garbage_in_the_word_is_inherited) {
    struct tg__shmfile *file = open_file(), *other = open_file();
    uint32_t garbage[] = {tg__shmfile_ticket(file), 999, 0x7fffffff, 0xffffffff, 0x80000000};

    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        bool has_inherited = false;

        file->head->lock = garbage[i];
        ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), 0);
        ck_assert_int_eq(has_inherited, i < 4);
        tg__shmfile_unlock(file);
        ck_assert_uint_eq(file->head->lock, 0);
    }
    /* Another's by now: who unlocks leaves it alone. */
    lock(file);
    file->head->lock = tg__shmfile_ticket(other) | 0x80000000u;
    tg__shmfile_unlock(file);
    ck_assert_uint_eq(file->head->lock, tg__shmfile_ticket(other) | 0x80000000u);
    tg__shmfile_close(file);
    tg__shmfile_close(other);
}
END_TEST

static int wait_for_poison(int in, int out, void *argument) {
    struct tg__shmfile *file = open_file();
    bool has_inherited = false;
    int rc;

    (void)argument;
    tell(out, 0);
    do {
        rc = tg__shmfile_lock(file, &has_inherited);
    } while (rc == TG_EHELD);
    hear(in);
    return rc == TG_EPOISONED && (file->head->lock & 0x7fffffffu) == 0 ? 0 : 1;
}

START_TEST(who_waits_hears_of_the_poison) {
    struct tg__shmfile *file = open_file();
    struct child waiter;

    lock(file);
    waiter = start(wait_for_poison, NULL);
    hear(waiter.in);
    while (file->head->lock >> 31 == 0)
        sched_yield();
    ck_assert_int_eq(tg__shmfile_poison(file, "a test"), TG_EPOISONED);
    tg__shmfile_unlock(file);
    tell(waiter.out, 0);
    ck_assert_int_eq(finish(&waiter), 0);
    tg__shmfile_close(file);
}
END_TEST

/* ---- pid namespaces -------------------------------------------------------------------------- */

/* The child is process 1 of a namespace of its own. False: only root may do so. */
static bool start_in_namespace(int (*run)(int, int, void *), struct child *child) {
    int own = open("/proc/self/ns/pid_for_children", O_RDONLY | O_CLOEXEC);

    if (unshare(CLONE_NEWPID) != 0) {
        close(own);
        return false;
    }
    *child = start(run, NULL);
    ck_assert_int_eq(setns(own, CLONE_NEWPID), 0);
    close(own);
    return true;
}

static int count_as_first(int in, int out, void *argument) {
    if (getpid() != 1 || syscall(SYS_gettid) != 1)
        return 1;
    return count_in_threads(in, out, argument);
}

static int hold_as_first(int in, int out, void *argument) {
    return getpid() == 1 ? hold(in, out, argument) : 1;
}

START_TEST(equal_pids_in_two_namespaces) {
    struct tg__shmfile *file = open_file();
    struct child one, other, waiter;
    unsigned tickets[2];
    bool has_inherited = false;

    if (!start_in_namespace(count_as_first, &one)) {
        fprintf(stderr, "skipped: no new pid namespace is permitted here: %s\n", strerror(errno));
        return;
    }
    ck_assert(start_in_namespace(count_as_first, &other));
    tickets[0] = hear(one.in);
    tickets[1] = hear(other.in);
    ck_assert_uint_ne(tickets[0], tickets[1]);
    tell(one.out, 0);
    tell(other.out, 0);
    ck_assert_int_eq(finish(&one), 0);
    ck_assert_int_eq(finish(&other), 0);
    ck_assert_uint_eq(body_of(file)->count, 4 * TURNS);
    ck_assert_uint_eq(body_of(file)->inherited, 0);

    /* A stopped first process is no dead one, though a waiter of the same number is killed. */
    ck_assert(start_in_namespace(hold_as_first, &one));
    tickets[0] = hear(one.in);
    kill(one.pid, SIGSTOP);
    waitpid(one.pid, NULL, WUNTRACED);
    ck_assert(start_in_namespace(wait_for_it, &waiter));
    hear(waiter.in);
    while (file->head->lock >> 31 == 0)
        sched_yield();
    kill_and_finish(&waiter);
    ck_assert(tg__shmfile_is_alive(file, tickets[0]));
    ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), TG_EHELD);
    kill_and_finish(&one);
    ck_assert(!tg__shmfile_is_alive(file, tickets[0]));
    ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), 0);
    ck_assert(has_inherited);
    tg__shmfile_close(file);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shmlock");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, it_excludes_processes_and_threads);
    tcase_add_test(cases, a_dead_owner_is_inherited_from_once);
    tcase_add_test(cases, of_two_heirs_one_inherits);
    tcase_add_test(cases, an_heir_that_dies_leaves_it_to_the_next);
    tcase_add_test(cases, a_stopped_owner_is_named);
    tcase_add_test(cases, a_killed_waiter_changes_nothing);
    tcase_add_test(cases, a_thread_waits_for_its_sister_no_longer);
    tcase_add_test(cases, two_opens_of_one_process_exclude_each_other);
    tcase_add_test(cases, a_child_forked_inside_does_not_unlock);
    tcase_add_test(cases, garbage_in_the_word_is_inherited);
    tcase_add_test(cases, who_waits_hears_of_the_poison);
    tcase_add_test(cases, equal_pids_in_two_namespaces);
    return suite_run("shmlock", cases);
}
