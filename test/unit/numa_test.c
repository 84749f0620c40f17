/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory lies at the GPU's node: which CPUs those are, from trees that the test lays out, and
 * which threads touch a segment first, on the stand-in driver's GPU. The system's madvise and
 * pthread_create are between (see --wrap in meson.build). */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <tidegate/hostmem.h>

#include "../api/tested_device.h"
#include "base/numa.h"
#include "children.h"
#include "memory/state.h"
#include "memory_world.h"
#include "suite.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define GPU "7469:00:00.0" /* the stand-in's first */

enum { SKIPPED = 77 };

static char root[64];
static cpu_set_t ours;
static int first, second; /* of ours */

static void lay_node(const char *node, const char *cpus) {
    lay_file(root, "sys/bus/pci/devices/" GPU "/numa_node", node);
    lay_file(root, "sys/devices/system/node/node1/cpulist", cpus);
}

static void set_up(void) {
    strcpy(root, "/dev/shm/tidegate-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void tear_down(void) {
    remove_directory(root);
}

/* ---- the system's files ---------------------------------------------------------------------- */

static const struct {
    const char *node, *cpus;
    int count; /* 0: not known */
    int one;   /* of them */
} trees[] = {
    {"1\n", "0-3,8,10-11\n", 7, 10},
    {"1\n", "5\n", 1, 5},
    {"1\n", "1000-99999999\n", CPU_SETSIZE - 1000, 1023},
    {"1\n", "7-4\n", 0, 0},
    {"1\n", "\n", 0, 0},
    {"1\n", "none", 0, 0},
    {"1\n", "1,x", 0, 0},
    {"-1\n", "0-3\n", 0, 0},
    {"2\n", "0-3\n", 0, 0},
    {"", "0-3\n", 0, 0},
};

START_TEST(the_cpus_of_a_node_are_read) {
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    lay_node(trees[_i].node, trees[_i].cpus);
    errno = 0;
    ck_assert_int_eq(tg__numa_cpus(root, GPU, &cpus), trees[_i].count > 0);
    ck_assert_int_eq(CPU_COUNT(&cpus), trees[_i].count);
    ck_assert(trees[_i].count == 0 || CPU_ISSET(trees[_i].one, &cpus));
    ck_assert(!tg__numa_cpus(root, "7469:01:00.0", &cpus));
    ck_assert(!tg__numa_cpus(root, "", &cpus));
    ck_assert_int_eq(errno, 0);
}
END_TEST

/* ---- who touches ----------------------------------------------------------------------------- */

/* A memory looks into the test's tree. */
bool __real_tg__numa_cpus(const char *where, const char *pci, cpu_set_t *cpus);
bool __wrap_tg__numa_cpus(const char *where, const char *pci, cpu_set_t *cpus);
bool __wrap_tg__numa_cpus(const char *where, const char *pci, cpu_set_t *cpus) {
    return __real_tg__numa_cpus(where[0] == '\0' ? root : where, pci, cpus);
}

static atomic_bool is_without_threads;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument) {
    return atomic_load(&is_without_threads)
               ? EAGAIN
               : __real_pthread_create(thread, attributes, run, argument);
}

static pthread_t caller;
static atomic_int near, by_caller, anywhere;

int __real_madvise(void *addr, size_t size, int advice);
int __wrap_madvise(void *addr, size_t size, int advice);
int __wrap_madvise(void *addr, size_t size, int advice) {
    cpu_set_t cpus;

    if (advice != MADV_POPULATE_WRITE)
        return __real_madvise(addr, size, advice);
    ck_assert_int_eq(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    if (pthread_equal(pthread_self(), caller))
        atomic_fetch_add(&by_caller, 1);
    else
        atomic_fetch_add(CPU_COUNT(&cpus) == 1 && CPU_ISSET(first, &cpus) ? &near : &anywhere, 1);
    return __real_madvise(addr, size, advice);
}

/* A first sleep of 200 MiB; whoever calls runs where it did before. */
static void sleep_first(bool is_alone) {
    struct world world;
    struct tg_tag *tag;
    cpu_set_t after;

    caller = pthread_self();
    world_open(&world, "capacity=512MiB", false);
    tag = world_tag(&world, "a", (struct tg_tag_params){.backup = TG_BACKUP_HOST});
    for (int i = 0; i < 2; i++)
        memset(world_alloc(tag, 100 * MIB), 1, 100);
    atomic_store(&is_without_threads, is_alone);
    ck_assert_ok(tg_memory_sleep(world.memory, NULL, 60000, NULL));
    atomic_store(&is_without_threads, false);
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_EQUAL(&after, &ours));
    world_close(&world);
}

START_TEST(host_memory_is_touched_by_threads_on_the_gpus_node) {
    char cpus[32];

    snprintf(cpus, sizeof cpus, "%d,%d\n", first, CPU_SETSIZE - 1);
    lay_node("1\n", cpus);
    sleep_first(false);
    ck_assert_int_gt(near, 0);
    ck_assert_int_eq(by_caller + anywhere, 0);
}
END_TEST

/* What is pinned for a device is touched when that is known, not before. */
START_TEST(memory_for_offloading_is_touched_on_the_node_of_the_gpu_that_pins_it) {
    struct tg_device *gpu;
    struct tg_hostmem *memory = NULL;
    char cpus[32];

    caller = pthread_self();
    snprintf(cpus, sizeof cpus, "%d,%d\n", first, CPU_SETSIZE - 1);
    lay_node("1\n", cpus);
    ck_assert_ok(tg_device_open(tested_uri("", "capacity=512MiB"), &gpu));
    ck_assert_ok(tg_hostmem_alloc(NULL, "model", 200 * (uint64_t)MIB, &memory));
    ck_assert_int_eq(near + by_caller + anywhere, 0);
    ck_assert_ok(tg_hostmem_pin(memory, gpu));
    ck_assert_int_gt(near, 0);
    ck_assert_int_eq(by_caller + anywhere, 0);
    near = 0;
    ck_assert_ok(tg_hostmem_touch(memory, 0));
    ck_assert_int_eq(near + by_caller + anywhere, 0);
    tg_hostmem_free(memory);
    tg_device_close(gpu);
}
END_TEST

START_TEST(where_no_thread_is_to_be_had_the_caller_touches) {
    char cpus[32];

    snprintf(cpus, sizeof cpus, "%d\n", first);
    lay_node("1\n", cpus);
    sleep_first(true);
    ck_assert_int_gt(by_caller, 0);
    ck_assert_int_eq(near + anywhere, 0);
}
END_TEST

/* A machine of one node; a program that is kept to the GPU's; one that may not run there. */
START_TEST(where_there_is_no_choice_nothing_is_bound) {
    char cpus[32];

    switch (_i) {
    case 0:
        snprintf(cpus, sizeof cpus, "0-%d\n", CPU_SETSIZE - 1);
        break;
    case 1:
        CPU_ZERO(&ours);
        CPU_SET(second, &ours);
        ck_assert_int_eq(sched_setaffinity(0, sizeof ours, &ours), 0);
        snprintf(cpus, sizeof cpus, "%d\n", first);
        break;
    default:
        snprintf(cpus, sizeof cpus, "\n");
    }
    lay_node("1\n", cpus);
    sleep_first(false);
    ck_assert_int_eq(near, 0);
    ck_assert_int_gt(by_caller + anywhere, 0);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("numa");

    if (sched_getaffinity(0, sizeof ours, &ours) != 0 || CPU_COUNT(&ours) < 2) {
        printf("skipped: needs two CPUs\n");
        return SKIPPED;
    }
    while (!CPU_ISSET(first, &ours))
        first++;
    second = first + 1;
    while (!CPU_ISSET(second, &ours))
        second++;
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, the_cpus_of_a_node_are_read, 0, sizeof trees / sizeof *trees);
    tcase_add_test(tcase, host_memory_is_touched_by_threads_on_the_gpus_node);
    tcase_add_test(tcase, memory_for_offloading_is_touched_on_the_node_of_the_gpu_that_pins_it);
    tcase_add_test(tcase, where_no_thread_is_to_be_had_the_caller_touches);
    tcase_add_loop_test(tcase, where_there_is_no_choice_nothing_is_bound, 0, 3);
    return suite_run("numa", tcase);
}
