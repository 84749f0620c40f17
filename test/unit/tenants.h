/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the ledger: a card that all processes of a test see, and tenants on it. The card
 * counts what each process has created; what a dead one had is there until the test takes it. */
#ifndef TEST_TENANTS_H
#define TEST_TENANTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <tidegate/error.h>
#include <tidegate/ledger.h>

#include "children.h"

#define GIB (UINT64_C(1) << 30)
#define CARD_BYTES (100 * GIB)

enum { CARD_USERS = 8 };

struct card {
    _Atomic uint64_t used_bytes[CARD_USERS]; /* by the test's own processes */
    _Atomic uint64_t foreign_bytes;
    _Atomic int status; /* what the gauge answers when it is not 0 */
    _Atomic uint32_t word; /* for the test */
};

static inline struct card *make_card(void) {
    void *card = mmap(NULL, sizeof(struct card), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(card, MAP_FAILED);
    return card;
}

static inline int ask_card(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct card *card = argument;
    uint64_t used = atomic_load(&card->foreign_bytes);

    for (int i = 0; i < CARD_USERS; i++)
        used += atomic_load(&card->used_bytes[i]);
    *total_bytes = CARD_BYTES;
    *free_bytes = used < CARD_BYTES ? CARD_BYTES - used : 0;
    return atomic_load(&card->status);
}

static const uint8_t card_uuid[16] = "a card of tests";

static inline struct tg_tenant_params on_card(struct card *card, const char *name) {
    return (struct tg_tenant_params){.name = name, .rank = -1, .uuid = card_uuid,
                                     .device_name = "test card", .gauge = {ask_card, card}};
}

static inline void ck_ok(int status) {
    ck_assert_msg(status == 0, "%d: %s", status, tg_last_error()->text);
}

static inline void ck_says(const char *words) {
    ck_assert_msg(strstr(tg_last_error()->text, words) != NULL, "no \"%s\" in: %s", words,
                  tg_last_error()->text);
}

static inline struct tg_ledger *open_ledger(void) {
    struct tg_ledger *ledger = NULL;

    ck_ok(tg_ledger_open(NULL, &ledger));
    return ledger;
}

static inline struct tg_tenant *join(struct tg_ledger *ledger, struct card *card,
                                     const char *name) {
    struct tg_tenant_params params = on_card(card, name);
    struct tg_tenant *tenant = NULL;

    ck_ok(tg_ledger_join(ledger, &params, &tenant));
    return tenant;
}

/* Reserved, created, committed: as a user does it. */
static inline int take(struct tg_tenant *tenant, struct card *card, int user, uint64_t size_bytes,
                       uint32_t wait_ms) {
    int status = tg_tenant_reserve(tenant, "tag", size_bytes, wait_ms);

    if (status == 0) {
        atomic_fetch_add(&card->used_bytes[user], size_bytes);
        tg_tenant_commit(tenant, "tag", size_bytes, 0);
    }
    return status;
}

static inline void put_back(struct tg_tenant *tenant, struct card *card, int user,
                            uint64_t size_bytes) {
    atomic_fetch_sub(&card->used_bytes[user], size_bytes);
    tg_tenant_give(tenant, "tag", size_bytes, 0);
}

/* Lent until the next look. */
static inline const struct tg_node_view *look(struct tg_ledger *ledger) {
    static struct tg_node_view view;

    ck_ok(tg_ledger_read(ledger, &view));
    return &view;
}

/* NULL: no such tenant. */
static inline const struct tg_tenant_view *tenant_in(const struct tg_node_view *view,
                                                     const char *name) {
    for (uint32_t i = 0; i < view->tenant_count; i++) {
        if (strcmp(view->tenants[i].name, name) == 0)
            return &view->tenants[i];
    }
    return NULL;
}

static inline const struct tg_tenant_view *look_at(struct tg_ledger *ledger, const char *name) {
    return tenant_in(look(ledger), name);
}

static inline uint64_t now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Until the tenant waits, or so long. */
static inline void await_waiter(struct tg_ledger *ledger, const char *name, unsigned wait_ms) {
    uint64_t until_ms = now_ms() + wait_ms;
    const struct tg_tenant_view *tenant;

    do {
        usleep(200);
        tenant = look_at(ledger, name);
    } while ((tenant == NULL || !tenant->is_waiting) && now_ms() < until_ms);
}

/* What a test has, between these two: a directory and a card of its own. */
static char *dir;
static struct card *card;

static inline void set_up_card(void) {
    dir = make_directory();
    card = make_card();
}

static inline void tear_down_card(void) {
    remove_directory(dir);
}

#endif
