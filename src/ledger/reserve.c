/* SPDX-License-Identifier: Apache-2.0 */
/* Reserving: ask the driver, look at everybody under the lock, let admission decide, and if it says
 * so wait for a change and do it all again. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ledger/tenant.h"

/* Beside errors and 0, not granted: what a try answers. */
enum { GRANTED = 1, TRY_SETTLED, TRY_AGAIN };

/* So often the driver is asked anew since others commit meanwhile. */
enum { ASK_AGAIN = 3 };

/* And so often in all: more tenants than there are do not die in between. */
enum { TRIES_MAX = TG_LEDGER_TENANTS + ASK_AGAIN };

static int check_share(const struct tg_share *share) {
    if (!tg__ledger_is_name(share->tag, TG_TAG_NAME_BYTES))
        return tg__fail(-EINVAL, "a tag's name is 1 to %d printable ASCII characters",
                        TG_TAG_NAME_BYTES - 1);
    if (share->size_bytes == 0)
        return tg__fail(-EINVAL, "0 bytes cannot be reserved for %s", share->tag);
    return 0;
}

/* Checks the shares and adds them up. */
static int fill_ask(struct tg_tenant *tenant, struct tg__ask *ask) {
    uint64_t largest_bytes = 0;

    if (tenant == NULL)
        return tg__fail(-EINVAL, "only a tenant can reserve: join the ledger first");
    if (ask->shares == NULL)
        return tg__fail(-EINVAL, "a request names its tags: NULL was given");
    if (ask->count == 0 || ask->count > TG_TENANT_TAGS)
        return tg__fail(-EINVAL, "a request is for 1 to %d tags, not %" PRIu32, TG_TENANT_TAGS,
                        ask->count);
    for (uint32_t i = 0; i < ask->count; i++) {
        const struct tg_share *share = &ask->shares[i];
        int rc = check_share(share);

        if (rc < 0)
            return rc;
        ask->size_bytes = tg__sum(ask->size_bytes, share->size_bytes);
        if (share->size_bytes > largest_bytes) {
            largest_bytes = share->size_bytes;
            ask->tag = share->tag;
        }
    }
    return tg__shmfile_check(tenant->ledger->file, false);
}

/* ---- under the file's lock ------------------------------------------------------------------ */

/* Under own, too. */
static int decide(struct tg_tenant *tenant, const struct tg__ask *ask,
                  struct tg__admit_output *answer) {
    struct tg__survey *survey = tenant->survey;
    struct tg__claim *self;
    int rc = tg__survey_take(tenant, tenant->row.device);

    if (rc < 0)
        return rc;
    self = &survey->claims[survey->self];
    self->wait_bytes = ask->size_bytes;
    self->is_starting = tenant->row.is_starting == TG_START_UP;
    if (ask->deadline_ns == 0 || !tenant->row.is_waiting)
        self->arrival = UINT64_MAX; /* after all who wait */
    tg__survey_admit(tenant, ask->deadline_ns != 0, answer);
    return 0;
}

/* The wait and its place in the order of arrival; kept once it is there. */
static void wait_note(struct tg_tenant *tenant, const struct tg__ask *ask) {
    _Atomic uint64_t *next = &tenant->ledger->body->next_arrival;
    uint64_t arrival;

    if (tenant->row.is_waiting)
        return;
    arrival = atomic_load_explicit(next, memory_order_relaxed);
    tg__shm_store(next, arrival + 1);
    tg__tenant_note_wait(tenant, ask, arrival);
}

/* Places for all tags, or none is taken: rows without bytes are no tags. */
static bool find_places(struct tg_tenant *tenant, const struct tg__ask *ask,
                        struct tg__tag_row **places) {
    uint32_t count_before = tenant->row.tag_count;

    for (uint32_t i = 0; i < ask->count; i++) {
        places[i] = tg__tenant_tag(tenant, ask->shares[i].tag);
        if (places[i] == NULL) {
            tenant->row.tag_count = count_before;
            return false;
        }
    }
    return true;
}

static int grant(struct tg_tenant *tenant, const struct tg__ask *ask) {
    struct tg__tag_row *places[TG_TENANT_TAGS];
    bool was_waiting = ask->deadline_ns != 0 && tenant->row.is_waiting;

    if (!find_places(tenant, ask, places))
        return tg__tenant_no_place(ask->tag);
    for (uint32_t i = 0; i < ask->count; i++)
        places[i]->reserved_bytes += ask->shares[i].size_bytes;
    tenant->shortfall.status = 0;
    if (was_waiting)
        tg__tenant_clear_wait(&tenant->row);
    tg__tenant_publish(tenant);
    /* Who stood behind may fit as well. */
    if (was_waiting)
        tg__device_wake(tenant->device);
    return GRANTED;
}

static int act(struct tg_tenant *tenant, const struct tg__ask *ask,
               const struct tg__admit_output *answer) {
    switch (answer->answer) {
    case TG__ADMIT_GRANT:
        return grant(tenant, ask);
    case TG__ADMIT_NEVER:
        return tg__shortfall_tell(tenant, ask, answer, TG_ENEVERFITS);
    case TG__ADMIT_CYCLE:
        return tg__shortfall_tell(tenant, ask, answer, TG_ECYCLE);
    case TG__ADMIT_WAIT:
        break;
    }
    if (tg__clock_ns() >= ask->deadline_ns)
        return tg__shortfall_tell(tenant, ask, answer,
                                  answer->is_held_up ? TG_ESTARTING : TG_ENOFIT);
    wait_note(tenant, ask);
    if (!answer->is_held_up)
        tg__survey_ask(tenant, tg__less(ask->size_bytes, answer->available_bytes));
    return 0;
}

static int decide_and_act(struct tg_tenant *tenant, const struct tg__ask *ask, bool must_settle) {
    const struct tg__driver *driver = &tenant->survey->driver;
    struct tg__admit_output answer;
    int rc;

    if (must_settle)
        tg__ledger_settle(tenant->ledger, tenant->row.device, driver);
    /* Whoever noted it. What the dead had created, and not committed, is in no older figure, and
     * its orphans may have ceased to count while this process did not run. */
    if (atomic_load_explicit(&tenant->device->deaths, memory_order_acquire) !=
        driver->deaths_before)
        return TRY_AGAIN;
    pthread_mutex_lock(&tenant->own);
    rc = decide(tenant, ask, &answer);
    if (rc == 0 && !must_settle &&
        (answer.answer != TG__ADMIT_GRANT || tenant->survey->orphan_count > 0)) {
        rc = TRY_SETTLED;
    } else if (rc == 0 && answer.answer == TG__ADMIT_WAIT && driver->created_bytes > 0 &&
               driver->may_be_asked_again) {
        rc = TRY_AGAIN;
    } else if (rc == 0) {
        tg__survey_note(tenant, &answer);
        rc = act(tenant, ask, &answer);
    }
    pthread_mutex_unlock(&tenant->own);
    return rc;
}

/* The dead are looked for only when the request cannot be granted as it is: each look asks the
 * kernel once for each tenant. */
static int try_locked(struct tg_tenant *tenant, const struct tg__ask *ask, bool has_inherited) {
    int rc = decide_and_act(tenant, ask, has_inherited);

    return rc == TRY_SETTLED ? decide_and_act(tenant, ask, true) : rc;
}

/* ---- around it ------------------------------------------------------------------------------ */

static int try_with_figures(struct tg_tenant *tenant, const struct tg__ask *ask,
                            bool may_be_asked_again) {
    struct tg__driver driver = {.may_be_asked_again = may_be_asked_again};
    bool has_inherited;
    int rc = tg__tenant_lock(tenant, ask->lock_by_ns, &driver, &has_inherited);

    if (rc < 0)
        return rc;
    tenant->survey->driver = driver;
    rc = tg__tenant_check_joined(tenant);
    if (rc == 0)
        rc = try_locked(tenant, ask, has_inherited);
    return tg__tenant_unlock(tenant, rc);
}

/* GRANTED; 0: it waits now; or an error. Each further try takes a new death, or garbage. */
static int try_once(struct tg_tenant *tenant, const struct tg__ask *ask) {
    int rc, tries = 0;

    do {
        rc = try_with_figures(tenant, ask, tries++ < ASK_AGAIN);
    } while (rc == TRY_AGAIN && tries < TRIES_MAX);
    if (rc == TRY_AGAIN)
        return tg__fail(TG_EMOTION, "tenants died through %d tries to reserve", tries);
    return rc;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int measure_locked(struct tg_tenant *tenant) {
    const struct tg__ask nothing = {0};
    struct tg__admit_output answer;
    int rc = tg__tenant_check_joined(tenant);

    if (rc < 0)
        return rc;
    tg__ledger_settle(tenant->ledger, tenant->row.device, &tenant->survey->driver);
    pthread_mutex_lock(&tenant->own);
    rc = decide(tenant, &nothing, &answer);
    if (rc == 0)
        tg__survey_note(tenant, &answer);
    pthread_mutex_unlock(&tenant->own);
    return rc;
}

int tg_tenant_measure(struct tg_tenant *tenant) {
    struct tg__driver driver = {0};
    bool has_inherited;
    int rc;

    if (tenant == NULL)
        return tg__fail(-EINVAL, "there is no tenant to measure for");
    rc = tg__shmfile_check(tenant->ledger->file, false);
    if (rc < 0)
        return rc;
    rc = tg__tenant_lock(tenant, tg__clock_ns(), &driver, &has_inherited);
    if (rc < 0)
        return rc;
    tenant->survey->driver = driver;
    return tg__tenant_unlock(tenant, measure_locked(tenant));
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void stop_waiting(struct tg_tenant *tenant) {
    bool was_waiting;

    pthread_mutex_lock(&tenant->own);
    was_waiting = tenant->row.is_waiting;
    if (was_waiting && tg__tenant_is_joined(tenant)) {
        tg__tenant_clear_wait(&tenant->row);
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
    /* Who stood behind may be served now. */
    if (was_waiting)
        tg__device_wake(tenant->device);
}

/* The first try is without a sign on the device that somebody waits, since mostly nobody has to and
 * the sign costs the next giver a system call. */
static int reserve_waiting(struct tg_tenant *tenant, const struct tg__ask *ask) {
    struct tg_error before = *tg_last_error();

    for (bool may_sleep = false;; may_sleep = true) {
        uint32_t seen = tg__wait_begin_look(tenant, may_sleep);
        int rc;

        tg__shm_store(&tenant->slot->seen_ns, tg__clock_ns());
        rc = try_once(tenant, ask);
        if (rc == GRANTED) {
            tg__fail_as(&before); /* a passing failure has left its sentence */
            return 0;
        }
        if (rc < 0 && (!tg__wait_is_passing(rc) || tg__clock_ns() >= ask->deadline_ns)) {
            stop_waiting(tenant);
            return rc;
        }
        if (may_sleep)
            tg__wait_rest(tenant, seen, ask->deadline_ns);
    }
}

int tg_tenant_reserve_all(struct tg_tenant *tenant, const struct tg_share *shares, uint32_t count,
                          uint32_t wait_ms) {
    struct tg__ask ask = {.shares = shares, .count = count};
    uint64_t deadline_ns = tg__clock_ns() + wait_ms * TG__NS_PER_MS;
    int rc = fill_ask(tenant, &ask);

    if (rc < 0)
        return rc;
    ask.lock_by_ns = wait_ms == 0 ? UINT64_MAX : deadline_ns;
    /* One thread of a tenant waits in its row; the others wait for that. */
    if (wait_ms == 0 || !tg__turn_take(&tenant->turn, deadline_ns)) {
        rc = try_once(tenant, &ask);
        return rc == GRANTED ? 0 : rc;
    }
    ask.deadline_ns = deadline_ns;
    rc = reserve_waiting(tenant, &ask);
    tg__turn_end(&tenant->turn);
    return rc;
}

int tg_tenant_reserve(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                      uint32_t wait_ms) {
    const struct tg_share share = {.tag = tag, .size_bytes = size_bytes};

    return tg_tenant_reserve_all(tenant, &share, 1, wait_ms);
}

/* In a forked child a thread that is not there may hold the mutex. */
void tg_tenant_shortfall(const struct tg_tenant *tenant, struct tg_shortfall *shortfall) {
    struct tg_tenant *own = (struct tg_tenant *)tenant;

    if (shortfall == NULL)
        return;
    if (own == NULL || tg__shmfile_check(own->ledger->file, false) == TG_EFORKED) {
        memset(shortfall, 0, sizeof *shortfall);
        return;
    }
    pthread_mutex_lock(&own->own);
    *shortfall = tenant->shortfall;
    pthread_mutex_unlock(&own->own);
}
