/* SPDX-License-Identifier: Apache-2.0 */
/* The opcode machine by hand-written pickles: what it reads, and what it refuses, and how. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

#include "suite.h"

#define PICKLE(bytes) (bytes), sizeof(bytes) - 1
/* An event with the given keys behind its action, inside the smallest snapshot. */
#define SNAPSHOT(event) "\x80\x04}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](](" event "eeu."
#define ACTION "X\x06\0\0\0actionX\x05\0\0\0alloc"

struct refusal {
    const char *bytes;
    size_t size_bytes;
    int status;
    const char *words;
};

static const struct refusal refusals[] = {
    {PICKLE(""), TG_ETRUNCATED, "at byte 0: the file is empty"},
    {PICKLE("\x80"), TG_ETRUNCATED, "at byte 0: the data ends"},
    {PICKLE("\x80\x04"), TG_ETRUNCATED, "at byte 2: the data ends"},
    {PICKLE("\x80\x06N."), TG_EFORMAT, "pickle protocol 6; 2 to 5 can be read"},
    {PICKLE("(dp0\n."), TG_EFORMAT, "protocol 0 or 1"},
    {PICKLE("{\"segments\": []}"), TG_EFORMAT, "perhaps JSON"},
    {PICKLE("\x1f\x8b"), TG_EFORMAT, "no pickle: it begins with 0x1f"},
    {PICKLE("\x80\x04N."), TG_EFORMAT, "not a memory snapshot"},
    {PICKLE("\x80\x04}."), TG_EFORMAT, "not a memory snapshot"},
    {PICKLE("\x80\x04."), TG_EFORMAT, "takes more from the stack than is there"},
    {PICKLE("\x80\x04\xff"), TG_EFORMAT, "at byte 2: 0xff is no pickle opcode"},
    {PICKLE("\x80\x04" "cos\nsystem\n"), TG_EUNSAFE, "at byte 2: it asks for os.system"},
    {PICKLE("\x80\x04\x8c\x02os\x8c\x06system\x93"), TG_EUNSAFE, "it asks for os.system"},
    {PICKLE("\x80\x02NR"), TG_EUNSAFE, "REDUCE would construct"},
    {PICKLE("\x80\x02Nb"), TG_EUNSAFE, "BUILD would construct"},
    {PICKLE("\x80\x02P1\n"), TG_EUNSAFE, "PERSID would construct"},
    {PICKLE("\x80\x02\x82\x01"), TG_EUNSAFE, "EXT1 would construct"},
    {PICKLE("\x80\x02\x81"), TG_EUNSAFE, "NEWOBJ would construct"},
    {PICKLE("\x80\x04h\x05"), TG_EFORMAT, "memo entry 5 is used and was never set"},
    {PICKLE("\x80\x04Nr\xff\xff\xff\xff"), TG_ELIMIT, "memo entry 4294967295 in a file of 8"},
    {PICKLE("\x80\x04X\xff\xff\xff\x7f."), TG_ETRUNCATED, "at byte 2: the data ends"},
    {PICKLE("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."), TG_ETRUNCATED, "at byte 2"},
    {PICKLE("\x80\x04\x8b\xff\xff\xff\x7f."), TG_ETRUNCATED, "at byte 2"},
    {PICKLE("\x80\x04\x95\xff\0\0\0\0\0\0\0N."), TG_ETRUNCATED, "at byte 2"},
    {PICKLE("\x80\x04u"), TG_EFORMAT, "wants a mark and there is none"},
    {PICKLE("\x80\x04}(NNNu."), TG_EFORMAT, "takes more from the stack"},
    {PICKLE("\x80\x04](\x85"), TG_EFORMAT, "takes more from the stack"},
    {PICKLE("\x80\x04](a."), TG_EFORMAT, "takes more from the stack"},
    {PICKLE("\x80\x04N(Ne."), TG_EFORMAT, "appended to something that is not a list"},
    {PICKLE("\x80\x04](NNu."), TG_EFORMAT, "set on something that is not a dictionary"},
    {PICKLE(SNAPSHOT("}(" ACTION "X\x04\0\0\0sizeX\x01\0\0\0xu")), TG_EFORMAT,
     "'size' is not a 64-bit whole number"},
    {PICKLE(SNAPSHOT("}(" ACTION "X\x04\0\0\0size\x8a\x08\0\0\0\0\0\0\0\x40u")), TG_EFORMAT,
     "'size' is out of range"},
    {PICKLE("\x80\x04]q\0(}K\1K\2sq\1h\1eh\1K\3K\4s."), TG_EFORMAT,
     "a dictionary grows after it was told, or put somewhere"},
    {PICKLE(SNAPSHOT("}(" ACTION "X\x06\0\0\0frames}u")), TG_EFORMAT,
     "'frames' is not a list of frames"},
    {PICKLE(SNAPSHOT("}(" ACTION "X\x0b\0\0\0compile_contextK\x01u")), TG_EFORMAT, ""},
    {PICKLE("\x80\x04}(X\x08\0\0\0segmentsNX\x0d\0\0\0device_traces](](}(" ACTION
            "NNuh\0eeu."), TG_EFORMAT, "memo entry 0"},
};

START_TEST(refused) {
    const struct refusal *r = &refusals[_i];
    struct tg_snapshot *snapshot = (struct tg_snapshot *)&snapshot;

    ck_assert_msg(tg_snapshot_parse(r->bytes, r->size_bytes, &snapshot) < 0, "row %d", _i);
    ck_assert_msg(tg_last_error()->status == r->status, "row %d: %s", _i, tg_last_error()->text);
    ck_assert_msg(strstr(tg_last_error()->text, r->words) != NULL, "row %d: %s", _i,
                  tg_last_error()->text);
    ck_assert_ptr_eq(snapshot, &snapshot); /* written on success only */
}
END_TEST

static struct tg_snapshot *parse(const char *bytes, size_t size_bytes) {
    struct tg_snapshot *snapshot = NULL;
    int rc = tg_snapshot_parse(bytes, size_bytes, &snapshot);

    ck_assert_msg(rc == 0, "%s", tg_last_error()->text);
    return snapshot;
}

START_TEST(event_values) {
    static const char bytes[] = SNAPSHOT(
        "}(" ACTION "X\x04\0\0\0sizeJ\0\0\0\x7fX\x04\0\0\0addr"
        "\x8a\x09\0\0\0\0\0\0\0\xf0\0X\x06\0\0\0streamJ\xff\xff\xff\xffX\x07\0\0\0time_us"
        "\x8a\x07\x01\x02\x03\x04\x05\x06\x07X\x0d\0\0\0user_metadataX\x02\0\0\0hi"
        "X\x07\0\0\0pool_idK\x03K\x04\x86X\x07\0\0\0unknownG\0\0\0\0\0\0\0\0u");
    struct tg_snapshot *snapshot = parse(bytes, sizeof bytes - 1);
    struct tg_context context;
    const struct tg_event *event;
    size_t count;

    event = tg_snapshot_trace(snapshot, 0, &count);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(event->action, TG_ACTION_ALLOC);
    ck_assert_uint_eq(event->size_bytes, 0x7f000000);
    ck_assert_uint_eq(event->addr, UINT64_C(0xf000000000000000));
    ck_assert_uint_eq(event->time_us, UINT64_C(0x07060504030201));
    ck_assert_uint_eq(event->stack, 0);
    tg_snapshot_context(snapshot, event->context, &context);
    ck_assert_uint_eq(context.stream, UINT64_MAX);
    ck_assert_uint_eq(context.pool[0], 3);
    ck_assert_uint_eq(context.pool[1], 4);
    ck_assert_uint_eq(context.user_metadata.length, 2);
    ck_assert_uint_eq(context.compile_context.length, 0);
    ck_assert_ptr_null(tg_snapshot_trace(snapshot, 1, &count));
    ck_assert_uint_eq(count, 0);
    tg_snapshot_close(snapshot);
}
END_TEST

/* The same event by single items, and with its keys told only when it is put into the list. */
START_TEST(piecemeal) {
    static const char bytes[] = "\x80\x02}X\x08\0\0\0segments]sX\x0d\0\0\0device_traces]]}"
                                "X\x04\0\0\0sizeK\x07s" "X\x06\0\0\0actionX\x03\0\0\0ooms"
                                "X\x0b\0\0\0device_freeK\x09s" "aas.";
    struct tg_snapshot *snapshot = parse(bytes, sizeof bytes - 1);
    const struct tg_event *events = tg_snapshot_events(snapshot);

    ck_assert_uint_eq(events[0].action, TG_ACTION_OOM);
    ck_assert_uint_eq(events[0].size_bytes, 7);
    ck_assert_uint_eq(events[0].addr, 9);
    tg_snapshot_close(snapshot);
}
END_TEST

START_TEST(stacks_are_shared) {
    static const char bytes[] = SNAPSHOT(
        "}(" ACTION "X\x06\0\0\0frames](}(X\x04\0\0\0nameX\x01\0\0\0fX\x08\0\0\0filename"
        "X\x04\0\0\0a.pyX\x04\0\0\0lineK\x05uq\x01" "euq\x02"
        "}(" ACTION "X\x06\0\0\0frames](h\x01" "eu"
        "}(" ACTION "X\x06\0\0\0frames]h\x01" "au"
        "}(" ACTION "X\x06\0\0\0frames](h\x01h\x01" "eu");
    struct tg_snapshot *snapshot = parse(bytes, sizeof bytes - 1);
    const struct tg_event *events = tg_snapshot_events(snapshot);
    const uint32_t *stack;
    size_t count;

    ck_assert_uint_ne(events[0].stack, 0);
    ck_assert_uint_eq(events[1].stack, events[0].stack);
    ck_assert_uint_eq(events[2].stack, events[0].stack);
    ck_assert_uint_ne(events[3].stack, events[0].stack);
    stack = tg_snapshot_stack(snapshot, events[3].stack, &count);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(tg_snapshot_frames(snapshot)[stack[0]].line, 5);
    tg_snapshot_stack(snapshot, 0, &count);
    ck_assert_uint_eq(count, 0);
    tg_snapshot_close(snapshot);
}
END_TEST

/* The same bytes name another stack after a memo entry was replaced. */
#define TEN_GETS "h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01h\x01"
#define LONG_STACK "](" TEN_GETS TEN_GETS TEN_GETS TEN_GETS "e"

START_TEST(a_replaced_memo_entry_names_another_frame) {
    static const char bytes[] = SNAPSHOT(
        "}(X\x04\0\0\0nameX\x01\0\0\0fX\x08\0\0\0filenameX\x04\0\0\0a.py"
        "X\x04\0\0\0lineK\x05uq\x01" "0"
        "}(X\x04\0\0\0nameX\x01\0\0\0gX\x08\0\0\0filenameX\x04\0\0\0a.py"
        "X\x04\0\0\0lineK\x05uq\x02" "0"
        "}(" ACTION "X\x06\0\0\0frames" LONG_STACK "u"
        "}(" ACTION "X\x06\0\0\0frames" LONG_STACK "u"
        "h\x02q\x01" "0"
        "}(" ACTION "X\x06\0\0\0frames" LONG_STACK "u");
    struct tg_snapshot *snapshot = parse(bytes, sizeof bytes - 1);
    const struct tg_event *events = tg_snapshot_events(snapshot);
    const uint32_t *stack;
    size_t count;

    ck_assert_uint_ne(events[0].stack, 0);
    ck_assert_uint_eq(events[1].stack, events[0].stack);
    ck_assert_uint_ne(events[2].stack, events[0].stack);
    stack = tg_snapshot_stack(snapshot, events[2].stack, &count);
    ck_assert_uint_eq(count, 40);
    ck_assert_uint_eq(stack[39], 1);
    tg_snapshot_close(snapshot);
}
END_TEST

/* One megabyte of one opcode each: bounded memory, an error or nothing, never a crash. */
START_TEST(floods) {
    static const char opcodes[] = "](})N0215t\x85\x86\x94\x88\x8f\x91" "Kldseau";
    static char bytes[1 << 20];
    struct tg_snapshot *snapshot = NULL;

    memset(bytes, opcodes[_i], sizeof bytes);
    memcpy(bytes, "\x80\x04N", 3);
    ck_assert_int_lt(tg_snapshot_parse(bytes, sizeof bytes, &snapshot), 0);
    memcpy(bytes, "\x80\x04]q\0h\0", 7);
    ck_assert_int_lt(tg_snapshot_parse(bytes, sizeof bytes, &snapshot), 0);
}
END_TEST

/* A dictionary of many pairs that tell nothing, put into a list again and again: looked at once, or
 * this test runs into its time limit. */
START_TEST(a_plain_dictionary_is_looked_at_once) {
    enum { PAIRS = 20000, TIMES = 400000 };
    static char bytes[16 + 4 * PAIRS + 2 * TIMES];
    struct tg_snapshot *snapshot = NULL;
    char *at = bytes;

    at = (char *)memcpy(at, "\x80\x04](}q\0(", 8) + 8;
    for (int i = 0; i < PAIRS; i++)
        at = (char *)memcpy(at, "K\1K\1", 4) + 4;
    *at++ = 'u';
    for (int i = 0; i < TIMES; i++)
        at = (char *)memcpy(at, "h\0", 2) + 2;
    at = (char *)memcpy(at, "e.", 2) + 2;
    ck_assert_int_eq(tg_snapshot_parse(bytes, (size_t)(at - bytes), &snapshot), TG_EFORMAT);
}
END_TEST

/* The passed function hears of ascending offsets inside the data. */
static void passed(void *argument, size_t until) {
    size_t *last = argument;

    ck_assert_uint_gt(until, *last);
    *last = until;
}

START_TEST(whoever_maps_hears_how_far_it_is_read) {
    enum { EVENTS = 400000 };
    static const char head[] = "\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](](";
    static const char event[] = "}(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0sizeK\1u";
    size_t size_bytes = sizeof head - 1 + EVENTS * (sizeof event - 1) + 4, until = 0;
    char *bytes = malloc(size_bytes), *at = bytes;
    struct tg_snapshot *snapshot;
    struct tg_snapshot_info info;

    ck_assert_ptr_nonnull(bytes);
    at = (char *)memcpy(at, head, sizeof head - 1) + sizeof head - 1;
    for (int i = 0; i < EVENTS; i++)
        at = (char *)memcpy(at, event, sizeof event - 1) + sizeof event - 1;
    memcpy(at, "eeu.", 4);
    ck_assert_int_eq(tg_snapshot_parse_mapped(bytes, size_bytes, passed, &until, &snapshot), 0);
    ck_assert_uint_gt(until, size_bytes / 2);
    ck_assert_uint_lt(until, size_bytes);
    tg_snapshot_info(snapshot, &info);
    ck_assert_uint_eq(info.events, EVENTS);
    tg_snapshot_close(snapshot);
    free(bytes);
}
END_TEST

/* Numbers that no table has are answered as number 0 is. */
START_TEST(numbers_out_of_range) {
    static const char bytes[] = SNAPSHOT("}(" ACTION "X\x04\0\0\0sizeK\1u");
    struct tg_snapshot *snapshot = parse(bytes, sizeof bytes - 1);
    struct tg_context context;
    size_t count = 7;

    tg_snapshot_stack(snapshot, 1000, &count);
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(tg_snapshot_text(snapshot, UINT32_MAX).length, 0);
    tg_snapshot_context(snapshot, UINT32_MAX, &context);
    ck_assert_uint_eq(context.user_metadata.length, 0);
    tg_snapshot_close(snapshot);
}
END_TEST

START_TEST(wrong_calls) {
    struct tg_snapshot *snapshot = NULL;
    struct tg_digest *digest = NULL;
    struct tg_leaks *leaks = NULL;
    struct tg_leak_input input = {0};

    ck_assert_int_eq(tg_snapshot_parse(NULL, 3, &snapshot), -EINVAL);
    ck_assert_int_eq(tg_snapshot_parse("abc", 3, NULL), -EINVAL);
    ck_assert_int_eq(tg_digest_make(NULL, NULL, &digest), -EINVAL);
    ck_assert_int_eq(tg_leaks_find(NULL, 1, NULL, &leaks), -EINVAL);
    ck_assert_int_eq(tg_leaks_find(&input, 0, NULL, &leaks), -EINVAL);
    ck_assert_int_eq(tg_leaks_find(&input, 1, NULL, &leaks), -EINVAL);
    tg_snapshot_close(NULL);
    tg_digest_close(NULL);
    tg_leaks_close(NULL);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("unpickle");

    tcase_add_loop_test(cases, refused, 0, sizeof refusals / sizeof refusals[0]);
    tcase_add_test(cases, event_values);
    tcase_add_test(cases, piecemeal);
    tcase_add_test(cases, stacks_are_shared);
    tcase_add_test(cases, a_replaced_memo_entry_names_another_frame);
    tcase_add_loop_test(cases, floods, 0, 23);
    tcase_add_test(cases, a_plain_dictionary_is_looked_at_once);
    tcase_add_test(cases, whoever_maps_hears_how_far_it_is_read);
    tcase_add_test(cases, numbers_out_of_range);
    tcase_add_test(cases, wrong_calls);
    return suite_run("unpickle", cases);
}
