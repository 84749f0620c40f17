/* SPDX-License-Identifier: Apache-2.0 */
/* See model.h. A dictionary's life: NEW (empty) -> a record, where its keys came at once and tell
 * what it is; or NEW -> DICT (pairs kept) -> a record, when it is put into a list. A list's: NEW
 * -> STACK, where it holds frames, else LIST. */
#include "snapshot/model.h"

#include <string.h>

#include "base/error.h"
#include "snapshot/record.h"

/* What is in a list, when all of it is of one kind; NO_OBJECT: plain values, a run of items. */
struct tg__list {
    enum tg__kind kind;
    struct tg__range range;
};

static void vecs(struct tg__builder *b, struct tg__vec *list[7]) {
    list[0] = &b->objects;
    list[1] = &b->lists;
    list[2] = &b->dicts;
    list[3] = &b->items;
    list[4] = &b->wides;
    list[5] = &b->histories;
    list[6] = &b->scratch;
}

int tg__builder_init(struct tg__builder *b, struct tg_snapshot *snapshot) {
    static const size_t item_bytes[7] = {
        sizeof(uint32_t), sizeof(struct tg__list), sizeof(struct tg__range), sizeof(uint64_t),
        sizeof(int64_t), sizeof(struct tg__history), sizeof(uint32_t)};
    struct tg__vec *list[7];
    int rc = 0;

    memset(b, 0, sizeof *b);
    b->snapshot = snapshot;
    b->segments = b->traces = b->annotations = tg__value(TG__CONST, TG__NONE);
    vecs(b, list);
    for (size_t i = 0; i < 7; i++) {
        tg__vec_init(list[i], item_bytes[i], &snapshot->budget);
        /* So that an empty one has an address too. */
        if (rc == 0)
            rc = tg__vec_reserve(list[i], 1);
    }
    return rc;
}

void tg__builder_free(struct tg__builder *b) {
    struct tg__vec *list[7];

    vecs(b, list);
    for (size_t i = 0; i < 7; i++)
        tg__vec_free(list[i]);
}

static int new_object(struct tg__builder *b, enum tg__kind kind, uint64_t *value) {
    uint32_t word = kind;
    int rc;

    if (b->objects.count >= UINT32_C(1) << 28)
        return tg__fail(TG_ELIMIT, "too many objects");
    rc = tg__vec_room(&b->objects, 1);
    if (rc != 0)
        return rc;
    *value = tg__value(TG__OBJECT, b->objects.count);
    ((uint32_t *)b->objects.items)[b->objects.count++] = word;
    return 0;
}

int tg__builder_dict(struct tg__builder *b, uint64_t *value) {
    return new_object(b, TG__NEW_DICT, value);
}

int tg__builder_list(struct tg__builder *b, uint64_t *value) {
    return new_object(b, TG__NEW_LIST, value);
}

int tg__builder_wide(struct tg__builder *b, int64_t n, uint64_t *value) {
    if (b->wides.count >= UINT32_C(1) << 28)
        return tg__fail(TG_ELIMIT, "too many large numbers");
    *value = tg__value(TG__WIDE, b->wides.count);
    return tg__vec_push(&b->wides, &n);
}

static void become(struct tg__builder *b, uint64_t value, enum tg__kind kind, size_t number) {
    ((uint32_t *)b->objects.items)[tg__number(value)] = (uint32_t)number << 4 | kind;
}

/* Adds values to the run `range` of b->items, which moves to the end where it is not there. */
static int extend_items(struct tg__builder *b, struct tg__range *range, const uint64_t *values,
                        size_t count) {
    struct tg__range grown = *range;
    bool at_end = range->first + range->count == b->items.count;
    size_t moved = at_end ? 0 : range->count;
    uint64_t *items;
    int rc = tg__vec_reserve(&b->items, moved + count);

    if (rc != 0)
        return rc;
    if (b->items.count + moved + count > UINT32_MAX)
        return tg__fail(TG_ELIMIT, "too many items");
    items = b->items.items;
    if (!at_end) {
        grown.first = (uint32_t)b->items.count;
        memcpy(items + grown.first, items + range->first, moved * sizeof *items);
    }
    memcpy(items + grown.first + grown.count, values, count * sizeof *items);
    grown.count += (uint32_t)count;
    b->items.count += moved + count;
    *range = grown;
    return 0;
}

/* Turns pairs into the record that their keys tell; *told false: they tell none. */
static int make_record(struct tg__builder *b, uint64_t dict, const uint64_t *pairs, size_t count,
                       bool *told) {
    struct tg__fields fields;
    enum tg__kind kind;
    size_t number;
    int rc;

    tg__fields_read(pairs, count, &fields);
    kind = tg__fields_kind(&fields);
    *told = kind != TG__DICT;
    if (!*told)
        return 0;
    rc = tg__record_make(b, kind, &fields, &number);
    if (rc == 0)
        become(b, dict, kind, number);
    return rc;
}

int tg__builder_set(struct tg__builder *b, uint64_t dict, const uint64_t *pairs, size_t count) {
    struct tg__range range = {0, 0};
    bool told = false;
    int rc = 0;

    if (count == 0 || dict == tg__value(TG__CONST, TG__PASSED))
        return 0;
    switch (tg__kind(b, dict)) {
    case TG__NEW_DICT:
        /* One pair alone may be the first of several: it is told when it is put somewhere. */
        if (count > 1)
            rc = make_record(b, dict, pairs, count, &told);
        if (rc != 0 || told)
            return rc;
        if (b->dicts.count >= UINT32_C(1) << 28)
            return tg__fail(TG_ELIMIT, "too many dictionaries");
        rc = extend_items(b, &range, pairs, 2 * count);
        if (rc == 0)
            rc = tg__vec_push(&b->dicts, &range);
        if (rc == 0)
            become(b, dict, TG__DICT, b->dicts.count - 1);
        return rc;
    case TG__DICT:
        return extend_items(b, &((struct tg__range *)b->dicts.items)[tg__object_number(b, dict)],
                            pairs, 2 * count);
    case TG__NO_OBJECT:
    case TG__NEW_LIST:
    case TG__LIST:
    case TG__STACK:
        return tg__fail(TG_EFORMAT, "items are set on something that is not a dictionary");
    default:
        return tg__fail(TG_EFORMAT, "a dictionary grows after it was told, or put somewhere");
    }
}

/* A dictionary that came piecemeal is told now that it is put somewhere. */
static int settle(struct tg__builder *b, uint64_t value) {
    const struct tg__range *range;
    const uint64_t *pairs;
    bool told;
    int rc;

    if (tg__kind(b, value) != TG__DICT)
        return 0;
    range = &((const struct tg__range *)b->dicts.items)[tg__object_number(b, value)];
    pairs = (const uint64_t *)b->items.items + range->first;
    rc = make_record(b, value, pairs, range->count / 2, &told);
    /* Once, however often it is put somewhere. */
    if (rc == 0 && !told)
        become(b, value, TG__PLAIN_DICT, 0);
    return rc;
}

void tg__builder_known_stack(struct tg__builder *b, uint64_t list, uint32_t stack) {
    become(b, list, TG__STACK, stack);
}

int tg__builder_stack(struct tg__builder *b, uint64_t list, const uint32_t *frames,
                      size_t count) {
    uint32_t stack;
    int rc = tg__intern_stack(&b->snapshot->places, 0, frames, count, &stack);

    if (rc == 0)
        become(b, list, TG__STACK, stack);
    return rc;
}

static int append_frames(struct tg__builder *b, uint64_t list, const uint64_t *values,
                         size_t count) {
    uint32_t base = tg__kind(b, list) == TG__STACK ? tg__object_number(b, list) : 0;
    uint32_t *frames, stack;
    size_t known;
    int rc;

    /* Grown piece by piece, each piece costs the whole: not without end. */
    tg__places_stack(&b->snapshot->places, base, &known);
    if (known > b->regrown_left)
        return tg__fail(TG_ELIMIT, "stacks grow by single frames");
    b->regrown_left -= known;
    b->scratch.count = 0;
    rc = tg__vec_room(&b->scratch, count);
    if (rc != 0)
        return rc;
    frames = b->scratch.items;
    for (size_t i = 0; i < count; i++) {
        if (tg__kind(b, values[i]) != TG__FRAME && (rc = settle(b, values[i])) != 0)
            return rc;
        if (tg__kind(b, values[i]) != TG__FRAME)
            return tg__fail(TG_EFORMAT, "a stack holds something that is not a frame");
        frames[i] = tg__object_number(b, values[i]);
    }
    rc = tg__intern_stack(&b->snapshot->places, base, frames, count, &stack);
    if (rc == 0)
        become(b, list, TG__STACK, stack);
    return rc;
}

/* Records of one kind that were made one after the other, as every writer does. */
static bool is_run(const struct tg__builder *b, const uint64_t *values, size_t count,
                   enum tg__kind kind, uint32_t first) {
    for (size_t i = 0; i < count; i++) {
        if (tg__kind(b, values[i]) != kind || tg__object_number(b, values[i]) != first + i)
            return false;
    }
    return true;
}

static int append_records(struct tg__builder *b, struct tg__list *list, const uint64_t *values,
                          size_t count) {
    enum tg__kind kind = tg__kind(b, values[0]);
    uint32_t first = tg__object_number(b, values[0]);

    if (list->range.count == 0) {
        list->kind = kind;
        list->range.first = first;
    }
    if (list->kind != kind ||
        !is_run(b, values, count, kind, list->range.first + list->range.count))
        return tg__fail(TG_EFORMAT, "a list mixes entries, or holds them out of order");
    list->range.count += (uint32_t)count;
    return 0;
}

static int append_plain(struct tg__builder *b, struct tg__list *list, const uint64_t *values,
                        size_t count) {
    if (list->range.count > 0 && list->kind != TG__NO_OBJECT)
        return tg__fail(TG_EFORMAT, "a list mixes entries");
    list->kind = TG__NO_OBJECT;
    return extend_items(b, &list->range, values, count);
}

int tg__builder_append(struct tg__builder *b, uint64_t list, const uint64_t *values,
                       size_t count) {
    static const struct tg__list empty = {TG__NO_OBJECT, {0, 0}};
    enum tg__kind kind = tg__kind(b, list);
    struct tg__list *known;
    int rc = 0;

    if (count == 0 || list == tg__value(TG__CONST, TG__PASSED))
        return 0;
    if (kind != TG__NEW_LIST && kind != TG__LIST && kind != TG__STACK)
        return tg__fail(TG_EFORMAT, "items are appended to something that is not a list");
    rc = settle(b, values[0]);
    if (rc == 0 &&
        (kind == TG__STACK || (kind == TG__NEW_LIST && tg__kind(b, values[0]) == TG__FRAME)))
        return append_frames(b, list, values, count);
    for (size_t i = 1; rc == 0 && i < count; i++)
        rc = settle(b, values[i]);
    if (rc != 0)
        return rc;
    if (kind == TG__NEW_LIST) {
        if (b->lists.count >= UINT32_C(1) << 28)
            return tg__fail(TG_ELIMIT, "too many lists");
        rc = tg__vec_push(&b->lists, &empty);
        if (rc != 0)
            return rc;
        become(b, list, TG__LIST, b->lists.count - 1);
    }
    known = &((struct tg__list *)b->lists.items)[tg__object_number(b, list)];
    return tg__kind(b, values[0]) >= TG__FIRST_RECORD ? append_records(b, known, values, count)
                                                       : append_plain(b, known, values, count);
}

bool tg__list_of(const struct tg__builder *b, uint64_t value, enum tg__kind kind,
                 struct tg__range *range) {
    const struct tg__list *list;

    *range = (struct tg__range){0, 0};
    if (tg__kind(b, value) == TG__NEW_LIST)
        return true;
    if (tg__kind(b, value) != TG__LIST)
        return false;
    list = &((const struct tg__list *)b->lists.items)[tg__object_number(b, value)];
    if (list->kind != kind)
        return false;
    *range = list->range;
    return true;
}

static int link_traces(struct tg__builder *b) {
    struct tg__range devices, trace;
    uint32_t taken = 0;
    int rc = 0;

    if (b->traces == tg__value(TG__CONST, TG__NONE))
        return 0;
    if (!tg__list_of(b, b->traces, TG__NO_OBJECT, &devices))
        return tg__fail(TG_EFORMAT, "'device_traces' is not a list of lists");
    if (devices.count > TG__DEVICES_MAX)
        return tg__fail(TG_EFORMAT, "histories of %u devices; torch knows %d at most",
                        devices.count, TG__DEVICES_MAX);
    for (uint32_t i = 0; rc == 0 && i < devices.count; i++) {
        uint64_t value = ((const uint64_t *)b->items.items)[devices.first + i];
        if (!tg__list_of(b, value, TG__EVENT, &trace))
            return tg__fail(TG_EFORMAT, "'device_traces' holds something that is not a list of "
                                        "events");
        if (trace.count > 0 && trace.first < taken)
            return tg__fail(TG_EFORMAT, "two devices have the same events");
        if (trace.count > 0)
            taken = trace.first + trace.count;
        rc = tg__vec_push(&b->snapshot->traces, &trace);
    }
    return rc;
}

/* The tables hold all records of the file; these say which part of them is the device's own: a file
 * may also carry the host's (host_segments), made alike. */
static int keep_only(struct tg__builder *b, uint64_t value, enum tg__kind kind,
                     struct tg__vec *table, const char *name) {
    struct tg__range range;

    if (value == tg__value(TG__CONST, TG__NONE)) {
        table->count = 0;
        return 0;
    }
    if (!tg__list_of(b, value, kind, &range))
        return tg__fail(TG_EFORMAT, "'%s' is not a list of its entries", name);
    memmove(table->items, (char *)table->items + range.first * table->item_bytes,
            range.count * table->item_bytes);
    table->count = range.count;
    return 0;
}

int tg__builder_finish(struct tg__builder *b, uint64_t root) {
    struct tg_snapshot *s = b->snapshot;
    int rc = settle(b, root);

    if (rc != 0)
        return rc;
    if (tg__kind(b, root) == TG__LIST || tg__kind(b, root) == TG__NEW_LIST) {
        s->is_list = true;
        b->segments = root;
    } else if (tg__kind(b, root) != TG__TOP) {
        return tg__fail(TG_EFORMAT,
                        "not a memory snapshot: no dictionary with 'segments' or 'device_traces'");
    }
    rc = link_traces(b);
    if (rc == 0)
        rc = keep_only(b, b->segments, TG__SEGMENT, &s->segments, "segments");
    if (rc == 0)
        rc = keep_only(b, b->annotations, TG__ANNOTATION, &s->annotations,
                       "external_annotations");
    return rc;
}
