/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that sleep and wake as one: all or none of them, whoever fails, is late, stops or dies, and
 * wherever. doc/design/group.md has what is promised. */
#include <check.h>
#include <errno.h>

#include "base/error.h"
#include "suite.h"
#include "ranks.h"

static struct child children[RANKS_MAX];

static void go(int index) {
    tell(children[index].out, 0);
}

static void begin(int count) {
    for (int i = 0; i < count; i++)
        children[i] = start_rank(&ranks[i]);
}

static void await(int index) {
    ck_assert_uint_eq(hear(children[index].in), 1);
}

static void end(int count) {
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(finish(&children[i]), 0);
}

static void play(int count) {
    begin(count);
    for (int i = 0; i < count; i++)
        go(i);
    for (int i = 0; i < count; i++)
        await(i);
}

/* Three of "engine": one on the first card, two on the second. */
static void make_engine(enum tg__group_kind kind) {
    for (int i = 0; i < 3; i++) {
        ranks[i] = make_rank("engine", i, i > 0, 3, 40 * GIB);
        ranks[i].kind = kind;
    }
}

static const struct tg_tenant_view *rank_in(const struct tg_node_view *view, const char *name,
                                            int number) {
    for (uint32_t i = 0; i < view->tenant_count; i++) {
        if (view->tenants[i].rank == number && strcmp(view->tenants[i].name, name) == 0 &&
            !view->tenants[i].is_dead)
            return &view->tenants[i];
    }
    ck_abort_msg("%s rank %d is not there", name, number);
    return NULL;
}

static void ck_figures(struct tg_ledger *ledger, int index, uint64_t occupied, uint64_t asleep) {
    const struct tg_tenant_view *view = rank_in(look(ledger), ranks[index].name, index);

    ck_assert_uint_eq(view->tag_count, 1);
    ck_assert_uint_eq(view->tags[0].occupied_bytes, occupied);
    ck_assert_uint_eq(view->tags[0].reserved_bytes, 0);
    ck_assert_uint_eq(view->tags[0].asleep_bytes, asleep);
    ck_assert_uint_eq(view->is_waiting, 0);
}

static void ck_told(int index, int status, const char *words) {
    ck_assert_msg(ranks[index].status == status, "rank %d: %d, %s", index, ranks[index].status,
                  ranks[index].text);
    ck_assert_msg(strstr(ranks[index].text, words) != NULL, "no \"%s\" in: %s", words,
                  ranks[index].text);
}

/* ---- as it should be ------------------------------------------------------------------------- */

START_TEST(all_wake_as_one) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(TG__GROUP_WAKES);
    play(3);
    for (int i = 0; i < 3; i++) {
        ck_told(i, 0, "");
        ck_figures(ledger, i, 40 * GIB, 0);
        ck_assert_str_eq(ranks[i].lost, "");
    }
    end(3);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(all_sleep_as_one) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(TG__GROUP_SLEEPS);
    play(3);
    for (int i = 0; i < 3; i++) {
        ck_told(i, 0, "");
        ck_figures(ledger, i, 0, 40 * GIB);
    }
    end(3);
    tg_ledger_close(ledger);
}
END_TEST

/* The first waits for the last, and holds nothing meanwhile. */
START_TEST(who_waits_for_others_holds_nothing) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *other = join_card(ledger, "other", -1, 0);

    make_engine(TG__GROUP_WAKES);
    begin(3);
    go(0);
    await_coming(ledger, "engine", 0);
    ck_ok(tg_tenant_reserve(other, "a", CARD_BYTES, 0));
    tg_tenant_cancel(other, "a", CARD_BYTES);
    go(1);
    go(2);
    for (int i = 0; i < 3; i++)
        await(i);
    for (int i = 0; i < 3; i++)
        ck_told(i, 0, "");
    ck_assert_int_eq(tg_tenant_reserve(other, "a", 60 * GIB + 1, 0), TG_ENOFIT);
    end(3);
    tg_tenant_leave(other);
    tg_ledger_close(ledger);
}
END_TEST

/* Also of the bytes on the other card, whose driver it cannot ask itself. */
START_TEST(a_group_waits_for_bytes_in_order) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join_card(ledger, "holder", -1, 1);
    uint64_t until_ms = now_ms() + LONG_MS;

    make_engine(TG__GROUP_WAKES);
    begin(3);
    ck_ok(take(holder, cards[1], 7, 30 * GIB, 0));
    for (int i = 0; i < 3; i++)
        go(i);
    while (!rank_in(look(ledger), "engine", 0)->is_waiting)
        ck_assert_uint_lt(now_ms(), until_ms);
    ck_assert_uint_eq(rank_in(look(ledger), "engine", 0)->tags[0].reserved_bytes, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(ranks[i].is_done, 0);
    put_back(holder, cards[1], 7, 30 * GIB);
    for (int i = 0; i < 3; i++) {
        await(i);
        ck_told(i, 0, "");
    }
    end(3);
    tg_tenant_leave(holder);
    tg_ledger_close(ledger);
}
END_TEST

/* Each group has a rank on each card, in opposite order, and a card holds one rank. The group that
 * is granted is awake on both cards, and the other takes its place when it sleeps. */
START_TEST(two_groups_on_the_same_cards_do_not_meet) {
    struct tg_ledger *ledger = open_ledger();
    uint64_t until_ms = now_ms() + LONG_MS;
    int first;

    for (int i = 0; i < 4; i++)
        ranks[i] = make_rank(i < 2 ? "left" : "right", i, (i + i / 2) % 2, 2, 60 * GIB);
    begin(4);
    for (int i = 0; i < 4; i++)
        go(i);
    while (ranks[0].is_done + ranks[1].is_done != 2 && ranks[2].is_done + ranks[3].is_done != 2) {
        ck_assert_uint_lt(now_ms(), until_ms);
        usleep(200);
    }
    first = ranks[0].is_done ? 0 : 2;
    for (int i = first; i < first + 2; i++) {
        await(i);
        ck_told(i, 0, "");
        ck_assert_int_eq(ranks[2 - first + i - first].is_done, 0);
        atomic_store(&cards[ranks[i].card]->used_bytes[i], 0);
    }
    for (int i = first; i < first + 2; i++)
        ck_assert_int_eq(finish(&children[i]), 0);
    for (int i = 2 - first; i < 4 - first; i++) {
        await(i);
        ck_told(i, 0, "");
        ck_assert_int_eq(finish(&children[i]), 0);
    }
    tg_ledger_close(ledger);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

/* One lacks host memory: all are as before, and every error names it and what it lacked. */
START_TEST(who_fails_is_named_to_all) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(_i == 0 ? TG__GROUP_WAKES : TG__GROUP_SLEEPS);
    ranks[1].lacks = TG_EHOSTMEMORY;
    play(3);
    for (int i = 0; i < 3; i++) {
        ck_told(i, TG_EHOSTMEMORY, i == 1 ? "host copies need" : "engine rank 1: host copies");
        ck_figures(ledger, i, _i == 0 ? 0 : 40 * GIB, _i == 0 ? 40 * GIB : 0);
    }
    end(3);
    tg_ledger_close(ledger);
}
END_TEST

/* Its word stays, though its place in the ledger is free by then. */
START_TEST(who_fails_and_exits_is_named_too) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(TG__GROUP_WAKES);
    ranks[2].lacks = TG_EHOSTMEMORY;
    ranks[2].exits_at_once = true;
    begin(3);
    for (int i = 0; i < 3; i++)
        go(i);
    for (int i = 0; i < 2; i++) {
        await(i);
        ck_told(i, TG_EHOSTMEMORY, "engine rank 2: host copies need 7 GiB");
    }
    end(3);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(bytes_that_do_not_come_are_named_to_all) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *holder = join_card(ledger, "holder", -1, 1);

    make_engine(TG__GROUP_WAKES);
    for (int i = 0; i < 3; i++)
        ranks[i].wait_ms = 3000;
    begin(3);
    ck_ok(take(holder, cards[1], 7, 30 * GIB, 0));
    for (int i = 0; i < 3; i++)
        go(i);
    for (int i = 0; i < 3; i++)
        await(i);
    for (int i = 0; i < 3; i++) {
        ck_told(i, TG_ENOFIT, "kv needs 80.0 GiB, 70.0 GiB can be had: holder tag 30.0 GiB");
        ck_assert_ptr_nonnull(strstr(ranks[i].text, "engine rank "));
        ck_figures(ledger, i, 0, 40 * GIB);
    }
    end(3);
    tg_tenant_leave(holder);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(what_no_card_has_is_refused_at_once) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(TG__GROUP_WAKES);
    for (int i = 0; i < 3; i++)
        ranks[i].bytes = 60 * GIB;
    play(3);
    for (int i = 0; i < 3; i++) {
        ck_told(i, TG_ENEVERFITS, "kv needs 120.0 GiB, more than the device's 100.0 GiB");
        ck_assert_uint_lt(ranks[i].took_ms, LONG_MS);
    }
    end(3);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(who_does_not_come_is_not_waited_for_for_ever) {
    struct tg_ledger *ledger = open_ledger();

    make_engine(TG__GROUP_WAKES);
    ranks[0].wait_ms = 3000;
    begin(3);
    go(0);
    await_coming(ledger, "engine", 0);
    go(1);
    for (int i = 0; i < 2; i++) {
        await(i);
        ck_told(i, TG_EGROUP, "only 2 of 3 members have come in time: engine rank");
        ck_figures(ledger, i, 0, 40 * GIB);
    }
    end(2);
    kill_and_finish(&children[2]);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(bad_parameters_come_to_nothing) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenant = join_card(ledger, "engine", 0, 0);
    struct rank rank = make_rank("engine", 0, 0, 1, GIB);

    prepare_rank(tenant, &rank);
    rank.name = "";
    ck_assert_int_eq(rank_comes(tenant, &rank), -EINVAL);
    ck_says("a group's name is 1 to 47");
    rank.name = "engine";
    rank.size = 65;
    ck_assert_int_eq(rank_comes(tenant, &rank), -EINVAL);
    ck_says("1 to 64 members, not 65");
    rank.size = 1;
    rank.kind = 7;
    ck_assert_int_eq(rank_comes(tenant, &rank), -EINVAL);
    rank.kind = TG__GROUP_WAKES;
    ck_assert_int_eq(tg__group_come(NULL, NULL), -EINVAL);
    ck_assert_int_eq(tg__group_end(tenant, 0), -EINVAL);
    tg__group_leave(tenant, NULL);
    ck_ok(rank_comes(tenant, &rank));
    ck_assert_int_eq(rank_comes(tenant, &rank), -EALREADY);
    tg__group_leave(tenant, NULL);
    ck_assert_uint_eq(look_at(ledger, "engine")->tags[0].reserved_bytes, 0);
    ck_assert_uint_eq(look_at(ledger, "engine")->tags[0].asleep_bytes, GIB);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

/* Others gather under the name, and not for this. */
START_TEST(a_name_is_for_one_thing_at_a_time) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *late = join_card(ledger, "late", 5, 0);
    struct rank rank = make_rank("engine", 5, 0, 4, GIB);

    make_engine(TG__GROUP_WAKES);
    begin(3);
    go(0);
    await_coming(ledger, "engine", 0);
    ck_assert_int_eq(rank_comes(late, &rank), -EINVAL);
    ck_says("the group engine gathers with 3 members to wake, not with 4 to wake");
    go(1);
    go(2);
    for (int i = 0; i < 3; i++) {
        await(i);
        ck_told(i, 0, "");
    }
    end(3);
    tg_tenant_leave(late);
    tg_ledger_close(ledger);
}
END_TEST

START_TEST(the_ninth_group_finds_no_place) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenants[TG__GROUPS + 1];
    struct rank rank = make_rank("", 0, 0, 1, GIB);
    char name[16];

    for (int i = 0; i <= TG__GROUPS; i++) {
        snprintf(name, sizeof name, "group %d", i);
        rank.name = name;
        tenants[i] = join_card(ledger, name, i, 0);
        rank.wait_ms = i < TG__GROUPS ? LONG_MS : 30;
        if (i < TG__GROUPS)
            ck_ok(rank_comes(tenants[i], &rank));
    }
    ck_assert_int_eq(rank_comes(tenants[TG__GROUPS], &rank), TG_EFULL);
    ck_says("8 groups sleep or wake already");
    tg__group_leave(tenants[3], NULL);
    ck_ok(rank_comes(tenants[TG__GROUPS], &rank));
    for (int i = 0; i <= TG__GROUPS; i++)
        tg_tenant_leave(tenants[i]);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- who stops ------------------------------------------------------------------------------- */

/* Stopped at one of its stores: the others end at the deadline, and it does when it runs again. */
START_TEST(a_stopped_member_holds_nobody_beyond_the_deadline) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *other = join_card(ledger, "other", -1, 0);
    int status;

    make_engine(TG__GROUP_WAKES);
    for (int i = 0; i < 3; i++)
        ranks[i].wait_ms = 700;
    ranks[0].signal = SIGSTOP;
    ranks[0].store = (unsigned)_i;
    begin(3);
    go(1);
    await_coming(ledger, "engine", 1);
    go(2);
    await_coming(ledger, "engine", 2);
    go(0);
    ck_assert_int_eq(waitpid(children[0].pid, &status, WUNTRACED), children[0].pid);
    ck_assert(WIFSTOPPED(status));
    for (int i = 1; i < 3; i++) {
        await(i);
        ck_assert_int_lt(ranks[i].status, 0);
        ck_figures(ledger, i, 0, 40 * GIB);
    }
    kill(children[0].pid, SIGCONT);
    await(0);
    ck_assert_int_lt(ranks[0].status, 0);
    ck_figures(ledger, 0, 0, 40 * GIB);
    ck_ok(tg_tenant_reserve(other, "a", CARD_BYTES, LONG_MS));
    end(3);
    tg_tenant_leave(other);
    tg_ledger_close(ledger);
}
END_TEST

/* ---- who dies -------------------------------------------------------------------------------- */

static void wipe(void) {
    remove_directory(dir);
    dir = make_directory();
    for (int i = 0; i < CARDS; i++) {
        for (int k = 0; k < CARD_USERS; k++)
            atomic_store(&cards[i]->used_bytes[k], 0);
    }
}

/* The living are all awake or all asleep, and the ledger says the same of them. */
static void ck_as_one(struct tg_ledger *ledger, int victim, enum tg__group_kind kind) {
    int outcome = INT_MIN;

    for (int i = 0; i < 3; i++) {
        bool is_awake;

        if (i == victim)
            continue;
        is_awake = (kind == TG__GROUP_WAKES) == (ranks[i].status == 0);
        if (outcome != INT_MIN)
            ck_assert_msg((ranks[i].status == 0) == (outcome == 0), "one of two: %s",
                          ranks[i].text);
        outcome = ranks[i].status;
        if (outcome < 0) {
            char name[32];

            snprintf(name, sizeof name, "engine rank %d has died", victim);
            ck_assert_int_eq(ranks[i].status, TG_EGROUP);
            ck_assert_msg(strstr(ranks[i].text, name) != NULL ||
                              strstr(ranks[i].text, "in time") != NULL,
                          "%s", ranks[i].text);
        }
        ck_figures(ledger, i, is_awake ? 40 * GIB : 0, is_awake ? 0 : 40 * GIB);
    }
}

struct death {
    int victim;
    enum tg__group_kind kind;
    bool comes_last;
    unsigned store;
    bool is_after;
};

static uint64_t used_of(const struct card *of) {
    uint64_t used = 0;

    for (int i = 0; i < CARD_USERS; i++)
        used += atomic_load(&of->used_bytes[i]);
    return used;
}

/* The dead one's memory is there until the test takes it; then all of it can be had, and the dead
 * one's namesake wakes or sleeps with the others. */
static void ck_nothing_is_lost(struct tg_ledger *ledger, int victim) {
    struct card *of = cards[ranks[victim].card];
    struct tg_tenant *heir = join_card(ledger, "heir", -1, ranks[victim].card);

    ck_assert_int_ne(tg_tenant_reserve(heir, "a", CARD_BYTES - used_of(of) + 1, 0), 0);
    atomic_store(&of->used_bytes[victim], 0);
    ck_ok(tg_tenant_reserve(heir, "a", CARD_BYTES - used_of(of), LONG_MS));
    tg_tenant_leave(heir);
}

/* Alone, so that its group is complete: after whatever was left of the dead one's generation. */
static void ck_another_comes(int victim) {
    struct rank rank = make_rank("engine", victim, ranks[victim].card, 1, GIB);
    struct child child;

    rank.user = CARD_USERS - 1;
    ranks[RANKS_MAX - 1] = rank;
    child = start_rank(&ranks[RANKS_MAX - 1]);
    tell(child.out, 0);
    ck_assert_uint_eq(hear(child.in), 1);
    ck_told(RANKS_MAX - 1, 0, "");
    ck_assert_int_eq(finish(&child), 0);
}

/* The victim is dead, or has done all; a sleeping wait would miss which. */
static bool await_victim(int victim) {
    int status = 0;

    while (atomic_load(&ranks[victim].is_done) == 0) {
        pid_t pid = waitpid(children[victim].pid, &status, WNOHANG);

        if (pid == children[victim].pid) {
            ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %d", status);
            return false;
        }
        usleep(200);
    }
    return true;
}

/* Who comes last makes the grant; who comes first opens the group. True: the victim got through. */
static bool die_and_look(struct death death) {
    struct tg_ledger *ledger;
    int last = death.comes_last ? death.victim : (death.victim + 1) % 3;
    bool is_over;

    wipe();
    ledger = open_ledger();
    make_engine(death.kind);
    for (int i = 0; i < 3; i++)
        ranks[i].wait_ms = 2000;
    ranks[death.victim].store = death.store;
    ranks[death.victim].is_after = death.is_after;
    ranks[death.victim].signal = SIGKILL;
    begin(3);
    for (int i = 0; i < 3; i++) {
        if (i != last)
            go(i);
    }
    go(last);
    is_over = await_victim(death.victim);
    for (int i = 0; i < 3; i++) {
        if (i != death.victim)
            await(i);
    }
    ck_as_one(ledger, is_over ? -1 : death.victim, death.kind);
    if (!is_over)
        ck_nothing_is_lost(ledger, death.victim);
    ck_another_comes(death.victim);
    for (int i = 0; i < 3; i++) {
        if (is_over || i != death.victim)
            ck_assert_int_eq(finish(&children[i]), 0);
    }
    tg_ledger_close(ledger);
    return is_over;
}

static const struct death deaths[] = {
    {0, TG__GROUP_WAKES, false, 0, false},  {0, TG__GROUP_WAKES, true, 0, false},
    {1, TG__GROUP_WAKES, true, 0, false},   {1, TG__GROUP_SLEEPS, false, 0, false},
    {0, TG__GROUP_SLEEPS, true, 0, false},
};

enum { DEATHS = sizeof deaths / sizeof deaths[0] };

START_TEST(a_death_at_any_store_leaves_all_or_none) {
    struct death death = deaths[_i];
    unsigned points = 0;

    for (death.store = 1;; death.store++, points++) {
        death.is_after = false;
        if (die_and_look(death))
            break;
        death.is_after = true;
        die_and_look(death);
    }
    ck_assert_uint_ge(points, 10);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("group");

    tcase_set_timeout(cases, 240);
    tcase_add_checked_fixture(cases, set_up_ranks, tear_down_card);
    tcase_add_test(cases, all_wake_as_one);
    tcase_add_test(cases, all_sleep_as_one);
    tcase_add_test(cases, who_waits_for_others_holds_nothing);
    tcase_add_test(cases, a_group_waits_for_bytes_in_order);
    tcase_add_test(cases, two_groups_on_the_same_cards_do_not_meet);
    tcase_add_loop_test(cases, who_fails_is_named_to_all, 0, 2);
    tcase_add_test(cases, who_fails_and_exits_is_named_too);
    tcase_add_test(cases, bytes_that_do_not_come_are_named_to_all);
    tcase_add_test(cases, what_no_card_has_is_refused_at_once);
    tcase_add_test(cases, who_does_not_come_is_not_waited_for_for_ever);
    tcase_add_test(cases, bad_parameters_come_to_nothing);
    tcase_add_test(cases, a_name_is_for_one_thing_at_a_time);
    tcase_add_test(cases, the_ninth_group_finds_no_place);
    tcase_add_loop_test(cases, a_stopped_member_holds_nobody_beyond_the_deadline, 3, 9);
    tcase_add_loop_test(cases, a_death_at_any_store_leaves_all_or_none, 0, DEATHS);
    return suite_run("group", cases);
}
