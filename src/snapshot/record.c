/* SPDX-License-Identifier: Apache-2.0 */
/* See record.h. Missing keys are those of older versions, or left out by other writers: each has a
 * value that says so. A key of the wrong type is an error that names it. */
#include "snapshot/record.h"

#include "base/error.h"

#define SIZE_BYTES_MAX (UINT64_C(1) << 48)

#define BIT(key) (UINT64_C(1) << TG__KEY_##key)
#define HAS(fields, key) (((fields)->has & BIT(key)) != 0)

_Static_assert(TG__KEY_COUNT <= 64, "the keys of a dictionary are a 64-bit set");

static const char *const key_texts[] = {
    [TG__NO_WORD] = "",
#define KEY(name, text) [TG__KEY_##name] = text,
#define VALUE(name, text, word)
#include "snapshot/words.def"
#undef KEY
#undef VALUE
};

void tg__fields_read(const uint64_t *pairs, size_t count, struct tg__fields *fields) {
    fields->has = 0;
    for (size_t i = 0; i < count; i++) {
        enum tg__word word;
        if (tg__tag(pairs[2 * i]) != TG__TEXT)
            continue;
        word = tg__text_word(tg__number(pairs[2 * i]));
        if (word == TG__NO_WORD || word >= TG__KEY_COUNT)
            continue;
        fields->value[word] = pairs[2 * i + 1];
        fields->has |= UINT64_C(1) << word;
    }
}

enum tg__kind tg__fields_kind(const struct tg__fields *fields) {
    static const struct {
        uint64_t keys;
        enum tg__kind kind;
    } rules[] = {
        {BIT(ACTION), TG__EVENT},
        {BIT(FILENAME) | BIT(LINE), TG__FRAME},
        {BIT(BLOCKS) | BIT(DEVICE), TG__SEGMENT},
        {BIT(STATE) | BIT(SIZE), TG__BLOCK},
        {BIT(STAGE) | BIT(NAME), TG__ANNOTATION},
        {BIT(REAL_SIZE), TG__HISTORY},
        {BIT(SEGMENTS), TG__TOP},
        {BIT(DEVICE_TRACES), TG__TOP},
    };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((fields->has & rules[i].keys) == rules[i].keys)
            return rules[i].kind;
    }
    return TG__DICT;
}

/* The number under a key; `otherwise` where there is none. Addresses and streams beyond 2^63 come
 * as their low 64 bits, whichever sign the writer gave them. */
static int number(const struct tg__builder *b, const struct tg__fields *fields, enum tg__word key,
                  uint64_t otherwise, uint64_t *out) {
    uint64_t value;

    *out = otherwise;
    if ((fields->has >> key & 1) == 0)
        return 0;
    value = fields->value[key];
    if (tg__tag(value) == TG__INT)
        *out = (uint64_t)tg__int(value);
    else if (tg__tag(value) == TG__WIDE)
        *out = (uint64_t)((const int64_t *)b->wides.items)[tg__number(value)];
    else if (value == tg__value(TG__CONST, TG__TRUE))
        *out = 1;
    else if (value == tg__value(TG__CONST, TG__FALSE))
        *out = 0;
    else
        return tg__fail(TG_EFORMAT, "'%s' is not a 64-bit whole number", key_texts[key]);
    return 0;
}

/* A size that memory can have; sums of sizes then mean something. */
static int size(const struct tg__builder *b, const struct tg__fields *fields, enum tg__word key,
                uint64_t otherwise, uint64_t *out) {
    int rc = number(b, fields, key, otherwise, out);

    if (rc == 0 && *out > SIZE_BYTES_MAX)
        return tg__fail(TG_EFORMAT, "'%s' is out of range", key_texts[key]);
    return rc;
}

/* The text under a key; the empty one where there is none, or None. */
static int text(const struct tg__fields *fields, enum tg__word key, uint32_t *out) {
    *out = 0;
    if ((fields->has >> key & 1) == 0 || fields->value[key] == tg__value(TG__CONST, TG__NONE))
        return 0;
    if (tg__tag(fields->value[key]) != TG__TEXT)
        return tg__fail(TG_EFORMAT, "'%s' is not a text", key_texts[key]);
    *out = tg__number(fields->value[key]);
    return 0;
}

/* The stack under 'frames'; none where there is none, it is empty, or None. */
static int stack(const struct tg__builder *b, const struct tg__fields *fields, uint32_t *out) {
    uint64_t value = fields->value[TG__KEY_FRAMES];

    *out = 0;
    if (!HAS(fields, FRAMES) || value == tg__value(TG__CONST, TG__NONE) ||
        tg__kind(b, value) == TG__NEW_LIST)
        return 0;
    if (tg__kind(b, value) != TG__STACK)
        return tg__fail(TG_EFORMAT, "'frames' is not a list of frames");
    *out = tg__object_number(b, value);
    return 0;
}

/* A pool's id: a pair, or a list of two numbers (what JSON makes of it). */
static int pool(struct tg__builder *b, const struct tg__fields *fields, enum tg__word key,
                uint32_t *out) {
    uint64_t value = fields->value[key];
    const uint64_t *items = b->items.items;
    struct tg__range range;

    *out = 0;
    if ((fields->has >> key & 1) == 0 || value == tg__value(TG__CONST, TG__NONE))
        return 0;
    if (tg__tag(value) == TG__POOL) {
        *out = tg__number(value);
        return 0;
    }
    if (!tg__list_of(b, value, TG__NO_OBJECT, &range) || range.count != 2 ||
        tg__tag(items[range.first]) != TG__INT || tg__tag(items[range.first + 1]) != TG__INT)
        return tg__fail(TG_EFORMAT, "'%s' is not a pair of numbers", key_texts[key]);
    return tg__intern_pool(b->snapshot, (uint64_t)tg__int(items[range.first]),
                           (uint64_t)tg__int(items[range.first + 1]), out);
}

/* A device's number, -1 for the host. */
static int device(const struct tg__builder *b, const struct tg__fields *fields, int32_t *out) {
    uint64_t n;
    int rc = number(b, fields, TG__KEY_DEVICE, 0, &n);

    if (rc == 0 && (int64_t)n != (int32_t)n)
        return tg__fail(TG_EFORMAT, "'device' is out of range");
    *out = (int32_t)n;
    return rc;
}

static int make_frame(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg_frame frame;
    uint64_t line;
    uint32_t interned;
    int rc;

    if ((rc = text(fields, TG__KEY_NAME, &frame.function)) != 0 ||
        (rc = text(fields, TG__KEY_FILENAME, &frame.file)) != 0 ||
        (rc = number(b, fields, TG__KEY_LINE, 0, &line)) != 0)
        return rc;
    /* Compiled code has lines of -1. */
    frame.line = line > UINT32_MAX ? 0 : (uint32_t)line;
    rc = tg__intern_frame(&b->snapshot->places, &frame, &interned);
    *made = interned;
    return rc;
}

static int event_context(struct tg__builder *b, const struct tg__fields *fields, uint32_t *out) {
    struct tg__context context;
    int rc;

    if ((rc = number(b, fields, TG__KEY_STREAM, 0, &context.stream)) != 0 ||
        (rc = pool(b, fields, TG__KEY_POOL_ID, &context.pool)) != 0 ||
        (rc = text(fields, TG__KEY_USER_METADATA, &context.user_metadata)) != 0 ||
        (rc = text(fields, TG__KEY_COMPILE_CONTEXT, &context.compile_context)) != 0)
        return rc;
    return tg__intern_context(b->snapshot, &context, out);
}

static int make_event(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg_event event = {0};
    uint32_t action_text, context;
    enum tg__word word;
    int rc;

    if ((rc = text(fields, TG__KEY_ACTION, &action_text)) != 0)
        return rc;
    word = tg__text_word(action_text);
    event.action = word >= TG__WORD_ACTION && word < TG__WORD_STATE ? (uint8_t)(word & 0xff)
                                                                    : TG_ACTION_OTHER;
    if ((rc = number(b, fields, TG__KEY_ADDR, 0, &event.addr)) != 0 ||
        (HAS(fields, DEVICE_FREE) &&
         (rc = number(b, fields, TG__KEY_DEVICE_FREE, 0, &event.addr)) != 0) ||
        /* What an out-of-memory error was about may be any number. */
        (rc = event.action == TG_ACTION_OOM
                  ? number(b, fields, TG__KEY_SIZE, 0, &event.size_bytes)
                  : size(b, fields, TG__KEY_SIZE, 0, &event.size_bytes)) != 0 ||
        (rc = number(b, fields, TG__KEY_TIME_US, 0, &event.time_us)) != 0 ||
        (rc = stack(b, fields, &event.stack)) != 0 ||
        (rc = event_context(b, fields, &context)) != 0)
        return rc;
    event.context = context & 0xffffff;
    rc = tg__vec_room(&b->snapshot->events, 1);
    if (rc != 0)
        return rc;
    *made = b->snapshot->events.count;
    ((struct tg_event *)b->snapshot->events.items)[b->snapshot->events.count++] = event;
    return 0;
}

/* The blocks of torch 2.0 carry a history, the newest first, in place of frames. */
static int read_history(struct tg__builder *b, const struct tg__fields *fields,
                        struct tg_block *block) {
    struct tg__range range;
    const struct tg__history *newest;

    if (!HAS(fields, HISTORY))
        return 0;
    if (!tg__list_of(b, fields->value[TG__KEY_HISTORY], TG__HISTORY, &range))
        return tg__fail(TG_EFORMAT, "'history' is not a list of its entries");
    if (range.count == 0)
        return 0;
    newest = (const struct tg__history *)b->histories.items + range.first;
    if (block->stack == 0)
        block->stack = newest->stack;
    if (!HAS(fields, REQUESTED_SIZE) && newest->real_size <= block->size_bytes)
        block->requested_bytes = newest->real_size;
    return 0;
}

static int make_block(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg_block block = {0};
    uint32_t state_text;
    enum tg__word word;
    int rc;

    if ((rc = text(fields, TG__KEY_STATE, &state_text)) != 0 ||
        (rc = number(b, fields, TG__KEY_ADDRESS, 0, &block.addr)) != 0 ||
        (rc = size(b, fields, TG__KEY_SIZE, 0, &block.size_bytes)) != 0 ||
        (rc = size(b, fields, TG__KEY_REQUESTED_SIZE, block.size_bytes,
                   &block.requested_bytes)) != 0 ||
        (rc = stack(b, fields, &block.stack)) != 0 || (rc = read_history(b, fields, &block)) != 0)
        return rc;
    word = tg__text_word(state_text);
    block.state = word >= TG__WORD_STATE ? word & 0xff : TG_BLOCK_OTHER;
    *made = b->snapshot->blocks.count;
    return tg__vec_push(&b->snapshot->blocks, &block);
}

static int make_history(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg__history history;
    int rc;

    if ((rc = number(b, fields, TG__KEY_REAL_SIZE, 0, &history.real_size)) != 0 ||
        (rc = stack(b, fields, &history.stack)) != 0)
        return rc;
    *made = b->histories.count;
    return tg__vec_push(&b->histories, &history);
}

/* Blocks of older files have no address: they tile their segment in order. */
static void place_blocks(struct tg__builder *b, const struct tg_segment *segment) {
    struct tg_block *blocks = (struct tg_block *)b->snapshot->blocks.items + segment->first_block;
    uint64_t addr = segment->addr;

    for (uint32_t i = 0; i < segment->block_count; i++) {
        if (blocks[i].addr == 0)
            blocks[i].addr = addr;
        addr = blocks[i].addr + blocks[i].size_bytes;
    }
}

static int segment_sizes(struct tg__builder *b, const struct tg__fields *fields,
                         struct tg_segment *segment) {
    int rc;

    if ((rc = number(b, fields, TG__KEY_ADDRESS, 0, &segment->addr)) != 0 ||
        (rc = size(b, fields, TG__KEY_TOTAL_SIZE, 0, &segment->total_bytes)) != 0 ||
        (rc = size(b, fields, TG__KEY_ALLOCATED_SIZE, 0, &segment->allocated_bytes)) != 0 ||
        (rc = size(b, fields, TG__KEY_ACTIVE_SIZE, 0, &segment->active_bytes)) != 0)
        return rc;
    return number(b, fields, TG__KEY_REQUESTED_SIZE, segment->active_bytes,
                  &segment->requested_bytes);
}

static int make_segment(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg_segment segment = {0};
    uint64_t is_expandable;
    struct tg__range blocks;
    uint32_t pool_number, type_text;
    int rc;

    if (!tg__list_of(b, fields->value[TG__KEY_BLOCKS], TG__BLOCK, &blocks))
        return tg__fail(TG_EFORMAT, "'blocks' is not a list of blocks");
    if (blocks.count > 0 && blocks.first < b->blocks_taken)
        return tg__fail(TG_EFORMAT, "two segments have the same blocks");
    if (blocks.count > 0)
        b->blocks_taken = blocks.first + blocks.count;
    segment.first_block = blocks.first;
    segment.block_count = blocks.count;
    if ((rc = segment_sizes(b, fields, &segment)) != 0 ||
        (rc = device(b, fields, &segment.device)) != 0 ||
        (rc = number(b, fields, TG__KEY_STREAM, 0, &segment.stream)) != 0 ||
        (rc = number(b, fields, TG__KEY_IS_EXPANDABLE, 0, &is_expandable)) != 0 ||
        (rc = pool(b, fields, TG__KEY_SEGMENT_POOL_ID, &pool_number)) != 0 ||
        (rc = text(fields, TG__KEY_SEGMENT_TYPE, &type_text)) != 0 ||
        (rc = stack(b, fields, &segment.stack)) != 0)
        return rc;
    segment.is_expandable = is_expandable != 0;
    segment.is_large = tg__text_word(type_text) == TG__WORD_LARGE;
    for (int i = 0; i < 2; i++)
        segment.pool[i] =
            ((const struct tg__pool *)b->snapshot->pools.items.items)[pool_number].id[i];
    place_blocks(b, &segment);
    *made = b->snapshot->segments.count;
    return tg__vec_push(&b->snapshot->segments, &segment);
}

static int make_annotation(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    struct tg_annotation annotation = {0};
    uint32_t stage;
    int rc;

    if ((rc = text(fields, TG__KEY_STAGE, &stage)) != 0 ||
        (rc = text(fields, TG__KEY_NAME, &annotation.name)) != 0 ||
        (rc = number(b, fields, TG__KEY_TIME_US, 0, &annotation.time_us)) != 0 ||
        (rc = device(b, fields, &annotation.device)) != 0)
        return rc;
    annotation.is_end = tg__text_word(stage) == TG__WORD_END;
    *made = b->snapshot->annotations.count;
    return tg__vec_push(&b->snapshot->annotations, &annotation);
}

static int make_top(struct tg__builder *b, const struct tg__fields *fields, size_t *made) {
    *made = 0;
    if (HAS(fields, SEGMENTS))
        b->segments = fields->value[TG__KEY_SEGMENTS];
    if (HAS(fields, DEVICE_TRACES))
        b->traces = fields->value[TG__KEY_DEVICE_TRACES];
    if (HAS(fields, EXTERNAL_ANNOTATIONS))
        b->annotations = fields->value[TG__KEY_EXTERNAL_ANNOTATIONS];
    return 0;
}

int tg__record_make(struct tg__builder *b, enum tg__kind kind, const struct tg__fields *fields,
                    size_t *made) {
    if (b->snapshot->events.count >= UINT32_C(1) << 28 ||
        b->snapshot->blocks.count >= UINT32_C(1) << 28)
        return tg__fail(TG_ELIMIT, "too many events or blocks");
    switch (kind) {
    case TG__EVENT:
        return make_event(b, fields, made);
    case TG__FRAME:
        return make_frame(b, fields, made);
    case TG__BLOCK:
        return make_block(b, fields, made);
    case TG__SEGMENT:
        return make_segment(b, fields, made);
    case TG__ANNOTATION:
        return make_annotation(b, fields, made);
    case TG__HISTORY:
        return make_history(b, fields, made);
    default:
        return make_top(b, fields, made);
    }
}
