/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that other processes open: content both ways, who keeps it and until when, whoever dies,
 * is stopped, sleeps, or sends what is none. */
#include "memory/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/map.h"
#include "ipcpair.h"

#define CAPACITY (UINT64_C(64) * MIB)

static struct order alloc_in(int place, const char *tag) {
    struct order order = to(ACT_ALLOC_IN, place, ACTOR_SIZE);

    snprintf(order.text, sizeof order.text, "%s", tag);
    return order;
}

static uint64_t open_at(int place, struct tg__token token) {
    return actor_must(&opener, to_open(place, token)).number;
}

static const char *stays(const struct actor *actor) {
    static char text[64];

    snprintf(text, sizeof text, "stays: exported to pid %d: 2;", (int)actor->child.pid);
    return text;
}

/* ---- the plain way --------------------------------------------------------------------------- */

START_TEST(both_see_the_same_bytes) {
    struct tg__token token = make(0, 7);

    open_at(3, token);
    actor_must(&opener, to(ACT_CHECK, 3, 7));
    actor_must(&opener, to(ACT_WRITE, 3, 8));
    actor_must(&exporter, to(ACT_CHECK, 0, 8));
    actor_must(&opener, to(ACT_CLOSE, 3, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 8));
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    actor_wait_for_free(&exporter, CAPACITY);
    end_both();
}
END_TEST

START_TEST(a_block_has_one_token) {
    struct tg__token token = make(0, 1), other = make(1, 2);
    struct tg__token inside = actor_must(&exporter, to(ACT_TOKEN, 0, ACTOR_SIZE - 1)).token;

    ck_assert(memcmp(&token, &inside, sizeof token) == 0);
    ck_assert(memcmp(&token, &other, sizeof token) != 0);
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    inside = actor_must(&exporter, to(ACT_TOKEN, 0, 5)).token;
    ck_assert(memcmp(&token, &inside, sizeof token) == 0);
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    inside = actor_must(&exporter, to(ACT_TOKEN, 0, 9)).token;
    ck_assert(memcmp(&token, &inside, sizeof token) == 0);
    end_both();
}
END_TEST

/* The address comes back with the next block of the size, as a rule; the token never does. */
START_TEST(an_address_that_is_used_again_has_another_token) {
    struct tg__token token = make(0, 1), other;
    bool was_same = false;

    for (int i = 0; i < 20; i++) {
        actor_must(&exporter, to(ACT_FREE, 0, 0));
        other = make(0, 2);
        was_same = was_same || other.addr == token.addr;
        ck_assert(other.generation > token.generation);
        ck_assert_int_eq(actor_do(&opener, to_open(0, token)).status, -ESTALE);
    }
    ck_assert_msg(was_same, "no address came back: the generation alone has not been tried");
    end_both();
}
END_TEST

START_TEST(opens_are_counted_at_one_address) {
    struct tg__token token = make(0, 5);
    uint64_t first = open_at(0, token);

    ck_assert_uint_eq(open_at(1, token), first);
    ck_assert_uint_eq(open_at(2, token), first);
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&opener, to(ACT_CHECK, 2, 5));
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&opener, to(ACT_CHECK, 2, 5));
    actor_must(&opener, to(ACT_CLOSE, 2, 0));
    ck_assert_int_eq(actor_do(&opener, to(ACT_CLOSE, 2, 0)).status, -ENOENT);
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 5));
    end_both();
}
END_TEST

/* Of several that one process has, each ends by itself. */
START_TEST(leases_of_one_opener_end_one_by_one) {
    struct tg__token token = make(0, 5), other = make(1, 6);

    open_at(0, token);
    open_at(1, other);
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&opener));
    actor_must(&opener, to(ACT_CHECK, 1, 6));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&opener, to(ACT_CLOSE, 1, 0));
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, "");
    end_both();
}
END_TEST

START_TEST(what_is_not_for_others_says_so) {
    struct answer answer;

    actor_must(&exporter, alloc_in(0, "packed"));
    answer = actor_do(&exporter, to(ACT_TOKEN, 0, 0));
    ck_assert_int_eq(answer.status, -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(answer.text, "packed"));
    actor_must(&exporter, alloc_in(1, "plain"));
    answer = actor_do(&exporter, to(ACT_TOKEN, 1, 0));
    ck_assert_int_eq(answer.status, -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(answer.text, "not made"));
    ck_assert_int_eq(actor_do(&exporter, to(ACT_TOKEN, 2, 0)).status, -ENOENT);
    end_both();
}
END_TEST

/* As verl sends its weights: one bucket, exported once, filled anew for each part, both sides
 * telling each other when. */
START_TEST(a_bucket_is_filled_many_times) {
    struct tg__token token = make(0, 0);

    open_at(0, token);
    for (uint64_t part = 1; part <= 64; part++) {
        actor_must(&exporter, to(ACT_WRITE, 0, part));
        actor_must(&opener, to(ACT_CHECK, 0, part));
    }
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, "");
    end_both();
}
END_TEST

/* ---- sleep ----------------------------------------------------------------------------------- */

START_TEST(a_leased_block_stays_and_the_rest_sleeps) {
    struct tg__token token = make(0, 1);
    struct answer answer;

    make(1, 2);
    open_at(0, token);
    answer = actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    ck_assert_str_eq(answer.text, stays(&opener));
    ck_assert_uint_eq(answer.number, ACTOR_SIZE);
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, ACTOR_SIZE);
    ck_assert_uint_eq(actor_must(&opener, to(ACT_FREE_BYTES, 0, 0)).number, CAPACITY - ACTOR_SIZE);
    actor_must(&opener, to(ACT_WRITE, 0, 3));
    actor_must(&exporter, to(ACT_CHECK, 0, 3));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 3));
    actor_must(&exporter, to(ACT_CHECK, 1, 2));
    actor_must(&opener, to(ACT_CHECK, 0, 3));
    /* The close has been said when it returns: a sleep after that finds no lease. */
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    answer = actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    ck_assert_str_eq(answer.text, "");
    ck_assert_uint_eq(answer.number, 2 * ACTOR_SIZE);
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 3));
    actor_must(&exporter, to(ACT_CHECK, 1, 2));
    end_both();
}
END_TEST

START_TEST(a_lease_that_ends_in_sleep_ends_at_the_wake) {
    struct tg__token token = make(0, 1);

    make(1, 2);
    open_at(0, token);
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 1));
    open_at(0, token); /* also while the rest sleeps: it is there */
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).number, 2 * ACTOR_SIZE);
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

START_TEST(what_sleeps_is_not_opened) {
    struct tg__token token = make(0, 1);
    struct answer answer;

    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    answer = actor_do(&opener, to_open(0, token));
    ck_assert_int_eq(answer.status, TG_EASLEEP);
    ck_assert_ptr_nonnull(strstr(answer.text, "asleep"));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

/* What others have is not trimmed, and what is trimmed is not for others until it is whole. */
START_TEST(trims_and_leases_exclude_each_other) {
    struct tg__token token = make(0, 1);

    open_at(0, token);
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TRIM, 0, 0)).number, 0);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TRIM, 0, 0)).number, GRANULE);
    ck_assert_int_eq(actor_do(&opener, to_open(0, token)).status, -ENOTSUP);
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    open_at(0, token);
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    end_both();
}
END_TEST

/* ---- frees, deaths, stops -------------------------------------------------------------------- */

/* All of its threads. */
static void stop(const struct actor *actor) {
    int status;

    ck_assert_int_eq(kill(actor->child.pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(actor->child.pid, &status, WUNTRACED), actor->child.pid);
    ck_assert(WIFSTOPPED(status));
}

START_TEST(a_leased_block_that_is_freed_goes_with_its_last_lease) {
    struct tg__token token = make(0, 4);
    struct actor third = actor_start(OPTIONS);

    open_at(0, token);
    actor_must(&third, to_open(0, token));
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    ck_assert_int_eq(actor_do(&exporter, to(ACT_FREE, 0, 0)).status, -EINVAL);
    ck_assert_int_eq(actor_do(&exporter, to(ACT_TOKEN, 0, 0)).status, -ENOENT);
    actor_must(&opener, to(ACT_CHECK, 0, 4));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    ck_assert_int_eq(actor_do(&opener, to_open(0, token)).status, -ESTALE);
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&third));
    actor_must(&third, to(ACT_CHECK, 0, 4));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, ACTOR_SIZE);
    actor_must(&third, to(ACT_CLOSE, 0, 0));
    actor_wait_for_free(&exporter, CAPACITY);
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, 0);
    actor_end(&third);
    end_both();
}
END_TEST

START_TEST(a_dead_opener_has_no_lease) {
    struct tg__token token = make(0, 4), other = make(1, 5);

    open_at(0, token);
    open_at(1, other);
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    actor_kill(&opener);
    actor_wait_for_free(&exporter, CAPACITY - ACTOR_SIZE);
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, "");
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 1, 5));
    actor_end(&exporter);
}
END_TEST

START_TEST(a_dead_exporter_leaves_the_opener_its_bytes) {
    struct tg__token token = make(0, 4), other = make(1, 5);

    open_at(0, token);
    actor_kill(&exporter);
    actor_must(&opener, to(ACT_CHECK, 0, 4));
    actor_must(&opener, to(ACT_WRITE, 0, 6));
    actor_must(&opener, to(ACT_CHECK, 0, 6));
    ck_assert_int_eq(actor_do(&opener, to_open(1, other)).status, -ESTALE);
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    ck_assert_int_eq(actor_do(&opener, to_open(0, token)).status, -ESTALE);
    actor_wait_for_free(&opener, CAPACITY);
    actor_end(&opener);
}
END_TEST

START_TEST(a_stopped_exporter_is_waited_for_until_the_deadline) {
    struct tg__token token = make(0, 4), other = make(1, 5);
    struct answer answer;

    open_at(0, token);
    stop(&exporter);
    actor_must(&opener, to(ACT_HASTE, 0, 300));
    answer = actor_do(&opener, to_open(1, other));
    ck_assert_int_eq(answer.status, TG_EBUSY);
    ck_assert_ptr_nonnull(strstr(answer.text, "does not answer"));
    ck_assert_uint_eq(open_at(2, token), open_at(0, token)); /* what is open needs no answer */
    for (int i = 0; i < 3; i++) /* and no close waits for one */
        actor_must(&opener, to(ACT_CLOSE, 0, 0));
    ck_assert_int_eq(actor_do(&opener, to_open(1, other)).status, TG_EBUSY);
    kill(exporter.child.pid, SIGCONT);
    actor_must(&opener, to(ACT_HASTE, 0, 60000));
    open_at(1, other);
    actor_must(&opener, to(ACT_CHECK, 1, 5));
    actor_must(&opener, to(ACT_CLOSE, 1, 0));
    /* No lease is left of what was asked for and given up. */
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, "");
    end_both();
}
END_TEST

/* Threads take turns at asking, and each has its own deadline. */
START_TEST(a_crowd_waits_no_longer_than_one) {
    struct tg__token token = make(0, 4);
    struct answer answer;

    stop(&exporter);
    actor_must(&opener, to(ACT_HASTE, 0, 3000));
    answer = actor_do(&opener, (struct order){.act = ACT_CROWD, .token = token});
    ck_assert_int_eq(answer.status, TG_EBUSY);
    ck_assert_uint_lt(answer.number, (ACTOR_CROWD - 1) * 3000);
    kill(exporter.child.pid, SIGCONT);
    end_both();
}
END_TEST

/* The connection goes on for what is open, and an answer that comes late lends nothing. */
START_TEST(what_was_given_up_is_nobodys_while_another_block_is_open) {
    struct tg__token token = make(0, 4), other = make(1, 5);

    open_at(0, token);
    stop(&exporter);
    actor_must(&opener, to(ACT_HASTE, 0, 300));
    ck_assert_int_eq(actor_do(&opener, to_open(1, other)).status, TG_EBUSY);
    kill(exporter.child.pid, SIGCONT);
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, ACTOR_SIZE);
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_FREE, 1, 0));
    for (int i = 0; i < 6000 && actor_must(&opener, to(ACT_UNREAD, 0, 0)).number > 0; i++) {
        actor_must(&opener, to(ACT_ALLOC, 2, ACTOR_SIZE));
        actor_must(&opener, to(ACT_FREE, 2, 0));
    }
    ck_assert_uint_eq(actor_must(&opener, to(ACT_UNREAD, 0, 0)).number, 0);
    actor_must(&opener, to(ACT_CHECK, 0, 4));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    end_both();
}
END_TEST

START_TEST(a_stopped_opener_holds_up_nobody) {
    struct tg__token token = make(0, 4);
    struct actor third = actor_start(OPTIONS);

    open_at(0, token);
    stop(&opener);
    actor_must(&third, to_open(0, token));
    actor_must(&third, to(ACT_CHECK, 0, 4));
    actor_must(&third, to(ACT_CLOSE, 0, 0));
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&opener));
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    kill(opener.child.pid, SIGCONT);
    actor_must(&opener, to(ACT_CHECK, 0, 4));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_wait_for_free(&exporter, CAPACITY);
    actor_end(&third);
    end_both();
}
END_TEST

/* Forked children keep nothing alive: not the opener's leases, not the exporter's agent. */
START_TEST(forked_children_have_none_of_it) {
    struct tg__token token = make(0, 4), other = make(1, 5);
    pid_t of_exporter, of_opener;

    open_at(0, token);
    of_exporter = (pid_t)actor_must(&exporter, to(ACT_CHILD, 0, 0)).number;
    of_opener = (pid_t)actor_must(&opener, to(ACT_CHILD, 0, 0)).number;
    actor_must(&exporter, to(ACT_FREE, 0, 0));
    actor_kill(&opener);
    actor_wait_for_free(&exporter, CAPACITY - ACTOR_SIZE);
    kill(of_opener, SIGKILL);
    actor_kill(&exporter);
    opener = actor_start(OPTIONS);
    ck_assert_int_eq(actor_do(&opener, to_open(0, other)).status, -ESTALE);
    actor_wait_for_free(&opener, CAPACITY);
    kill(of_exporter, SIGKILL);
    actor_end(&opener);
}
END_TEST

static void wait_for_byte(struct actor *actor, uint64_t byte) {
    for (int i = 0; i < 6000; i++) {
        if (actor_must(actor, to(ACT_BYTE, 0, 0)).number == byte)
            return;
        poll(NULL, 0, 10);
    }
    ck_abort_msg("the work never ends");
}

/* The last close unmaps behind the work that was given before, which would fault, and ends the
 * lease then: with the next call that comes by. */
START_TEST(a_close_leaves_work_its_memory) {
    struct actor giver = actor_start("capacity=64MiB,lag=30");
    struct actor worker = actor_start("capacity=64MiB,lag=30");
    struct tg__token token;
    bool is_leased = true;

    actor_must(&giver, to(ACT_ALLOC, 0, ACTOR_SIZE));
    token = actor_must(&giver, to(ACT_TOKEN, 0, 0)).token;
    actor_must(&worker, to_open(0, token));
    actor_must(&worker, to(ACT_LAG, 0, 9));
    wait_for_byte(&giver, 9);
    ck_assert_int_eq(actor_do(&worker, to(ACT_CLOSE, 0, 0)).status, -ENOENT);
    for (int i = 0; i < 6000 && is_leased; i++) {
        actor_must(&worker, to(ACT_ALLOC, 2, ACTOR_SIZE));
        actor_must(&worker, to(ACT_FREE, 2, 0));
        is_leased = actor_must(&giver, to(ACT_SLEEP, 0, 0)).text[0] != '\0';
        actor_must(&giver, to(ACT_WAKE, 0, 0));
    }
    ck_assert(!is_leased);
    actor_must(&worker, to_open(0, token));
    actor_must(&worker, to(ACT_LAG, 0, 10));
    actor_must(&worker, to_open(0, token)); /* what is about to go is open again */
    wait_for_byte(&giver, 10);
    ck_assert_uint_eq(actor_must(&worker, to(ACT_BYTE, 0, 0)).number, 10);
    actor_must(&worker, to(ACT_CLOSE, 0, 0));
    actor_end(&worker);
    actor_end(&giver);
    end_both();
}
END_TEST

/* Whose device is through already need not come by again for the exporter to have its block. */
START_TEST(a_close_behind_all_work_is_seen_at_once) {
    struct actor worker = actor_start("capacity=64MiB,hang=1");
    struct tg__token token = make(0, 4), other = make(1, 5);

    actor_must(&worker, to_open(0, token));
    actor_must(&worker, to_open(1, other));
    actor_must(&worker, to(ACT_LAG, 1, 9));
    actor_must(&worker, to(ACT_CLOSE_IDLE, 0, 0));
    ck_assert_int_eq(actor_do(&worker, to(ACT_CLOSE_IDLE, 0, 0)).status, -ENOENT);
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&worker));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, ACTOR_SIZE);
    actor_kill(&worker);
    end_both();
}
END_TEST

/* ---- what is hostile ------------------------------------------------------------------------- */

START_TEST(no_bit_of_a_token_may_be_another) {
    struct tg__token token = make(0, 1), wrong;
    uint64_t random[8];

    ck_assert(tg__token_is_whole(&token));
    for (int bit = 0; bit < TG_IPC_TOKEN_BYTES * 8; bit++) {
        unsigned char bytes[TG_IPC_TOKEN_BYTES];
        void *addr;

        memcpy(&wrong, &token, sizeof wrong);
        ((unsigned char *)&wrong)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        ck_assert(!tg__token_is_whole(&wrong));
        memcpy(bytes, &wrong, sizeof bytes);
        ck_assert_int_eq(tg_ipc_open(0, bytes, &addr), -ENOENT);
    }
    for (uint64_t i = 0; i < 10000; i++) {
        for (uint64_t j = 0; j < 8; j++)
            random[j] = tg__hash_u64(i * 8 + j);
        memcpy(&wrong, random, sizeof wrong);
        ck_assert(!tg__token_is_whole(&wrong));
        memcpy(&wrong, TG_IPC_MAGIC, 8);
        ck_assert(!tg__token_is_whole(&wrong));
    }
    end_both();
}
END_TEST

/* Whoever can write a whole token learns only that there is no such block. */
START_TEST(forged_tokens_open_nothing) {
    struct tg__token token = make(0, 1), forged[5];

    for (int i = 0; i < 5; i++)
        forged[i] = token;
    forged[0].agent ^= 1;
    forged[1].generation++;
    forged[2].addr += GRANULE + ACTOR_SIZE;
    forged[3].size_bytes *= 2;
    forged[4].addr = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        struct answer answer;

        tg__token_seal(&forged[i]);
        answer = actor_do(&opener, to_open(i, forged[i]));
        ck_assert_int_ne(answer.status, 0);
        ck_assert_str_ne(answer.text, "");
    }
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

START_TEST(garbage_ends_its_connection_alone) {
    struct tg__token token = make(0, 1);
    struct tg__request request = {.kind = 7, .token = token};
    char garbage[4096] = "garbage";
    static const size_t sizes[] = {0, 1, 64, sizeof request - 1, sizeof request, 4096};

    open_at(0, token);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int fd = actor_connect(&token);

        ck_assert_int_eq(send(fd, garbage, sizes[i], 0), (int)sizes[i]);
        actor_expect_end(fd);
    }
    for (uint32_t kind = 0; kind < 5; kind++) {
        int fd = actor_connect(&token);

        request.kind = kind;
        if (kind == TG__REQUEST_CLOSE || kind == TG__REQUEST_OPEN)
            request.token.generation ^= 77; /* of no block: answered, or passed over */
        else
            request.token = token;
        tg__token_seal(&request.token);
        ck_assert_int_eq(send(fd, &request, sizeof request, 0), (int)sizeof request);
        if (kind == TG__REQUEST_CLOSE || kind == TG__REQUEST_OPEN)
            close(fd);
        else
            actor_expect_end(fd);
    }
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&opener));
    end_both();
}
END_TEST

/* One that asks again and again and reads no answer is let go when its queue is full. */
START_TEST(who_reads_no_answers_is_let_go) {
    struct tg__token token = make(0, 1);
    struct tg__request request = {.kind = TG__REQUEST_OPEN, .token = token};
    int fd = actor_connect(&token), sent = 0;

    request.token.generation += 1000;
    tg__token_seal(&request.token);
    while (send(fd, &request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request)
        ck_assert_int_lt(++sent, 10000000);
    close(fd);
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

/* A thousand that say nothing cost the exporter some descriptors, and its openers no failure. */
START_TEST(a_thousand_strangers_keep_nobody_out) {
    enum { STRANGERS = 1000 };
    struct tg__token token = make(0, 1);
    uint64_t before = actor_must(&exporter, to(ACT_DESCRIPTORS, 0, 0)).number;
    int fds[STRANGERS];

    actor_must(&opener, to(ACT_HASTE, 0, 60000));
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = actor_connect(&token);
        if (i % 200 == 150) {
            open_at(0, token);
            actor_must(&opener, to(ACT_CHECK, 0, 1));
            actor_must(&opener, to(ACT_CLOSE, 0, 0));
        }
    }
    open_at(0, token);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    ck_assert_uint_le(actor_must(&exporter, to(ACT_DESCRIPTORS, 0, 0)).number, before + 100);
    ck_assert_str_eq(actor_must(&exporter, to(ACT_SLEEP, 0, 0)).text, stays(&opener));
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    end_both();
}
END_TEST

/* ---- saying so ------------------------------------------------------------------------------- */

static bool has_said(const struct actor *actor, const char *words) {
    char text[4096];
    int fd = open(actor->err, O_RDONLY | O_CLOEXEC);
    ssize_t length = read(fd, text, sizeof text - 1);

    close(fd);
    text[length < 0 ? 0 : length] = '\0';
    return strstr(text, words) != NULL;
}

START_TEST(a_handle_that_nobody_opens_is_told_once) {
    actor_must(&exporter, to(ACT_PATIENCE, 0, 1));
    make(0, 1);
    for (int i = 0; i < 6000 && !has_said(&exporter, "nobody has opened"); i++)
        poll(NULL, 0, 10);
    ck_assert(has_said(&exporter, "tidegate: a handle of this process's memory"));
    end_both();
}
END_TEST

/* Its thread waits for who reads stderr; the program does not. */
START_TEST(a_warning_that_nobody_reads_holds_up_no_sleep) {
    actor_must(&exporter, to(ACT_MUTE, 0, 0));
    actor_must(&exporter, to(ACT_PATIENCE, 0, 1));
    make(0, 1);
    for (int i = 0; i < 50; i++) {
        actor_must(&exporter, to(ACT_SLEEP, 0, 0));
        actor_must(&exporter, to(ACT_WAKE, 0, 0));
        poll(NULL, 0, 10);
    }
    end_both();
}
END_TEST

START_TEST(a_handle_that_is_opened_is_no_matter) {
    struct tg__token token;

    actor_must(&exporter, to(ACT_PATIENCE, 0, 60000));
    token = make(0, 1);
    open_at(0, token);
    actor_must(&exporter, to(ACT_PATIENCE, 0, 1));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    open_at(0, token); /* the thread has come by */
    ck_assert(!has_said(&exporter, "tidegate"));
    end_both();
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("ipc");

    tcase_add_checked_fixture(cases, set_up_both, tear_down);
    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, both_see_the_same_bytes);
    tcase_add_test(cases, a_block_has_one_token);
    tcase_add_test(cases, an_address_that_is_used_again_has_another_token);
    tcase_add_test(cases, opens_are_counted_at_one_address);
    tcase_add_test(cases, leases_of_one_opener_end_one_by_one);
    tcase_add_test(cases, what_is_not_for_others_says_so);
    tcase_add_test(cases, a_bucket_is_filled_many_times);
    tcase_add_test(cases, a_leased_block_stays_and_the_rest_sleeps);
    tcase_add_test(cases, a_lease_that_ends_in_sleep_ends_at_the_wake);
    tcase_add_test(cases, what_sleeps_is_not_opened);
    tcase_add_test(cases, trims_and_leases_exclude_each_other);
    tcase_add_test(cases, a_leased_block_that_is_freed_goes_with_its_last_lease);
    tcase_add_test(cases, a_dead_opener_has_no_lease);
    tcase_add_test(cases, a_dead_exporter_leaves_the_opener_its_bytes);
    tcase_add_test(cases, a_stopped_exporter_is_waited_for_until_the_deadline);
    tcase_add_test(cases, a_crowd_waits_no_longer_than_one);
    tcase_add_test(cases, what_was_given_up_is_nobodys_while_another_block_is_open);
    tcase_add_test(cases, a_stopped_opener_holds_up_nobody);
    tcase_add_test(cases, forked_children_have_none_of_it);
    tcase_add_test(cases, a_close_leaves_work_its_memory);
    tcase_add_test(cases, a_close_behind_all_work_is_seen_at_once);
    tcase_add_test(cases, no_bit_of_a_token_may_be_another);
    tcase_add_test(cases, forged_tokens_open_nothing);
    tcase_add_test(cases, garbage_ends_its_connection_alone);
    tcase_add_test(cases, who_reads_no_answers_is_let_go);
    tcase_add_test(cases, a_thousand_strangers_keep_nobody_out);
    tcase_add_test(cases, a_handle_that_nobody_opens_is_told_once);
    tcase_add_test(cases, a_warning_that_nobody_reads_holds_up_no_sleep);
    tcase_add_test(cases, a_handle_that_is_opened_is_no_matter);
    return suite_run("ipc", cases);
}
