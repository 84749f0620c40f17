/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory by itself: its size, its charge, its pages, and what a fork, a death and each call
 * that fails leave behind. */
#include <tidegate/hostmem.h>

#include <fcntl.h>
#include <sys/resource.h>

#include "../api/tested_device.h"
#include "suite.h"
#include "sweep.h"
#include "tenants.h"

#define SIZE_BYTES (UINT64_C(9) * MIB + 100)

static struct tg_ledger *ledger;
static struct tg_tenant *tenant;
static struct tg_device *device;

static const char *options(const char *name) {
    static char text[96];

    snprintf(text, sizeof text, "capacity=64MiB,name=%s%d", name, (int)getpid());
    return text;
}

static void set_up(void) {
    set_up_card();
    ledger = open_ledger();
    tenant = join(ledger, card, "trainer");
    ck_ok(tg_device_open(tested_uri("", options("hostmem")), &device));
}

static void tear_down(void) {
    system_arm(SYSTEM_COUNT, 0, false);
    tg_device_close(device);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
    tear_down_card();
}

static uint64_t pages(uint64_t size_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (size_bytes + page - 1) / page * page;
}

static uint64_t charged(void) {
    return look(ledger)->host_bytes;
}

static struct tg_hostmem *alloc(uint64_t size_bytes) {
    struct tg_hostmem *memory = NULL;

    ck_ok(tg_hostmem_alloc(tenant, "model", size_bytes, &memory));
    return memory;
}

static unsigned char *bytes_of(const struct tg_hostmem *memory) {
    struct tg_hostmem_info info;

    tg_hostmem_info(memory, &info);
    return info.bytes;
}

/* Pages of the range that have memory behind them. */
static size_t resident(const unsigned char *bytes, uint64_t size_bytes) {
    static unsigned char seen[1 << 16];
    size_t count = 0, all = pages(size_bytes) / (uint64_t)sysconf(_SC_PAGESIZE);

    ck_assert_uint_le(all, sizeof seen);
    ck_assert_int_eq(mincore((void *)(uintptr_t)bytes, size_bytes, seen), 0);
    for (size_t i = 0; i < all; i++)
        count += seen[i] & 1;
    return count;
}

START_TEST(it_is_of_exactly_the_size_and_charged_by_pages) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);
    struct tg_hostmem_info info;

    tg_hostmem_info(memory, &info);
    ck_assert_uint_eq(info.size_bytes, SIZE_BYTES);
    ck_assert_int_eq(info.is_pinned, 0);
    ck_assert_uint_eq((uintptr_t)info.bytes % (2 * MIB), 0);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    ck_assert_uint_eq(resident(info.bytes, SIZE_BYTES), 0);
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), 0);
    tg_hostmem_free(NULL);
    tg_hostmem_info(NULL, &info);
    ck_assert_ptr_null(info.bytes);
}
END_TEST

/* One thread, as many as the machine has, and more than there is work for. */
START_TEST(touching_gives_every_page_and_keeps_what_is_written) {
    static const uint32_t threads[] = {1, 0, 5, 1000};
    uint64_t size_bytes = 160 * (uint64_t)MIB + 1;
    struct tg_hostmem *memory = alloc(size_bytes);
    unsigned char *bytes = bytes_of(memory);

    ck_ok(tg_hostmem_touch(memory, threads[_i]));
    ck_assert_uint_eq(resident(bytes, size_bytes),
                      pages(size_bytes) / (uint64_t)sysconf(_SC_PAGESIZE));
    ck_assert_uint_eq(bytes[0] | bytes[size_bytes - 1], 0);
    memset(bytes, 7, size_bytes);
    ck_ok(tg_hostmem_touch(memory, threads[_i]));
    ck_assert_uint_eq(bytes[0] + bytes[size_bytes - 1], 14);
    ck_assert_uint_eq(charged(), pages(size_bytes));
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

START_TEST(a_kernel_that_cannot_populate_is_served_by_writing) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);

    system_arm(SYSTEM_MADVISE, 1, true);
    ck_ok(tg_hostmem_touch(memory, 1));
    ck_assert_uint_eq(system_failed(), 1);
    ck_assert_uint_eq(resident(bytes_of(memory), SIZE_BYTES),
                      pages(SIZE_BYTES) / (uint64_t)sysconf(_SC_PAGESIZE));
    tg_hostmem_free(memory);
}
END_TEST

/* The budget is asked before a page is touched; refused, nothing is there. */
START_TEST(beyond_the_budget_nothing_is_taken) {
    struct tg_hostmem *memory = NULL, *first;

    setenv("TIDEGATE_HOST_BYTES", "16MiB", 1);
    first = alloc(SIZE_BYTES);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "optimizer", SIZE_BYTES, &memory), TG_EHOSTMEMORY);
    ck_says("optimizer need 9.0 MiB");
    ck_assert_ptr_null(memory);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    ck_assert_int_eq(tg_hostmem_alloc(NULL, "alone", 17 * MIB, &memory), TG_EHOSTMEMORY);
    tg_hostmem_free(first);
    ck_ok(tg_hostmem_alloc(NULL, "alone", SIZE_BYTES, &memory));
    ck_ok(tg_hostmem_touch(memory, 0));
    ck_assert_uint_eq(charged(), 0);
    tg_hostmem_free(memory);
}
END_TEST

START_TEST(wrong_use_is_refused) {
    struct tg_hostmem *memory = NULL;

    ck_assert_int_eq(tg_hostmem_alloc(tenant, "model", 0, &memory), -EINVAL);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "model", UINT64_MAX, &memory), -EINVAL);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "model", 1, NULL), -EINVAL);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, NULL, 1, &memory), -EINVAL);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "", 1, &memory), -EINVAL);
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "a name that is far too long for a tag", 1, &memory),
                     -EINVAL);
    ck_assert_int_eq(tg_hostmem_touch(NULL, 0), -EINVAL);
    ck_assert_int_eq(tg_hostmem_pin(NULL, device), -EINVAL);
    ck_assert_ptr_null(memory);
    memory = alloc(1);
    ck_assert_int_eq(tg_hostmem_pin(memory, NULL), -EINVAL);
    tg_hostmem_free(memory);
}
END_TEST

START_TEST(it_is_pinned_once_for_one_device) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);
    struct tg_hostmem_info info;
    struct tg_device *other;

    ck_ok(tg_device_open(tested_uri("", options("other")), &other));
    ck_assert_uint_eq(resident(bytes_of(memory), SIZE_BYTES), 0);
    ck_ok(tg_hostmem_pin(memory, device));
    ck_assert_uint_eq(resident(bytes_of(memory), SIZE_BYTES), pages(SIZE_BYTES) / pages(1));
    ck_ok(tg_hostmem_pin(memory, device));
    ck_assert_int_eq(tg_hostmem_pin(memory, other), -EINVAL);
    tg_hostmem_info(memory, &info);
    ck_assert_int_eq(info.is_pinned, 1);
    /* The device itself has it as one range. */
    ck_assert_int_eq(tg_device_ops(device)->pin(device, info.bytes, 4096, 1), -EINVAL);
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), 0);
    tg_device_close(other);
}
END_TEST

/* Each way that the device can refuse: it is memory as any other then, and can be freed. */
START_TEST(a_device_that_does_not_pin_leaves_usable_memory) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);
    struct tg_hostmem_info info;
    struct tg_device *faulty;
    int status = _i == 0 ? TG_EDEVICE : TG_EBROKEN;
    char prefix[64];

    snprintf(prefix, sizeof prefix, "fault:nth=1,op=pin,mode=every,status=%d/", status);
    ck_ok(tg_device_open(tested_uri(prefix, options("f")), &faulty));
    ck_assert_int_eq(tg_hostmem_pin(memory, faulty), status);
    tg_hostmem_info(memory, &info);
    ck_assert_int_eq(info.is_pinned, 0);
    memset(info.bytes, 1, SIZE_BYTES);
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), 0);
    tg_device_close(faulty);
}
END_TEST

/* Memory that the device may still use is neither unmapped nor counted as given. */
START_TEST(what_cannot_be_unpinned_stays_charged) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);
    unsigned char *bytes = bytes_of(memory);
    struct tg_device *faulty;
    char prefix[64];

    snprintf(prefix, sizeof prefix, "fault:nth=2,op=pin,status=%d/", TG_EBROKEN);
    ck_ok(tg_device_open(tested_uri(prefix, options("u")), &faulty));
    ck_ok(tg_hostmem_pin(memory, faulty));
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    bytes[SIZE_BYTES - 1] = 3;
    tg_device_close(faulty);
}
END_TEST

/* ---- every call that can fail ---------------------------------------------------------------- */

static int whole_life(void) {
    struct tg_hostmem *memory = NULL;
    int rc = tg_hostmem_alloc(tenant, "model", 130 * (uint64_t)MIB, &memory);

    if (rc == 0)
        rc = tg_hostmem_touch(memory, 3);
    if (rc == 0)
        rc = tg_hostmem_pin(memory, device);
    tg_hostmem_free(memory);
    return rc;
}

START_TEST(whatever_the_system_refuses_nothing_is_left) {
    static const enum system_call calls[] = {SYSTEM_MMAP, SYSTEM_CALLOC, SYSTEM_MADVISE,
                                             SYSTEM_THREAD, SYSTEM_REALLOC};
    size_t segments = system_segments();

    for (uint64_t nth = 1;; nth++) {
        uint64_t failed;

        system_arm(calls[_i], nth, false);
        (void)!whole_life();
        failed = system_failed();
        system_arm(SYSTEM_COUNT, 0, false);
        ck_assert_msg(charged() == 0, "%s %d", system_names[calls[_i]], (int)nth);
        ck_assert_uint_eq(system_segments(), segments);
        if (failed == 0)
            break;
        ck_assert_uint_lt(nth, 100);
    }
    ck_ok(whole_life());
}
END_TEST

/* ---- processes ------------------------------------------------------------------------------- */

/* Whether the kernel can read there, without touching it. */
static bool is_there(const void *bytes) {
    int ends[2];
    bool is_read;

    ck_assert_int_eq(pipe(ends), 0);
    is_read = write(ends[1], bytes, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return is_read;
}

static int child_with_parents(int in, int out, void *argument) {
    struct tg_hostmem *memory = argument;
    unsigned char *bytes = bytes_of(memory);
    bool is_right = tg_hostmem_touch(memory, 0) == TG_EFORKED &&
                    tg_hostmem_pin(memory, device) == TG_EFORKED && !is_there(bytes);
    /* What the child has put there itself is none of the parent's. */
    void *own = mmap(bytes, 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    tg_hostmem_free(memory);
    is_right = is_right && own == bytes && is_there(own);
    tell(out, is_right);
    hear(in);
    return 0;
}

START_TEST(a_forked_child_has_none_of_it) {
    struct tg_hostmem *memory = alloc(SIZE_BYTES);
    struct child child;

    if (_i == 1)
        ck_ok(tg_hostmem_pin(memory, device));
    memset(bytes_of(memory), 5, SIZE_BYTES);
    child = start(child_with_parents, memory);
    ck_assert_uint_eq(hear(child.in), 1);
    ck_assert_int_eq(finish(&child), 0);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    ck_assert_uint_eq(bytes_of(memory)[SIZE_BYTES - 1], 5);
    tg_hostmem_free(memory);
    ck_assert_uint_eq(charged(), 0);
}
END_TEST

static int hold_until_killed(int in, int out, void *argument) {
    struct tg_hostmem *memory = NULL;
    struct tg_tenant *mortal = join(open_ledger(), card, "mortal");
    int rc = tg_hostmem_alloc(mortal, "model", SIZE_BYTES, &memory);

    (void)argument;
    if (rc == 0)
        rc = tg_hostmem_touch(memory, 0);
    tell(out, (unsigned)rc);
    hear(in);
    return 0;
}

/* The second program finds the budget as if the first had never been. */
START_TEST(the_dead_are_not_charged) {
    struct tg_hostmem *memory = NULL;
    struct child child;

    setenv("TIDEGATE_HOST_BYTES", "16MiB", 1);
    child = start(hold_until_killed, NULL);
    ck_assert_uint_eq(hear(child.in), 0);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    ck_assert_int_eq(tg_hostmem_alloc(tenant, "model", SIZE_BYTES, &memory), TG_EHOSTMEMORY);
    kill_and_finish(&child);
    memory = alloc(SIZE_BYTES);
    ck_assert_uint_eq(charged(), pages(SIZE_BYTES));
    tg_hostmem_free(memory);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hostmem");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, it_is_of_exactly_the_size_and_charged_by_pages);
    tcase_add_loop_test(cases, touching_gives_every_page_and_keeps_what_is_written, 0, 4);
    tcase_add_test(cases, a_kernel_that_cannot_populate_is_served_by_writing);
    tcase_add_test(cases, beyond_the_budget_nothing_is_taken);
    tcase_add_test(cases, wrong_use_is_refused);
    tcase_add_test(cases, it_is_pinned_once_for_one_device);
    tcase_add_loop_test(cases, a_device_that_does_not_pin_leaves_usable_memory, 0, 2);
    tcase_add_test(cases, what_cannot_be_unpinned_stays_charged);
    tcase_add_loop_test(cases, whatever_the_system_refuses_nothing_is_left, 0, 5);
    tcase_add_loop_test(cases, a_forked_child_has_none_of_it, 0, 2);
    tcase_add_test(cases, the_dead_are_not_charged);
    return suite_run("hostmem", cases);
}
