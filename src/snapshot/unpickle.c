/* SPDX-License-Identifier: Apache-2.0 */
/* See unpickle.h. Each opcode is one line of unpickle.def and one short function here. */
#include "snapshot/unpickle.h"

#include <string.h>

#include "base/error.h"
#include "snapshot/record.h"

/* Returned by an opcode to end the run; every error is negative. */
#define STOPPED 1

/* A stack that was read from [offset, offset + length) of the data. */
struct seen_stack {
    size_t offset;
    uint64_t epoch; /* of the memo at that time; 0: nothing here */
    uint32_t length, stack;
};

#define SEEN_STACKS 1024
#define SEEN_KEY_BYTES 64 /* shorter stacks are scanned as quickly */

struct machine {
    const uint8_t *data, *end;
    const uint8_t *op; /* where the run stopped */
    struct tg__builder *builder;
    struct tg__vec stack; /* uint64_t values */
    struct tg__vec marks; /* uint32_t: height of the stack at each mark */
    struct tg__vec memo;  /* uint32_t: squeezed values, NOT_SET where there is none */
    uint32_t memo_filled; /* entries set, which is where MEMOIZE puts */
    const struct tg__pickle *pickle;
    size_t pass_at; /* the offset from which on the pickle's owner is told */
    uint32_t floor;       /* height of the stack at the last mark: nothing pops below it */
    uint64_t memo_epoch;  /* grows when an entry is replaced: the same bytes may mean others then */
    struct seen_stack seen[SEEN_STACKS]; /* by the bytes with which they begin */
};

#define NOT_SET UINT32_MAX

/* Longer stacks take the ordinary way. */
#define FRAMES_AT_ONCE 256

/* So often the pickle's owner is told how far it is read. */
#define PASS_BYTES ((size_t)4 << 20)

/* Pickle's numbers are little-endian, as is x86-64. */
static inline uint16_t u16_at(const uint8_t *p) {
    uint16_t n;

    memcpy(&n, p, sizeof n);
    return n;
}

static inline uint32_t u32_at(const uint8_t *p) {
    uint32_t n;

    memcpy(&n, p, sizeof n);
    return n;
}

static inline uint64_t u64_at(const uint8_t *p) {
    uint64_t n;

    memcpy(&n, p, sizeof n);
    return n;
}

static int truncated(void) {
    return tg__fail(TG_ETRUNCATED, "the data ends in the middle of an item");
}

static int unbalanced(void) {
    return tg__fail(TG_EFORMAT, "an opcode takes more from the stack than is there");
}

/* ---- the stack ------------------------------------------------------------------------------ */

static inline uint64_t *stack_items(const struct machine *m) {
    return m->stack.items;
}

static inline size_t above_floor(const struct machine *m) {
    return m->stack.count - m->floor;
}

static inline int push(struct machine *m, uint64_t value) {
    int rc = tg__vec_room(&m->stack, 1);

    if (rc == 0)
        stack_items(m)[m->stack.count++] = value;
    return rc;
}

static int push_mark(struct machine *m) {
    int rc = tg__vec_room(&m->marks, 1);

    if (rc != 0)
        return rc;
    if (m->stack.count >= UINT32_MAX)
        return tg__fail(TG_ELIMIT, "too many items on the stack");
    m->floor = (uint32_t)m->stack.count;
    ((uint32_t *)m->marks.items)[m->marks.count++] = m->floor;
    return 0;
}

/* Ends the last mark: *items are the *count values above it, which leave the stack. They stay where
 * they are until the next push. */
static int take_marked(struct machine *m, const uint64_t **items, size_t *count) {
    const uint32_t *marks = m->marks.items;

    *items = stack_items(m) + m->floor;
    *count = above_floor(m);
    if (m->marks.count == 0)
        return tg__fail(TG_EFORMAT, "an opcode wants a mark and there is none");
    m->stack.count = m->floor;
    m->marks.count--;
    m->floor = m->marks.count > 0 ? marks[m->marks.count - 1] : 0;
    return 0;
}

static int pop_one(struct machine *m) {
    const uint64_t *items;
    size_t count;

    if (above_floor(m) == 0 && m->marks.count > 0)
        return take_marked(m, &items, &count);
    if (above_floor(m) == 0)
        return unbalanced();
    m->stack.count--;
    return 0;
}

static int pop_mark(struct machine *m) {
    const uint64_t *items;
    size_t count;

    return take_marked(m, &items, &count);
}

static int duplicate(struct machine *m) {
    return above_floor(m) == 0 ? unbalanced() : push(m, stack_items(m)[m->stack.count - 1]);
}

/* ---- the memo ------------------------------------------------------------------------------- */

/* A value in 32 bits: three for the tag, the number above. Integers too wide for that (nobody
 * memoizes integers) go through the builder's wide ones. */
static int squeeze(struct machine *m, uint64_t value, uint32_t *squeezed) {
    int64_t n = tg__int(value);
    int rc = 0;

    if (tg__tag(value) == TG__INT && (n < -(1 << 27) || n >= 1 << 27))
        rc = tg__builder_wide(m->builder, n, &value);
    if (rc == 0)
        *squeezed = (uint32_t)value;
    return rc;
}

static inline uint64_t unsqueezed(uint32_t squeezed) {
    return (squeezed & 7) == TG__INT ? tg__value_int((int32_t)squeezed >> 3) : squeezed;
}

static int memo_grow(struct machine *m, uint32_t slot) {
    size_t more = slot + (size_t)1 - m->memo.count;
    int rc;

    /* Every entry takes an opcode, so an honest slot is less than the file is long. */
    if (slot >= (size_t)(m->end - m->data))
        return tg__fail(TG_ELIMIT, "memo entry %u in a file of %zu bytes", slot,
                        (size_t)(m->end - m->data));
    rc = tg__vec_room(&m->memo, more);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < more; i++)
        ((uint32_t *)m->memo.items)[m->memo.count++] = NOT_SET;
    return 0;
}

static int put_anywhere(struct machine *m, uint32_t slot, uint64_t value) {
    uint32_t squeezed = NOT_SET, *entry;
    int rc = squeeze(m, value, &squeezed);

    if (rc != 0)
        return rc;
    if (slot >= m->memo.count) {
        rc = memo_grow(m, slot);
        if (rc != 0)
            return rc;
    }
    entry = (uint32_t *)m->memo.items + slot;
    if (*entry == NOT_SET)
        m->memo_filled++;
    else if (*entry != squeezed)
        m->memo_epoch++;
    *entry = squeezed;
    return 0;
}

static inline int put(struct machine *m, uint32_t slot) {
    uint64_t value;

    if (above_floor(m) == 0)
        return unbalanced();
    value = stack_items(m)[m->stack.count - 1];
    /* Nearly always: the next entry, and no integer. */
    if (slot != m->memo.count || slot == m->memo.capacity || tg__tag(value) == TG__INT)
        return put_anywhere(m, slot, value);
    ((uint32_t *)m->memo.items)[m->memo.count++] = (uint32_t)value;
    m->memo_filled++;
    return 0;
}

/* Kept out of get, so that get is small enough to be part of the run. */
static __attribute__((noinline, cold)) int never_set(uint32_t slot) {
    return tg__fail(TG_EFORMAT, "memo entry %u is used and was never set", slot);
}

static inline __attribute__((always_inline)) int get(struct machine *m, uint32_t slot) {
    uint32_t squeezed = slot < m->memo.count ? ((uint32_t *)m->memo.items)[slot] : NOT_SET;

    return squeezed == NOT_SET ? never_set(slot) : push(m, unsqueezed(squeezed));
}

/* ---- scalars -------------------------------------------------------------------------------- */

static int check_protocol(const struct machine *m, unsigned protocol) {
    if (protocol < 2 || protocol > 5)
        return tg__fail(TG_EFORMAT, "pickle protocol %u; 2 to 5 can be read", protocol);
    if (m->builder->snapshot->protocol == 0)
        m->builder->snapshot->protocol = protocol;
    return 0;
}

static int push_long(struct machine *m, const uint8_t *bytes, uint64_t length) {
    uint64_t n = 0, value;
    int rc;

    /* Nine bytes: the sign of an address beyond 2^63. Wider numbers mean nothing to us. */
    if (length > 9 || (length == 9 && bytes[8] != 0 && bytes[8] != 0xff))
        return push(m, tg__value(TG__CONST, TG__PASSED));
    if (length >= 8) {
        n = u64_at(bytes);
    } else if (length > 0 && m->end - bytes >= 8) {
        /* Addresses and times, six and seven bytes: nearly all. The sign comes from the top. */
        n = (uint64_t)((int64_t)(u64_at(bytes) << (64 - 8 * length)) >> (64 - 8 * length));
    } else {
        if (length > 0 && (bytes[length - 1] & 0x80) != 0)
            n = UINT64_MAX;
        for (uint64_t i = length; i > 0; i--)
            n = n << 8 | bytes[i - 1];
    }
    if (tg__int_fits((int64_t)n))
        return push(m, tg__value_int((int64_t)n));
    rc = tg__builder_wide(m->builder, (int64_t)n, &value);
    return rc != 0 ? rc : push(m, value);
}

static int push_text(struct machine *m, const uint8_t *bytes, uint64_t length) {
    uint32_t number;
    int rc = tg__intern_text(&m->builder->snapshot->places, (const char *)bytes, length,
                             &number);

    return rc != 0 ? rc : push(m, tg__value(TG__TEXT, number));
}

/* ---- dictionaries, lists, tuples, sets ------------------------------------------------------ */

static int push_dict(struct machine *m) {
    uint64_t value;
    int rc = tg__builder_dict(m->builder, &value);

    return rc != 0 ? rc : push(m, value);
}

static int push_list(struct machine *m) {
    uint64_t value;
    int rc = tg__builder_list(m->builder, &value);

    return rc != 0 ? rc : push(m, value);
}

static int set_one(struct machine *m) {
    if (above_floor(m) < 3)
        return unbalanced();
    m->stack.count -= 2;
    return tg__builder_set(m->builder, stack_items(m)[m->stack.count - 1],
                           stack_items(m) + m->stack.count, 1);
}

static void pass(struct machine *m) {
    size_t until = (size_t)(m->op - m->data);

    m->pickle->passed(m->pickle->argument, until);
    m->pass_at = until + PASS_BYTES;
}

static int set_items(struct machine *m) {
    const uint64_t *items;
    size_t count;
    int rc = take_marked(m, &items, &count);

    /* Here, since every writer ends its dictionaries so, and not at every opcode. */
    if ((size_t)(m->op - m->data) >= m->pass_at)
        pass(m);
    if (rc != 0)
        return rc;
    if (count % 2 != 0 || above_floor(m) == 0)
        return unbalanced();
    return tg__builder_set(m->builder, items[-1], items, count / 2);
}

static int append_one(struct machine *m) {
    if (above_floor(m) < 2)
        return unbalanced();
    m->stack.count--;
    return tg__builder_append(m->builder, stack_items(m)[m->stack.count - 1],
                              stack_items(m) + m->stack.count, 1);
}

static int append_items(struct machine *m) {
    const uint64_t *items;
    size_t count;
    int rc = take_marked(m, &items, &count);

    if (rc != 0)
        return rc;
    if (above_floor(m) == 0)
        return unbalanced();
    return tg__builder_append(m->builder, items[-1], items, count);
}

static int gather_dict(struct machine *m) {
    const uint64_t *items;
    uint64_t value;
    size_t count;
    int rc = take_marked(m, &items, &count);

    if (rc == 0 && count % 2 != 0)
        rc = unbalanced();
    if (rc == 0)
        rc = tg__builder_dict(m->builder, &value);
    if (rc == 0)
        rc = tg__builder_set(m->builder, value, items, count / 2);
    return rc != 0 ? rc : push(m, value);
}

/* The frame behind a memo entry, or UINT32_MAX. */
static inline uint32_t frame_at(const struct machine *m, uint32_t slot) {
    uint32_t squeezed = slot < m->memo.count ? ((const uint32_t *)m->memo.items)[slot] : NOT_SET;
    uint32_t word;

    if ((squeezed & 7) != TG__OBJECT)
        return UINT32_MAX;
    word = ((const uint32_t *)m->builder->objects.items)[squeezed >> 3];
    return (word & 15) == TG__FRAME ? word >> 4 : UINT32_MAX;
}

/* Reads a list that is filled from a mark by nothing but BINGETs of frames. `at` is behind the
 * mark; returns what follows the APPENDS, or `at` itself where it is not such a list: then nothing
 * has happened. */
static const uint8_t *scan_stack(struct machine *m, const uint8_t *at, uint64_t list, int *rc) {
    const uint8_t *p = at;
    uint32_t frames[FRAMES_AT_ONCE], frame;
    size_t count = 0;

    while (m->end - p > 5 && count < FRAMES_AT_ONCE) {
        /* Two branches and not a choice of lengths: the next opcode need not wait for this one. */
        if (*p == 'j') {
            frame = frame_at(m, u32_at(p + 1));
            p += 5;
        } else if (*p == 'h') {
            frame = frame_at(m, p[1]);
            p += 2;
        } else {
            break;
        }
        if (frame == UINT32_MAX)
            return at;
        frames[count++] = frame;
    }
    if (count == 0 || p == m->end || *p != 'e')
        return at;
    *rc = tg__builder_stack(m->builder, list, frames, count);
    return p + 1;
}

/* Where a stack that begins with these SEEN_KEY_BYTES is noted. */
static struct seen_stack *seen_at(struct machine *m, const uint8_t *at) {
    uint64_t a = 0, b = 0;

    for (size_t i = 0; i < SEEN_KEY_BYTES; i += 16) {
        a = (a ^ u64_at(at + i)) * UINT64_C(0x9e3779b97f4a7c15);
        b = (b ^ u64_at(at + i + 8)) * UINT64_C(0xd6e8feb86659fd93);
        a ^= a >> 29;
        b ^= b >> 31;
    }
    return &m->seen[((a ^ b) >> 20) % SEEN_STACKS];
}

/* A quarter to two thirds of a file is stacks that were seen before, in the same bytes. Equal bytes
 * name equal memo entries, and as long as none was replaced, the same stack. */
static const uint8_t *known_stack(struct machine *m, const uint8_t *at, int *rc) {
    uint64_t list = above_floor(m) > 0 ? stack_items(m)[m->stack.count - 1] : 0;
    struct seen_stack *seen;
    const uint8_t *behind;

    if (tg__kind(m->builder, list) != TG__NEW_LIST)
        return at;
    if (m->end - at < SEEN_KEY_BYTES)
        return scan_stack(m, at, list, rc);
    seen = seen_at(m, at);
    if (seen->epoch == m->memo_epoch && seen->length <= (size_t)(m->end - at) &&
        memcmp(at, m->data + seen->offset, seen->length) == 0) {
        /* The latest place: the pages of earlier ones may have been let go. */
        seen->offset = (size_t)(at - m->data);
        tg__builder_known_stack(m->builder, list, seen->stack);
        return at + seen->length;
    }
    behind = scan_stack(m, at, list, rc);
    if (behind - at >= SEEN_KEY_BYTES && *rc == 0)
        *seen = (struct seen_stack){(size_t)(at - m->data), m->memo_epoch,
                                    (uint32_t)(behind - at),
                                    tg__object_number(m->builder, list)};
    return behind;
}

/* For unpickle.def: moves the run's own `at`. A stack passed without its mark leaves none. */
#define MARK_OR_STACK()                                \
    ((stack_end = known_stack(m, at, &rc)) != at ?     \
         (at = stack_end, rc) : push_mark(m))

static int list_from(struct machine *m, const uint64_t *items, size_t count) {
    uint64_t value;
    int rc = tg__builder_list(m->builder, &value);

    if (rc == 0)
        rc = tg__builder_append(m->builder, value, items, count);
    return rc != 0 ? rc : push(m, value);
}

static int gather_list(struct machine *m) {
    const uint64_t *items;
    size_t count;
    int rc = take_marked(m, &items, &count);

    return rc != 0 ? rc : list_from(m, items, count);
}

/* Pairs of numbers are pool ids, the same few again and again; other tuples are lists to us. */
static int tuple_from(struct machine *m, const uint64_t *items, size_t count) {
    uint32_t number;
    int rc;

    if (count != 2 || tg__tag(items[0]) != TG__INT || tg__tag(items[1]) != TG__INT)
        return list_from(m, items, count);
    rc = tg__intern_pool(m->builder->snapshot, (uint64_t)tg__int(items[0]),
                         (uint64_t)tg__int(items[1]), &number);
    return rc != 0 ? rc : push(m, tg__value(TG__POOL, number));
}

static int make_tuple(struct machine *m, size_t count) {
    if (above_floor(m) < count)
        return unbalanced();
    m->stack.count -= count;
    return tuple_from(m, stack_items(m) + m->stack.count, count);
}

static int gather_tuple(struct machine *m) {
    const uint64_t *items;
    size_t count;
    int rc = take_marked(m, &items, &count);

    return rc != 0 ? rc : tuple_from(m, items, count);
}

static int pass_items(struct machine *m) {
    return pop_mark(m);
}

static int gather_set(struct machine *m) {
    int rc = pop_mark(m);

    return rc != 0 ? rc : push(m, tg__value(TG__CONST, TG__PASSED));
}

/* ---- what is refused ------------------------------------------------------------------------ */

static int refuse(const char *name) {
    return tg__fail(TG_EUNSAFE, "%s would construct an object; a memory snapshot has none", name);
}

/* The length of a line's printable beginning, for the message. */
static int line_length(const uint8_t *at, const uint8_t *end) {
    int length = 0;

    while (at < end && length < 60 && *at > ' ' && *at < 0x7f) {
        at++;
        length++;
    }
    return length;
}

/* GLOBAL and INST: two lines follow, the module and the name in it. */
static int refuse_global(const uint8_t *at, const uint8_t *end) {
    int module = line_length(at, end), name = 0;
    const uint8_t *second = at + module;

    if (second < end && *second == '\n') {
        second++;
        name = line_length(second, end);
    }
    return tg__fail(TG_EUNSAFE, "it asks for %.*s.%.*s; a memory snapshot constructs no object",
                    module, (const char *)at, name, (const char *)second);
}

static int refuse_stack_global(struct machine *m) {
    struct tg_text part[2] = {{"?", 1}, {"?", 1}};
    int length[2];

    for (size_t i = 0; i < 2 && above_floor(m) >= 2; i++) {
        uint64_t value = stack_items(m)[m->stack.count - 2 + i];
        if (tg__tag(value) == TG__TEXT)
            part[i] = tg__places_text(&m->builder->snapshot->places, tg__number(value));
    }
    for (size_t i = 0; i < 2; i++)
        length[i] = line_length((const uint8_t *)part[i].bytes,
                                (const uint8_t *)part[i].bytes + part[i].length);
    return tg__fail(TG_EUNSAFE, "it asks for %.*s.%.*s; a memory snapshot constructs no object",
                    length[0], part[0].bytes, length[1], part[1].bytes);
}

static int unknown_opcode(unsigned code) {
    return tg__fail(TG_EFORMAT, "0x%02x is no pickle opcode of protocol 2 to 5", code);
}

/* ---- the run -------------------------------------------------------------------------------- */

/* The position is a local of this function alone: kept in the machine, it would go through memory
 * at every opcode. */
static int run(struct machine *m) {
    const uint8_t *at = m->data, *const end = m->end;
    int rc = 0;

    while (rc == 0) {
        const uint8_t *arg = at + 1, *payload, *stack_end;
        uint64_t length;
        m->op = at;
        if (at == end)
            return truncated();
        switch (*at) {
#define OP(code, name, width, payload_length, action) \
    case code:                                        \
        if (end - arg < (width))                      \
            return truncated();                       \
        payload = arg + (width);                      \
        length = (payload_length);                    \
        if (length > (uint64_t)(end - payload))       \
            return truncated();                       \
        at = payload + length;                        \
        rc = (action);                                \
        break;
#include "snapshot/unpickle.def"
#undef OP
        default:
            return unknown_opcode(*at);
        }
    }
    return rc;
}

/* What else the bytes may be, to say so. */
static int check_start(const uint8_t *data, size_t size_bytes) {
    if (size_bytes == 0)
        return tg__fail(TG_ETRUNCATED, "the file is empty");
    if (data[0] == 0x80)
        return 0;
    if (data[0] == '{' || data[0] == '[')
        return tg__fail(TG_EFORMAT, "text, perhaps JSON, and no pickle");
    if (data[0] == '(' || data[0] == '}' || data[0] == ']')
        return tg__fail(TG_EFORMAT, "a pickle of protocol 0 or 1, or none; 2 to 5 can be read");
    return tg__fail(TG_EFORMAT, "no pickle: it begins with 0x%02x", data[0]);
}

int tg__unpickle(struct tg__builder *builder, const struct tg__pickle *pickle, size_t *at_byte) {
    struct tg__budget *budget = &builder->snapshot->budget;
    const uint8_t *data = pickle->data;
    struct machine m = {.data = data, .end = data + pickle->size_bytes, .op = data,
                        .memo_epoch = 1, .builder = builder, .pickle = pickle,
                        .pass_at = pickle->passed != NULL ? PASS_BYTES : SIZE_MAX};
    int rc = check_start(data, pickle->size_bytes);

    /* An honest writer's batches come near to one for each byte. */
    builder->regrown_left = 16 * pickle->size_bytes + 65536;
    tg__vec_init(&m.stack, sizeof(uint64_t), budget);
    tg__vec_init(&m.marks, sizeof(uint32_t), budget);
    tg__vec_init(&m.memo, sizeof(uint32_t), budget);
    if (rc == 0)
        rc = tg__vec_reserve(&m.stack, 64); /* so that it has an address from the beginning */
    if (rc == 0)
        rc = run(&m);
    if (rc == STOPPED)
        rc = above_floor(&m) == 0
                 ? unbalanced()
                 : tg__builder_finish(builder, stack_items(&m)[m.stack.count - 1]);
    *at_byte = (size_t)(m.op - data);
    tg__vec_free(&m.stack);
    tg__vec_free(&m.marks);
    tg__vec_free(&m.memo);
    return rc;
}
