/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for memory: who is served, in which order, and whom nobody waits for. */
#include <check.h>
#include <pthread.h>
#include <stdbool.h>

#include "ledger/tenant.h"
#include "suite.h"
#include "tenants.h"

/* What the tests measure is generous: machines are busy. */
enum { AT_ONCE_MS = 2000, FOR_EVER_MS = 40000 };

/* What a child is to do: it takes first_bytes at once, then second_bytes when the test says so, and
 * tells the status of each. */
struct actor {
    const char *name;
    int user;
    uint64_t first_bytes, second_bytes; /* 0: it does not */
    uint32_t wait_ms;                   /* for the second */
};

static int act(int in, int out, void *argument) {
    const struct actor *actor = argument;
    struct tg_tenant *tenant = join(open_ledger(), card, actor->name);
    int status = 0;

    if (actor->first_bytes > 0)
        status = take(tenant, card, actor->user, actor->first_bytes, 0);
    tell(out, (unsigned)status);
    hear(in);
    if (actor->second_bytes > 0)
        status = take(tenant, card, actor->user, actor->second_bytes, actor->wait_ms);
    tell(out, (unsigned)status);
    hear(in);
    tg_tenant_leave(tenant);
    atomic_store(&card->used_bytes[actor->user], 0);
    return 0;
}

static struct child start_actor(struct actor *actor) {
    struct child child = start(act, actor);

    ck_assert_int_eq((int)hear(child.in), 0);
    return child;
}

static void let_go_on(struct child *child) {
    tell(child->out, 0);
}

static int hear_status(struct child *child) {
    return (int)hear(child->in);
}

/* ---- two take turns -------------------------------------------------------------------------- */

enum { TURNS = 1000 };

/* Both want most of the card: each turn of one needs the other's giving. */
static int take_turns(int in, int out, void *argument) {
    int user = *(int *)argument;
    struct tg_tenant *tenant = join(open_ledger(), card, user == 1 ? "one" : "two");

    tell(out, 0);
    hear(in);
    for (int i = 0; i < TURNS / 2; i++) {
        int status = take(tenant, card, user, 70 * GIB, FOR_EVER_MS);
        if (status != 0)
            return 1;
        if (atomic_fetch_add(&card->word, 1) != 0)
            return 2; /* both at once */
        atomic_fetch_sub(&card->word, 1);
        put_back(tenant, card, user, 70 * GIB);
    }
    tg_tenant_leave(tenant);
    return 0;
}

START_TEST(two_hand_over_a_thousand_times) {
    int users[2] = {1, 2};
    struct child one = start(take_turns, &users[0]), two = start(take_turns, &users[1]);

    hear(one.in);
    hear(two.in);
    let_go_on(&one);
    let_go_on(&two);
    ck_assert_int_eq(finish(&one), 0);
    ck_assert_int_eq(finish(&two), 0);
}
END_TEST

/* ---- order ----------------------------------------------------------------------------------- */

/* The second fits at once and stands behind the first; the third behind both. On a machine so busy
 * that the first does not run for 30 ms it is passed, and rightly: false, to be tried again. */
static bool three_come(struct tg_ledger *ledger, struct tg_tenant *holder) {
    struct actor actors[3] = {{"first", 1, 0, 60 * GIB, FOR_EVER_MS},
                              {"second", 2, 0, 30 * GIB, FOR_EVER_MS},
                              {"third", 3, 0, 60 * GIB, FOR_EVER_MS}};
    struct child children[3];
    const struct tg_tenant_view *first, *second, *third;
    const struct tg_node_view *view;
    bool is_in_order;

    ck_ok(take(holder, card, 0, 60 * GIB, 0));
    for (int i = 0; i < 3; i++) {
        children[i] = start_actor(&actors[i]);
        let_go_on(&children[i]);
        await_waiter(ledger, actors[i].name, i == 1 ? 100 : FOR_EVER_MS);
    }
    view = look(ledger);
    first = tenant_in(view, "first");
    second = tenant_in(view, "second");
    third = tenant_in(view, "third");
    is_in_order = first->is_waiting && second->is_waiting && third->is_waiting &&
                  first->arrival < second->arrival && second->arrival < third->arrival;
    ck_assert_str_eq(third->wait_tag, "tag");
    ck_assert_uint_eq(third->wait_bytes, 60 * GIB);
    put_back(holder, card, 0, 60 * GIB);
    ck_assert_int_eq(hear_status(&children[0]), 0);
    ck_assert_int_eq(hear_status(&children[1]), 0);
    is_in_order &= look_at(ledger, "third")->is_waiting;
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            ck_assert_int_eq(hear_status(&children[i]), 0);
        ck_assert_int_eq(finish(&children[i]), 0);
    }
    return is_in_order;
}

START_TEST(three_are_served_as_they_came) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder");
    int tries = 0;

    while (!three_come(ledger, holder))
        ck_assert_int_lt(++tries, 10);
    tg_tenant_leave(holder);
    tg_ledger_close(ledger);
}
END_TEST

/* Who gives up lets those behind it go on. */
START_TEST(a_waiter_that_gives_up_lets_the_next_go) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder");
    struct actor big = {"big", 1, 0, 80 * GIB, 500}, small = {"small", 2, 0, GIB, FOR_EVER_MS};
    struct child first, second;

    ck_ok(take(holder, card, 0, 60 * GIB, 0));
    first = start_actor(&big);
    second = start_actor(&small);
    let_go_on(&first);
    await_waiter(ledger, "big", FOR_EVER_MS);
    let_go_on(&second);
    await_waiter(ledger, "small", 100);
    ck_assert_int_eq(hear_status(&first), TG_ENOFIT);
    ck_assert_int_eq(hear_status(&second), 0);
    ck_assert_int_eq(finish(&first), 0);
    ck_assert_int_eq(finish(&second), 0);
    tg_tenant_leave(holder);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(a_holder_passes_who_needs_its_bytes) {
    struct tg_ledger *ledger = open_ledger();
    struct actor holder = {"holder", 1, 60 * GIB, 10 * GIB, FOR_EVER_MS};
    struct actor waiter = {"waiter", 2, 0, 80 * GIB, FOR_EVER_MS};
    struct child first = start_actor(&holder), second = start_actor(&waiter);

    let_go_on(&second);
    await_waiter(ledger, "waiter", FOR_EVER_MS);
    let_go_on(&first);
    ck_assert_int_eq(hear_status(&first), 0);
    ck_assert_uint_eq(look_at(ledger, "waiter")->is_waiting, 1);
    ck_assert_int_eq(finish(&first), 0);
    ck_assert_int_eq(hear_status(&second), 0);
    ck_assert_int_eq(finish(&second), 0);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(who_closes_a_ring_is_told_so) {
    struct tg_ledger *ledger = open_ledger();
    struct actor actor = {"rollout", 1, 40 * GIB, 50 * GIB, FOR_EVER_MS};
    struct child child = start_actor(&actor);
    struct tg_tenant *trainer = join(ledger, card, "trainer");
    struct tg_shortfall shortfall;

    ck_ok(take(trainer, card, 0, 30 * GIB, 0));
    let_go_on(&child);
    await_waiter(ledger, "rollout", FOR_EVER_MS);
    ck_assert_int_eq(tg_tenant_reserve(trainer, "grads", 40 * GIB, FOR_EVER_MS), TG_ECYCLE);
    ck_says("trainer holds 30.0 GiB");
    ck_says("rollout holds 40.0 GiB");
    tg_tenant_shortfall(trainer, &shortfall);
    ck_assert_int_eq(shortfall.status, TG_ECYCLE);
    ck_assert_uint_eq(look_at(ledger, "trainer")->is_waiting, 0);
    put_back(trainer, card, 0, 30 * GIB);
    ck_assert_int_eq(hear_status(&child), 0);
    ck_assert_int_eq(finish(&child), 0);
    tg_tenant_leave(trainer);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(what_may_serve_a_waiter_wakes_it) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenant = join(ledger, card, "tenant");
    struct tg__device_slot *device = tenant->device;
    uint32_t change = device->change;

    ck_ok(tg_tenant_reserve(tenant, "a", 3 * GIB, 0));
    for (int i = 0; i < 3; i++) {
        device->has_waiters = 1;
        if (i == 0)
            tg_tenant_cancel(tenant, "a", GIB);
        else if (i == 1)
            tg_tenant_commit(tenant, "a", 2 * GIB, 0);
        else
            tg_tenant_give(tenant, "a", 2 * GIB, 2 * GIB);
        ck_assert_uint_eq(device->has_waiters, 0);
        ck_assert_uint_eq(device->change, ++change);
    }
    device->has_waiters = 1;
    tg_tenant_forget(tenant, "a", 2 * GIB);
    ck_assert_uint_eq(device->change, change);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- deadlines ------------------------------------------------------------------------------- */

START_TEST(the_deadline_is_kept) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder"), *waiter = join(ledger, card, "waiter");
    uint64_t began_ms;

    ck_ok(take(holder, card, 0, 60 * GIB, 0));
    began_ms = now_ms();
    ck_assert_int_eq(tg_tenant_reserve(waiter, "a", 50 * GIB, 100), TG_ENOFIT);
    ck_assert_uint_ge(now_ms() - began_ms, 100);
    ck_assert_uint_le(now_ms() - began_ms, 100 + AT_ONCE_MS);
    ck_says("holder tag 60.0 GiB");
    ck_assert_uint_eq(look_at(ledger, "waiter")->is_waiting, 0);
    ck_ok(tg_tenant_reserve(waiter, "a", 40 * GIB, 0));
    tg_tenant_leave(holder);
    tg_tenant_leave(waiter);
    tg_ledger_close(ledger);
}
END_TEST

/* Foreign programs tell nobody when they free. */
START_TEST(what_a_foreign_program_frees_is_seen) {
    struct tg_ledger *ledger = open_ledger();
    struct actor actor = {"waiter", 1, 0, 50 * GIB, FOR_EVER_MS};
    struct child child = start_actor(&actor);

    atomic_store(&card->foreign_bytes, 60 * GIB);
    let_go_on(&child);
    await_waiter(ledger, "waiter", FOR_EVER_MS);
    atomic_store(&card->foreign_bytes, 0);
    ck_assert_int_eq(hear_status(&child), 0);
    ck_assert_int_eq(finish(&child), 0);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(a_gauge_that_breaks_ends_the_wait) {
    struct tg_ledger *ledger = open_ledger();
    struct actor actor = {"waiter", 1, 0, 50 * GIB, FOR_EVER_MS};
    struct child child = start_actor(&actor);

    atomic_store(&card->foreign_bytes, 60 * GIB);
    let_go_on(&child);
    await_waiter(ledger, "waiter", FOR_EVER_MS);
    atomic_store(&card->status, TG_EBROKEN);
    ck_assert_int_eq(hear_status(&child), TG_EBROKEN);
    ck_assert_uint_eq(look_at(ledger, "waiter")->is_waiting, 0);
    ck_assert_int_eq(finish(&child), 0);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- the stopped ----------------------------------------------------------------------------- */

static void stop(struct child *child) {
    int status;

    ck_assert_int_eq(kill(child->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(child->pid, &status, WUNTRACED), child->pid);
}

START_TEST(a_stopped_holder_is_named_and_goes_on_later) {
    struct tg_ledger *ledger = open_ledger();
    struct actor actor = {"sleepy holder", 1, 60 * GIB, 0, 0};
    struct child child = start_actor(&actor);
    struct tg_tenant *waiter = join(ledger, card, "waiter");

    stop(&child);
    ck_assert_int_eq(tg_tenant_reserve(waiter, "a", 50 * GIB, 200), TG_ENOFIT);
    ck_says("sleepy holder tag 60.0 GiB");
    ck_assert_uint_eq(look_at(ledger, "sleepy holder")->is_dead, 0);
    kill(child.pid, SIGCONT);
    let_go_on(&child);
    ck_assert_int_eq(hear_status(&child), 0);
    ck_assert_int_eq(finish(&child), 0);
    ck_ok(tg_tenant_reserve(waiter, "a", 50 * GIB, FOR_EVER_MS));
    tg_tenant_leave(waiter);
    tg_ledger_close(ledger);
}
END_TEST

/* Stops inside the file's lock, and lets it go when it runs again. */
static int stop_inside(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, argument);
    bool has_inherited;

    if (tg__shmfile_lock(tenant->ledger->file, &has_inherited) != 0)
        return 1;
    raise(SIGSTOP);
    tg__shmfile_unlock(tenant->ledger->file);
    tell(out, 0);
    hear(in);
    return 0;
}

/* How long the request takes to fail; the least of some, since the machine may be busy. */
static uint64_t refused_after_ms(struct tg_tenant *tenant, uint32_t wait_ms) {
    uint64_t least_ms = UINT64_MAX;

    for (int i = 0; i < 5; i++) {
        uint64_t began_ms = now_ms(), took_ms;

        ck_assert_int_eq(tg_tenant_reserve(tenant, "a", GIB, wait_ms), TG_EHELD);
        ck_says("held by sleeper");
        took_ms = now_ms() - began_ms;
        ck_assert_uint_ge(took_ms + 1, wait_ms);
        least_ms = took_ms < least_ms ? took_ms : least_ms;
    }
    return least_ms;
}

START_TEST(who_is_stopped_inside_the_lock_is_named_in_time) {
    char name[] = "sleeper";
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenant = join(ledger, card, "tenant");
    struct child child = start(stop_inside, name);
    int status;

    ck_assert_int_eq(waitpid(child.pid, &status, WUNTRACED), child.pid);
    ck_assert_uint_le(refused_after_ms(tenant, 0), 100);
    ck_assert_uint_le(refused_after_ms(tenant, 20), 20 + 40);
    ck_assert_uint_le(refused_after_ms(tenant, 105), 105 + 40);
    ck_assert_uint_eq(look_at(ledger, "tenant")->is_waiting, 0);
    kill(child.pid, SIGCONT);
    ck_assert_int_eq(hear_status(&child), 0);
    ck_ok(tg_tenant_reserve(tenant, "a", GIB, 0));
    ck_assert_int_eq(finish(&child), 0);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(a_stopped_waiter_holds_nobody_up) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder"), *next = join(ledger, card, "next");
    struct actor actor = {"first", 1, 0, 60 * GIB, FOR_EVER_MS};
    struct child child = start_actor(&actor);
    uint64_t began_ms;

    ck_ok(take(holder, card, 0, 50 * GIB, 0));
    let_go_on(&child);
    await_waiter(ledger, "first", FOR_EVER_MS);
    stop(&child);
    began_ms = now_ms();
    ck_ok(tg_tenant_reserve(next, "a", 20 * GIB, FOR_EVER_MS));
    ck_assert_uint_le(now_ms() - began_ms, AT_ONCE_MS);
    tg_tenant_cancel(next, "a", 20 * GIB);
    kill(child.pid, SIGCONT);
    put_back(holder, card, 0, 50 * GIB);
    ck_assert_int_eq(hear_status(&child), 0);
    ck_assert_int_eq(finish(&child), 0);
    tg_tenant_leave(holder);
    tg_tenant_leave(next);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(readers_see_the_stopped) {
    enum { STOPPED = 6 };
    struct tg_ledger *reader = NULL;
    struct actor actors[STOPPED];
    struct child children[STOPPED];
    uint64_t began_ms;

    for (int i = 0; i < STOPPED; i++) {
        actors[i] = (struct actor){"stopped", i, GIB, 0, 0};
        children[i] = start_actor(&actors[i]);
        stop(&children[i]);
    }
    ck_ok(tg_ledger_open_reader(NULL, &reader));
    began_ms = now_ms();
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_eq(look(reader)->tenant_count, STOPPED);
        ck_assert_uint_eq(look(reader)->tenants[i % STOPPED].is_dead, 0);
        ck_assert_uint_eq(look(reader)->tenants[i % STOPPED].tags[0].occupied_bytes, GIB);
    }
    ck_assert_uint_le(now_ms() - began_ms, 300 * 10);
    for (int i = 0; i < STOPPED; i++) {
        kill(children[i].pid, SIGCONT);
        let_go_on(&children[i]);
        ck_assert_int_eq(hear_status(&children[i]), 0);
        ck_assert_int_eq(finish(&children[i]), 0);
    }
    tg_ledger_close(reader);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 6, ROUNDS = 300 };

static void *come_and_go(void *argument) {
    struct tg_tenant *tenant = argument;

    for (int i = 0; i < ROUNDS; i++) {
        if (tg_tenant_reserve(tenant, "tag", 20 * GIB, FOR_EVER_MS) != 0)
            return argument;
        if (atomic_fetch_add(&card->word, 1) >= 5)
            return argument; /* six times 20 GiB are more than there are */
        tg_tenant_commit(tenant, "tag", 20 * GIB, 0);
        atomic_fetch_sub(&card->word, 1);
        tg_tenant_give(tenant, "tag", 20 * GIB, 0);
    }
    return NULL;
}

/* Three of each tenant: all are served, and the sums stay right. A tenant counts as one that waits
 * or gives, not both: with larger requests the threads would be told of a cycle, rightly or not. */
START_TEST(threads_share_a_tenant) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenants[2] = {join(ledger, card, "one"), join(ledger, card, "two")};
    pthread_t threads[THREADS];
    void *failed;

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, come_and_go, tenants[i % 2]), 0);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
    }
    ck_assert_uint_eq(look_at(ledger, "one")->tag_count, 0);
    ck_assert_uint_eq(look_at(ledger, "two")->tag_count, 0);
    tg_tenant_leave(tenants[0]);
    tg_tenant_leave(tenants[1]);
    tg_ledger_close(ledger);
}
END_TEST

static void *wait_long(void *argument) {
    return tg_tenant_reserve(argument, "long", 60 * GIB, FOR_EVER_MS) == 0 ? NULL : argument;
}

/* While one thread waits, another's wait ends at its own deadline, and its small request that may
 * not wait is served. */
START_TEST(a_waiting_thread_keeps_no_other) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder"), *waiter = join(ledger, card, "waiter");
    pthread_t thread;
    void *failed;

    ck_ok(take(holder, card, 0, 60 * GIB, 0));
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_long, waiter), 0);
    await_waiter(ledger, "waiter", FOR_EVER_MS);
    ck_assert_int_eq(tg_tenant_reserve(waiter, "short", 50 * GIB, 50), TG_ENOFIT);
    ck_says("holder tag 60.0 GiB");
    ck_ok(tg_tenant_reserve(waiter, "short", 10 * GIB, 0));
    ck_assert_str_eq(look_at(ledger, "waiter")->wait_tag, "long");
    put_back(holder, card, 0, 60 * GIB);
    ck_assert_int_eq(pthread_join(thread, &failed), 0);
    ck_assert_ptr_null(failed);
    tg_tenant_leave(holder);
    tg_tenant_leave(waiter);
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("wait");

    tcase_set_timeout(cases, 100);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_test(cases, two_hand_over_a_thousand_times);
    tcase_add_test(cases, three_are_served_as_they_came);
    tcase_add_test(cases, a_waiter_that_gives_up_lets_the_next_go);
    tcase_add_test(cases, a_holder_passes_who_needs_its_bytes);
    tcase_add_test(cases, who_closes_a_ring_is_told_so);
    tcase_add_test(cases, what_may_serve_a_waiter_wakes_it);
    tcase_add_test(cases, the_deadline_is_kept);
    tcase_add_test(cases, what_a_foreign_program_frees_is_seen);
    tcase_add_test(cases, a_gauge_that_breaks_ends_the_wait);
    tcase_add_test(cases, a_stopped_holder_is_named_and_goes_on_later);
    tcase_add_test(cases, who_is_stopped_inside_the_lock_is_named_in_time);
    tcase_add_test(cases, a_stopped_waiter_holds_nobody_up);
    tcase_add_test(cases, readers_see_the_stopped);
    tcase_add_test(cases, threads_share_a_tenant);
    tcase_add_test(cases, a_waiting_thread_keeps_no_other);
    return suite_run("wait", cases);
}
