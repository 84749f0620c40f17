/* SPDX-License-Identifier: Apache-2.0 */
/* What of a group needs the file's lock: coming, and the grant for all devices at once. The driver
 * of another member's device is not asked here: that member has written down what it said when it
 * looked last, and what was there before it asked. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

/* Only garbage gets there. */
#define GENERATION_MAX (UINT64_C(1) << 56)

/* ---- who is in which slot -------------------------------------------------------------------- */

struct census {
    uint32_t named[TG__GROUPS];   /* by rows, whatever the generation */
    uint32_t members[TG__GROUPS]; /* of the word's generation */
};

static int count(const struct tg__ledger_body *body, struct census *census) {
    memset(census, 0, sizeof *census);
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__tenant_row row;
        int rc, phase;

        if (atomic_load_explicit(&body->slots[i].ticket, memory_order_acquire) == 0)
            continue;
        rc = tg__row_read(&body->slots[i], &row);
        if (rc < 0)
            return rc;
        if (row.generation == 0)
            continue;
        phase = tg__group_phase(body, row.group, row.generation);
        if (phase < 0)
            return phase;
        census->named[row.group]++;
        census->members[row.group] += phase < TG__GROUP_PHASES;
    }
    return 0;
}

/* A group that gathers. */
static int read_group(const struct tg__group_slot *slot, struct tg__group_row *group) {
    int rc = tg__record_read(&slot->record, group, sizeof *group);

    if (rc < 0)
        return rc;
    if (memchr(group->name, '\0', sizeof group->name) == NULL || group->size == 0 ||
        group->size > TG_LEDGER_TENANTS)
        return tg__fail(TG_EPOISONED, "a group's place in the ledger holds garbage");
    return 0;
}

/* ---- coming ---------------------------------------------------------------------------------- */

static const char *doing(uint32_t kind) {
    return kind == TG__GROUP_SLEEPS ? "sleep" : "wake";
}

/* Whether the slot's group gathers under this name and lacks somebody: 1, 0 or an error. One whose
 * time is over is given up. */
static int is_missing(struct tg__ledger_body *body, uint32_t index, const struct census *census,
                      const struct tg__group_params *params, struct tg__group_row *group) {
    uint64_t word = atomic_load_explicit(&body->groups[index].word, memory_order_acquire);
    int rc;

    if (word % 8 != TG__GROUP_GATHERING || census->members[index] == 0)
        return 0;
    rc = read_group(&body->groups[index], group);
    if (rc < 0)
        return rc;
    if (group->generation != word / 8 || strcmp(group->name, params->name) != 0 ||
        census->members[index] >= group->size)
        return 0;
    if (group->deadline_ns <= tg__clock_ns()) {
        tg__group_give_up(body, index, group->generation);
        return 0;
    }
    if (group->size != params->size || group->kind != params->kind)
        return tg__fail(-EINVAL, "the group %s gathers with %" PRIu32 " members to %s, not with "
                        "%" PRIu32 " to %s", params->name, group->size, doing(group->kind),
                        params->size, doing(params->kind));
    return 1;
}

static int find_gathering(struct tg__ledger_body *body, const struct census *census,
                          const struct tg__group_params *params, uint32_t *index,
                          struct tg__group_row *group) {
    int rc = 0;

    for (uint32_t i = 0; i < TG__GROUPS && rc == 0; i++) {
        rc = is_missing(body, i, census, params, group);
        if (rc == 1)
            *index = i;
    }
    return rc;
}

/* A generation in a slot that no row names; the record first, which nobody reads before the word
 * says that it gathers. */
static int open_slot(struct tg__ledger_body *body, const struct census *census,
                     const struct tg__group_params *params, uint32_t *index,
                     struct tg__group_row *group) {
    for (uint32_t i = 0; i < TG__GROUPS; i++) {
        struct tg__group_slot *slot = &body->groups[i];
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);

        if (census->named[i] > 0 || word % 8 == TG__GROUP_OPEN)
            continue;
        if (word / 8 >= GENERATION_MAX)
            return tg__fail(TG_EPOISONED, "a group's place in the ledger holds garbage");
        *group = (struct tg__group_row){
            .generation = word / 8 + 1,
            .deadline_ns = tg__clock_ns() + params->wait_ms * TG__NS_PER_MS,
            .size = params->size,
            .kind = params->kind};
        memcpy(group->name, params->name, strlen(params->name));
        tg__record_publish(&slot->record, group, sizeof *group);
        tg__shm_store(&slot->word, tg__group_word(group->generation, TG__GROUP_GATHERING));
        *index = i;
        return 1;
    }
    return 0;
}

/* Into the row, which nobody sees before it is published. */
static int want(struct tg_tenant *tenant, const struct tg__group_params *params) {
    struct tg__tenant_row before = tenant->row;

    for (uint32_t i = 0; i < params->share_count; i++) {
        const struct tg__group_share *share = &params->shares[i];
        struct tg__tag_row *tag = tg__tenant_tag(tenant, share->tag);

        if (tag == NULL) {
            tenant->row = before;
            return tg__tenant_no_place(share->tag);
        }
        if (params->kind == TG__GROUP_WAKES)
            tag->wanted_bytes = tg__sum(tag->wanted_bytes, share->size_bytes);
        tag->turning_bytes = tg__sum(tag->turning_bytes, share->asleep_bytes);
    }
    return 0;
}

static void note_member(struct tg_tenant *tenant, uint32_t index,
                        const struct tg__group_row *group,
                        const struct tg__group_params *params) {
    struct tg__member *member = &tenant->member;

    memset(member, 0, sizeof *member);
    member->generation = group->generation;
    member->deadline_ns = group->deadline_ns;
    member->group = index;
    member->size = group->size;
    member->kind = group->kind;
    member->share_count = params->share_count;
    for (uint32_t i = 0; i < params->share_count; i++) {
        memcpy(member->shares[i].tag, params->shares[i].tag, strlen(params->shares[i].tag));
        member->shares[i].size_bytes = params->shares[i].size_bytes;
        member->shares[i].asleep_bytes = params->shares[i].asleep_bytes;
    }
}

/* The number of arrival is the group's from the moment on at which it is complete. */
static void take_arrival(struct tg__ledger_body *body, uint32_t index) {
    uint64_t arrival = atomic_load_explicit(&body->next_arrival, memory_order_relaxed);

    tg__shm_store(&body->next_arrival, arrival + 1);
    tg__shm_store(&body->groups[index].arrival, arrival);
}

int tg__group_enter(struct tg_tenant *tenant, const struct tg__group_params *params) {
    struct tg__ledger_body *body = tenant->ledger->body;
    struct tg__group_row group;
    struct census census;
    uint32_t index = 0, came = 0;
    int rc = count(body, &census);

    if (rc == 0)
        rc = find_gathering(body, &census, params, &index, &group);
    if (rc == 1)
        came = census.members[index];
    else if (rc == 0)
        rc = open_slot(body, &census, params, &index, &group);
    if (rc <= 0)
        return rc;
    rc = want(tenant, params);
    if (rc < 0)
        return rc;
    if (came + 1 == group.size)
        take_arrival(body, index);
    note_member(tenant, index, &group, params);
    tenant->row.generation = group.generation;
    tenant->row.group = index;
    tenant->row.group_kind = group.kind;
    tenant->row.is_ready = 0;
    tg__tenant_publish(tenant);
    return 1;
}

/* ---- the grant ------------------------------------------------------------------------------- */

static uint64_t wanted(const struct tg__tenant_row *row) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++)
        bytes = tg__sum(bytes, row->tags[i].wanted_bytes);
    return bytes;
}

/* Who of the group is where, and how much they want there. */
struct wants {
    uint32_t came;
    uint64_t bytes[TG_LEDGER_DEVICES];
};

static int add_up(const struct tg_tenant *tenant, struct wants *wants) {
    const struct tg__ledger_body *body = tenant->ledger->body;

    memset(wants, 0, sizeof *wants);
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__tenant_row row;
        int rc;

        if (atomic_load_explicit(&body->slots[i].ticket, memory_order_acquire) == 0)
            continue;
        rc = tg__row_read(&body->slots[i], &row);
        if (rc < 0)
            return rc;
        if (!tg__group_names(&row, tenant->member.group, tenant->member.generation))
            continue;
        wants->came++;
        wants->bytes[row.device] = tg__sum(wants->bytes[row.device], wanted(&row));
    }
    return 0;
}

static void remove_claim(struct tg__survey *survey, uint32_t index) {
    uint32_t last = --survey->claim_count;

    survey->claims[index] = survey->claims[last];
    survey->rows[index] = survey->rows[last];
    survey->slots[index] = survey->slots[last];
}

/* The group's members on the surveyed device become one claim: the row that stands for them is the
 * one that wants most. False: none is left, for they have given the group up. */
static bool merge(struct tg_tenant *tenant) {
    struct tg__survey *survey = tenant->survey;
    const struct tg__member *member = &tenant->member;
    struct tg__claim all = {0};
    uint64_t most = 0;

    survey->self = UINT32_MAX;
    for (uint32_t i = 0; i < survey->claim_count;) {
        const struct tg__claim *claim = &survey->claims[i];
        uint64_t bytes = wanted(&survey->rows[i]);

        if (!tg__group_names(&survey->rows[i], member->group, member->generation)) {
            i++;
            continue;
        }
        all.occupied_bytes = tg__sum(all.occupied_bytes, claim->occupied_bytes);
        all.reserved_bytes = tg__sum(all.reserved_bytes, claim->reserved_bytes);
        all.declared_bytes = tg__sum(all.declared_bytes, claim->declared_bytes);
        all.is_starting |= survey->rows[i].is_starting == TG_START_UP;
        if (survey->self == UINT32_MAX) {
            most = bytes;
            survey->self = i++;
            continue;
        }
        if (bytes > most) {
            most = bytes;
            survey->rows[survey->self] = survey->rows[i];
        }
        remove_claim(survey, i);
    }
    if (survey->self == UINT32_MAX)
        return false;
    survey->claims[survey->self] = all;
    return true;
}

/* What the group's request is on the surveyed device, for sentences and notes. */
static struct tg__ask ask_of(const struct tg_tenant *tenant, uint64_t size_bytes) {
    const struct tg__tenant_row *row = &tenant->survey->rows[tenant->survey->self];
    struct tg__ask ask = {.tag = "", .size_bytes = size_bytes,
                          .deadline_ns = tenant->member.deadline_ns};
    uint64_t most = 0;

    for (uint32_t i = 0; i < row->tag_count; i++) {
        if (row->tags[i].wanted_bytes > most) {
            most = row->tags[i].wanted_bytes;
            ask.tag = row->tags[i].name;
        }
    }
    return ask;
}

/* False: nobody of the group has looked lately, or somebody has died since. It looks again soon. */
static bool find_driver(struct tg_tenant *tenant, uint32_t device,
                        const struct tg__driver *own) {
    const struct tg__device_slot *slot = &tenant->ledger->body->devices[device];
    struct tg__driver *driver = &tenant->survey->driver;
    struct tg__device_row row;
    uint64_t now_ns = tg__clock_ns();

    *driver = *own;
    if (device != tenant->row.device) {
        if (tg__device_read(slot, &row) < 0 || row.asked_ns > now_ns ||
            now_ns - row.asked_ns > TG__ADMIT_LATE_NS)
            return false;
        *driver = (struct tg__driver){.asked_ns = row.asked_ns,
                                      .total_bytes = row.total_bytes,
                                      .free_bytes = row.free_bytes,
                                      .created_before = row.created_before,
                                      .deaths_before = row.deaths_before};
    }
    return atomic_load_explicit(&slot->deaths, memory_order_acquire) == driver->deaths_before;
}

static int give_up(struct tg_tenant *tenant, const struct tg__ask *ask,
                   const struct tg__admit_output *answer, int status) {
    struct tg__failure_row why = {.generation = tenant->member.generation,
                                  .group = tenant->member.group, .status = status};

    tg__row_name(&tenant->survey->rows[tenant->survey->self], why.who, sizeof why.who);
    (void)tg__shortfall_tell(tenant, ask, answer, status);
    snprintf(why.text, sizeof why.text, "%.*s", (int)sizeof why.text - 1, tg_last_error()->text);
    tg__group_tell(tenant->slot, &why);
    tg__group_give_up(tenant->ledger->body, tenant->member.group, tenant->member.generation);
    return 0;
}

/* Whether the group fits on the device: 1, 0 (it waits, or was given up) or an error. */
static int fits_on(struct tg_tenant *tenant, uint32_t device, uint64_t size_bytes,
                   const struct tg__driver *own) {
    bool has_figures = find_driver(tenant, device, own);
    struct tg__survey *survey = tenant->survey;
    struct tg__admit_output answer;
    struct tg__claim *self;
    struct tg__ask ask;
    int rc = tg__survey_take(tenant, device);

    if (rc < 0)
        return rc;
    if (!merge(tenant))
        return 0;
    ask = ask_of(tenant, size_bytes);
    self = &survey->claims[survey->self];
    self->wait_bytes = size_bytes;
    self->deadline_ns = ask.deadline_ns;
    self->arrival = atomic_load_explicit(
        &tenant->ledger->body->groups[tenant->member.group].arrival, memory_order_relaxed);
    tg__survey_admit(tenant, true, &answer);
    if (device == tenant->row.device)
        tg__survey_note(tenant, &answer);
    if (has_figures && answer.answer == TG__ADMIT_GRANT)
        return 1;
    if (has_figures && answer.answer == TG__ADMIT_NEVER)
        return give_up(tenant, &ask, &answer, TG_ENEVERFITS);
    if (has_figures && answer.answer == TG__ADMIT_CYCLE)
        return give_up(tenant, &ask, &answer, TG_ECYCLE);
    if (tg__clock_ns() >= ask.deadline_ns)
        return give_up(tenant, &ask, &answer, answer.is_held_up ? TG_ESTARTING : TG_ENOFIT);
    if (has_figures && !answer.is_held_up)
        tg__survey_ask(tenant, tg__less(size_bytes, answer.available_bytes));
    return 0;
}

/* For single tenants and other groups, who come later. */
static void note_wait(struct tg_tenant *tenant) {
    const struct tg__group_slot *slot = &tenant->ledger->body->groups[tenant->member.group];
    struct tg__ask ask = {.tag = tenant->row.tags[0].name, .size_bytes = wanted(&tenant->row),
                          .deadline_ns = tenant->member.deadline_ns};

    if (ask.size_bytes == 0 || tenant->row.is_waiting)
        return;
    for (uint32_t i = 0; i < tenant->row.tag_count; i++) {
        if (tenant->row.tags[i].wanted_bytes > 0)
            ask.tag = tenant->row.tags[i].name;
    }
    tg__tenant_note_wait(tenant, &ask,
                         atomic_load_explicit(&slot->arrival, memory_order_relaxed));
    /* The others write down anew what their drivers say. */
    tg__group_wake(tenant->ledger->body);
}

/* All devices are looked at, also when one has refused: each has to be written down as it is. */
static int fits(struct tg_tenant *tenant, const struct wants *wants) {
    struct tg__driver own = tenant->survey->driver;
    bool fits_on_all = true;

    for (uint32_t i = 0; i < TG_LEDGER_DEVICES; i++) {
        int rc = wants->bytes[i] == 0 ? 1 : fits_on(tenant, i, wants->bytes[i], &own);

        if (rc < 0)
            return rc;
        fits_on_all = fits_on_all && rc == 1;
    }
    return fits_on_all;
}

int tg__group_grant(struct tg_tenant *tenant) {
    const struct tg__member *member = &tenant->member;
    struct tg__ledger_body *body = tenant->ledger->body;
    uint64_t seen = tg__group_word(member->generation, TG__GROUP_GATHERING);
    struct wants wants;
    int rc = tg__group_phase(body, member->group, member->generation);

    tg__survey_note(tenant, NULL);
    if (rc != TG__GROUP_GATHERING)
        return rc < 0 ? rc : 0;
    rc = add_up(tenant, &wants);
    if (rc < 0 || wants.came < member->size)
        return rc;
    rc = fits(tenant, &wants);
    if (rc < 0)
        return rc;
    if (rc == 0) {
        note_wait(tenant);
        return 0;
    }
    (void)tg__shm_swap(&body->groups[member->group].word, &seen,
                       tg__group_word(member->generation, TG__GROUP_OPEN));
    tg__group_wake(body);
    return 0;
}
