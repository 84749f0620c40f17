/* SPDX-License-Identifier: Apache-2.0 */
/* The body's format word, and reading what others wrote without believing it: after this, counts
 * and indices are within bounds, texts end, and sums do not wrap. */
#include "ledger/layout.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct tg__tenant_row) % 8 == 0, "records are made of words");
_Static_assert(sizeof(struct tg__device_row) % 8 == 0, "records are made of words");
_Static_assert(offsetof(struct tg__slot, copies) ==
                   offsetof(struct tg__slot, record) + sizeof(struct tg__record),
               "a record's copies lie behind its version");
_Static_assert(offsetof(struct tg__device_slot, copies) ==
                   offsetof(struct tg__device_slot, record) + sizeof(struct tg__record),
               "a record's copies lie behind its version");

uint64_t tg__ledger_format(void) {
    const uint64_t numbers[] = {
        1, /* what the numbers mean; counted up when that changes and no size does */
        sizeof(struct tg__ledger_body),
        sizeof(struct tg__slot),
        sizeof(struct tg__tenant_row),
        sizeof(struct tg__tag_row),
        sizeof(struct tg__device_slot),
        offsetof(struct tg__ledger_body, slots),
        offsetof(struct tg__slot, seen_ns),
        offsetof(struct tg__tenant_row, tag_count),
        offsetof(struct tg__tenant_row, wait_bytes),
        offsetof(struct tg__tenant_row, tags),
        offsetof(struct tg__tag_row, asleep_bytes),
        offsetof(struct tg__tag_row, host_touched_bytes),
        offsetof(struct tg__device_row, total_bytes),
        TG_LEDGER_DEVICES,
        TG_LEDGER_TENANTS,
        TG_TENANT_TAGS,
    };

    return tg__shmfile_format(numbers, sizeof numbers / sizeof numbers[0]);
}

int tg__row_read(const struct tg__slot *slot, struct tg__tenant_row *row) {
    int rc = tg__record_read(&slot->record, row, sizeof *row);

    if (rc < 0)
        return rc;
    row->name[sizeof row->name - 1] = '\0';
    row->role[sizeof row->role - 1] = '\0';
    row->wait_tag[sizeof row->wait_tag - 1] = '\0';
    row->device %= TG_LEDGER_DEVICES;
    if (row->tag_count > TG_TENANT_TAGS)
        row->tag_count = TG_TENANT_TAGS;
    for (uint32_t i = 0; i < row->tag_count; i++)
        row->tags[i].name[sizeof row->tags[i].name - 1] = '\0';
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

uint64_t tg__row_held(const struct tg__tenant_row *row) {
    return tg__sum(tg__row_occupied(row), tg__row_reserved(row));
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
