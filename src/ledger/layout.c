/* SPDX-License-Identifier: Apache-2.0 */
/* The body's format word, and reading what others wrote without believing it: after this, counts
 * and indices are within bounds, texts end, and sums do not wrap. */
#include "ledger/layout.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

_Static_assert(sizeof(struct tg__tenant_row) % 8 == 0, "records are made of words");
_Static_assert(sizeof(struct tg__device_row) % 8 == 0, "records are made of words");
_Static_assert(offsetof(struct tg__slot, copies) ==
                   offsetof(struct tg__slot, record) + sizeof(struct tg__record),
               "a record's copies lie behind its version");
_Static_assert(offsetof(struct tg__device_slot, copies) ==
                   offsetof(struct tg__device_slot, record) + sizeof(struct tg__record),
               "a record's copies lie behind its version");

_Static_assert(offsetof(struct tg__slot, failures) ==
                   offsetof(struct tg__slot, failure) + sizeof(struct tg__record),
               "a record's copies lie behind its version");
_Static_assert(offsetof(struct tg__group_slot, copies) ==
                   offsetof(struct tg__group_slot, record) + sizeof(struct tg__record),
               "a record's copies lie behind its version");
_Static_assert(sizeof(struct tg__group_row) % 8 == 0, "records are made of words");
_Static_assert(sizeof(struct tg__failure_row) % 8 == 0, "records are made of words");

uint64_t tg__ledger_format(void) {
    const uint64_t numbers[] = {
        3, /* what the numbers mean; counted up when that changes and no size does */
        sizeof(struct tg__ledger_body),
        sizeof(struct tg__slot),
        sizeof(struct tg__tenant_row),
        sizeof(struct tg__tag_row),
        sizeof(struct tg__device_slot),
        sizeof(struct tg__group_slot),
        sizeof(struct tg__group_row),
        sizeof(struct tg__failure_row),
        offsetof(struct tg__slot, failure),
        offsetof(struct tg__tenant_row, generation),
        offsetof(struct tg__tag_row, wanted_bytes),
        offsetof(struct tg__device_row, asked_ns),
        TG__GROUPS,
        TG__GROUP_PHASES,
        offsetof(struct tg__ledger_body, slots),
        offsetof(struct tg__slot, seen_ns),
        offsetof(struct tg__slot, asked_bytes),
        offsetof(struct tg__tenant_row, tag_count),
        offsetof(struct tg__tenant_row, wait_bytes),
        offsetof(struct tg__tenant_row, is_starting),
        offsetof(struct tg__tenant_row, tags),
        offsetof(struct tg__tag_row, asleep_bytes),
        offsetof(struct tg__tag_row, declared_bytes),
        offsetof(struct tg__tag_row, host_touched_bytes),
        offsetof(struct tg__device_row, total_bytes),
        TG_LEDGER_DEVICES,
        TG_LEDGER_TENANTS,
        TG_TENANT_TAGS,
    };

    return tg__shmfile_format(numbers, sizeof numbers / sizeof numbers[0]);
}

static bool is_text(const char *text, size_t max_bytes) {
    return memchr(text, '\0', max_bytes) != NULL;
}

static bool is_group_garbage(const struct tg__tenant_row *row) {
    return row->generation != 0 &&
           (row->group >= TG__GROUPS || (row->group_kind != TG__GROUP_WAKES &&
                                         row->group_kind != TG__GROUP_SLEEPS));
}

/* What no build of this layout writes. Figures may be any number. */
static bool is_garbage(const struct tg__tenant_row *row) {
    if ((row->state != TG__ROW_LIVES && row->state != TG__ROW_DEAD) ||
        row->device >= TG_LEDGER_DEVICES || row->tag_count > TG_TENANT_TAGS ||
        is_group_garbage(row) ||
        !is_text(row->name, sizeof row->name) || !is_text(row->role, sizeof row->role) ||
        !is_text(row->wait_tag, sizeof row->wait_tag) || !is_text(row->seams, sizeof row->seams))
        return true;
    for (uint32_t i = 0; i < row->tag_count; i++) {
        if (!is_text(row->tags[i].name, sizeof row->tags[i].name))
            return true;
    }
    return false;
}

int tg__row_read(const struct tg__slot *slot, struct tg__tenant_row *row) {
    int rc = tg__record_read(&slot->record, row, sizeof *row);

    if (rc < 0)
        return rc;
    if (is_garbage(row))
        return tg__fail(TG_EPOISONED, "a tenant's place in the ledger holds garbage");
    return 0;
}

int tg__device_read(const struct tg__device_slot *slot, struct tg__device_row *row) {
    int rc = tg__record_read(&slot->record, row, sizeof *row);

    if (rc < 0)
        return rc;
    row->name[sizeof row->name - 1] = '\0';
    return 0;
}

uint64_t tg__row_occupied(const struct tg__tenant_row *row) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++)
        bytes = tg__sum(bytes, row->tags[i].occupied_bytes);
    return bytes;
}

uint64_t tg__row_reserved(const struct tg__tenant_row *row) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++)
        bytes = tg__sum(bytes, row->tags[i].reserved_bytes);
    return bytes;
}

uint64_t tg__row_declared(const struct tg__tenant_row *row) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++)
        bytes = tg__sum(bytes, row->tags[i].declared_bytes);
    return bytes;
}

uint64_t tg__row_held(const struct tg__tenant_row *row) {
    return tg__sum(tg__sum(tg__row_occupied(row), tg__row_reserved(row)), tg__row_declared(row));
}

uint64_t tg__tag_held(const struct tg__tag_row *tag) {
    return tg__sum(tag->occupied_bytes, tag->declared_bytes);
}

/* What was said may be older than what is held: of a tag that sleeps nothing can be given. */
uint64_t tg__tag_returnable(const struct tg__tag_row *tag) {
    uint64_t held_bytes = tg__tag_held(tag);

    return tag->returnable_bytes < held_bytes ? tag->returnable_bytes : held_bytes;
}

uint64_t tg__row_returnable(const struct tg__tenant_row *row) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++)
        bytes = tg__sum(bytes, tg__tag_returnable(&row->tags[i]));
    return bytes;
}

uint64_t tg__row_host(const struct tg__tenant_row *row, bool only_untouched) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < row->tag_count; i++) {
        bytes = tg__sum(bytes, row->tags[i].host_reserved_bytes);
        if (!only_untouched)
            bytes = tg__sum(bytes, row->tags[i].host_touched_bytes);
    }
    return bytes;
}

void tg__row_name(const struct tg__tenant_row *row, char *text, size_t text_bytes) {
    if (row->rank >= 0)
        snprintf(text, text_bytes, "%s rank %d", row->name, (int)row->rank);
    else
        snprintf(text, text_bytes, "%s", row->name);
}

void tg__text_clean(char *text, size_t text_bytes) {
    text[text_bytes - 1] = '\0';
    for (; *text != '\0'; text++) {
        if (*text < ' ' || *text > '~')
            *text = '?';
    }
}

void tg__ledger_name_of(const void *body, uint32_t ticket, char *text, size_t text_bytes) {
    const struct tg__ledger_body *ledger = body;
    struct tg__tenant_row row;

    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        const struct tg__slot *slot = &ledger->slots[i];
        if (atomic_load_explicit(&slot->ticket, memory_order_acquire) == ticket &&
            tg__row_read(slot, &row) == 0) {
            tg__row_name(&row, text, text_bytes);
            return;
        }
    }
    snprintf(text, text_bytes, "a process that has not joined (ticket %u)", ticket);
}
