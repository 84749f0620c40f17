/* SPDX-License-Identifier: Apache-2.0 */
/* Who may have memory: one row a case, then every small situation against a plain model, then long
 * games in which somebody must always be able to go on. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "ledger/admit.h"
#include "suite.h"

#define NOW UINT64_C(5000000000)
#define SOON (NOW + 1000)
#define LATE (NOW - TG__ADMIT_LATE_NS - 1)
#define NOBODY UINT32_MAX
#define HUGE_BYTES UINT64_MAX

enum { CLAIMS_MAX = 5, ORPHANS_MAX = 2 };

/* Claim 0 asks; the others' waits have deadline SOON and were seen now unless they say otherwise.
 * Bytes are small numbers. foreign_bytes are used by nobody of ours. */
struct row {
    const char *name;
    enum tg__admit_answer answer;
    uint64_t total_bytes, foreign_bytes;
    uint32_t other;
    uint64_t available_bytes;
    struct tg__claim claims[CLAIMS_MAX];
    struct tg__orphans orphans[ORPHANS_MAX];
    uint64_t asked_ns; /* 0: NOW */
    int must_not_wait;
    uint64_t created_bytes;
    uint64_t given_bytes; /* declared, but given back since */
};

#define HOLDS(bytes) .occupied_bytes = (bytes)
#define WANTS(bytes, since) .wait_bytes = (bytes), .arrival = (since)
#define DECLARES(bytes) .declared_bytes = (bytes)
#define STARTS .is_starting = true
#define DEAD(bytes) {.size_bytes = (bytes), .since_ns = NOW - 1000}

static const struct row rows[] = {
    {"alone", TG__ADMIT_GRANT, 100, 0, NOBODY, 100, .claims = {{WANTS(100, 9)}}},
    {"one byte too many for ever", TG__ADMIT_NEVER, 100, 0, NOBODY, 100,
     .claims = {{WANTS(101, 9)}}},
    {"beside what it holds itself", TG__ADMIT_NEVER, 100, 0, NOBODY, 70,
     .claims = {{HOLDS(30), WANTS(71, 9)}}},
    {"as much as is left", TG__ADMIT_GRANT, 100, 0, NOBODY, 70,
     .claims = {{HOLDS(30), WANTS(70, 9)}}},
    {"a holder that may give", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{WANTS(41, 9)}, {HOLDS(60)}}},
    {"the largest holder is named", TG__ADMIT_WAIT, 100, 0, 2, 10,
     .claims = {{WANTS(41, 9)}, {HOLDS(40)}, {HOLDS(50)}}},
    {"reserved counts as occupied does", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{WANTS(41, 9)}, {.reserved_bytes = 60}}},
    {"no device", TG__ADMIT_NEVER, 0, 0, NOBODY, 0, .claims = {{WANTS(1, 9)}}},

    /* The two views. */
    {"the driver sees a foreign program", TG__ADMIT_WAIT, 100, 30, NOBODY, 70,
     .claims = {{WANTS(71, 9)}}},
    {"and what is left beside it", TG__ADMIT_GRANT, 100, 30, NOBODY, 70,
     .claims = {{WANTS(70, 9)}}},
    {"what is reserved is not yet in the driver's figure", TG__ADMIT_WAIT, 100, 30, 1, 20,
     .claims = {{WANTS(21, 9)}, {.reserved_bytes = 50}}},
    {"nor what was created since it was asked", TG__ADMIT_WAIT, 100, 0, 1, 20,
     .claims = {{WANTS(21, 9)}, {HOLDS(50)}}, .created_bytes = 30},
    {"which shows no orphans gone", TG__ADMIT_WAIT, 100, 30, 1, 0,
     .claims = {{WANTS(1, 9)}, {HOLDS(70)}}, {DEAD(30)}, .created_bytes = 70},

    /* Order of arrival. */
    {"the earlier one first", TG__ADMIT_WAIT, 100, 0, 1, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3)}, {HOLDS(50)}}},
    {"the first of the earlier ones is named", TG__ADMIT_WAIT, 100, 0, 2, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3)}, {WANTS(60, 2)}, {HOLDS(50)}}},
    {"the later one does not keep it", TG__ADMIT_GRANT, 100, 0, NOBODY, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 11)}, {HOLDS(50)}}},
    {"a late waiter is passed", TG__ADMIT_GRANT, 100, 0, NOBODY, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3), .seen_ns = LATE}, {HOLDS(50)}}},
    {"one seen in the future is no better", TG__ADMIT_GRANT, 100, 0, NOBODY, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3), .seen_ns = HUGE_BYTES}, {HOLDS(50)}}},
    {"one seen a moment ago is not late", TG__ADMIT_WAIT, 100, 0, 1, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3), .seen_ns = LATE + 1}, {HOLDS(50)}}},
    {"one whose time is over is passed", TG__ADMIT_GRANT, 100, 0, NOBODY, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3), .deadline_ns = NOW}, {HOLDS(50)}}},
    {"a holder passes who needs its bytes", TG__ADMIT_GRANT, 100, 0, NOBODY, 40,
     .claims = {{HOLDS(60), WANTS(10, 9)}, {WANTS(60, 3)}}},
    {"not who can be served by others", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{HOLDS(30), WANTS(10, 9)}, {WANTS(60, 3)}, {HOLDS(30)}}},
    {"two holders that wait do not wait for each other's giving", TG__ADMIT_GRANT, 100, 0, NOBODY,
     20, .claims = {{HOLDS(40), WANTS(10, 9)}, {WANTS(50, 3)}, {HOLDS(40), WANTS(10, 12)}}},
    {"who holds nothing does not pass for that", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{WANTS(10, 9)}, {WANTS(50, 3)}, {HOLDS(60), WANTS(30, 12)}}},
    {"nor keeps a holder behind it meanwhile", TG__ADMIT_GRANT, 100, 0, NOBODY, 40,
     .claims = {{HOLDS(60), WANTS(30, 12)}, {WANTS(50, 3)}, {WANTS(10, 9)}}},
    {"who holds nothing passes whom foreign programs keep", TG__ADMIT_GRANT, 100, 60, NOBODY, 40,
     .claims = {{WANTS(10, 9)}, {WANTS(50, 3)}}},
    {"who must not wait gives way to who can be served now", TG__ADMIT_WAIT, 100, 0, 1, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(50, 3)}, {HOLDS(50)}}, .must_not_wait = 1},
    {"but not to who cannot", TG__ADMIT_GRANT, 100, 0, NOBODY, 50,
     .claims = {{WANTS(10, 9)}, {WANTS(51, 3)}, {HOLDS(50)}}, .must_not_wait = 1},

    /* Cycles. */
    {"two wait for each other", TG__ADMIT_CYCLE, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(30, 9)}, {HOLDS(40), WANTS(30, 3)}}},
    {"three in a ring", TG__ADMIT_CYCLE, 90, 0, 2, 0,
     .claims = {{HOLDS(30), WANTS(10, 9)}, {HOLDS(20), WANTS(10, 3)}, {HOLDS(40), WANTS(10, 5)}}},
    {"the latest fails, not the first", TG__ADMIT_WAIT, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(30, 3)}, {HOLDS(40), WANTS(30, 9)}}},
    {"no cycle where somebody who does not wait holds enough", TG__ADMIT_WAIT, 100, 0, 1, 10,
     .claims = {{HOLDS(30), WANTS(20, 9)}, {HOLDS(30), WANTS(20, 3)}, {HOLDS(30)}}},
    {"a cycle although somebody holds a little", TG__ADMIT_CYCLE, 100, 0, 1, 10,
     .claims = {{HOLDS(40), WANTS(30, 9)}, {HOLDS(40), WANTS(30, 3)}, {HOLDS(10)}}},
    {"no cycle where one can go on and then give", TG__ADMIT_WAIT, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(60, 9)}, {HOLDS(40), WANTS(20, 3)}}},
    {"who waits past its deadline is in no cycle", TG__ADMIT_WAIT, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(30, 9)}, {HOLDS(40), WANTS(30, 3), .deadline_ns = NOW}}},
    {"a stopped one is", TG__ADMIT_CYCLE, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(30, 9)}, {HOLDS(40), WANTS(30, 3), .seen_ns = LATE}}},
    {"who must not wait is in none", TG__ADMIT_WAIT, 100, 0, 1, 20,
     .claims = {{HOLDS(40), WANTS(30, 9)}, {HOLDS(40), WANTS(30, 3)}}, .must_not_wait = 1},
    {"foreign programs close no cycle: they may go", TG__ADMIT_WAIT, 100, 50, 1, 10,
     .claims = {{HOLDS(20), WANTS(30, 9)}, {HOLDS(20), WANTS(50, 3)}}},

    /* The dead. */
    {"orphans count", TG__ADMIT_WAIT, 100, 60, NOBODY, 40, .claims = {{WANTS(41, 9)}}, {DEAD(60)}},
    {"as far as the driver still shows them", TG__ADMIT_GRANT, 100, 20, NOBODY, 80,
     .claims = {{WANTS(80, 9)}}, {DEAD(60)}},
    {"not what was there before", TG__ADMIT_GRANT, 100, 20, NOBODY, 80, .claims = {{WANTS(80, 9)}},
     {{.size_bytes = 60, .since_ns = NOW - 1000, .unattributed_before_bytes = 20}}},
    {"whole, for a figure from before", TG__ADMIT_WAIT, 100, 0, NOBODY, 40,
     .claims = {{WANTS(41, 9)}},
     {DEAD(60)}, .asked_ns = NOW - 1001},
    {"in the driver's view too", TG__ADMIT_WAIT, 100, 30, NOBODY, 10, .claims = {{WANTS(11, 9)}},
     {DEAD(60)}, .asked_ns = NOW - 1001},
    {"after two seconds a figure from before is enough", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(100, 9)}}, {{.size_bytes = 60, .since_ns = NOW - TG__ADMIT_ORPHAN_NS}},
     .asked_ns = NOW - TG__ADMIT_ORPHAN_NS - 1},
    {"a death in the future was before the last start", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(100, 9)}}, {{.size_bytes = 60, .since_ns = HUGE_BYTES}}},
    {"two deaths share what is used", TG__ADMIT_WAIT, 100, 70, NOBODY, 30,
     .claims = {{WANTS(31, 9)}},
     {DEAD(60), DEAD(60)}},

    /* What another allocator holds. */
    {"declared is held", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{WANTS(41, 9)}, {DECLARES(60)}}},
    {"and once in the driver's figure", TG__ADMIT_GRANT, 100, 0, NOBODY, 40,
     .claims = {{WANTS(40, 9)}, {DECLARES(60)}}},
    {"an old figure keeps nobody from what is free", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(100, 9)}, {DECLARES(60)}}, .given_bytes = 60},
    {"nor itself", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{DECLARES(60), WANTS(100, 9)}}, .given_bytes = 60},
    {"never beside what it declares itself", TG__ADMIT_NEVER, 100, 0, NOBODY, 40,
     .claims = {{DECLARES(60), WANTS(41, 9)}}},
    {"who declares may give it to an earlier one", TG__ADMIT_WAIT, 100, 0, 1, 40,
     .claims = {{WANTS(10, 9)}, {WANTS(60, 3)}, {DECLARES(60)}}},
    {"two that wait with what they declare", TG__ADMIT_CYCLE, 100, 0, 1, 20,
     .claims = {{DECLARES(40), WANTS(30, 9)}, {DECLARES(40), WANTS(30, 3)}}},
    {"declared bytes are not the dead's", TG__ADMIT_GRANT, 100, 0, NOBODY, 70,
     .claims = {{WANTS(70, 9)}, {DECLARES(30)}}, {DEAD(60)}},

    /* Who starts up. */
    {"held up by a start", TG__ADMIT_WAIT, 100, 0, 1, 100, .claims = {{WANTS(10, 9)}, {STARTS}}},
    {"the one that starts is named, not who holds most", TG__ADMIT_WAIT, 100, 0, 2, 40,
     .claims = {{WANTS(50, 9)}, {HOLDS(60)}, {STARTS}}},
    {"not by its own", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(100, 9), STARTS}}},
    {"two that start do not hold each other up", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(100, 9), STARTS}, {STARTS}}},
    {"who must not wait is not held up", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(10, 9)}, {STARTS}}, .must_not_wait = 1},
    {"nor by who is", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(10, 9)}, {WANTS(100, 3)}, {STARTS}}, .must_not_wait = 1},
    {"who starts passes who is held up", TG__ADMIT_GRANT, 100, 0, NOBODY, 100,
     .claims = {{WANTS(10, 9), STARTS}, {WANTS(100, 3)}}},
    {"and lets an earlier one go that starts too", TG__ADMIT_WAIT, 100, 0, 1, 100,
     .claims = {{WANTS(10, 9), STARTS}, {WANTS(100, 3), STARTS}}},
    {"never is said even then", TG__ADMIT_NEVER, 100, 0, NOBODY, 100,
     .claims = {{WANTS(101, 9)}, {STARTS}}},

    /* Any number may come from a file. */
    {"huge request", TG__ADMIT_NEVER, 100, 0, NOBODY, 100, .claims = {{WANTS(HUGE_BYTES, 9)}}},
    {"huge holdings", TG__ADMIT_WAIT, 100, 0, 1, 0,
     .claims = {{WANTS(10, 9)}, {HOLDS(HUGE_BYTES), .reserved_bytes = HUGE_BYTES},
                {HOLDS(HUGE_BYTES)}}},
    {"huge holdings of its own", TG__ADMIT_NEVER, 100, 0, NOBODY, 0,
     .claims = {{HOLDS(HUGE_BYTES), .reserved_bytes = 2, WANTS(10, 9)}}},
    {"huge declarations", TG__ADMIT_WAIT, 100, 100, 1, 0,
     .claims = {{WANTS(10, 9)}, {HOLDS(HUGE_BYTES), DECLARES(HUGE_BYTES)}}},
    {"huge orphans", TG__ADMIT_WAIT, 100, 0, NOBODY, 0, .claims = {{WANTS(10, 9)}},
     {DEAD(HUGE_BYTES), DEAD(HUGE_BYTES)}, .asked_ns = 1},
    {"a huge device", TG__ADMIT_GRANT, HUGE_BYTES, 0, NOBODY, HUGE_BYTES - 60,
     .claims = {{WANTS(HUGE_BYTES - 60, 9)}, {HOLDS(60)}}},
};

/* The rest of a row: what it leaves out, and the driver's figure. */
static struct tg__admit_input input_of(const struct row *row, struct tg__claim *claims) {
    struct tg__admit_input input = {.now_ns = NOW,
                                    .total_bytes = row->total_bytes,
                                    .asked_ns = row->asked_ns == 0 ? NOW : row->asked_ns,
                                    .claims = claims,
                                    .may_wait = !row->must_not_wait,
                                    .created_bytes = row->created_bytes,
                                    .orphans = row->orphans};
    uint64_t used = row->foreign_bytes;

    memcpy(claims, row->claims, sizeof row->claims);
    for (uint32_t i = 0; i < CLAIMS_MAX; i++) {
        struct tg__claim *claim = &claims[i];
        if (claim->wait_bytes == 0 && claim->occupied_bytes == 0 && claim->reserved_bytes == 0 &&
            claim->declared_bytes == 0 && !claim->is_starting)
            break;
        claim->deadline_ns = claim->deadline_ns == 0 ? SOON : claim->deadline_ns;
        claim->seen_ns = claim->seen_ns == 0 ? NOW : claim->seen_ns;
        used += claim->occupied_bytes + claim->declared_bytes;
        input.claim_count = i + 1;
    }
    while (input.orphan_count < ORPHANS_MAX && row->orphans[input.orphan_count].size_bytes > 0)
        input.orphan_count++;
    used -= row->given_bytes;
    input.free_bytes = used < row->total_bytes ? row->total_bytes - used : 0;
    return input;
}

START_TEST(each_row) {
    const struct row *row = &rows[_i];
    struct tg__claim claims[CLAIMS_MAX];
    struct tg__admit_input input = input_of(row, claims);
    struct tg__admit_output output;

    tg__admit(&input, &output);
    ck_assert_msg(output.answer == row->answer, "%s: answer %d", row->name, (int)output.answer);
    ck_assert_msg(output.available_bytes == row->available_bytes, "%s: %llu available", row->name,
                  (unsigned long long)output.available_bytes);
    ck_assert_msg(output.other == row->other, "%s: other %u", row->name, output.other);
}
END_TEST

START_TEST(what_is_used_is_named) {
    struct tg__claim claim = {.occupied_bytes = 20, .reserved_bytes = 5, .wait_bytes = 1};
    struct tg__orphans orphans = {.size_bytes = 30, .since_ns = NOW - 1};
    struct tg__admit_input input = {.now_ns = NOW, .asked_ns = NOW, .total_bytes = 100,
                                    .free_bytes = 10, .claims = &claim, .claim_count = 1,
                                    .orphans = &orphans, .orphan_count = 1};
    struct tg__admit_output output;

    tg__admit(&input, &output);
    ck_assert_uint_eq(output.orphaned_bytes, 30);
    ck_assert_uint_eq(output.unattributed_bytes, 40);
    ck_assert_uint_eq(output.available_bytes, 5);
}
END_TEST

/* ---- every small situation, against a plain model -------------------------------------------- */

enum { SMALL = 3, SMALL_TOTAL = 5 };

static uint64_t holds(const struct tg__claim *claim) {
    return claim->occupied_bytes + claim->reserved_bytes;
}

/* Whether there is an order in which the waiters, each giving what it holds when it was served, get
 * to serving `who`. */
static bool comes_to(const struct tg__admit_input *in, uint64_t room, uint32_t who) {
    static const uint32_t orders[6][SMALL] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                              {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int k = 0; k < 6; k++) {
        uint64_t now = room;
        for (int i = 0; i < SMALL; i++) {
            const struct tg__claim *claim = &in->claims[orders[k][i]];
            if (claim->wait_bytes == 0)
                continue;
            if (claim->wait_bytes > now)
                break;
            if (orders[k][i] == who)
                return true;
            now += holds(claim);
        }
    }
    return false;
}

static bool waits_before(const struct tg__admit_input *in, uint32_t i, uint32_t than) {
    return i != than && in->claims[i].wait_bytes > 0 &&
           in->claims[i].arrival < in->claims[than].arrival;
}

/* It would go, if those who do not wait gave all; only then a holder has to let it. */
static bool would_go(const struct tg__admit_input *in, uint64_t reach, uint32_t who) {
    if (in->claims[who].wait_bytes > reach)
        return false;
    for (uint32_t i = 0; i < SMALL; i++) {
        if (holds(&in->claims[who]) == 0 && i != in->self && waits_before(in, i, who) &&
            in->claims[i].wait_bytes > reach && comes_to(in, reach, i))
            return false;
    }
    return true;
}

static enum tg__admit_answer plain_answer(const struct tg__admit_input *in) {
    const struct tg__claim *self = &in->claims[in->self];
    uint64_t all = 0, waiting = 0;
    bool is_last = true;

    for (uint32_t i = 0; i < SMALL; i++) {
        all += holds(&in->claims[i]);
        waiting += in->claims[i].wait_bytes > 0 ? holds(&in->claims[i]) : 0;
    }
    if (self->wait_bytes + holds(self) > in->total_bytes)
        return TG__ADMIT_NEVER;
    if (self->wait_bytes > in->free_bytes) {
        for (uint32_t i = 0; i < SMALL; i++)
            is_last &= in->claims[i].wait_bytes == 0 || !waits_before(in, in->self, i) ||
                       comes_to(in, in->total_bytes - waiting, i);
        return is_last && !comes_to(in, in->total_bytes - waiting, in->self) ? TG__ADMIT_CYCLE
                                                                             : TG__ADMIT_WAIT;
    }
    for (uint32_t i = 0; i < SMALL; i++) {
        uint64_t reach = in->free_bytes + all - waiting;
        if (waits_before(in, i, in->self) &&
            (holds(self) > 0 ? would_go(in, reach, i) : comes_to(in, reach, i)))
            return TG__ADMIT_WAIT;
    }
    return TG__ADMIT_GRANT;
}

/* held 0..2 and want 0..4 of each of three, in each order of arrival, with 0..2 foreign: all. */
START_TEST(every_small_situation) {
    static const uint64_t arrivals[6][SMALL] = {{1, 2, 3}, {1, 3, 2}, {2, 1, 3},
                                                {2, 3, 1}, {3, 1, 2}, {3, 2, 1}};
    unsigned seen[4] = {0};

    for (unsigned n = 0; n < 15 * 15 * 15 * 6 * 3; n++) {
        struct tg__claim claims[SMALL] = {0};
        struct tg__admit_input input = {.now_ns = NOW, .asked_ns = NOW, .may_wait = 1,
                                        .total_bytes = SMALL_TOTAL, .claims = claims,
                                        .claim_count = SMALL};
        struct tg__admit_output output;
        unsigned rest = n;
        uint64_t used = rest % 3, order = rest / 3 % 6;

        rest /= 18;
        for (int i = 0; i < SMALL; i++, rest /= 15) {
            claims[i] = (struct tg__claim){.occupied_bytes = rest % 3,
                                           .wait_bytes = rest / 3 % 5,
                                           .arrival = arrivals[order][i],
                                           .deadline_ns = SOON, .seen_ns = NOW};
            used += claims[i].occupied_bytes;
        }
        if (claims[0].wait_bytes == 0 || used > SMALL_TOTAL)
            continue;
        input.free_bytes = SMALL_TOTAL - used;
        tg__admit(&input, &output);
        ck_assert_msg(output.answer == plain_answer(&input), "situation %u: %d, not %d", n,
                      (int)output.answer, (int)plain_answer(&input));
        seen[output.answer]++;
    }
    for (int i = 0; i < 4; i++)
        ck_assert_msg(seen[i] > 100, "answer %d: %u times", i, seen[i]);
}
END_TEST

/* ---- games ----------------------------------------------------------------------------------- */

enum { PLAYERS = 6, GAMES = 300, TURNS = 2000, GAME_TOTAL = 100 };

struct game {
    struct tg__claim claims[PLAYERS];
    uint64_t next_arrival, rounds_waited[PLAYERS];
    uint64_t seed;
};

static uint32_t draw(struct game *game, uint32_t below) {
    game->seed = game->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(game->seed >> 33) % below;
}

static uint64_t all_held(const struct game *game) {
    uint64_t all = 0;

    for (int i = 0; i < PLAYERS; i++)
        all += holds(&game->claims[i]);
    return all;
}

/* What player i asked for is decided; true: it need not wait any more. */
static bool play(struct game *game, uint32_t i) {
    struct tg__claim *self = &game->claims[i];
    struct tg__admit_input input = {.now_ns = NOW, .asked_ns = NOW, .may_wait = 1,
                                    .total_bytes = GAME_TOTAL,
                                    .free_bytes = GAME_TOTAL - all_held(game),
                                    .claims = game->claims, .claim_count = PLAYERS, .self = i};
    struct tg__admit_output output;

    tg__admit(&input, &output);
    if (output.answer == TG__ADMIT_WAIT)
        return false;
    if (output.answer == TG__ADMIT_GRANT)
        self->occupied_bytes += self->wait_bytes;
    else /* as a program would: it gives all, and will come again */
        self->occupied_bytes = 0;
    self->wait_bytes = 0;
    ck_assert_uint_le(all_held(game), GAME_TOTAL);
    return true;
}

/* Somebody gives, or asks for more. */
static void move(struct game *game, uint32_t i) {
    struct tg__claim *self = &game->claims[i];

    if (self->occupied_bytes > 0 && draw(game, 2) == 0) {
        self->occupied_bytes -= 1 + draw(game, (uint32_t)self->occupied_bytes);
        return;
    }
    self->wait_bytes = 1 + draw(game, GAME_TOTAL / 2);
    self->arrival = UINT64_MAX;
    game->rounds_waited[i] = 0;
    if (!play(game, i))
        self->arrival = game->next_arrival++;
}

static void look_again(struct game *game) {
    bool has_moved = true;

    while (has_moved) {
        has_moved = false;
        for (uint32_t i = 0; i < PLAYERS; i++)
            has_moved |= game->claims[i].wait_bytes > 0 && play(game, i);
    }
}

/* Nobody ever waits while all others wait too, and nobody waits for long while they come and go. */
START_TEST(somebody_can_always_go_on) {
    struct game game = {.seed = (uint64_t)_i + 1};

    for (int i = 0; i < PLAYERS; i++)
        game.claims[i] = (struct tg__claim){.deadline_ns = SOON, .seen_ns = NOW};
    for (int turn = 0; turn < TURNS; turn++) {
        uint32_t idle[PLAYERS], count = 0;
        for (uint32_t i = 0; i < PLAYERS; i++) {
            if (game.claims[i].wait_bytes == 0)
                idle[count++] = i;
            else
                ck_assert_msg(++game.rounds_waited[i] < 500, "game %d, turn %d: player %u waits "
                              "on and on", _i, turn, i);
        }
        ck_assert_msg(count > 0, "game %d, turn %d: all wait", _i, turn);
        move(&game, idle[draw(&game, count)]);
        look_again(&game);
    }
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("admit");

    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, each_row, 0, sizeof rows / sizeof rows[0]);
    tcase_add_test(cases, what_is_used_is_named);
    tcase_add_test(cases, every_small_situation);
    tcase_add_loop_test(cases, somebody_can_always_go_on, 0, GAMES);
    return suite_run("admit", cases);
}
