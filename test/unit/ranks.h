/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of groups: ranks, real processes, on cards that all see, which sleep or wake as one. */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include <stdbool.h>
#include <stdio.h>

#include "ledger/group.h"
#include "ledger/tenant.h"
#include "storetrap.h"
#include "tenants.h"

enum { RANKS_MAX = 8, CARDS = 2, LONG_MS = 60000 };

/* What a rank does, and what came of it. Shared by all processes of a test. */
struct rank {
    const char *name; /* of the tenant and of its group */
    int number, card, user; /* where on the card its bytes are counted */
    uint32_t size, wait_ms;
    enum tg__group_kind kind;
    uint64_t bytes;
    int lacks;          /* a status with which its phase one fails */
    bool exits_at_once; /* after that */
    unsigned store;     /* at which it is signalled, from its coming on; 0: never */
    bool is_after;
    int signal;
    _Atomic int status, has_come, is_done;
    char text[256], lost[80];
    uint64_t took_ms;
};

static struct card *cards[CARDS];
static struct rank *ranks; /* RANKS_MAX of them */

static inline void set_up_ranks(void) {
    dir = make_directory();
    for (int i = 0; i < CARDS; i++)
        cards[i] = make_card();
    ranks = mmap(NULL, RANKS_MAX * sizeof *ranks, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(ranks, MAP_FAILED);
    card = cards[0];
}

static inline struct tg_tenant *join_card(struct tg_ledger *ledger, const char *name, int number,
                                          int index) {
    uint8_t uuid[16] = "a card of ranks";
    struct tg_tenant_params params = {.name = name, .rank = number, .uuid = uuid,
                                      .device_name = "test card",
                                      .gauge = {ask_card, cards[index]}};
    struct tg_tenant *tenant = NULL;

    uuid[0] = (uint8_t)('a' + index);
    ck_ok(tg_ledger_join(ledger, &params, &tenant));
    return tenant;
}

/* Its bytes are asleep, or on the card, as the kind of the group wants them. */
static inline void prepare_rank(struct tg_tenant *tenant, const struct rank *rank) {
    _Atomic uint64_t *used = &cards[rank->card]->used_bytes[rank->user];

    ck_ok(tg_tenant_reserve(tenant, "kv", rank->bytes, 0));
    atomic_fetch_add(used, rank->bytes);
    tg_tenant_commit(tenant, "kv", rank->bytes, 0);
    if (rank->kind == TG__GROUP_SLEEPS)
        return;
    atomic_fetch_sub(used, rank->bytes);
    tg_tenant_give(tenant, "kv", rank->bytes, rank->bytes);
}

static inline int rank_comes(struct tg_tenant *tenant, const struct rank *rank) {
    const struct tg__group_share share = {"kv", rank->bytes, rank->bytes};
    const struct tg__group_params params = {.name = rank->name, .size = rank->size,
                                            .kind = rank->kind, .wait_ms = rank->wait_ms,
                                            .shares = &share, .share_count = 1};

    return tg__group_come(tenant, &params);
}

/* From its coming to its leaving; the group's outcome. */
static inline int rank_turns(struct tg_tenant *tenant, struct rank *rank) {
    _Atomic uint64_t *used = &cards[rank->card]->used_bytes[rank->user];
    bool wakes = rank->kind == TG__GROUP_WAKES;
    uint64_t created = 0;
    int status = rank_comes(tenant, rank);

    if (status < 0)
        return status;
    atomic_store(&rank->has_come, 1);
    if (rank->lacks != 0) {
        status = tg__fail(rank->lacks, "host copies need 7 GiB");
    } else if (wakes) {
        created = rank->bytes;
        atomic_fetch_add(used, created);
        tg_tenant_commit(tenant, "kv", created, 0);
    }
    status = tg__group_end(tenant, status);
    if (status == 0)
        tg__group_lost(tenant, rank->lost, sizeof rank->lost);
    if (created > 0 && status < 0)
        atomic_fetch_sub(used, created);
    if (!wakes && status == 0)
        atomic_fetch_sub(used, rank->bytes);
    tg__group_leave(tenant, &created);
    return status;
}

/* A process: joins, says so, turns when it is told, says so, and leaves when it is told again. */
static inline int be_rank(int in, int out, void *argument) {
    struct rank *rank = argument;
    struct tg_tenant *tenant = join_card(open_ledger(), rank->name, rank->number, rank->card);
    uint64_t begin_ms;
    int status;

    prepare_rank(tenant, rank);
    tell(out, 0);
    hear(in);
    begin_ms = now_ms();
    store_trap(rank->store, rank->is_after, rank->signal);
    status = rank_turns(tenant, rank);
    store_trap(0, false, 0);
    rank->took_ms = now_ms() - begin_ms;
    if (status < 0)
        snprintf(rank->text, sizeof rank->text, "%s", tg_last_error()->text);
    atomic_store(&rank->status, status);
    atomic_store(&rank->is_done, 1);
    if (rank->exits_at_once)
        return 0;
    tell(out, 1);
    hear(in);
    tg_tenant_leave(tenant);
    return 0;
}

static inline struct child start_rank(struct rank *rank) {
    struct child child = start(be_rank, rank);

    ck_assert_uint_eq(hear(child.in), 0);
    return child;
}

static inline struct rank make_rank(const char *name, int number, int index, uint32_t size,
                                    uint64_t bytes) {
    return (struct rank){.name = name, .number = number, .card = index, .user = number,
                         .size = size, .wait_ms = LONG_MS, .kind = TG__GROUP_WAKES,
                         .bytes = bytes};
}

/* Whether this rank is the first named in the ledger as a member of a group that lives. */
static inline bool has_come_in(struct tg_ledger *ledger, const char *name, int number) {
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__tenant_row row;

        if (atomic_load(&ledger->body->slots[i].ticket) != 0 &&
            tg__row_read(&ledger->body->slots[i], &row) == 0 && row.generation != 0 &&
            row.rank == number && strcmp(row.name, name) == 0)
            return true;
    }
    return false;
}

static inline void await_coming(struct tg_ledger *ledger, const char *name, int number) {
    uint64_t until_ms = now_ms() + LONG_MS;

    while (!has_come_in(ledger, name, number)) {
        ck_assert_uint_lt(now_ms(), until_ms);
        usleep(200);
    }
}

#endif
