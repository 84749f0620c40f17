/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants that die: at every store, at random moments, with and without memory. What they held
 * counts until the card has it back, and nothing else is lost. */
#include <check.h>
#include <stdbool.h>

#include "base/shmfile.h"
#include "storetrap.h"
#include "suite.h"
#include "tenants.h"

/* ---- one death ------------------------------------------------------------------------------- */

struct last_will {
    uint64_t reserved_bytes, occupied_bytes, host_bytes;
};

static int live_until_killed(int in, int out, void *argument) {
    const struct last_will *will = argument;
    struct tg_tenant *tenant = join(open_ledger(), card, "mortal");
    int status = 0;

    if (will->occupied_bytes > 0)
        status |= take(tenant, card, 1, will->occupied_bytes, 0);
    if (will->reserved_bytes > 0)
        status |= tg_tenant_reserve(tenant, "reserved", will->reserved_bytes, 0);
    if (will->host_bytes > 0)
        status |= tg_tenant_host_reserve(tenant, "host", will->host_bytes);
    tell(out, (unsigned)status);
    hear(in);
    return 0;
}

static void live_and_die(struct last_will will) {
    struct child child = start(live_until_killed, &will);

    ck_assert_int_eq((int)hear(child.in), 0);
    kill_and_finish(&child);
}

START_TEST(bytes_of_the_dead_count_until_the_card_has_them) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *heir = join(ledger, card, "heir");
    struct tg_shortfall shortfall;

    live_and_die((struct last_will){.occupied_bytes = 60 * GIB});
    ck_assert_uint_eq(look_at(ledger, "mortal")->is_dead, 1);
    ck_assert_int_eq(tg_tenant_reserve(heir, "a", 50 * GIB, 0), TG_ENOFIT);
    ck_says("of the dead 60.0 GiB");
    tg_tenant_shortfall(heir, &shortfall);
    ck_assert_uint_eq(shortfall.orphaned_bytes, 60 * GIB);
    ck_assert_uint_eq(shortfall.unattributed_bytes, 0);
    ck_assert_uint_eq(look_at(ledger, "mortal")->is_dead, 1);
    ck_assert_uint_eq(look_at(ledger, "mortal")->tags[0].occupied_bytes, 60 * GIB);
    ck_ok(tg_tenant_reserve(heir, "a", 40 * GIB, 0));
    tg_tenant_cancel(heir, "a", 40 * GIB);
    atomic_store(&card->used_bytes[1], 0);
    ck_ok(tg_tenant_reserve(heir, "a", CARD_BYTES, 0));
    ck_assert_ptr_null(look_at(ledger, "mortal"));
    tg_tenant_leave(heir);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(what_was_only_reserved_comes_back_at_once) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *heir = join(ledger, card, "heir");

    live_and_die((struct last_will){.reserved_bytes = 60 * GIB});
    ck_ok(tg_tenant_reserve(heir, "a", CARD_BYTES, 0));
    tg_tenant_leave(heir);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(host_bytes_go_with_their_tenant) {
    struct tg_ledger *ledger = open_ledger();

    live_and_die((struct last_will){.host_bytes = 4096});
    ck_assert_uint_eq(look(ledger)->host_bytes, 0);
    ck_assert_uint_eq(look(ledger)->tenant_count, 0);
    tg_ledger_close(ledger);
}
END_TEST

/* Memory that never comes back belongs to somebody unknown after two seconds. */
START_TEST(after_two_seconds_the_card_alone_decides) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *heir = join(ledger, card, "heir");
    struct tg_shortfall shortfall;

    live_and_die((struct last_will){.occupied_bytes = 60 * GIB});
    ck_assert_int_eq(tg_tenant_reserve(heir, "a", 50 * GIB, 2200), TG_ENOFIT);
    tg_tenant_shortfall(heir, &shortfall);
    ck_assert_uint_eq(shortfall.orphaned_bytes, 0);
    ck_assert_uint_eq(shortfall.unattributed_bytes, 60 * GIB);
    ck_assert_uint_eq(shortfall.available_bytes, 40 * GIB);
    ck_assert_ptr_null(look_at(ledger, "mortal"));
    tg_tenant_leave(heir);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- a death that others noted --------------------------------------------------------------- */

/* Reserves, and says so; its memory is the test's to make. */
static int reserve_and_wait(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "mortal");

    (void)argument;
    tell(out, (unsigned)tg_tenant_reserve(tenant, "reserved", 60 * GIB, 0));
    hear(in);
    return 0;
}

struct pause {
    struct tg_tenant *witness;
    struct child mortal;
    int asked_count;
};

/* Between the driver's answer and the use that is made of it: the mortal creates what it had
 * reserved, others see that as nobody's, it dies without having committed it, and they settle. */
static int ask_and_pause(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct pause *pause = argument;
    int status = ask_card(card, free_bytes, total_bytes);

    if (pause->asked_count++ > 0)
        return status;
    atomic_store(&card->used_bytes[1], 60 * GIB);
    ck_ok(tg_tenant_measure(pause->witness));
    kill_and_finish(&pause->mortal);
    ck_assert_int_eq(tg_tenant_reserve(pause->witness, "a", 50 * GIB, 0), TG_ENOFIT);
    return status;
}

START_TEST(a_figure_from_before_a_death_grants_nothing) {
    struct tg_ledger *ledger = open_ledger(), *others = open_ledger();
    struct pause pause = {.witness = join(others, card, "witness")};
    struct tg_tenant_params params = on_card(card, "late");
    struct tg_tenant *late = NULL;

    params.gauge = (struct tg_gauge){ask_and_pause, &pause};
    ck_ok(tg_ledger_join(ledger, &params, &late));
    pause.mortal = start(reserve_and_wait, NULL);
    ck_assert_int_eq((int)hear(pause.mortal.in), 0);
    ck_assert_int_eq(tg_tenant_reserve(late, "a", 40 * GIB + 1, 0), TG_ENOFIT);
    ck_assert_int_gt(pause.asked_count, 1);
    ck_ok(tg_tenant_reserve(late, "a", 40 * GIB, 0));
    tg_tenant_leave(late);
    tg_tenant_leave(pause.witness);
    tg_ledger_close(others);
    tg_ledger_close(ledger);
}
END_TEST

static int wait_for_all(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, argument);

    (void)in;
    (void)out;
    return take(tenant, card, 2, 90 * GIB, 60000) == 0 ? 0 : 1;
}

START_TEST(a_dead_waiter_holds_nobody_up) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join(ledger, card, "holder"), *next = join(ledger, card, "next");
    struct child child;

    ck_ok(take(holder, card, 0, 50 * GIB, 0));
    child = start(wait_for_all, (void *)"first");
    await_waiter(ledger, "first", 60000);
    kill_and_finish(&child);
    ck_ok(tg_tenant_reserve(next, "a", GIB, 60000));
    ck_assert_ptr_null(look_at(ledger, "first"));
    tg_tenant_leave(holder);
    tg_tenant_leave(next);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- at every store -------------------------------------------------------------------------- */

struct crash {
    unsigned store;
    bool is_after;
};

/* What another allocator holds, a start, and asking the holder for its cache. */
static int tell_and_ask(struct tg_tenant *tenant) {
    uint32_t count;
    int status;

    tg_tenant_note(tenant, &(struct tg_tenant_note){.mode = TG_MODE_ON, .is_starting = 1});
    atomic_fetch_add(&card->used_bytes[2], 2 * GIB);
    tg_tenant_declare(tenant, "live", 2 * GIB, GIB);
    status = tg_tenant_measure(tenant);
    status |= tg_tenant_ask(tenant, GIB, &count);
    atomic_fetch_sub(&card->used_bytes[2], 2 * GIB);
    tg_tenant_declare(tenant, "live", 0, 0);
    tg_tenant_note(tenant, &(struct tg_tenant_note){.mode = TG_MODE_ON});
    return status;
}

/* All that stores: joining, reserving, waiting in vain and with success, settling a dead one, all
 * that cannot fail, leaving. Another tenant, the holder, has 50 GiB and a cache; a dead one left an
 * orphan. */
static int do_everything(int in, int out, void *argument) {
    const struct crash *crash = argument;
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;
    int status;

    (void)in;
    store_trap(crash->store, crash->is_after, SIGKILL);
    ledger = open_ledger();
    tenant = join(ledger, card, "crasher");
    status = take(tenant, card, 2, 10 * GIB, 0);
    status |= tell_and_ask(tenant);
    status |= tg_tenant_reserve(tenant, "tag", 45 * GIB, 1) == TG_ENOFIT ? 0 : 1;
    status |= take(tenant, card, 2, 5 * GIB, 1000);
    status |= tg_tenant_reserve(tenant, "other", GIB, 0);
    tg_tenant_cancel(tenant, "other", GIB);
    status |= tg_tenant_host_reserve(tenant, "tag", 4096);
    tg_tenant_host_commit(tenant, "tag", 4096);
    put_back(tenant, card, 2, 5 * GIB);
    tg_tenant_host_give(tenant, "tag", 4096, 1);
    atomic_store(&card->used_bytes[2], 0);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
    tell(out, (uint32_t)store_count());
    return status;
}

/* After each: nobody is stuck, nothing is lost, nothing is had twice. */
static bool crash_and_look(struct crash crash) {
    struct tg_ledger *ledger;
    struct tg_tenant *holder;
    struct child child;
    bool is_over;

    remove_directory(dir);
    dir = make_directory();
    for (int i = 0; i < CARD_USERS; i++)
        atomic_store(&card->used_bytes[i], 0);
    ledger = open_ledger();
    holder = join(ledger, card, "holder");
    ck_ok(take(holder, card, 0, 50 * GIB, 0));
    tg_tenant_declare(holder, "cached", GIB, GIB);
    live_and_die((struct last_will){.occupied_bytes = 20 * GIB});
    atomic_store(&card->used_bytes[1], 0);
    child = start(do_everything, &crash);
    is_over = hear(child.in) != UINT32_MAX;
    finish(&child);
    /* The crashed one's memory is still there: it must not be had. */
    ck_assert_int_ne(tg_tenant_reserve(holder, "tag", 50 * GIB - card->used_bytes[2] + 1, 0), 0);
    ck_assert_uint_eq(look_at(ledger, "holder")->tags[0].occupied_bytes, 50 * GIB);
    ck_ok(tg_tenant_check_quiet(holder, 0));
    tg_tenant_declare(holder, "cached", 0, 0);
    atomic_store(&card->used_bytes[2], 0);
    ck_ok(tg_tenant_reserve(holder, "tag", 50 * GIB, 5000));
    ck_assert_uint_eq(look(ledger)->tenant_count, 1);
    ck_assert_uint_eq(look(ledger)->host_bytes, 0);
    tg_tenant_leave(holder);
    tg_ledger_close(ledger);
    return is_over;
}

START_TEST(a_death_at_any_store_is_mended) {
    unsigned points = 0;

    for (struct crash crash = {.store = 1};; crash.store++, points++) {
        crash.is_after = false;
        if (crash_and_look(crash))
            break;
        crash.is_after = true;
        crash_and_look(crash);
    }
    ck_assert_uint_ge(points, 40);
}
END_TEST

/* ---- at random moments ----------------------------------------------------------------------- */

enum { MORTALS = 4, KILLS = 100 };

static uint32_t draw(uint64_t *seed, uint32_t below) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % below;
}

struct mortal {
    int user;
    uint64_t seed;
};

/* A sum that is taken while the others go on may count what changed hands twice: only one that is
 * the same again is of one moment. */
static bool is_had_twice(void) {
    uint64_t first[CARD_USERS], used = 0;

    for (int i = 0; i < CARD_USERS; i++) {
        first[i] = atomic_load(&card->used_bytes[i]);
        used += first[i];
    }
    for (int i = 0; i < CARD_USERS; i++) {
        if (atomic_load(&card->used_bytes[i]) != first[i])
            return false;
    }
    return used > CARD_BYTES;
}

/* Takes and gives until card->word is set. The end of a take is told on the card alone. */
static int take_and_give(int in, int out, void *argument) {
    struct mortal *mortal = argument;
    struct tg_tenant *tenant = join(open_ledger(), card, "mortal");

    (void)in;
    (void)out;
    while (atomic_load(&card->word) == 0) {
        uint64_t size_bytes = (1 + draw(&mortal->seed, 70)) * GIB;
        int status = take(tenant, card, mortal->user, size_bytes, 60000);
        if (status != 0) {
            fprintf(stderr, "%d: %s\n", status, tg_last_error()->text);
            return 1;
        }
        if (is_had_twice())
            return 2;
        usleep(draw(&mortal->seed, 300));
        put_back(tenant, card, mortal->user, size_bytes);
    }
    tg_tenant_leave(tenant);
    return 0;
}

START_TEST(a_hundred_deaths_at_random) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *heir = join(ledger, card, "heir");
    struct mortal mortals[MORTALS];
    struct child children[MORTALS];
    uint64_t seed = 4711;

    for (int i = 0; i < MORTALS; i++) {
        mortals[i] = (struct mortal){.user = i, .seed = (uint64_t)i};
        children[i] = start(take_and_give, &mortals[i]);
    }
    for (int kills = 0; kills < KILLS; kills++) {
        uint32_t i = draw(&seed, MORTALS);
        int status;
        usleep(draw(&seed, 8000));
        ck_assert_int_eq(kill(children[i].pid, SIGKILL), 0);
        status = finish(&children[i]);
        ck_assert_msg(WIFSIGNALED(status), "after %d kills: status %d", kills, status);
        usleep(draw(&seed, 3000)); /* its memory outlives it */
        atomic_store(&card->used_bytes[i], 0);
        mortals[i].seed = seed;
        children[i] = start(take_and_give, &mortals[i]);
    }
    atomic_store(&card->word, 1);
    for (int i = 0; i < MORTALS; i++)
        ck_assert_int_eq(finish(&children[i]), 0);
    ck_ok(tg_tenant_reserve(heir, "a", CARD_BYTES, 5000));
    ck_assert_uint_eq(look(ledger)->tenant_count, 1);
    tg_tenant_leave(heir);
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("death");

    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_test(cases, bytes_of_the_dead_count_until_the_card_has_them);
    tcase_add_test(cases, what_was_only_reserved_comes_back_at_once);
    tcase_add_test(cases, host_bytes_go_with_their_tenant);
    tcase_add_test(cases, after_two_seconds_the_card_alone_decides);
    tcase_add_test(cases, a_figure_from_before_a_death_grants_nothing);
    tcase_add_test(cases, a_dead_waiter_holds_nobody_up);
    tcase_add_test(cases, a_death_at_any_store_is_mended);
    tcase_add_test(cases, a_hundred_deaths_at_random);
    return suite_run("death", cases);
}
