/* SPDX-License-Identifier: Apache-2.0 */
/* Random bytes in the ledger's body, under readers and tenants at work: every call returns, no
 * signal comes, and what is read is terminated, printable and within bounds. The head of the file
 * has a test of its own (shmgarbage). */
#include <check.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "ledger/group.h"
#include "ledger/tenant.h"
#include "suite.h"
#include "tenants.h"

enum { ROUNDS = 60, HEAD_BYTES = 256, FILE_MAX = 1 << 20 };

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 24;
}

/* Everywhere, or in a few places: then most of the rest still looks right. */
static void write_garbage(uint64_t *seed, bool is_everywhere) {
    static unsigned char bytes[FILE_MAX];
    char path[128];
    struct stat info;
    int fd;

    snprintf(path, sizeof path, "%s/ledger", dir);
    fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_int_le(info.st_size, FILE_MAX);
    ck_assert_int_eq(read(fd, bytes, FILE_MAX), info.st_size);
    for (int i = 0; i < (is_everywhere ? info.st_size : 2000); i++) {
        uint64_t at = HEAD_BYTES + draw(seed) % ((uint64_t)info.st_size - HEAD_BYTES);
        if (is_everywhere && i >= HEAD_BYTES)
            at = (uint64_t)i;
        bytes[at] = draw(seed) % 4 == 0 ? 255 : (unsigned char)draw(seed);
    }
    ck_assert_int_eq(pwrite(fd, bytes, (size_t)info.st_size, 0), info.st_size);
    close(fd);
}

static void ck_text(const char *text, size_t text_bytes) {
    size_t length = strnlen(text, text_bytes);

    ck_assert_uint_lt(length, text_bytes);
    for (size_t i = 0; i < length; i++)
        ck_assert_msg(text[i] >= ' ' && text[i] <= '~', "a reader sees byte %d", text[i]);
}

static void read_all(struct tg_ledger *ledger) {
    static struct tg_node_view view;
    uint64_t asleep_bytes, short_bytes;

    if (tg_ledger_read(ledger, &view) != 0)
        return;
    ck_assert_uint_le(view.device_count, TG_LEDGER_DEVICES);
    ck_assert_uint_le(view.tenant_count, TG_LEDGER_TENANTS);
    for (uint32_t i = 0; i < view.device_count; i++)
        ck_text(view.devices[i].name, sizeof view.devices[i].name);
    for (uint32_t i = 0; i < view.tenant_count; i++) {
        const struct tg_tenant_view *tenant = &view.tenants[i];
        ck_text(tenant->name, sizeof tenant->name);
        ck_text(tenant->role, sizeof tenant->role);
        ck_text(tenant->wait_tag, sizeof tenant->wait_tag);
        ck_text(tenant->seams, sizeof tenant->seams);
        ck_assert_uint_le(tenant->mode, TG_MODE_ON);
        ck_assert_uint_le(tenant->is_starting, 1);
        ck_assert_uint_lt(tenant->device, TG_LEDGER_DEVICES);
        ck_assert_uint_le(tenant->is_dead, 1);
        ck_assert_uint_le(tenant->is_waiting, 1);
        ck_assert_uint_le(tenant->tag_count, TG_TENANT_TAGS);
        for (uint32_t k = 0; k < tenant->tag_count; k++)
            ck_text(tenant->tags[k].name, sizeof tenant->tags[k].name);
    }
    for (uint32_t i = 0; i < view.device_count; i++)
        ck_ok(tg_reclaim_target(&view, view.devices[i].uuid, i % 2 ? NULL : "tag,kv", 0,
                                &asleep_bytes, &short_bytes));
}

/* Alone in its group, and with one that never comes. */
static void use_groups(struct tg_tenant *tenant) {
    const struct tg__group_share share = {"tag", GIB, GIB};
    struct tg__group_params params = {.name = "engine", .size = 1, .kind = TG__GROUP_WAKES,
                                      .wait_ms = 2, .shares = &share, .share_count = 1};
    char name[64];

    for (; params.size <= 2; params.size++) {
        if (tg__group_come(tenant, &params) == 0 && tg__group_end(tenant, 0) == 0 &&
            tg__group_lost(tenant, name, sizeof name))
            ck_text(name, sizeof name);
        ck_text(tg_last_error()->text, sizeof tg_last_error()->text);
        tg__group_leave(tenant, NULL);
    }
}

/* Their answers may be anything: they must come. */
static void use(struct tg_tenant *tenant) {
    const struct tg_tenant_note note = {.mode = TG_MODE_ON, .seams = "1 of 1"};
    struct tg_shortfall shortfall;
    uint32_t count;
    int status = tg_tenant_reserve(tenant, "tag", GIB, 0);

    status |= tg_tenant_reserve(tenant, "tag", 90 * GIB, 2);
    tg_tenant_commit(tenant, "tag", GIB, 0);
    tg_tenant_shortfall(tenant, &shortfall);
    tg_tenant_give(tenant, "tag", GIB, GIB);
    tg_tenant_forget(tenant, "tag", GIB);
    tg_tenant_cancel(tenant, "tag", 90 * GIB);
    status |= tg_tenant_host_reserve(tenant, "tag", 4096);
    tg_tenant_host_give(tenant, "tag", 4096, 0);
    status |= tg_tenant_check(tenant);
    tg_tenant_note(tenant, &note);
    tg_tenant_declare(tenant, "live", 3 * GIB, GIB);
    status |= tg_tenant_measure(tenant);
    status |= tg_tenant_ask(tenant, GIB, &count);
    status |= tg_tenant_check_quiet(tenant, 2);
    tg_tenant_asked(tenant);
    use_groups(tenant);
    (void)status;
}

START_TEST(garbage_is_survived) {
    uint64_t seed = (uint64_t)_i + 1;
    struct tg_ledger *ledger = open_ledger(), *reader = NULL;
    struct tg_tenant *tenant = join(ledger, card, "one"), *late = NULL;
    struct tg_tenant_params params = on_card(card, "late");

    ck_ok(tg_ledger_open_reader(NULL, &reader));
    use(tenant);
    write_garbage(&seed, _i % 3 == 0);
    read_all(reader);
    use(tenant);
    read_all(reader);
    write_garbage(&seed, false);
    if (tg_ledger_join(ledger, &params, &late) == 0) {
        write_garbage(&seed, false);
        use(late);
        tg_tenant_leave(late);
    }
    read_all(reader);
    tg_tenant_leave(tenant);
    tg_ledger_close(reader);
    tg_ledger_close(ledger);
}
END_TEST

/* What no build of ours has written poisons the ledger for all: its figures are worth nothing. */
START_TEST(a_row_of_garbage_poisons) {
    struct tg_ledger *ledger = open_ledger(), *other = open_ledger();
    struct tg_tenant *tenant = join(ledger, card, "one"), *victim = join(other, card, "two");
    off_t count_at = HEAD_BYTES + offsetof(struct tg__ledger_body, slots) +
                     sizeof(struct tg__slot) + offsetof(struct tg__slot, copies) +
                     offsetof(struct tg__tenant_row, tag_count);
    uint32_t many = 1000;
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/ledger", dir);
    fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    for (int copy = 0; copy < 2; copy++, count_at += sizeof(struct tg__tenant_row))
        ck_assert_int_eq(pwrite(fd, &many, sizeof many, count_at), sizeof many);
    close(fd);
    ck_assert_int_eq(tg_tenant_reserve(tenant, "tag", GIB, 0), TG_EPOISONED);
    ck_assert_int_eq(tg_tenant_reserve(tenant, "tag", GIB, 0), TG_EPOISONED);
    ck_assert_int_eq(tg_tenant_check(victim), TG_EPOISONED);
    tg_tenant_leave(tenant);
    tg_tenant_leave(victim);
    tg_ledger_close(ledger);
    tg_ledger_close(other);
    /* Nobody has it open any more: the next one begins anew. */
    ledger = open_ledger();
    tenant = join(ledger, card, "three");
    ck_ok(tg_tenant_reserve(tenant, "tag", GIB, 0));
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

static struct tg_tenant *in_group(struct tg_ledger *ledger, const char *name) {
    const struct tg__group_share share = {"tag", GIB, GIB};
    const struct tg__group_params params = {.name = name, .size = 1, .kind = TG__GROUP_WAKES,
                                            .wait_ms = 60000, .shares = &share, .share_count = 1};
    struct tg_tenant *tenant = join(ledger, card, name);

    ck_ok(tg__group_come(tenant, &params));
    return tenant;
}

/* A phase, a slot or a kind that there is not poisons as other garbage does; a generation that is
 * not the slot's is a row in motion, until its owner writes it anew. */
START_TEST(a_group_of_garbage_poisons) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *member = in_group(ledger, "member"), *other = join(ledger, card, "other");
    struct tg__ledger_body *body = ledger->body;
    struct tg__tenant_row row = member->row;
    static struct tg_node_view view;

    row.generation = 77;
    tg__row_publish(member->slot, &row);
    ck_assert_int_eq(tg_ledger_read(ledger, &view), TG_EMOTION);
    ck_assert_int_eq(tg_tenant_reserve(other, "a", GIB, 0), TG_EMOTION);
    tg_tenant_cancel(member, "tag", 0);
    ck_ok(tg_tenant_reserve(other, "a", GIB, 0));
    if (_i == 0)
        atomic_store(&body->groups[member->member.group].word, 7);
    row = member->row;
    row.group = _i == 1 ? TG__GROUPS : row.group;
    row.group_kind = _i == 2 ? 3 : row.group_kind;
    tg__row_publish(member->slot, &row);
    ck_assert_int_eq(tg_ledger_read(ledger, &view), TG_EPOISONED);
    ck_assert_int_eq(tg_tenant_reserve(other, "a", GIB, 0), TG_EPOISONED);
    ck_says("garbage");
    ck_assert_int_lt(tg__group_end(member, 0), 0);
    tg__group_leave(member, NULL);
    tg_tenant_leave(member);
    tg_tenant_leave(other);
    tg_ledger_close(ledger);
}
END_TEST

/* Deaths without end are garbage, and no reason to ask the driver without end. */
static int ask_and_count_deaths(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct tg_tenant *tenant = *(struct tg_tenant **)argument;

    atomic_fetch_add(&tenant->device->deaths, 1);
    return ask_card(card, free_bytes, total_bytes);
}

START_TEST(deaths_without_end_end_a_request) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *tenant = NULL;
    struct tg_tenant_params params = on_card(card, "one");

    params.gauge = (struct tg_gauge){ask_and_count_deaths, &tenant};
    ck_ok(tg_ledger_join(ledger, &params, &tenant));
    ck_assert_int_eq(tg_tenant_reserve(tenant, "a", GIB, 0), TG_EMOTION);
    ck_assert_int_eq(tg_tenant_reserve(tenant, "a", GIB, 1), TG_EMOTION);
    ck_assert_uint_eq(look_at(ledger, "one")->is_waiting, 0);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("ledgergarbage");

    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_loop_test(cases, garbage_is_survived, 0, ROUNDS);
    tcase_add_test(cases, a_row_of_garbage_poisons);
    tcase_add_loop_test(cases, a_group_of_garbage_poisons, 0, 3);
    tcase_add_test(cases, deaths_without_end_end_a_request);
    return suite_run("ledgergarbage", cases);
}
