/* SPDX-License-Identifier: Apache-2.0 */
/* How much host memory there is: the arithmetic by rows, and the system's files from trees that the
 * test lays out. */
#include <check.h>
#include <errno.h>

#include "ledger/hostbudget.h"
#include "suite.h"
#include "tenants.h"

#define MIB (UINT64_C(1) << 20)
#define NO_LIMIT UINT64_MAX

static void set_up(void) {
    set_up_card();
    unsetenv("TIDEGATE_HOST_BYTES");
}

struct row {
    const char *name;
    uint64_t available_bytes, headroom_bytes, option_bytes, untouched_bytes, all_bytes;
    uint64_t budget_bytes;
};

static const struct row rows[] = {
    {"a fiftieth stays", 50 * GIB, NO_LIMIT, NO_LIMIT, 0, 0, 49 * GIB},
    {"at most 2 GiB", 500 * GIB, NO_LIMIT, NO_LIMIT, 0, 0, 498 * GIB},
    {"at least 64 MiB", GIB, NO_LIMIT, NO_LIMIT, 0, 0, GIB - 64 * MIB},
    {"nothing from less than that", 63 * MIB, NO_LIMIT, NO_LIMIT, 0, 0, 0},
    {"the cgroup is the tighter one", 500 * GIB, 50 * GIB, NO_LIMIT, 0, 0, 49 * GIB},
    {"the machine is", 50 * GIB, 500 * GIB, NO_LIMIT, 0, 0, 49 * GIB},
    {"what is not yet touched comes off", 50 * GIB, NO_LIMIT, NO_LIMIT, 9 * GIB, 20 * GIB,
     40 * GIB},
    {"the option is for all", 50 * GIB, NO_LIMIT, 30 * GIB, 5 * GIB, 20 * GIB, 10 * GIB},
    {"and no promise", 50 * GIB, NO_LIMIT, 300 * GIB, 0, 0, 49 * GIB},
    {"an option that is used up", 50 * GIB, NO_LIMIT, 30 * GIB, 0, 31 * GIB, 0},
    {"an option of nothing", 50 * GIB, NO_LIMIT, 0, 0, 0, 0},
    {"huge", NO_LIMIT, NO_LIMIT, NO_LIMIT, 0, 0, NO_LIMIT - 2 * GIB},
    {"huge and used", NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, 0},
    {"zero", 0, 0, 0, 0, 0, 0},
};

START_TEST(each_row) {
    const struct row *row = &rows[_i];
    struct tg__host_figures figures = {.available_bytes = row->available_bytes,
                                       .headroom_bytes = row->headroom_bytes,
                                       .option_bytes = row->option_bytes};
    uint64_t budget = tg__host_budget(&figures, row->untouched_bytes, row->all_bytes);

    ck_assert_msg(budget == row->budget_bytes, "%s: %llu", row->name, (unsigned long long)budget);
}
END_TEST

static void lay(const char *path, const char *text) {
    lay_file(dir, path, text);
}

static struct tg__host_figures figures_of_tree(void) {
    struct tg__host_figures figures;

    lay("proc/meminfo", "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:     2048 kB\n");
    ck_ok(tg__host_figures(dir, &figures));
    ck_assert_uint_eq(figures.available_bytes, 2 * MIB);
    return figures;
}

START_TEST(without_cgroups_there_is_no_limit) {
    struct tg__host_figures figures = figures_of_tree();

    ck_assert_uint_eq(figures.headroom_bytes, NO_LIMIT);
    ck_assert_uint_eq(figures.option_bytes, NO_LIMIT);
    lay("proc/self/cgroup", "0::/nowhere\nnonsense\n4:memory\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, NO_LIMIT);
}
END_TEST

START_TEST(every_cgroup_above_counts) {
    lay("proc/self/cgroup", "0::/outer/inner\n");
    lay("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    lay("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, NO_LIMIT);
    lay("sys/fs/cgroup/outer/memory.max", "10000\n");
    lay("sys/fs/cgroup/outer/memory.current", "4000\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 6000);
    lay("sys/fs/cgroup/outer/inner/memory.max", "3000\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 2000);
    lay("sys/fs/cgroup/memory.max", "9000\n");
    lay("sys/fs/cgroup/memory.current", "8500\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 500);
    lay("sys/fs/cgroup/memory.current", "9500\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 0);
}
END_TEST

START_TEST(pages_of_files_can_be_dropped) {
    lay("proc/self/cgroup", "0::/\n");
    lay("sys/fs/cgroup/memory.max", "10000\n");
    lay("sys/fs/cgroup/memory.current", "9000\n");
    lay("sys/fs/cgroup/memory.stat", "anon 1\nactive_file 50\ninactive_file 700\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 1700);
}
END_TEST

START_TEST(version_1_has_its_own_names) {
    lay("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
    lay("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
    lay("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3000\n");
    lay("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 2100);
    lay("proc/self/cgroup", "5:cpu,memory:/job\n0::/\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 2100);
    lay("proc/self/cgroup", "5:name=memory:/job\n6:memoryless,cpu:/job\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, UINT64_MAX);
    /* In a container the path is the host's, and the mount's root the container's own. */
    lay("proc/self/cgroup", "4:memory:/docker/0123\n");
    lay("sys/fs/cgroup/memory/memory.limit_in_bytes", "900\n");
    lay("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
    ck_assert_uint_eq(figures_of_tree().headroom_bytes, 800);
}
END_TEST

START_TEST(a_system_that_says_nothing_is_an_error) {
    struct tg__host_figures figures = {.option_bytes = 77};

    ck_assert_int_eq(tg__host_figures(dir, &figures), -ENODATA);
    ck_says("proc/meminfo");
    ck_assert_uint_eq(figures.option_bytes, 77);
}
END_TEST

START_TEST(the_option_is_a_size) {
    static const struct {
        const char *text;
        uint64_t size_bytes;
    } good[] = {{"", NO_LIMIT},      {"0", 0},          {"4096", 4096},   {"64KiB", 65536},
                {"3M", 3 * MIB},     {"3MB", 3 * MIB},  {"64GiB", 64 * GIB}, {"1T", 1024 * GIB}};
    static const char *const bad[] = {"much", "-1", "1X", "1GiBs", " 1", "1.5GiB", "1 GiB",
                                      "99999999999999999999", "99999999999TiB"};
    struct tg__host_figures figures;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        setenv("TIDEGATE_HOST_BYTES", good[i].text, 1);
        figures = figures_of_tree();
        ck_assert_msg(figures.option_bytes == good[i].size_bytes, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("TIDEGATE_HOST_BYTES", bad[i], 1);
        ck_assert_msg(tg__host_figures(dir, &figures) == -EINVAL, "%s", bad[i]);
        ck_says(bad[i]);
        ck_says("such as 64GiB");
    }
}
END_TEST

/* The option is the whole node's: what one tenant has, the other has not. */
START_TEST(tenants_share_the_option) {
    struct tg_ledger *ledger = open_ledger();
    struct tg_tenant *one = join(ledger, card, "one"), *two = join(ledger, card, "two");

    setenv("TIDEGATE_HOST_BYTES", "10MiB", 1);
    ck_ok(tg_tenant_host_reserve(one, "weights", 6 * MIB));
    ck_assert_int_eq(tg_tenant_host_reserve(two, "weights", 5 * MIB), TG_EHOSTMEMORY);
    ck_says("weights need 5.0 MiB");
    ck_says("4.0 MiB");
    ck_says("TIDEGATE_HOST_BYTES");
    ck_assert_uint_eq(look(ledger)->host_bytes, 6 * MIB);
    ck_ok(tg_tenant_host_reserve(two, "weights", 4 * MIB));
    tg_tenant_host_commit(one, "weights", 6 * MIB);
    ck_assert_int_eq(tg_tenant_host_reserve(two, "weights", 1), TG_EHOSTMEMORY);
    tg_tenant_host_give(one, "weights", 6 * MIB, 1);
    ck_ok(tg_tenant_host_reserve(two, "weights", 6 * MIB));
    ck_ok(tg_tenant_host_reserve(NULL, "alone", 10 * MIB));
    ck_assert_int_eq(tg_tenant_host_reserve(NULL, "alone", 10 * MIB + 1), TG_EHOSTMEMORY);
    tg_tenant_leave(one);
    ck_assert_uint_eq(look(ledger)->host_bytes, 10 * MIB);
    tg_tenant_leave(two);
    ck_assert_uint_eq(look(ledger)->host_bytes, 0);
    tg_ledger_close(ledger);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("hostbudget");

    tcase_add_checked_fixture(cases, set_up, tear_down_card);
    tcase_add_loop_test(cases, each_row, 0, sizeof rows / sizeof rows[0]);
    tcase_add_test(cases, without_cgroups_there_is_no_limit);
    tcase_add_test(cases, every_cgroup_above_counts);
    tcase_add_test(cases, pages_of_files_can_be_dropped);
    tcase_add_test(cases, version_1_has_its_own_names);
    tcase_add_test(cases, a_system_that_says_nothing_is_an_error);
    tcase_add_test(cases, the_option_is_a_size);
    tcase_add_test(cases, tenants_share_the_option);
    return suite_run("hostbudget", cases);
}
