/* SPDX-License-Identifier: Apache-2.0 */
/* The fault sweep: each scenario with its first, second, … n-th call failing, of each entry of the
 * device and of each system call, until it passes without a failure; and with all calls failing
 * from the n-th on. Afterwards nothing is left over, the state is as before, no byte is lost, and
 * the scenario succeeds. In one process: what leaks in one run is seen in the next. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "suite.h"
#include "sweep.h"

struct fault {
    const char *name;
    bool is_system;
    int what; /* enum tg__op or enum system_call */
    int status;
    bool after;
};

struct state {
    struct tg_tag_info tags[BED_TAGS];
    uint64_t free_bytes;
    uint64_t address_bytes; /* without device memory behind: reservations */
    size_t mappings;        /* of device memory */
    size_t segments;        /* of host memory */
    size_t descriptors;
};

static uint64_t total, failed_calls[TG__OP_COUNT];

/* ---- what is there --------------------------------------------------------------------------- */

/* The sanitizers keep address space of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool is_sanitized = true;
#else
static const bool is_sanitized = false;
#endif

/* Stacks and heaps come and go as the C library likes: they are left out. */
static void look_at_maps(struct state *state) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;

        ck_assert_int_eq(sscanf(line, "%lx-%lx", &begin, &end), 2);
        state->mappings += strstr(line, "memfd:") != NULL;
        if (!is_sanitized && end - begin >= GRANULE &&
            strstr(line, " ---p 00000000 00:00 0 \n") != NULL)
            state->address_bytes += end - begin;
    }
    fclose(maps);
}

static size_t count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static struct state look_outside(void) {
    struct state state = {.descriptors = count_descriptors(), .segments = system_segments()};

    look_at_maps(&state);
    return state;
}

static struct state look(struct bed *bed) {
    struct state state = look_outside();

    state.free_bytes = world_free_bytes(&bed->world);
    for (int i = 0; i < BED_TAGS; i++)
        state.tags[i] = world_info(bed->tags[i]);
    return state;
}

/* ---- after a failure ------------------------------------------------------------------------- */

static void check_as_before(struct bed *bed, const struct state *before, bool is_moving,
                            bool was_repaired) {
    struct state now = look(bed);

    for (int i = 0; i < BED_TAGS; i++) {
        ck_assert_int_eq(now.tags[i].state, before->tags[i].state);
        /* A wake keeps copies, where it is asked to, that the failed sleep has made, and else drops
         * what was there before it. */
        if (!was_repaired || (!bed->params[i].keep_host && !bed->is_prepared))
            ck_assert_uint_eq(now.tags[i].host_bytes, before->tags[i].host_bytes);
        if (!is_moving)
            ck_assert_uint_eq(now.tags[i].device_bytes, before->tags[i].device_bytes);
        else
            ck_assert_uint_le(now.tags[i].device_bytes, before->tags[i].device_bytes);
    }
    if (!was_repaired)
        ck_assert_uint_le(now.segments, before->segments);
    if (!is_moving) {
        ck_assert_uint_eq(now.free_bytes, before->free_bytes);
        ck_assert_uint_eq(now.address_bytes, before->address_bytes);
        ck_assert_uint_eq(now.mappings, before->mappings);
        ck_assert_uint_eq(now.descriptors, before->descriptors);
    } else {
        ck_assert_uint_ge(now.free_bytes, before->free_bytes);
        ck_assert_uint_le(now.mappings, before->mappings);
        ck_assert_uint_le(now.descriptors, before->descriptors);
    }
}

/* Where the device refused the way back too, a tag that was awake may sleep with its chunks: the
 * next wake brings all of it back. */
static void repair(struct bed *bed, const struct state *before) {
    static const char *const names[BED_TAGS] = {"general", "packed", "plain", "still"};

    for (int i = 0; i < BED_TAGS; i++) {
        if (before->tags[i].state == TG_TAG_AWAKE &&
            world_info(bed->tags[i]).state == TG_TAG_ASLEEP)
            ck_assert_ok(tg_memory_wake(bed->world.memory, names[i], 0, NULL));
    }
}

/* A whole round more, and everything is still there. */
static void check_usable(struct bed *bed) {
    ck_assert_ok(tg_memory_sleep(bed->world.memory, NULL, 1000, NULL));
    for (int i = 0; i < bed->count; i++) {
        if (bed->params[bed->pieces[i].tag].backup == TG_BACKUP_NONE)
            bed->pieces[i].seed = 0;
    }
    bed_check_books(bed);
    bed_check_content(bed);
    ck_assert_ok(tg_memory_wake(bed->world.memory, NULL, 1000, NULL));
    bed_settle(bed);
    bed_check_books(bed);
    bed_check_content(bed);
}

/* ---- one run --------------------------------------------------------------------------------- */

static void arm(struct bed *bed, const struct fault *fault, uint64_t nth) {
    if (fault->is_system)
        system_arm((enum system_call)fault->what, nth, fault->after);
    else
        world_arm(&bed->world, (enum tg__op)fault->what,
                  fault->after ? TG__FAULT_AFTER : TG__FAULT_ONCE, nth, fault->status);
}

/* How many calls the scenario makes of what can fail. */
static uint64_t count_calls(const struct scenario *scenario, const struct fault *fault) {
    struct bed bed;
    uint64_t calls;

    bed_open(&bed, scenario);
    arm(&bed, fault, UINT32_MAX);
    ck_assert_ok(scenario->act(&bed));
    calls = fault->is_system ? system_calls()
                             : tg__fault_calls(bed.world.fault, (enum tg__op)fault->what);
    system_arm(SYSTEM_COUNT, 0, false);
    world_disarm(&bed.world);
    bed_close(&bed);
    return calls;
}

static uint64_t disarm(struct bed *bed, const struct fault *fault) {
    uint64_t failed = system_failed();

    if (fault->is_system) {
        system_arm(SYSTEM_COUNT, 0, false);
        return failed;
    }
    failed = tg__fault_failed(bed->world.fault, TG__OP_ANY);
    for (int op = 0; op < TG__OP_COUNT; op++) {
        uint64_t of_op = tg__fault_failed(bed->world.fault, (enum tg__op)op);

        failed_calls[op] += of_op;
        if (fault->what == op) /* ANY leaves out what is only asked */
            failed = of_op;
    }
    world_disarm(&bed->world);
    return failed;
}

/* Returns whether a call failed. */
static bool run(const struct scenario *scenario, const struct fault *fault, uint64_t nth) {
    struct bed bed;
    struct state before;
    uint64_t failed;
    int rc;

    bed_open(&bed, scenario);
    before = look(&bed);
    arm(&bed, fault, nth);
    rc = scenario->act(&bed);
    failed = disarm(&bed, fault);
    ck_assert_msg(failed > 0 || rc == 0, "%s fails by itself: %s", scenario->name,
                  tg_last_error()->text);
    bed_settle(&bed);
    bed_check_books(&bed);
    if (rc != 0) {
        if (fault->after)
            repair(&bed, &before);
        check_as_before(&bed, &before, scenario->is_moving, fault->after);
        bed_check_content(&bed);
        ck_assert_ok(scenario->act(&bed));
        bed_settle(&bed);
    }
    bed_check_books(&bed);
    bed_check_content(&bed);
    check_usable(&bed);
    bed_close(&bed);
    return failed > 0;
}

static bool say(const struct scenario *scenario, const struct fault *fault, uint64_t nth) {
    if (getenv("SWEEP_VERBOSE") != NULL)
        printf("%s: %s %lu%s fails\n", scenario->name, fault->name, (unsigned long)nth,
               fault->after ? " and all after it" : "");
    return true;
}

static void sweep(const struct scenario *scenario, const struct fault *fault) {
    struct state before, after;
    uint64_t nth = 1;

    if (count_calls(scenario, fault) == 0)
        return;
    /* A failed assertion does not say by itself which run it is of. */
    before = look_outside();
    while (say(scenario, fault, nth) && run(scenario, fault, nth)) {
        after = look_outside();
        ck_assert_uint_eq(after.address_bytes, before.address_bytes);
        ck_assert_uint_eq(after.mappings, before.mappings);
        ck_assert_uint_eq(after.segments, before.segments);
        ck_assert_uint_eq(after.descriptors, before.descriptors);
        nth++;
        ck_assert_uint_lt(nth, 1000);
    }
    total += nth - 1;
}

/* ---- all ------------------------------------------------------------------------------------- */

static const struct scenario *const all = scenarios;

START_TEST(no_device_call_may_fail_badly) {
    for (size_t i = 0; i < scenario_count; i++) {
        for (int op = 0; op < TG__OP_COUNT; op++) {
            struct fault fault = {tg__op_name((enum tg__op)op), false, op, 0, false};

            sweep(&all[i], &fault);
        }
    }
}
END_TEST

START_TEST(no_device_call_may_fail_badly_for_good) {
    static const struct fault any = {"any", false, TG__OP_ANY, 0, true};

    for (size_t i = 0; i < scenario_count; i++)
        if (strcmp(all[i].name, "export, import") != 0) /* its way back is not the library's */
            sweep(&all[i], &any);
}
END_TEST

START_TEST(a_capture_and_a_busy_device_change_nothing) {
    static const struct fault faults[] = {{"capture", false, TG__OP_fence, TG_ECAPTURE, false},
                                          {"busy", false, TG__OP_wait, TG_EBUSY, false}};

    for (size_t i = 0; i < scenario_count; i++) {
        sweep(&all[i], &faults[0]);
        sweep(&all[i], &faults[1]);
    }
}
END_TEST

START_TEST(no_system_call_may_fail_badly) {
    for (size_t i = 0; i < scenario_count; i++) {
        for (int call = 0; call < SYSTEM_COUNT; call++) {
            struct fault fault = {system_names[call], true, call, 0, false};

            sweep(&all[i], &fault);
        }
    }
}
END_TEST

START_TEST(every_entry_failed_and_often_enough) {
    for (int op = 0; op < TG__OP_COUNT; op++)
        ck_assert_msg(failed_calls[op] > 0, "%s never failed", tg__op_name((enum tg__op)op));
    printf("%zu scenarios, %lu failing calls\n", scenario_count, (unsigned long)total);
    ck_assert_uint_ge(total, 500);
}
END_TEST

int main(void) {
    TCase *tcase = tcase_create("sweep");

    /* One process: the last test counts what the others did. */
    setenv("CK_FORK", "no", 1);
    tcase_add_test(tcase, no_device_call_may_fail_badly);
    tcase_add_test(tcase, no_device_call_may_fail_badly_for_good);
    tcase_add_test(tcase, a_capture_and_a_busy_device_change_nothing);
    tcase_add_test(tcase, no_system_call_may_fail_badly);
    tcase_add_test(tcase, every_entry_failed_and_often_enough);
    return suite_run("sweep", tcase);
}
