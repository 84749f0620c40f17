/* SPDX-License-Identifier: Apache-2.0 */
/* The library does what the models take it to do: each step of test/model/transitions.def, made
 * through the public call, moves a tenant's figures as the table says, in one publish, and needs
 * the file's lock exactly where the table says so. */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>

#include "ledger/group.h"
#include "ledger/tenant.h"
#include "suite.h"
#include "tenants.h"

#define UNIT GIB

/* ---- the table ------------------------------------------------------------------------------- */

struct transition {
    const char *name;
    int occupied, reserved, asleep, created;
    bool is_under_lock;
};

struct host_transition {
    const char *name;
    int reserved, touched;
    bool is_under_lock;
};

struct group_transition {
    const char *name;
    int wanted, occupied, reserved, asleep;
    bool is_under_lock;
};

struct ending {
    const char *name;
    bool keeps_occupied, keeps_reserved, keeps_asleep, keeps_host;
};

#define TRANSITION(name, ...) {#name, __VA_ARGS__},
#define HOST_TRANSITION(name, ...)
#define GROUP_TRANSITION(name, ...)
#define ENDING(name, ...)
static const struct transition transitions[] = {
#include "model/transitions.def"
};
#undef TRANSITION
#undef HOST_TRANSITION
#define TRANSITION(name, ...)
#define HOST_TRANSITION(name, ...) {#name, __VA_ARGS__},
static const struct host_transition host_transitions[] = {
#include "model/transitions.def"
};
#undef HOST_TRANSITION
#undef GROUP_TRANSITION
#define HOST_TRANSITION(name, ...)
#define GROUP_TRANSITION(name, ...) {#name, __VA_ARGS__},
static const struct group_transition group_transitions[] = {
#include "model/transitions.def"
};
#undef GROUP_TRANSITION
#undef ENDING
#define GROUP_TRANSITION(name, ...)
#define ENDING(name, ...) {#name, __VA_ARGS__},
static const struct ending endings[] = {
#include "model/transitions.def"
};

enum {
    TRANSITIONS = sizeof transitions / sizeof transitions[0],
    GROUP_TRANSITIONS = sizeof group_transitions / sizeof group_transitions[0],
    HOST_TRANSITIONS = sizeof host_transitions / sizeof host_transitions[0],
    ENDINGS = sizeof endings / sizeof endings[0]
};

/* ---- the calls ------------------------------------------------------------------------------- */

static int reserve(struct tg_tenant *tenant) {
    return tg_tenant_reserve(tenant, "a", UNIT, 0);
}

static int commit(struct tg_tenant *tenant) {
    tg_tenant_commit(tenant, "a", UNIT, 0);
    return 0;
}

static int commit_woken(struct tg_tenant *tenant) {
    tg_tenant_commit(tenant, "a", UNIT, UNIT);
    return 0;
}

static int wake_end(struct tg_tenant *tenant) {
    tg_tenant_commit(tenant, "a", 0, UNIT);
    return 0;
}

static int cancel(struct tg_tenant *tenant) {
    tg_tenant_cancel(tenant, "a", UNIT);
    return 0;
}

static int give(struct tg_tenant *tenant) {
    tg_tenant_give(tenant, "a", UNIT, 0);
    return 0;
}

static int give_asleep(struct tg_tenant *tenant) {
    tg_tenant_give(tenant, "a", UNIT, UNIT);
    return 0;
}

static int forget(struct tg_tenant *tenant) {
    tg_tenant_forget(tenant, "a", UNIT);
    return 0;
}

/* Small, so that the node's budget is no question. */
enum { HOST_UNIT = 4096 };

static int host_reserve(struct tg_tenant *tenant) {
    return tg_tenant_host_reserve(tenant, "a", HOST_UNIT);
}

static int host_commit(struct tg_tenant *tenant) {
    tg_tenant_host_commit(tenant, "a", HOST_UNIT);
    return 0;
}

static int host_give_reserved(struct tg_tenant *tenant) {
    tg_tenant_host_give(tenant, "a", HOST_UNIT, 0);
    return 0;
}

static int host_give_touched(struct tg_tenant *tenant) {
    tg_tenant_host_give(tenant, "a", HOST_UNIT, 1);
    return 0;
}

typedef int (*call_fn)(struct tg_tenant *tenant);

/* In the table's order; a row without its call does not compile. */
#undef TRANSITION
#undef HOST_TRANSITION
#undef ENDING
#define TRANSITION(name, ...) name,
#define HOST_TRANSITION(name, ...)
#define ENDING(name, ...)
static const call_fn calls[] = {
#include "model/transitions.def"
};
#undef TRANSITION
#undef HOST_TRANSITION
#define TRANSITION(name, ...)
#define HOST_TRANSITION(name, ...) name,
static const call_fn host_calls[] = {
#include "model/transitions.def"
};

/* Each has two halves: what comes before the step, and the step. fold is inside of what comes, so
 * its half before is done by this test's own hands. */
static int enter(struct tg_tenant *tenant, enum tg__group_kind kind, uint32_t size) {
    const struct tg__group_share share = {"a", UNIT, UNIT};
    const struct tg__group_params params = {.name = "g", .size = size, .kind = kind,
                                            .wait_ms = 60000, .shares = &share, .share_count = 1};
    int rc;

    tenant->survey->driver = (struct tg__driver){0};
    pthread_mutex_lock(&tenant->own);
    rc = tg__group_enter(tenant, &params);
    pthread_mutex_unlock(&tenant->own);
    return rc == 1 ? 0 : -1;
}

static struct tg__group_params alone(enum tg__group_kind kind, const struct tg__group_share *share,
                                     uint32_t wait_ms) {
    return (struct tg__group_params){.name = "g", .size = 1, .kind = kind, .wait_ms = wait_ms,
                                     .shares = share, .share_count = 1};
}

static const struct tg__group_share unit = {"a", UNIT, UNIT};

static int come_alone(struct tg_tenant *tenant) {
    struct tg__group_params params = alone(TG__GROUP_WAKES, &unit, 60000);

    return tg__group_come(tenant, &params);
}

static int commit_all(struct tg_tenant *tenant) {
    int rc = come_alone(tenant);

    tg_tenant_commit(tenant, "a", UNIT, 0);
    return rc == 0 ? tg__group_end(tenant, 0) : rc;
}

static int sleep_all(struct tg_tenant *tenant) {
    struct tg__group_params params = alone(TG__GROUP_SLEEPS, &unit, 60000);
    int rc = tg__group_come(tenant, &params);

    return rc == 0 ? tg__group_end(tenant, 0) : rc;
}

static int create_and_fail(struct tg_tenant *tenant) {
    int rc = come_alone(tenant);

    tg_tenant_commit(tenant, "a", UNIT, 0);
    return rc;
}

static int leave_with_nothing(struct tg_tenant *tenant) {
    tg__group_leave(tenant, NULL);
    return 0;
}

static int leave_created(struct tg_tenant *tenant) {
    const uint64_t created_bytes = UNIT;

    tg__group_leave(tenant, &created_bytes);
    return 0;
}

static int no_step(struct tg_tenant *tenant) {
    (void)tenant;
    return 0;
}

static int enter_as_one_of_two(struct tg_tenant *tenant) {
    return enter(tenant, TG__GROUP_WAKES, 2);
}

/* Granted, and not folded. */
static int enter_and_be_granted(struct tg_tenant *tenant) {
    int rc = enter(tenant, TG__GROUP_WAKES, 1);

    atomic_fetch_add(&tenant->ledger->body->groups[tenant->member.group].word, 1);
    return rc;
}

static int fold_grant(struct tg_tenant *tenant) {
    tg__group_fold(tenant);
    return 0;
}

struct group_step {
    int (*before)(struct tg_tenant *tenant);
    int (*step)(struct tg_tenant *tenant);
};

static const struct group_step group_come = {no_step, enter_as_one_of_two};
static const struct group_step group_fold = {enter_and_be_granted, fold_grant};
static const struct group_step group_take_part_awake = {commit_all, leave_with_nothing};
static const struct group_step group_take_part_asleep = {sleep_all, leave_with_nothing};
static const struct group_step group_undo_reserved = {come_alone, leave_with_nothing};
static const struct group_step group_undo_created = {create_and_fail, leave_created};

#undef ENDING
#undef HOST_TRANSITION
#undef GROUP_TRANSITION
#define HOST_TRANSITION(name, ...)
#define ENDING(name, ...)
#define GROUP_TRANSITION(name, ...) &group_##name,
#undef TRANSITION
#define TRANSITION(name, ...)
static const struct group_step *const group_steps[] = {
#include "model/transitions.def"
};

/* ---- how a step is looked at ----------------------------------------------------------------- */

/* A tenant that has two units of everything, and others that can hold the file's lock. */
struct scene {
    struct tg_ledger *ledger, *others;
    struct tg_tenant *tenant;
};

static struct scene make_scene(void) {
    struct scene scene = {.ledger = open_ledger(), .others = open_ledger()};

    scene.tenant = join(scene.ledger, card, "one");
    ck_ok(tg_tenant_reserve(scene.tenant, "a", 4 * UNIT, 0));
    tg_tenant_commit(scene.tenant, "a", 2 * UNIT, 0);
    ck_ok(tg_tenant_reserve(scene.tenant, "a", 2 * UNIT, 0));
    tg_tenant_commit(scene.tenant, "a", 2 * UNIT, 0);
    tg_tenant_give(scene.tenant, "a", 2 * UNIT, 2 * UNIT);
    ck_ok(tg_tenant_host_reserve(scene.tenant, "a", 4 * HOST_UNIT));
    tg_tenant_host_commit(scene.tenant, "a", 2 * HOST_UNIT);
    return scene;
}

static void end_scene(struct scene *scene) {
    tg_tenant_leave(scene->tenant);
    tg_ledger_close(scene->others);
    tg_ledger_close(scene->ledger);
}

/* What stands in the file. */
static struct tg__tag_row row_of(const struct scene *scene) {
    struct tg__tenant_row row;

    ck_ok(tg__row_read(scene->tenant->slot, &row));
    ck_assert_uint_eq(row.tag_count, 1);
    return row.tags[0];
}

static uint64_t version_of(const struct scene *scene) {
    return atomic_load(&scene->tenant->slot->record.version);
}

static uint64_t moved(uint64_t before, int units, uint64_t unit_bytes) {
    return before + (uint64_t)(int64_t)units * unit_bytes;
}

/* While another process holds the file's lock. */
static int call_locked_out(const struct scene *scene, call_fn call) {
    bool has_inherited;
    int status;

    ck_ok(tg__shmfile_lock(scene->others->file, &has_inherited));
    status = call(scene->tenant);
    tg__shmfile_unlock(scene->others->file);
    return status;
}

/* The step, once; with the lock held by another where it needs none. */
static void call_once(const struct scene *scene, call_fn call, bool is_under_lock) {
    uint64_t version = version_of(scene);

    if (is_under_lock) {
        ck_assert_int_eq(call_locked_out(scene, call), TG_EHELD);
        ck_assert_uint_eq(version_of(scene), version);
        ck_ok(call(scene->tenant));
    } else {
        ck_ok(call_locked_out(scene, call));
    }
    ck_assert_uint_eq(version_of(scene), version + 1);
}

/* ---- the tests ------------------------------------------------------------------------------- */

START_TEST(figures_move_as_the_model_has_them) {
    const struct transition *step = &transitions[_i];
    struct scene scene = make_scene();
    struct tg__tag_row before = row_of(&scene), after;
    uint64_t created = atomic_load(&scene.tenant->device->created_bytes);

    call_once(&scene, calls[_i], step->is_under_lock);
    after = row_of(&scene);
    ck_assert_uint_eq(after.occupied_bytes, moved(before.occupied_bytes, step->occupied, UNIT));
    ck_assert_uint_eq(after.reserved_bytes, moved(before.reserved_bytes, step->reserved, UNIT));
    ck_assert_uint_eq(after.asleep_bytes, moved(before.asleep_bytes, step->asleep, UNIT));
    ck_assert_uint_eq(after.host_reserved_bytes, before.host_reserved_bytes);
    ck_assert_uint_eq(after.host_touched_bytes, before.host_touched_bytes);
    ck_assert_uint_eq(atomic_load(&scene.tenant->device->created_bytes),
                      moved(created, step->created, UNIT));
    end_scene(&scene);
}
END_TEST

START_TEST(host_figures_move_as_the_table_says) {
    const struct host_transition *step = &host_transitions[_i];
    struct scene scene = make_scene();
    struct tg__tag_row before = row_of(&scene), after;

    call_once(&scene, host_calls[_i], step->is_under_lock);
    after = row_of(&scene);
    ck_assert_uint_eq(after.host_reserved_bytes,
                      moved(before.host_reserved_bytes, step->reserved, HOST_UNIT));
    ck_assert_uint_eq(after.host_touched_bytes,
                      moved(before.host_touched_bytes, step->touched, HOST_UNIT));
    ck_assert_uint_eq(after.occupied_bytes, before.occupied_bytes);
    ck_assert_uint_eq(after.reserved_bytes, before.reserved_bytes);
    ck_assert_uint_eq(after.asleep_bytes, before.asleep_bytes);
    end_scene(&scene);
}
END_TEST

/* Wanted bytes, which only count with a grant, are the one figure that comes raises. What needs no
 * lock is made while another holds it. */
START_TEST(members_figures_move_as_the_table_says) {
    const struct group_transition *step = &group_transitions[_i];
    struct scene scene = make_scene();
    struct tg__tag_row before, after;
    uint64_t version;

    ck_ok(group_steps[_i]->before(scene.tenant));
    before = row_of(&scene);
    version = version_of(&scene);
    if (step->is_under_lock)
        ck_ok(group_steps[_i]->step(scene.tenant));
    else
        ck_ok(call_locked_out(&scene, group_steps[_i]->step));
    after = row_of(&scene);
    ck_assert_uint_eq(version_of(&scene), version + 1);
    ck_assert_uint_eq(after.wanted_bytes, moved(before.wanted_bytes, step->wanted, UNIT));
    ck_assert_uint_eq(after.occupied_bytes, moved(before.occupied_bytes, step->occupied, UNIT));
    ck_assert_uint_eq(after.reserved_bytes, moved(before.reserved_bytes, step->reserved, UNIT));
    ck_assert_uint_eq(after.asleep_bytes, moved(before.asleep_bytes, step->asleep, UNIT));
    end_scene(&scene);
}
END_TEST

/* Only steps that need the lock may raise what a tenant has of the device or of the host. */
START_TEST(only_a_step_under_the_lock_raises_bytes) {
    for (int i = 0; i < TRANSITIONS; i++)
        ck_assert_int_eq(transitions[i].occupied + transitions[i].reserved > 0,
                         transitions[i].is_under_lock);
    for (int i = 0; i < GROUP_TRANSITIONS; i++)
        ck_assert_int_eq(group_transitions[i].occupied + group_transitions[i].reserved +
                             group_transitions[i].wanted > 0,
                         group_transitions[i].is_under_lock);
    for (int i = 0; i < HOST_TRANSITIONS; i++)
        ck_assert_int_eq(host_transitions[i].reserved + host_transitions[i].touched > 0,
                         host_transitions[i].is_under_lock);
}
END_TEST

/* ---- endings --------------------------------------------------------------------------------- */

static const struct ending *ending_of(const char *name) {
    for (int i = 0; i < ENDINGS; i++) {
        if (strcmp(endings[i].name, name) == 0)
            return &endings[i];
    }
    ck_abort_msg("the table has no ending %s", name);
    return NULL;
}

static int live_with_everything(int in, int out, void *argument) {
    struct scene scene = make_scene();

    (void)argument;
    atomic_store(&card->used_bytes[1], 2 * UNIT);
    tell(out, (uint32_t)(scene.tenant->slot - scene.ledger->body->slots));
    hear(in);
    return 0;
}

/* What a settler has left in a dead one's slot. */
START_TEST(of_the_dead_stays_what_the_model_keeps) {
    const struct ending *death = ending_of("death");
    struct tg_ledger *ledger = open_ledger();
    struct child child = start(live_with_everything, NULL);
    struct tg__slot *slot = &ledger->body->slots[hear(child.in)];
    struct tg__tenant_row before, after;
    struct tg_tenant *heir;

    ck_ok(tg__row_read(slot, &before));
    kill_and_finish(&child);
    heir = join(ledger, card, "heir");
    ck_ok(tg__row_read(slot, &after));
    ck_assert_uint_eq(after.state, TG__ROW_DEAD);
    ck_assert_uint_eq(after.tags[0].occupied_bytes,
                      death->keeps_occupied ? before.tags[0].occupied_bytes : 0);
    ck_assert_uint_eq(after.tags[0].reserved_bytes,
                      death->keeps_reserved ? before.tags[0].reserved_bytes : 0);
    ck_assert_uint_eq(after.tags[0].asleep_bytes,
                      death->keeps_asleep ? before.tags[0].asleep_bytes : 0);
    ck_assert_uint_eq(tg__row_host(&after, false),
                      death->keeps_host ? tg__row_host(&before, false) : 0);
    tg_tenant_leave(heir);
    tg_ledger_close(ledger);
}
END_TEST

/* All of it is gone: the table keeps nothing, and the slot is free. */
START_TEST(who_leaves_leaves_nothing) {
    const struct ending *leave = ending_of("leave");
    struct scene scene = make_scene();
    struct tg__slot *slot = scene.tenant->slot;

    ck_assert(!leave->keeps_occupied && !leave->keeps_reserved && !leave->keeps_asleep &&
              !leave->keeps_host);
    tg_tenant_leave(scene.tenant);
    ck_assert_uint_eq(atomic_load(&slot->ticket), 0);
    ck_assert_uint_eq(look(scene.ledger)->tenant_count, 0);
    ck_assert_uint_eq(look(scene.ledger)->host_bytes, 0);
    scene.tenant = NULL;
    end_scene(&scene);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("transitions");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_loop_test(cases, figures_move_as_the_model_has_them, 0, TRANSITIONS);
    tcase_add_loop_test(cases, host_figures_move_as_the_table_says, 0, HOST_TRANSITIONS);
    tcase_add_loop_test(cases, members_figures_move_as_the_table_says, 0, GROUP_TRANSITIONS);
    tcase_add_test(cases, only_a_step_under_the_lock_raises_bytes);
    tcase_add_test(cases, of_the_dead_stays_what_the_model_keeps);
    tcase_add_test(cases, who_leaves_leaves_nothing);
    return suite_run("transitions", cases);
}
