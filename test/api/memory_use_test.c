/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep and wake as a user of the public headers sees them: on the host device, and again through
 * the fault device, where any call may fail and nothing may be lost. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tidegate/error.h>
#include <tidegate/memory.h>

#include "tested_device.h"

#define GRANULE (UINT64_C(2) << 20)

enum { BLOCKS = 8, FAULTS = 60 };

static char dir[64];
static struct tg_device *device;
static struct tg_ledger *ledger;
static struct tg_tenant *tenant;
static struct tg_memory *memory;

static int ask(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)argument;
    return tg_device_ops(device)->memory(device, free_bytes, total_bytes);
}

static void set_up(void) {
    snprintf(dir, sizeof dir, "/dev/shm/tidegate-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(setenv("TIDEGATE_DIR", dir, 1), 0);
}

static void tear_down(void) {
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

/* What is not there when a call of opening fails is NULL. */
static int open_all(const char *uri) {
    struct tg_device_info info;
    struct tg_tenant_params params = {
        .name = "user", .rank = -1, .uuid = info.uuid, .gauge = {ask, NULL}};
    int rc = tg_device_open(uri, &device);

    ledger = NULL;
    tenant = NULL;
    memory = NULL;
    ck_assert_int_eq(rc, 0);
    rc = tg_device_ops(device)->info(device, &info);
    if (rc == 0)
        rc = tg_ledger_open(NULL, &ledger);
    if (rc == 0)
        rc = tg_ledger_join(ledger, &params, &tenant);
    return rc != 0 ? rc : tg_memory_open(device, tenant, &memory);
}

static void close_all(void) {
    tg_memory_close(memory);
    tg_tenant_leave(tenant);
    tg_ledger_close(ledger);
    tg_device_close(device);
}

/* ---- a user's day ---------------------------------------------------------------------------- */

struct day {
    struct tg_tag *weights, *cache;
    unsigned char *blocks[BLOCKS], *cached;
};

static uint64_t size_of(int i) {
    return (uint64_t)i * 300001 + 1;
}

static void write_block(const struct day *day, int i) {
    memset(day->blocks[i], i + 1, size_of(i));
}

static void check_bytes(const unsigned char *bytes, uint64_t size_bytes, int value) {
    ck_assert_int_eq(bytes[0], value);
    ck_assert_int_eq(memcmp(bytes, bytes + 1, size_bytes - 1), 0);
}

/* Whatever state the tag is in: awake in place, asleep in the host copy. */
static void check_weights(const struct day *day) {
    struct tg_tag_info info;

    tg_tag_info(day->weights, &info);
    for (int i = 0; i < BLOCKS; i++) {
        const void *content = day->blocks[i];
        uint64_t size_bytes = size_of(i);

        if (content == NULL)
            continue;
        if (info.state == TG_TAG_ASLEEP) {
            ck_assert_int_eq(tg_memory_hostcopy(memory, day->blocks[i], &content, &size_bytes), 0);
            ck_assert_uint_eq(size_bytes, size_of(i));
        }
        if (size_bytes > 1)
            check_bytes(content, size_bytes, i + 1);
    }
}

static int begin_day(struct day *day) {
    static const struct tg_tag_params weights = {.backup = TG_BACKUP_HOST, .packed = 1};
    int rc = tg_tag_open(memory, "weights", &weights, &day->weights);

    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(tg_tag_open(memory, "kv_cache", NULL, &day->cache), 0);
    for (int i = 0; i < BLOCKS && rc == 0; i++) {
        void *block;

        rc = tg_tag_alloc(day->weights, size_of(i), &block);
        if (rc == 0) {
            day->blocks[i] = block;
            write_block(day, i);
        }
    }
    if (rc == 0) {
        void *block;

        rc = tg_tag_alloc(day->cache, 3 * GRANULE, &block);
        if (rc == 0)
            day->cached = memset(block, 5, 3 * GRANULE);
    }
    return rc;
}

/* Each step is tried again until it succeeds: a call that failed has changed nothing. */
static int repeat(int (*step)(struct day *day), struct day *day) {
    int failures = 0;

    while (step(day) != 0) {
        ck_assert_int_lt(tg_last_error()->status, 0);
        ck_assert_uint_gt(strlen(tg_last_error()->text), 5);
        failures++;
        ck_assert_int_lt(failures, 3);
        check_weights(day);
    }
    check_weights(day);
    return failures;
}

static int sleep_all(struct day *day) {
    (void)day;
    return tg_memory_sleep(memory, NULL, 10000, NULL);
}

/* A wake that failed may have left copies under way: the next waits for them. */
static int wake_weights(struct day *day) {
    (void)day;
    return tg_memory_wake(memory, "weights", 1000, NULL);
}

static int wake_all(struct day *day) {
    int rc = tg_memory_wake_try(memory, NULL, 1000, NULL);

    (void)day;
    tg_memory_wake_end(memory, 1);
    return rc;
}

static int spend_day(struct day *day) {
    int failures = 0;

    failures += repeat(sleep_all, day);
    failures += repeat(wake_weights, day);
    failures += repeat(wake_all, day);
    if (day->cached != NULL)
        check_bytes(day->cached, 3 * GRANULE, 0);
    for (int i = 0; i < BLOCKS; i += 2) {
        if (day->blocks[i] != NULL)
            ck_assert_int_eq(tg_memory_free(memory, day->blocks[i], NULL), 0);
        day->blocks[i] = NULL;
    }
    failures += repeat(sleep_all, day);
    failures += repeat(wake_all, day);
    return failures;
}

/* ---- the tests ------------------------------------------------------------------------------- */

START_TEST(a_day_on_the_host_device) {
    struct day day = {0};
    uint64_t free_bytes, total_bytes;

    ck_assert_int_eq(open_all(tested_uri("", "capacity=128MiB")), 0);
    ck_assert_int_eq(begin_day(&day), 0);
    ck_assert_int_eq(spend_day(&day), 0);
    tg_memory_close(memory);
    memory = NULL;
    ck_assert_int_eq(ask(NULL, &free_bytes, &total_bytes), 0);
    ck_assert_uint_eq(free_bytes, total_bytes);
    close_all();
}
END_TEST

START_TEST(a_day_with_a_call_that_fails) {
    char prefix[32];
    struct day day = {0};
    int rc;

    snprintf(prefix, sizeof prefix, "fault:nth=%d/", _i);
    rc = open_all(tested_uri(prefix, "capacity=128MiB"));
    if (rc == 0) {
        rc = begin_day(&day);
        spend_day(&day);
    }
    if (rc != 0)
        ck_assert_int_eq(tg_last_error()->status < 0, 1);
    close_all();
}
END_TEST

START_TEST(a_day_on_which_nothing_comes_back) {
    struct day day = {0};

    /* Every release fails: sleeps succeed, and what stays is counted as long as it is there. */
    ck_assert_int_eq(open_all(tested_uri("fault:nth=1,op=release,mode=every/", "capacity=512MiB")),
                     0);
    ck_assert_int_eq(begin_day(&day), 0);
    ck_assert_int_eq(spend_day(&day), 0);
    close_all();
}
END_TEST

START_TEST(bad_use_is_told_and_changes_nothing) {
    struct tg_tag *tag;
    struct tg_tag_info info;
    void *block;

    ck_assert_int_eq(open_all(tested_uri("", "capacity=64MiB")), 0);
    ck_assert_int_eq(tg_memory_open(NULL, NULL, &memory), -EINVAL);
    ck_assert_int_eq(tg_tag_open(memory, "a tag", NULL, &tag), -EINVAL);
    ck_assert_int_eq(tg_tag_open(memory, "tag", NULL, &tag), 0);
    ck_assert_int_eq(tg_tag_alloc(tag, 0, &block), -EINVAL);
    ck_assert_int_eq(tg_tag_alloc(tag, 1, &block), 0);
    ck_assert_int_eq(tg_memory_free(memory, (char *)block + 1, NULL), -EINVAL);
    ck_assert_int_eq(tg_memory_sleep(memory, "tag,other", 0, NULL), -ENOENT);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "no tag 'other'; there are: tag"));
    tg_tag_info(tag, &info);
    ck_assert_int_eq(info.state, TG_TAG_AWAKE);
    ck_assert_uint_eq(info.block_count, 1);
    close_all();
}
END_TEST

/* As a careless caller may: from a failed call, from an optional that was not there. */
START_TEST(null_is_told_and_changes_nothing) {
    struct tg_tag_info info = {.block_count = 7};
    uint64_t size_bytes = 7;
    struct tg_tag *tag;
    const void *copy;
    void *block;

    ck_assert_int_eq(open_all(tested_uri("", "capacity=32MiB")), 0);
    ck_assert_int_eq(tg_memory_open(device, NULL, NULL), -EINVAL);
    ck_assert_int_eq(tg_tag_open(NULL, "a", NULL, &tag), -EINVAL);
    ck_assert_int_eq(tg_tag_open(memory, "a", NULL, NULL), -EINVAL);
    ck_assert_int_eq(tg_tag_open(memory, "a", NULL, &tag), 0);
    ck_assert_int_eq(tg_tag_alloc(NULL, 1, &block), -EINVAL);
    ck_assert_int_eq(tg_tag_alloc(tag, 1, NULL), -EINVAL);
    ck_assert_int_eq(tg_tag_alloc(tag, 1, &block), 0);
    ck_assert_int_eq(tg_memory_free(NULL, block, NULL), -EINVAL);
    ck_assert_int_eq(tg_memory_sleep(NULL, NULL, 0, NULL), -EINVAL);
    ck_assert_int_eq(tg_memory_wake(NULL, NULL, 0, NULL), -EINVAL);
    ck_assert_int_eq(tg_memory_wake_try(NULL, NULL, 0, NULL), -EINVAL);
    ck_assert_int_eq(tg_last_error()->status, -EINVAL);
    tg_memory_wake_end(NULL, 1);
    ck_assert_int_eq(tg_memory_hostcopy(NULL, block, &copy, &size_bytes), -EINVAL);
    ck_assert_int_eq(tg_memory_hostcopy(memory, block, NULL, &size_bytes), -EINVAL);
    ck_assert_int_eq(tg_memory_hostcopy(memory, block, &copy, NULL), -EINVAL);
    ck_assert_uint_eq(size_bytes, 7);
    tg_tag_info(tag, NULL);
    tg_tag_info(NULL, &info);
    ck_assert_uint_eq(info.block_count, 0);
    tg_tag_info(tag, &info);
    ck_assert_uint_eq(info.block_count, 1);
    close_all();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("memory");
    TCase *tcase = tcase_create("memory");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_day_on_the_host_device);
    tcase_add_loop_test(tcase, a_day_with_a_call_that_fails, 1, FAULTS);
    tcase_add_test(tcase, a_day_on_which_nothing_comes_back);
    tcase_add_test(tcase, bad_use_is_told_and_changes_nothing);
    tcase_add_test(tcase, null_is_told_and_changes_nothing);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
