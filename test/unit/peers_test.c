/* SPDX-License-Identifier: Apache-2.0 */
/* Tenants whose memory another allocator holds: what they declare, what they say of themselves, how
 * one asks another, and what has to come free for whom. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ledger/tenant.h"
#include "suite.h"
#include "tenants.h"

static struct tg_ledger *ledger;
static struct tg_tenant *trainer, *rollout;

static void set_up(void) {
    set_up_card();
    ledger = open_ledger();
    trainer = join(ledger, card, "trainer");
    rollout = join(ledger, card, "rollout");
}

static void tear_down(void) {
    tg_tenant_leave(trainer);
    tg_tenant_leave(rollout);
    tg_ledger_close(ledger);
    tear_down_card();
}

/* The trainer's own allocator takes memory, or gives it, and says so or not. */
static void hold(uint64_t live_bytes, uint64_t cached_bytes) {
    atomic_store(&card->used_bytes[0], live_bytes + cached_bytes);
}

static void hold_and_tell(uint64_t live_bytes, uint64_t cached_bytes) {
    hold(live_bytes, cached_bytes);
    tg_tenant_declare(trainer, "live", live_bytes, 0);
    tg_tenant_declare(trainer, "cached", cached_bytes, cached_bytes);
}

static const struct tg_tag_view *tag_of(const char *tenant_name, const char *name) {
    const struct tg_tenant_view *tenant = look_at(ledger, tenant_name);

    for (uint32_t i = 0; i < tenant->tag_count; i++) {
        if (strcmp(tenant->tags[i].name, name) == 0)
            return &tenant->tags[i];
    }
    return NULL;
}

/* ---- declaring ------------------------------------------------------------------------------- */

START_TEST(declared_figures_are_absolute) {
    tg_tenant_declare(trainer, "cached", 40, 30);
    tg_tenant_declare(trainer, "cached", 20, 10);
    ck_assert_uint_eq(tag_of("trainer", "cached")->occupied_bytes, 20);
    ck_assert_uint_eq(tag_of("trainer", "cached")->returnable_bytes, 10);
    tg_tenant_declare(trainer, "cached", 20, 21);
    ck_assert_uint_eq(tag_of("trainer", "cached")->returnable_bytes, 20);
    tg_tenant_declare(trainer, "cached", 0, 0);
    ck_assert_ptr_null(tag_of("trainer", "cached"));
}
END_TEST

START_TEST(declared_and_own_bytes_of_a_tag_are_told_apart) {
    ck_ok(take(trainer, card, 1, 5 * GIB, 0));
    tg_tenant_declare(trainer, "tag", 7 * GIB, 0);
    ck_assert_uint_eq(tag_of("trainer", "tag")->occupied_bytes, 12 * GIB);
    put_back(trainer, card, 1, 5 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->occupied_bytes, 7 * GIB);
    tg_tenant_declare(trainer, "tag", 0, 0);
    ck_assert_ptr_null(tag_of("trainer", "tag"));
}
END_TEST

/* torch's cache may lie in a tag that the memory charges; asleep it can give nothing. */
START_TEST(of_a_tags_own_bytes_some_can_be_given_back) {
    uint32_t asked = 0;

    tg_tenant_declare(trainer, "tag", 0, 2 * GIB);
    ck_assert_ptr_null(tag_of("trainer", "tag"));
    ck_ok(take(trainer, card, 1, 5 * GIB, 0));
    tg_tenant_declare(trainer, "tag", 0, 2 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->occupied_bytes, 5 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->returnable_bytes, 2 * GIB);
    tg_tenant_declare(trainer, "tag", 0, 7 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->returnable_bytes, 5 * GIB);
    ck_ok(tg_tenant_ask(rollout, 9 * GIB, &asked));
    ck_assert_uint_eq(asked, 1);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 5 * GIB);
    atomic_fetch_sub(&card->used_bytes[1], 5 * GIB);
    tg_tenant_give(trainer, "tag", 5 * GIB, 5 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->asleep_bytes, 5 * GIB);
    ck_assert_uint_eq(tag_of("trainer", "tag")->returnable_bytes, 0);
    ck_ok(tg_tenant_ask(rollout, 9 * GIB, &asked));
    ck_assert_uint_eq(asked, 0);
}
END_TEST

START_TEST(what_is_no_name_or_has_no_place_is_left_out) {
    tg_tenant_declare(trainer, "", 1, 0);
    tg_tenant_declare(trainer, NULL, 1, 0);
    tg_tenant_declare(trainer, "\n", 1, 0);
    tg_tenant_declare(NULL, "live", 1, 0);
    ck_assert_uint_eq(look_at(ledger, "trainer")->tag_count, 0);
    for (int i = 0; i <= TG_TENANT_TAGS; i++) {
        char name[8];
        snprintf(name, sizeof name, "tag%d", i);
        tg_tenant_declare(trainer, name, 1, 0);
    }
    ck_assert_uint_eq(look_at(ledger, "trainer")->tag_count, TG_TENANT_TAGS);
}
END_TEST

START_TEST(what_is_declared_is_attributed) {
    const struct tg_device_view *device;

    hold(60 * GIB, 20 * GIB);
    atomic_store(&card->foreign_bytes, 3 * GIB);
    ck_ok(tg_tenant_measure(rollout));
    device = &look(ledger)->devices[0];
    ck_assert_uint_eq(device->unattributed_bytes, 83 * GIB);
    hold_and_tell(60 * GIB, 20 * GIB);
    ck_ok(tg_tenant_measure(rollout));
    device = &look(ledger)->devices[0];
    ck_assert_uint_eq(device->unattributed_bytes, 3 * GIB);
    ck_assert_uint_eq(device->free_bytes, 17 * GIB);
    ck_assert_uint_eq(device->total_bytes, CARD_BYTES);
    ck_assert_uint_ne(device->measured_ns, 0);
}
END_TEST

START_TEST(who_holds_it_is_named) {
    struct tg_shortfall shortfall;

    hold_and_tell(60 * GIB, 20 * GIB);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv", 21 * GIB, 0), TG_ENOFIT);
    ck_says("trainer live 60.0 GiB, trainer cached 20.0 GiB");
    tg_tenant_shortfall(rollout, &shortfall);
    ck_assert_str_eq(shortfall.tag, "live");
    ck_assert_uint_eq(shortfall.holder_bytes, 60 * GIB);
    ck_assert_uint_eq(shortfall.unattributed_bytes, 0);
    ck_assert_uint_eq(shortfall.missing_bytes, GIB);
}
END_TEST

/* Given back without a word: what the driver says is free can be had. */
START_TEST(an_old_figure_keeps_nobody_from_free_memory) {
    hold_and_tell(60 * GIB, 20 * GIB);
    hold(10 * GIB, 0);
    ck_ok(tg_tenant_reserve(rollout, "kv", 90 * GIB, 0));
    tg_tenant_cancel(rollout, "kv", 90 * GIB);
    ck_ok(tg_tenant_reserve(trainer, "kv", 90 * GIB, 1));
}
END_TEST

START_TEST(beside_what_it_declared_itself_it_never_fits) {
    hold_and_tell(60 * GIB, 20 * GIB);
    ck_assert_int_eq(tg_tenant_reserve(trainer, "kv", 21 * GIB, 60000), TG_ENEVERFITS);
    ck_says("beside the 80.0 GiB that trainer holds itself");
}
END_TEST

static int wait_for_forty(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "waiter");

    (void)in;
    (void)argument;
    tell(out, (uint32_t)tg_tenant_reserve(tenant, "kv", 40 * GIB, 60000));
    return 0;
}

/* Who declares less has given. */
START_TEST(a_fallen_figure_wakes_waiters) {
    struct child child;

    hold_and_tell(60 * GIB, 20 * GIB);
    child = start(wait_for_forty, NULL);
    await_waiter(ledger, "waiter", 60000);
    hold_and_tell(60 * GIB, 0);
    ck_assert_uint_eq(hear(child.in), 0);
    finish(&child);
}
END_TEST

/* Whether a waiter's sign on the device has been taken down, and who slept on it woken. */
static bool is_woken_by(void (*change)(void)) {
    struct tg__device_slot *device = trainer->device;
    uint32_t before = atomic_load(&device->change);

    atomic_store(&device->has_waiters, 1);
    change();
    return atomic_load(&device->has_waiters) == 0 && atomic_load(&device->change) == before + 1;
}

static void declare_less(void) {
    tg_tenant_declare(trainer, "cached", GIB, 0);
}

static void declare_more(void) {
    tg_tenant_declare(trainer, "cached", 2 * GIB, 0);
}

static void look_for_a_start(void) {
    ck_ok(tg_tenant_check_quiet(trainer, 1000));
    ck_assert_uint_eq(atomic_load(&trainer->device->has_waiters), 1); /* the test's own */
    atomic_store(&trainer->device->has_waiters, 0);
    ck_ok(tg_tenant_check_quiet(trainer, 1000));
}

static void end_start(void) {
    tg_tenant_note(trainer, &(struct tg_tenant_note){.mode = TG_MODE_ON});
}

/* At once, and not when they look by themselves. */
START_TEST(who_waits_is_woken) {
    hold_and_tell(60 * GIB, 20 * GIB);
    ck_assert(is_woken_by(declare_less));
    ck_assert(!is_woken_by(declare_more));
    ck_assert(is_woken_by(end_start));
    ck_assert(!is_woken_by(look_for_a_start));
    ck_assert_uint_eq(atomic_load(&trainer->device->has_waiters), 0); /* costs the giver a call */
}
END_TEST

static int declare_and_live_on(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "mortal");
    const struct tg_tenant_note note = {.is_starting = 1};

    (void)argument;
    tg_tenant_declare(tenant, "live", 30 * GIB, 0);
    tg_tenant_note(tenant, &note);
    tell(out, 0);
    hear(in);
    return 0;
}

START_TEST(what_the_dead_declared_is_theirs_until_the_card_has_it) {
    struct tg_shortfall shortfall;
    struct child child;

    hold_and_tell(20 * GIB, 0);
    atomic_store(&card->used_bytes[1], 30 * GIB);
    child = start(declare_and_live_on, NULL);
    ck_assert_uint_eq(hear(child.in), 0);
    kill_and_finish(&child);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv", 51 * GIB, 0), TG_ENOFIT);
    tg_tenant_shortfall(rollout, &shortfall);
    ck_assert_uint_eq(shortfall.orphaned_bytes, 30 * GIB);
    ck_assert_uint_eq(shortfall.unattributed_bytes, 0);
    ck_assert_ptr_nonnull(look_at(ledger, "mortal"));
    atomic_store(&card->used_bytes[1], 0);
    ck_ok(tg_tenant_reserve(rollout, "kv", 80 * GIB, 0));
    ck_assert_ptr_null(look_at(ledger, "mortal"));
}
END_TEST

START_TEST(a_gauge_that_fails_measures_nothing) {
    atomic_store(&card->status, -EIO);
    ck_assert_int_eq(tg_tenant_measure(trainer), -EIO);
    ck_assert_uint_eq(look(ledger)->devices[0].measured_ns, 0);
    ck_assert_int_eq(tg_tenant_measure(NULL), -EINVAL);
}
END_TEST

/* ---- notes ----------------------------------------------------------------------------------- */

START_TEST(notes_are_seen) {
    const struct tg_tenant_view *seen = look_at(ledger, "trainer");
    struct tg_tenant_note note = {.mode = TG_MODE_OBSERVE, .seams = "verl 0.9.1: 4 of 4"};

    ck_assert_uint_eq(seen->mode, TG_MODE_NONE);
    ck_assert_str_eq(seen->seams, "");
    tg_tenant_note(trainer, &note);
    seen = look_at(ledger, "trainer");
    ck_assert_uint_eq(seen->mode, TG_MODE_OBSERVE);
    ck_assert_uint_eq(seen->is_starting, 0);
    ck_assert_str_eq(seen->seams, "verl 0.9.1: 4 of 4");
    memset(note.seams, 'x', sizeof note.seams);
    note.mode = 77;
    tg_tenant_note(trainer, &note);
    seen = look_at(ledger, "trainer");
    ck_assert_uint_eq(strlen(seen->seams), TG_TENANT_SEAMS_BYTES - 1);
    ck_assert_uint_eq(seen->mode, TG_MODE_NONE);
    ck_assert_uint_eq(seen->id, tg_tenant_id(trainer));
    ck_assert_uint_ne(seen->id, 0);
    tg_tenant_note(NULL, &note);
    tg_tenant_note(trainer, NULL);
}
END_TEST

static void start_up(struct tg_tenant *tenant, int is_starting) {
    tg_tenant_note(tenant, &(struct tg_tenant_note){.is_starting = (uint32_t)is_starting});
}

START_TEST(nobody_wakes_while_a_peer_starts_up) {
    struct tg_shortfall shortfall;

    start_up(rollout, 1);
    ck_assert_uint_eq(look_at(ledger, "rollout")->is_starting, 1);
    ck_assert_int_eq(tg_tenant_reserve(trainer, "optimizer", GIB, 20), TG_ESTARTING);
    ck_says("optimizer (1.0 GiB) has to wait: rollout is starting up");
    tg_tenant_shortfall(trainer, &shortfall);
    ck_assert_int_eq(shortfall.status, TG_ESTARTING);
    ck_assert_uint_eq(look_at(ledger, "trainer")->is_waiting, 0);
    ck_ok(tg_tenant_reserve(trainer, "live", GIB, 0)); /* an allocation does not fail for it */
    ck_ok(tg_tenant_reserve(rollout, "weights", GIB, 1000));
    start_up(rollout, 0);
    ck_ok(tg_tenant_reserve(trainer, "optimizer", GIB, 20));
}
END_TEST

/* Two that give at once do not wait for each other. */
START_TEST(nobody_wakes_while_a_peer_gives_and_everybody_may_sleep) {
    start_up(rollout, TG_START_GIVING);
    start_up(trainer, TG_START_GIVING);
    ck_ok(tg_tenant_check_quiet(trainer, 0));
    ck_ok(tg_tenant_check_quiet(rollout, 0));
    start_up(trainer, 0);
    ck_assert_int_eq(tg_tenant_reserve(trainer, "optimizer", GIB, 20), TG_ESTARTING);
    ck_says("optimizer (1.0 GiB) has to wait: rollout gives memory back, and nobody wakes");
    ck_assert_uint_eq(look_at(ledger, "rollout")->is_starting, 0);
    ck_ok(tg_tenant_reserve(trainer, "live", GIB, 0));
    /* Who gives is held up by a start as anybody. */
    start_up(trainer, 1);
    ck_assert_int_eq(tg_tenant_check_quiet(rollout, 0), TG_ESTARTING);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "weights", GIB, 20), TG_ESTARTING);
    start_up(trainer, 0);
    ck_ok(tg_tenant_reserve(rollout, "weights", GIB, 20));
    start_up(rollout, 0);
    ck_ok(tg_tenant_reserve(trainer, "optimizer", GIB, 20));
}
END_TEST

START_TEST(a_start_elsewhere_holds_nobody_up) {
    static const uint8_t other_uuid[16] = "another card";
    struct tg_tenant_params params = on_card(card, "elsewhere");
    struct tg_tenant *elsewhere = NULL;

    params.uuid = other_uuid;
    ck_ok(tg_ledger_join(ledger, &params, &elsewhere));
    start_up(elsewhere, 1);
    ck_ok(tg_tenant_check_quiet(trainer, 0));
    ck_ok(tg_tenant_reserve(trainer, "kv", GIB, 1000));
    tg_tenant_leave(elsewhere);
}
END_TEST

START_TEST(quiet_is_waited_for) {
    uint64_t began_ms = now_ms();

    ck_ok(tg_tenant_check_quiet(trainer, 0));
    start_up(rollout, 1);
    ck_assert_int_eq(tg_tenant_check_quiet(trainer, 0), TG_ESTARTING);
    ck_says("rollout is starting up");
    ck_assert_int_eq(tg_tenant_check_quiet(trainer, 30), TG_ESTARTING);
    ck_assert_uint_ge(now_ms() - began_ms, 30);
    ck_ok(tg_tenant_check_quiet(rollout, 0)); /* one's own start is no reason */
    ck_assert_int_eq(tg_tenant_check_quiet(NULL, 0), -EINVAL);
}
END_TEST

static int start_for_a_while(int in, int out, void *argument) {
    struct tg_tenant *tenant = join(open_ledger(), card, "starter");

    (void)argument;
    start_up(tenant, 1);
    tell(out, 0);
    hear(in);
    start_up(tenant, 0);
    hear(in);
    return 0;
}

START_TEST(the_end_of_a_start_lets_waiters_go) {
    struct child starter = start(start_for_a_while, NULL), waiter;

    hear(starter.in);
    waiter = start(wait_for_forty, NULL);
    await_waiter(ledger, "waiter", 60000);
    ck_assert_uint_eq(look_at(ledger, "waiter")->is_waiting, 1);
    tell(starter.out, 0);
    ck_assert_uint_eq(hear(waiter.in), 0);
    ck_ok(tg_tenant_check_quiet(trainer, 60000));
    kill_and_finish(&starter);
    finish(&waiter);
}
END_TEST

START_TEST(who_dies_while_it_starts_blocks_nobody) {
    struct child child = start(declare_and_live_on, NULL);

    ck_assert_uint_eq(hear(child.in), 0);
    ck_assert_int_eq(tg_tenant_check_quiet(trainer, 0), TG_ESTARTING);
    kill_and_finish(&child);
    ck_assert_uint_eq(look_at(ledger, "mortal")->is_starting, 0);
    ck_ok(tg_tenant_check_quiet(trainer, 0));
    ck_ok(tg_tenant_reserve(trainer, "kv", GIB, 1000));
}
END_TEST

/* ---- asking ---------------------------------------------------------------------------------- */

START_TEST(who_has_something_is_asked) {
    uint32_t count = 9;

    ck_ok(tg_tenant_ask(rollout, 5 * GIB, &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 0);
    hold_and_tell(60 * GIB, 20 * GIB);
    ck_ok(tg_tenant_ask(rollout, 5 * GIB, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(look_at(ledger, "trainer")->asked_bytes, 5 * GIB);
    ck_ok(tg_tenant_ask(rollout, 3 * GIB, &count)); /* the most counts */
    ck_assert_uint_eq(tg_tenant_asked(trainer), 5 * GIB);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 0);
    ck_assert_uint_eq(look_at(ledger, "trainer")->asked_bytes, 0);
    ck_ok(tg_tenant_ask(rollout, 50 * GIB, &count)); /* no more than it has */
    ck_assert_uint_eq(tg_tenant_asked(trainer), 20 * GIB);
    ck_ok(tg_tenant_ask(trainer, GIB, &count)); /* nobody asks itself */
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(tg_tenant_asked(NULL), 0);
    ck_assert_int_eq(tg_tenant_ask(rollout, 0, &count), -EINVAL);
    ck_assert_int_eq(tg_tenant_ask(NULL, 1, &count), -EINVAL);
}
END_TEST

START_TEST(who_waits_asks_for_what_is_missing) {
    hold_and_tell(60 * GIB, 20 * GIB);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv", 25 * GIB, 0), TG_ENOFIT);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 0);
    tg_tenant_declare(rollout, "cached", GIB, GIB);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv", 25 * GIB, 20), TG_ENOFIT);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 5 * GIB);
    ck_assert_uint_eq(tg_tenant_asked(rollout), 0);
}
END_TEST

/* What comes free while another measures would be taken for its own. */
START_TEST(who_is_held_up_by_a_start_asks_nobody) {
    struct tg_tenant *third = join(ledger, card, "third");

    hold_and_tell(60 * GIB, 20 * GIB);
    start_up(third, 1);
    ck_assert_int_eq(tg_tenant_reserve(rollout, "kv", 25 * GIB, 20), TG_ESTARTING);
    ck_assert_uint_eq(tg_tenant_asked(trainer), 0);
    tg_tenant_leave(third);
}
END_TEST

START_TEST(a_new_tenant_is_not_asked_for_what_an_old_one_was) {
    uint32_t count;

    hold_and_tell(60 * GIB, 20 * GIB);
    ck_ok(tg_tenant_ask(rollout, GIB, &count));
    tg_tenant_leave(trainer);
    trainer = join(ledger, card, "trainer");
    ck_assert_uint_eq(tg_tenant_asked(trainer), 0);
}
END_TEST

static int call_as_a_child(int in, int out, void *argument) {
    const struct tg_tenant_note note = {.mode = TG_MODE_ON};
    uint32_t count;

    (void)in;
    (void)argument;
    tg_tenant_declare(trainer, "live", 1, 0);
    tg_tenant_note(trainer, &note);
    tell(out, tg_tenant_asked(trainer) == 0 && tg_tenant_measure(trainer) == TG_EFORKED &&
                  tg_tenant_check_quiet(trainer, 0) == TG_EFORKED &&
                  tg_tenant_ask(trainer, 1, &count) == TG_EFORKED);
    return 0;
}

START_TEST(a_forked_child_is_nobody) {
    struct child child;
    uint32_t count;

    hold_and_tell(60 * GIB, 20 * GIB);
    ck_ok(tg_tenant_ask(rollout, GIB, &count));
    child = start(call_as_a_child, NULL);
    ck_assert_uint_eq(hear(child.in), 1);
    finish(&child);
    ck_assert_uint_eq(tag_of("trainer", "live")->occupied_bytes, 60 * GIB);
    ck_assert_uint_eq(look_at(ledger, "trainer")->mode, TG_MODE_NONE);
    ck_assert_uint_eq(tg_tenant_asked(trainer), GIB);
}
END_TEST

/* ---- the target ------------------------------------------------------------------------------ */

/* A view as it could be read: two tenants with tags asleep on device 0, one on device 1, one dead;
 * 54 of 140 free. */
static struct tg_node_view *make_view(void) {
    static struct tg_node_view view = {
        .device_count = 2, .tenant_count = 4,
        .devices = {{.uuid = "device 0", .total_bytes = 140, .free_bytes = 54},
                    {.uuid = "device 1", .free_bytes = 140}},
        .tenants = {{.id = 1, .tag_count = 2,
                     .tags = {{.name = "kv_cache", .asleep_bytes = 61},
                              {.name = "weights", .asleep_bytes = 14}}},
                    {.id = 2, .tag_count = 2,
                     .tags = {{.name = "optimizer", .asleep_bytes = 20, .reserved_bytes = 3},
                              {.name = "kv_cache", .occupied_bytes = 8}}},
                    {.id = 3, .device = 1, .tag_count = 1,
                     .tags = {{.name = "kv_cache", .asleep_bytes = 100}}},
                    {.id = 4, .is_dead = 1, .tag_count = 1,
                     .tags = {{.name = "kv_cache", .asleep_bytes = 1000, .reserved_bytes = 1}}}}};

    return &view;
}

static const struct {
    const char *tags;
    uint32_t self;
    uint64_t asleep_bytes, short_bytes;
} targets[] = {
    {"kv_cache", 2, 61, 61 + 4 - 54},
    {"kv_cache", 0, 61, 61 + 4 - 54},
    {"kv_cache", 1, 0, 0},
    {"weights", 2, 14, 0},
    {"weights,kv_cache", 2, 75, 75 + 4 - 54},
    {"kv_cache,optimizer", 0, 81, 81 + 4 - 54},
    {NULL, 2, 75, 75 + 4 - 54},
    {NULL, 0, 95, 95 + 4 - 54},
    {NULL, 1, 20, 0},
    {"kv_cach", 2, 0, 0},
    {"kv_cache2", 2, 0, 0},
    {"none", 0, 0, 0},
};

START_TEST(each_target) {
    uint64_t asleep_bytes = 1, short_bytes = 1;

    ck_ok(tg_reclaim_target(make_view(), (const uint8_t *)"device 0\0\0\0\0\0\0\0",
                            targets[_i].tags, targets[_i].self, &asleep_bytes, &short_bytes));
    ck_assert_uint_eq(asleep_bytes, targets[_i].asleep_bytes);
    ck_assert_uint_eq(short_bytes, targets[_i].short_bytes);
}
END_TEST

START_TEST(a_target_of_nothing_is_an_error) {
    static const char *const lists[] = {"", ",", "a,", ",a", "a,,b"};
    static const uint8_t unknown[16] = "unknown";
    struct tg_node_view *view = make_view();
    uint64_t asleep_bytes = 7, short_bytes = 7;

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        ck_assert_int_eq(tg_reclaim_target(view, view->devices[0].uuid, lists[i], 0,
                                           &asleep_bytes, &short_bytes), -EINVAL);
    ck_assert_int_eq(tg_reclaim_target(view, unknown, NULL, 0, &asleep_bytes, &short_bytes),
                     -ENOENT);
    ck_assert_int_eq(tg_reclaim_target(NULL, unknown, NULL, 0, &asleep_bytes, &short_bytes),
                     -EINVAL);
    ck_assert_uint_eq(asleep_bytes + short_bytes, 14);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("peers");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, declared_figures_are_absolute);
    tcase_add_test(cases, declared_and_own_bytes_of_a_tag_are_told_apart);
    tcase_add_test(cases, of_a_tags_own_bytes_some_can_be_given_back);
    tcase_add_test(cases, what_is_no_name_or_has_no_place_is_left_out);
    tcase_add_test(cases, what_is_declared_is_attributed);
    tcase_add_test(cases, who_holds_it_is_named);
    tcase_add_test(cases, an_old_figure_keeps_nobody_from_free_memory);
    tcase_add_test(cases, beside_what_it_declared_itself_it_never_fits);
    tcase_add_test(cases, a_fallen_figure_wakes_waiters);
    tcase_add_test(cases, who_waits_is_woken);
    tcase_add_test(cases, what_the_dead_declared_is_theirs_until_the_card_has_it);
    tcase_add_test(cases, a_gauge_that_fails_measures_nothing);
    tcase_add_test(cases, notes_are_seen);
    tcase_add_test(cases, nobody_wakes_while_a_peer_starts_up);
    tcase_add_test(cases, nobody_wakes_while_a_peer_gives_and_everybody_may_sleep);
    tcase_add_test(cases, a_start_elsewhere_holds_nobody_up);
    tcase_add_test(cases, quiet_is_waited_for);
    tcase_add_test(cases, the_end_of_a_start_lets_waiters_go);
    tcase_add_test(cases, who_dies_while_it_starts_blocks_nobody);
    tcase_add_test(cases, who_has_something_is_asked);
    tcase_add_test(cases, who_waits_asks_for_what_is_missing);
    tcase_add_test(cases, who_is_held_up_by_a_start_asks_nobody);
    tcase_add_test(cases, a_new_tenant_is_not_asked_for_what_an_old_one_was);
    tcase_add_test(cases, a_forked_child_is_nobody);
    tcase_add_loop_test(cases, each_target, 0, sizeof targets / sizeof targets[0]);
    tcase_add_test(cases, a_target_of_nothing_is_an_error);
    return suite_run("peers", cases);
}
