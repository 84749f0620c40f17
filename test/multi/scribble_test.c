/* SPDX-License-Identifier: Apache-2.0 */
/* A process of the same user writes over everything in the ledger's file but the mutex, for 5 s,
 * while others read it, wait in it, join it and ask `tidegate status`: no signal comes to anyone,
 * and every call returns. Now and then the file is put right for a moment, so that calls get beyond
 * their first check: that they did is counted. */
#include <check.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

#include "../unit/suite.h"
#include "../unit/tenants.h"
#include "base/shmhead.h"
#include "ledger/layout.h"
#include "must.h"

enum { SCRIBBLE_MS = 5000, ENOUGH = 5, PATIENCE_MS = 100000, LOCK_BYTES = 4 };

static const size_t lock_at = offsetof(struct tg__shmhead, lock);

/* What all processes of the test see. */
enum role { READER, WAITER, JOINER, STATUS, ROLES };
static const char *const role_names[ROLES] = {"reader", "waiter", "joiner", "status"};
static struct shared {
    _Atomic uint32_t is_over;
    _Atomic uint64_t served[ROLES], refused[ROLES];
} *shared;

static void count(enum role role, int status) {
    atomic_fetch_add(status == 0 ? &shared->served[role] : &shared->refused[role], 1);
}

static bool goes_on(void) {
    return atomic_load(&shared->is_over) == 0;
}

static void must_be_text(const char *text, size_t text_bytes) {
    size_t length = strnlen(text, text_bytes);

    must(length < text_bytes, "a text without end");
    for (size_t i = 0; i < length; i++)
        must(text[i] >= ' ' && text[i] <= '~', "byte %d in a text", text[i]);
}

static void must_be_within_bounds(const struct tg_node_view *view) {
    must(view->device_count <= TG_LEDGER_DEVICES, "%u devices", view->device_count);
    must(view->tenant_count <= TG_LEDGER_TENANTS, "%u tenants", view->tenant_count);
    for (uint32_t i = 0; i < view->tenant_count; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        must_be_text(tenant->name, sizeof tenant->name);
        must_be_text(tenant->seams, sizeof tenant->seams);
        must(tenant->device < TG_LEDGER_DEVICES, "device %u", tenant->device);
        must(tenant->tag_count <= TG_TENANT_TAGS, "%u tags", tenant->tag_count);
        for (uint32_t k = 0; k < tenant->tag_count; k++)
            must_be_text(tenant->tags[k].name, sizeof tenant->tags[k].name);
    }
}

/* One that stays, and one for each look. */
static int read_on(int in, int out, void *argument) {
    static struct tg_node_view view;
    struct tg_ledger *old = NULL, *fresh;

    (void)in;
    (void)out;
    (void)argument;
    must(tg_ledger_open_reader(NULL, &old) == 0, "%s", tg_last_error()->text);
    while (goes_on()) {
        int status = tg_ledger_read(old, &view);

        if (status == 0)
            must_be_within_bounds(&view);
        count(READER, status);
        if (tg_ledger_open_reader(NULL, &fresh) != 0)
            continue;
        if (tg_ledger_read(fresh, &view) == 0)
            must_be_within_bounds(&view);
        tg_ledger_close(fresh);
    }
    tg_ledger_close(old);
    return 0;
}

/* Every call of a tenant; what they answer may be anything. */
static int use(struct tg_tenant *tenant) {
    const struct tg_tenant_note note = {.mode = TG_MODE_ON, .seams = "1 of 1"};
    int status = tg_tenant_reserve(tenant, "tag", GIB, 0), waited;
    uint32_t asked;

    if (status == 0)
        tg_tenant_commit(tenant, "tag", GIB, 0);
    tg_tenant_declare(tenant, "live", 3 * GIB, GIB);
    tg_tenant_note(tenant, &note);
    waited = tg_tenant_reserve(tenant, "more", 98 * GIB, 20);
    if (waited == 0)
        tg_tenant_cancel(tenant, "more", 98 * GIB);
    (void)!tg_tenant_measure(tenant);
    (void)!tg_tenant_ask(tenant, GIB, &asked);
    (void)!tg_tenant_check_quiet(tenant, 5);
    (void)tg_tenant_asked(tenant);
    if (tg_tenant_host_reserve(tenant, "tag", 4096) == 0)
        tg_tenant_host_give(tenant, "tag", 4096, 0);
    if (status == 0)
        tg_tenant_give(tenant, "tag", GIB, 0);
    return status;
}

/* Opens, joins, uses, for so many rounds or until it is told that it is alone, and leaves. */
static int stay(enum role role, int rounds) {
    const struct tg_tenant_params params = on_card(card, role_names[role]);
    struct tg_tenant *tenant = NULL;
    struct tg_ledger *ledger = NULL;
    int status = tg_ledger_open(NULL, &ledger);

    if (status == 0)
        status = tg_ledger_join(ledger, &params, &tenant);
    if (status != 0)
        count(role, status);
    for (int i = 0; status == 0 && i < rounds && goes_on(); i++) {
        count(role, use(tenant));
        status = tg_tenant_check(tenant);
    }
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
    return status;
}

static int wait_on(int in, int out, void *argument) {
    (void)in;
    (void)out;
    (void)argument;
    while (goes_on())
        (void)stay(WAITER, 1000);
    return 0;
}

static int join_on(int in, int out, void *argument) {
    (void)in;
    (void)out;
    (void)argument;
    while (goes_on())
        (void)stay(JOINER, 1);
    return 0;
}

static int ask_status(int in, int out, void *argument) {
    const char *command = getenv("TIDEGATE_COMMAND");
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC), status;

    (void)in;
    (void)out;
    (void)argument;
    must(command != NULL, "TIDEGATE_COMMAND names no command");
    while (goes_on()) {
        pid_t pid = fork();

        if (pid == 0) {
            dup2(nowhere, 1);
            dup2(nowhere, 2);
            execl(command, command, "status", "--json", (char *)NULL);
            _exit(127);
        }
        must(pid > 0 && waitpid(pid, &status, 0) == pid, "%s", strerror(errno));
        must(WIFEXITED(status), "status ended by signal %d", WTERMSIG(status));
        must(WEXITSTATUS(status) != 127, "%s cannot be run", command);
        count(STATUS, WEXITSTATUS(status));
    }
    return 0;
}

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 24;
}

/* Where garbage goes. A poisoned file, or one that is not known, ends every call at once: so mostly
 * the head is spared, and what is looked at most has its share. */
static const struct target {
    size_t from, bytes; /* 0: to the end */
    int words;
} targets[] = {
    {sizeof(struct tg__shmhead) + offsetof(struct tg__ledger_body, slots),
     8 * sizeof(struct tg__slot), 20},
    {sizeof(struct tg__shmhead), offsetof(struct tg__ledger_body, slots), 20},
    {sizeof(struct tg__shmhead), 0, 2000},
    {0, sizeof(struct tg__shmhead), 8},
    {0, 0, 40000},
};

enum { TARGETS = sizeof targets / sizeof targets[0] };

static uint32_t draw_word(uint64_t *seed) {
    uint32_t word = (uint32_t)draw(seed);

    return word % 4 == 0 ? UINT32_MAX : word % 4 == 1 ? word >> 20 : word;
}

static void scribble(unsigned char *bytes, size_t file_bytes, const struct target *target,
                     uint64_t *seed) {
    size_t range = target->bytes == 0 ? file_bytes - target->from : target->bytes;

    for (int i = 0; i < target->words; i++) {
        size_t at = target->from + draw(seed) % (range / 4) * 4;
        uint32_t word = draw_word(seed);

        if (at != lock_at)
            memcpy(bytes + at, &word, sizeof word);
    }
}

static void put_right(unsigned char *bytes, const unsigned char *whole, size_t file_bytes) {
    memcpy(bytes, whole, lock_at);
    memcpy(bytes + lock_at + LOCK_BYTES, whole + lock_at + LOCK_BYTES,
           file_bytes - lock_at - LOCK_BYTES);
}

static int scribble_on(int in, int out, void *argument) {
    uint64_t seed = 20;
    char path[128];
    struct stat info;
    unsigned char *bytes, *whole;
    int fd;

    (void)in;
    (void)out;
    (void)argument;
    snprintf(path, sizeof path, "%s/ledger", dir);
    fd = open(path, O_RDWR | O_CLOEXEC);
    must(fd >= 0 && fstat(fd, &info) == 0, "%s", strerror(errno));
    bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    whole = malloc((size_t)info.st_size);
    must(bytes != MAP_FAILED && whole != NULL, "%s", strerror(errno));
    memcpy(whole, bytes, (size_t)info.st_size);
    for (int round = 0; goes_on(); round++) {
        scribble(bytes, (size_t)info.st_size, &targets[draw(&seed) % (uint64_t)TARGETS], &seed);
        usleep(200);
        if (round % 4 != 3)
            continue;
        put_right(bytes, whole, (size_t)info.st_size);
        if (draw(&seed) % 4 == 0)
            usleep(20000);
    }
    free(whole);
    return 0;
}

/* Everybody was served often enough, and refused as well. */
static bool has_seen_enough(void) {
    for (int role = 0; role < ROLES; role++) {
        if (atomic_load(&shared->served[role]) < ENOUGH ||
            atomic_load(&shared->refused[role]) < ENOUGH)
            return false;
    }
    return true;
}

START_TEST(garbage_for_five_seconds_ends_nobody) {
    int (*const runs[])(int, int, void *) = {read_on, wait_on, wait_on, join_on, ask_status,
                                             scribble_on};
    enum { COUNT = sizeof runs / sizeof runs[0] };
    struct child children[COUNT];
    struct tg_ledger *ledger = open_ledger(); /* as long as it lives, nobody removes the file */
    uint64_t began_ms = now_ms();

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    for (int i = 0; i < COUNT; i++)
        children[i] = start(runs[i], NULL);
    while (now_ms() - began_ms < SCRIBBLE_MS ||
           (!has_seen_enough() && now_ms() - began_ms < PATIENCE_MS))
        usleep(10000);
    atomic_store(&shared->is_over, 1);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(finish(&children[i]), 0);
    for (int role = 0; role < ROLES; role++)
        printf("%s: %llu served, %llu refused\n", role_names[role],
               (unsigned long long)atomic_load(&shared->served[role]),
               (unsigned long long)atomic_load(&shared->refused[role]));
    ck_assert(has_seen_enough());
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("scribble");

    tcase_set_timeout(cases, 200);
    tcase_add_checked_fixture(cases, set_up_card, tear_down_card);
    tcase_add_test(cases, garbage_for_five_seconds_ends_nobody);
    return suite_run("scribble", cases);
}
