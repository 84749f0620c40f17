/* SPDX-License-Identifier: Apache-2.0 */
/* A member's way through its group: come, fold what was granted, be ready, store, leave. Whoever
 * has tried one of the word's swaps asks the word afterwards and does what that says. */
#include "ledger/group.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/tenant.h"

static int check_params(const struct tg__group_params *params) {
    if (!tg__ledger_is_name(params->name, TG_TENANT_NAME_BYTES))
        return tg__fail(-EINVAL, "a group's name is 1 to %d printable ASCII characters",
                        TG_TENANT_NAME_BYTES - 1);
    if (params->size == 0 || params->size > TG_LEDGER_TENANTS)
        return tg__fail(-EINVAL, "a group has 1 to %d members, not %" PRIu32, TG_LEDGER_TENANTS,
                        params->size);
    if (params->kind != TG__GROUP_WAKES && params->kind != TG__GROUP_SLEEPS)
        return tg__fail(-EINVAL, "a group wakes or sleeps");
    if (params->shares == NULL || params->share_count == 0 ||
        params->share_count > TG_TENANT_TAGS)
        return tg__fail(-EINVAL, "a member of a group brings 1 to %d tags", TG_TENANT_TAGS);
    for (uint32_t i = 0; i < params->share_count; i++) {
        if (!tg__ledger_is_name(params->shares[i].tag, TG_TAG_NAME_BYTES))
            return tg__fail(-EINVAL, "a tag's name is 1 to %d printable ASCII characters",
                            TG_TAG_NAME_BYTES - 1);
    }
    return 0;
}

static int check(struct tg_tenant *tenant, const struct tg__group_params *params) {
    int rc;

    if (tenant == NULL || params == NULL)
        return tg__fail(-EINVAL, "only a tenant can be in a group: join the ledger first");
    rc = tg__shmfile_check(tenant->ledger->file, false);
    if (rc == 0)
        rc = check_params(params);
    if (rc == 0 && tenant->member.generation != 0)
        return tg__fail(-EALREADY, "this tenant is in a group, which it has not left");
    return rc;
}

static int phase_of(const struct tg_tenant *tenant) {
    return tg__group_phase(tenant->ledger->body, tenant->member.group,
                           tenant->member.generation);
}

/* ---- giving up ------------------------------------------------------------------------------- */

static const char death[] = "has died";

static void give_up(struct tg_tenant *tenant, int status, const char *who, const char *text) {
    struct tg__failure_row why = {.generation = tenant->member.generation,
                                  .group = tenant->member.group, .status = status,
                                  .is_death = text == death};

    /* Else it is somebody's already, who had the better reason. */
    if (!tg__group_may_be_given_up(phase_of(tenant)))
        return;
    snprintf(why.who, sizeof why.who, "%s", who);
    snprintf(why.text, sizeof why.text, "%.*s", (int)sizeof why.text - 1, text);
    if (tg__tenant_is_joined(tenant))
        tg__group_tell(tenant->slot, &why);
    tg__group_give_up(tenant->ledger->body, why.group, why.generation);
}

/* What this thread's error says. */
static int give_up_myself(struct tg_tenant *tenant, int status) {
    struct tg_error why = *tg_last_error();
    char name[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];

    tg__row_name(&tenant->row, name, sizeof name);
    give_up(tenant, status, name, why.status == status ? why.text : tg_error_text(status));
    tg__fail_as(&why);
    return status;
}

static int tell_why(const struct tg_tenant *tenant) {
    struct tg__failure_row why;

    if (!tg__group_told(tenant->ledger->body, tenant->member.group, tenant->member.generation,
                        false, &why))
        return tg__fail(TG_EGROUP, "a member of the group has left it");
    if (why.who[0] == '\0')
        return tg__fail(why.status, "%s", why.text);
    return tg__fail(why.status, "%s%s%s", why.who, why.status == TG_EGROUP ? " " : ": ", why.text);
}

/* ---- looking at the others ------------------------------------------------------------------- */

struct others {
    uint32_t came, ready;
    bool has_dead, has_unready;
    char dead[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];
    char unready[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];
    char names[100]; /* of those who came, as far as they fit */
};

static void add_name(struct others *others, const struct tg__tenant_row *row) {
    char name[TG_TENANT_NAME_BYTES + TG_TENANT_ROLE_BYTES];
    size_t length = strlen(others->names);

    tg__row_name(row, name, sizeof name);
    snprintf(others->names + length, sizeof others->names - length, "%s%s",
             length > 0 ? ", " : "", name);
}

/* One in motion is not ready: it is looked at again soon. */
static void look(struct tg_tenant *tenant, struct others *others) {
    struct tg__ledger_body *body = tenant->ledger->body;

    memset(others, 0, sizeof *others);
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        uint32_t ticket = atomic_load_explicit(&body->slots[i].ticket, memory_order_acquire);
        struct tg__tenant_row row;

        if (ticket == 0 || tg__row_read(&body->slots[i], &row) < 0 ||
            !tg__group_names(&row, tenant->member.group, tenant->member.generation))
            continue;
        others->came++;
        others->ready += row.is_ready != 0;
        add_name(others, &row);
        if (row.is_ready == 0 && !others->has_unready) {
            others->has_unready = true;
            tg__row_name(&row, others->unready, sizeof others->unready);
        }
        if (!others->has_dead && !tg__shmfile_is_alive(tenant->ledger->file, ticket)) {
            others->has_dead = true;
            tg__row_name(&row, others->dead, sizeof others->dead);
        }
    }
}

bool tg__group_lost(struct tg_tenant *tenant, char *name, size_t name_bytes) {
    struct tg_error before = *tg_last_error();
    struct tg__failure_row why;
    struct others others;

    look(tenant, &others);
    tg__fail_as(&before);
    if (others.has_dead)
        snprintf(name, name_bytes, "%s", others.dead);
    else if (tg__group_told(tenant->ledger->body, tenant->member.group,
                            tenant->member.generation, true, &why))
        snprintf(name, name_bytes, "%s", why.who);
    else
        return false;
    return true;
}

/* Gives the group up where one has died or the time is over; the word is asked next. */
static void heed(struct tg_tenant *tenant, const struct others *others, bool is_late) {
    char text[160];

    if (others->has_dead) {
        give_up(tenant, TG_EGROUP, others->dead, death);
        return;
    }
    if (!is_late)
        return;
    if (others->came < tenant->member.size) {
        snprintf(text, sizeof text, "only %" PRIu32 " of %" PRIu32 " members have come in time: %s",
                 others->came, tenant->member.size, others->names);
        give_up(tenant, TG_EGROUP, "", text);
        return;
    }
    give_up(tenant, TG_EGROUP, others->has_unready ? others->unready : "a member",
            phase_of(tenant) == TG__GROUP_GATHERING ? "could not look at the ledger in time"
                                                    : "was not ready in time");
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Under the file's lock: the dead first, since a group that one of them is in gathers no more. */
static int look_locked(struct tg_tenant *tenant, const struct tg__group_params *params) {
    int rc = tg__tenant_check_joined(tenant);

    if (rc < 0)
        return rc;
    tg__ledger_settle(tenant->ledger, tenant->row.device, &tenant->survey->driver);
    pthread_mutex_lock(&tenant->own);
    rc = tenant->member.generation != 0 ? 1 : tg__group_enter(tenant, params);
    if (rc == 1)
        rc = tg__group_grant(tenant);
    pthread_mutex_unlock(&tenant->own);
    return rc;
}

static int come_closer(struct tg_tenant *tenant, const struct tg__group_params *params,
                       uint64_t deadline_ns) {
    struct tg__driver driver = {0};
    bool has_inherited;
    int rc;

    tg__shm_store(&tenant->slot->seen_ns, tg__clock_ns());
    rc = tg__tenant_lock(tenant, deadline_ns, &driver, &has_inherited);
    if (rc < 0)
        return rc;
    tenant->survey->driver = driver;
    return tg__tenant_unlock(tenant, look_locked(tenant, params));
}

static int not_come(int status) {
    if (status < 0)
        return status;
    return tg__fail(TG_EFULL, "%d groups sleep or wake already: there is no place for one more",
                    TG__GROUPS);
}

/* Until the group is granted, with 0; or given up. A tenant that never found a group is in none. */
static int gather(struct tg_tenant *tenant, const struct tg__group_params *params,
                  uint64_t deadline_ns) {
    for (bool may_sleep = false;; may_sleep = true) {
        uint32_t seen = tg__wait_begin_look(tenant, may_sleep);
        bool is_late = tg__clock_ns() >= deadline_ns; /* before the look, which may say more */
        int phase, rc = come_closer(tenant, params, deadline_ns);
        struct others others;

        if (tenant->member.generation == 0) {
            if ((rc < 0 && !tg__wait_is_passing(rc)) || is_late)
                return not_come(rc);
        } else {
            deadline_ns = tenant->member.deadline_ns;
            if (rc < 0 && !tg__wait_is_passing(rc))
                return give_up_myself(tenant, rc);
            look(tenant, &others);
            heed(tenant, &others, is_late);
            phase = phase_of(tenant);
            if (phase == TG__GROUP_OPEN)
                return 0;
            if (phase != TG__GROUP_GATHERING)
                return phase < 0 ? phase : tell_why(tenant);
        }
        if (may_sleep)
            tg__wait_rest(tenant, seen, deadline_ns);
    }
}

/* ---- the own row ----------------------------------------------------------------------------- */

/* What was granted counts in the own row from now on: in one publish, which raises nothing. */
void tg__group_fold(struct tg_tenant *tenant) {
    struct tg__tenant_row *row = &tenant->row;

    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant)) {
        for (uint32_t i = 0; i < row->tag_count; i++) {
            row->tags[i].reserved_bytes =
                tg__sum(row->tags[i].reserved_bytes, row->tags[i].wanted_bytes);
            row->tags[i].wanted_bytes = 0;
        }
        tg__tenant_clear_wait(row);
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
}

static void say_ready(struct tg_tenant *tenant) {
    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant)) {
        tenant->row.is_ready = 1;
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
}

/* What becomes of a share with the outcome. A grant that was not folded goes with the name. */
static struct tg__tag_change change_of(const struct tg__member *member, uint32_t index, int phase,
                                       const uint64_t *created_bytes, bool is_folded) {
    const struct tg__member_share *share = &member->shares[index];
    uint64_t created = created_bytes == NULL ? 0 : created_bytes[index];

    if (phase == TG__GROUP_COMMITTED && member->kind == TG__GROUP_WAKES)
        return (struct tg__tag_change){.asleep_less = share->asleep_bytes};
    if (phase == TG__GROUP_COMMITTED)
        return (struct tg__tag_change){.occupied_less = share->size_bytes,
                                       .asleep_more = share->asleep_bytes};
    if (member->kind == TG__GROUP_SLEEPS || !is_folded)
        return (struct tg__tag_change){0};
    return (struct tg__tag_change){.occupied_less = created,
                                   .reserved_less = tg__less(share->size_bytes, created)};
}

/* Under own. */
static void clear_group(struct tg_tenant *tenant) {
    struct tg__tenant_row *row = &tenant->row;

    row->generation = 0;
    row->group = row->group_kind = row->is_ready = 0;
    for (uint32_t i = 0; i < row->tag_count; i++)
        row->tags[i].wanted_bytes = row->tags[i].turning_bytes = 0;
}

/* One publish. */
static void leave(struct tg_tenant *tenant, const uint64_t *created_bytes, bool is_folded) {
    const struct tg__member *member = &tenant->member;
    int phase = phase_of(tenant);

    pthread_mutex_lock(&tenant->own);
    if (tg__tenant_is_joined(tenant)) {
        clear_group(tenant);
        if (!is_folded)
            tg__tenant_clear_wait(&tenant->row);
        for (uint32_t i = 0; i < member->share_count; i++) {
            struct tg__tag_change change = change_of(member, i, phase, created_bytes, is_folded);

            (void)tg__tenant_change(tenant, member->shares[i].tag, &change);
        }
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
    tenant->member.generation = 0;
    tg__device_wake(tenant->device);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int come(struct tg_tenant *tenant, const struct tg__group_params *params,
                uint64_t deadline_ns) {
    struct tg_error before = *tg_last_error();
    int rc = gather(tenant, params, deadline_ns);

    if (rc == 0) {
        tg__group_fold(tenant);
        tg__fail_as(&before); /* a passing failure has left its sentence */
    } else if (tenant->member.generation != 0) {
        leave(tenant, NULL, false);
    }
    return rc;
}

int tg__group_come(struct tg_tenant *tenant, const struct tg__group_params *params) {
    uint64_t deadline_ns;
    int rc = check(tenant, params);

    if (rc < 0)
        return rc;
    deadline_ns = tg__clock_ns() + params->wait_ms * TG__NS_PER_MS;
    if (!tg__turn_take(&tenant->turn, deadline_ns))
        return tg__fail(TG_EGROUP, "another thread of this process waits for memory, and kept it "
                        "from the group %s", params->name);
    rc = come(tenant, params, deadline_ns);
    tg__turn_end(&tenant->turn);
    return rc;
}

/* Two may try; one succeeds. */
static void store(struct tg_tenant *tenant) {
    struct tg__ledger_body *body = tenant->ledger->body;
    uint64_t seen = tg__group_word(tenant->member.generation, TG__GROUP_OPEN);

    (void)tg__shm_swap(&body->groups[tenant->member.group].word, &seen,
                       tg__group_word(tenant->member.generation, TG__GROUP_COMMITTED));
    tg__group_wake(body);
}

/* A ready member that dies before the store counts until somebody has seen that it is dead. */
static int await_store(struct tg_tenant *tenant) {
    for (bool may_sleep = false;; may_sleep = true) {
        uint32_t seen = tg__wait_begin_look(tenant, may_sleep);
        int phase = phase_of(tenant), rc = tg__shmfile_check(tenant->ledger->file, false);
        struct others others;

        if (phase == TG__GROUP_COMMITTED)
            return 0;
        if (phase != TG__GROUP_OPEN)
            return phase < 0 ? phase : tell_why(tenant);
        if (rc < 0)
            return give_up_myself(tenant, rc);
        look(tenant, &others);
        if (others.ready == tenant->member.size)
            store(tenant);
        else
            heed(tenant, &others, tg__clock_ns() >= tenant->member.deadline_ns);
        if (may_sleep && phase_of(tenant) == TG__GROUP_OPEN)
            tg__wait_rest(tenant, seen, tenant->member.deadline_ns);
    }
}

int tg__group_end(struct tg_tenant *tenant, int status) {
    struct tg_error before = *tg_last_error();
    int rc;

    if (tenant == NULL || tenant->member.generation == 0)
        return tg__fail(-EINVAL, "the tenant is in no group");
    if (status < 0)
        return give_up_myself(tenant, status);
    say_ready(tenant);
    rc = await_store(tenant);
    if (rc == 0)
        tg__fail_as(&before); /* as in come */
    return rc;
}

void tg__group_leave(struct tg_tenant *tenant, const uint64_t *created_bytes) {
    struct tg_error before = *tg_last_error();

    if (tenant == NULL || tenant->member.generation == 0 ||
        tg__shmfile_check(tenant->ledger->file, false) == TG_EFORKED)
        return;
    /* Who leaves unasked gives the group up; what was decided stays. */
    tg__group_give_up(tenant->ledger->body, tenant->member.group, tenant->member.generation);
    leave(tenant, created_bytes, true);
    tg__fail_as(&before);
}
