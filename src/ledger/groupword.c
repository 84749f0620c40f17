/* SPDX-License-Identifier: Apache-2.0 */
/* A group's word, what it makes of its members' rows, and who says why a group was given up. All of
 * it without the file's lock. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "ledger/group.h"
#include "ledger/tenant.h"

/* ---- the word -------------------------------------------------------------------------------- */

int tg__group_phase(const struct tg__ledger_body *body, uint32_t group, uint64_t generation) {
    uint64_t word = atomic_load_explicit(&body->groups[group].word, memory_order_acquire);
    uint64_t phase = word - tg__group_word(generation, 0);

    if (word % 8 >= TG__GROUP_PHASES)
        return tg__fail(TG_EPOISONED, "a group's place in the ledger holds garbage");
    return phase < TG__GROUP_PHASES ? (int)phase : TG__GROUP_PHASES;
}

void tg__group_wake(struct tg__ledger_body *body) {
    for (uint32_t i = 0; i < TG_LEDGER_DEVICES; i++)
        tg__device_wake(&body->devices[i]);
}

/* One of the two swaps, since between them somebody may grant. */
void tg__group_give_up(struct tg__ledger_body *body, uint32_t group, uint64_t generation) {
    struct tg__group_slot *slot = &body->groups[group];
    uint64_t seen = tg__group_word(generation, TG__GROUP_GATHERING);

    if (!tg__shm_swap(&slot->word, &seen, tg__group_word(generation, TG__GROUP_DROPPED))) {
        seen = tg__group_word(generation, TG__GROUP_OPEN);
        (void)tg__shm_swap(&slot->word, &seen, tg__group_word(generation, TG__GROUP_ABORTED));
    }
    tg__group_wake(body);
}

/* ---- a row as it counts ---------------------------------------------------------------------- */

static void turn(struct tg__tag_row *tag, uint32_t kind) {
    if (kind == TG__GROUP_WAKES)
        tag->asleep_bytes = tg__less(tag->asleep_bytes, tag->turning_bytes);
    else
        tag->asleep_bytes = tg__sum(tag->asleep_bytes, tag->turning_bytes);
}

static void apply(struct tg__tenant_row *row, int phase) {
    bool is_granted = phase == TG__GROUP_OPEN || phase == TG__GROUP_COMMITTED ||
                      phase == TG__GROUP_ABORTED;

    if (is_granted)
        row->is_waiting = 0;
    for (uint32_t i = 0; i < row->tag_count; i++) {
        struct tg__tag_row *tag = &row->tags[i];

        if (is_granted)
            tag->reserved_bytes = tg__sum(tag->reserved_bytes, tag->wanted_bytes);
        if (phase == TG__GROUP_COMMITTED)
            turn(tag, row->group_kind);
    }
}

/* A row whose generation is not the word's is older than the word. */
int tg__group_row(const struct tg__ledger_body *body, const struct tg__slot *slot,
                  struct tg__tenant_row *row, bool is_own) {
    for (int i = 0; i < TG__READ_TRIES; i++) {
        int phase, rc = is_own ? 0 : tg__row_read(slot, row);

        if (rc < 0 || row->generation == 0)
            return rc;
        phase = tg__group_phase(body, row->group, row->generation);
        if (phase < 0)
            return phase;
        if (phase < TG__GROUP_PHASES) {
            apply(row, phase);
            return 0;
        }
    }
    return tg__fail(TG_EMOTION, "a tenant's group changed through %d tries to read it",
                    TG__READ_TRIES);
}

/* ---- why ------------------------------------------------------------------------------------- */

void tg__group_tell(struct tg__slot *slot, const struct tg__failure_row *why) {
    tg__record_publish(&slot->failure, why, sizeof *why);
}

/* Also of who has left, or is dead and forgotten: no other failure has this generation. */
bool tg__group_told(const struct tg__ledger_body *body, uint32_t group, uint64_t generation,
                    bool deaths_only, struct tg__failure_row *why) {
    struct tg_error before = *tg_last_error();
    bool is_told = false;

    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        struct tg__failure_row row;

        if (tg__record_read(&body->slots[i].failure, &row, sizeof row) < 0 ||
            row.generation != generation || row.group != group ||
            (deaths_only && row.is_death == 0) || (is_told && row.status == TG_EGROUP))
            continue;
        *why = row;
        is_told = true;
    }
    tg__fail_as(&before); /* one in motion has left its sentence */
    if (!is_told)
        return false;
    tg__text_clean(why->who, sizeof why->who);
    tg__text_clean(why->text, sizeof why->text);
    why->status = why->status < 0 ? why->status : TG_EGROUP;
    return true;
}

void tg__group_settle(struct tg__ledger_body *body, struct tg__slot *slot,
                      const struct tg__tenant_row *row) {
    struct tg__failure_row why = {.generation = row->generation, .group = row->group,
                                  .status = TG_EGROUP, .is_death = 1};

    if (row->generation == 0)
        return;
    tg__row_name(row, why.who, sizeof why.who);
    snprintf(why.text, sizeof why.text, "has died");
    tg__group_tell(slot, &why);
    tg__group_give_up(body, row->group, row->generation);
}
