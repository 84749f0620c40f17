/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_world.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../api/tested_device.h"
#include "base/map.h"

static int ask(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct world *world = argument;

    /* Not through fault: the tests count what the memory calls. */
    return tg_device_ops(world->spy)->memory(world->spy, free_bytes, total_bytes);
}

struct tg_tenant *world_peer(struct world *world, const char *name) {
    struct tg_device_info info;
    struct tg_tenant_params params = {
        .name = name, .rank = -1, .uuid = info.uuid, .gauge = {ask, world}};
    struct tg_tenant *tenant = NULL;

    ck_assert_ok(tg_device_ops(world->spy)->info(world->spy, &info));
    ck_assert_ok(tg_ledger_join(world->ledger, &params, &tenant));
    return tenant;
}

static void join(struct world *world, const char *name) {
    ck_assert_ok(tg_ledger_open(NULL, &world->ledger));
    world->tenant = world_peer(world, name);
}

static void open_device(struct world *world, const char *options) {
    struct tg_device *host;

    ck_assert_ok(tg_device_open(tested_uri("", options), &host));
    ck_assert_ok(tg__fault_wrap(host, &world->fault));
    ck_assert_ok(tg__spy_wrap(world->fault, &world->spy));
}

void world_open(struct world *world, const char *options, bool has_ledger) {
    memset(world, 0, sizeof *world);
    snprintf(world->dir, sizeof world->dir, "/dev/shm/tidegate-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world->dir));
    setenv("TIDEGATE_DIR", world->dir, 1);
    open_device(world, options);
    if (has_ledger)
        join(world, "tester");
    ck_assert_ok(tg_memory_open(world->spy, world->tenant, &world->memory));
    tg__spy_clear(world->spy);
}

void world_enter(struct world *world, const char *options) {
    open_device(world, options);
    join(world, "mortal");
    ck_assert_ok(tg_memory_open(world->spy, world->tenant, &world->memory));
}

/* A shell for each of a thousand worlds would be most of what the sweep takes. */
static void remove_dir(const char *path) {
    DIR *dir = opendir(path);
    const struct dirent *entry;

    ck_assert_ptr_nonnull(dir);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.')
            ck_assert_int_eq(unlinkat(dirfd(dir), entry->d_name, 0), 0);
    }
    closedir(dir);
    ck_assert_int_eq(rmdir(path), 0);
}

void world_close(struct world *world) {
    uint64_t free_bytes, total_bytes;

    tg_memory_close(world->memory);
    ck_assert_ok(tg_device_ops(world->spy)->memory(world->spy, &free_bytes, &total_bytes));
    ck_assert_uint_eq(free_bytes, total_bytes);
    if (world->tenant != NULL) {
        struct tg_tag_view view = world_view(world);

        ck_assert_uint_eq(view.occupied_bytes, 0);
        ck_assert_uint_eq(view.reserved_bytes, 0);
        ck_assert_uint_eq(view.asleep_bytes, 0);
        ck_assert_uint_eq(view.host_bytes, 0);
    }
    tg_tenant_leave(world->tenant);
    tg_ledger_close(world->ledger);
    tg_device_close(world->spy);
    remove_dir(world->dir);
}

struct tg_tag *world_tag(struct world *world, const char *name, struct tg_tag_params params) {
    struct tg_tag *tag;

    ck_assert_ok(tg_tag_open(world->memory, name, &params, &tag));
    return tag;
}

void *world_alloc(struct tg_tag *tag, uint64_t size_bytes) {
    void *block;

    ck_assert_ok(tg_tag_alloc(tag, size_bytes, &block));
    return block;
}

struct tg_tag_info world_info(struct tg_tag *tag) {
    struct tg_tag_info info;

    tg_tag_info(tag, &info);
    return info;
}

uint64_t world_free_bytes(struct world *world) {
    uint64_t free_bytes, total_bytes;

    ck_assert_ok(tg_device_ops(world->spy)->memory(world->spy, &free_bytes, &total_bytes));
    return free_bytes;
}

struct tg_tag_view world_view(struct world *world) {
    struct tg_node_view *node = calloc(1, sizeof *node);
    struct tg_tag_view sum = {0};

    ck_assert_ptr_nonnull(node);
    ck_assert_ok(tg_ledger_read(world->ledger, node));
    for (uint32_t i = 0; i < node->tenant_count; i++) {
        for (uint32_t j = 0; j < node->tenants[i].tag_count; j++) {
            sum.occupied_bytes += node->tenants[i].tags[j].occupied_bytes;
            sum.reserved_bytes += node->tenants[i].tags[j].reserved_bytes;
            sum.asleep_bytes += node->tenants[i].tags[j].asleep_bytes;
            sum.host_bytes += node->tenants[i].tags[j].host_bytes;
        }
    }
    free(node);
    return sum;
}

void world_arm(struct world *world, enum tg__op op, enum tg__fault_mode mode, uint64_t nth,
               int status) {
    struct tg__fault_plan plan = {.op = op, .mode = mode, .nth = nth, .status = status};

    tg__fault_arm(world->fault, &plan);
}

void world_disarm(struct world *world) {
    struct tg__fault_plan plan = {.mode = TG__FAULT_NONE};

    tg__fault_arm(world->fault, &plan);
}

int world_deaths(struct world *world, struct tg_tag *tag, uint64_t capacity_bytes,
                 enum tg__fault_mode mode, void (*live)(enum tg__fault_mode mode, uint64_t nth)) {
    int deaths = 0, status = 0;

    for (uint64_t nth = 1; nth < 100; nth++) {
        pid_t child = fork();
        void *all;

        if (child == 0) {
            live(mode, nth);
            _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_uint_eq(world_free_bytes(world), capacity_bytes);
        all = world_alloc(tag, capacity_bytes);
        ck_assert_ok(tg_memory_free(world->memory, all, NULL));
        if (WIFEXITED(status))
            break;
        deaths++;
    }
    ck_assert_int_eq(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    return deaths;
}

size_t world_calls(struct world *world, enum tg__op op) {
    size_t count, found = 0;
    const struct tg__spy_call *calls = tg__spy_calls(world->spy, &count);

    for (size_t i = 0; i < count; i++)
        found += calls[i].op == op;
    return found;
}

uint64_t content_step = 8;

void content_write(void *block, uint64_t size_bytes, uint64_t seed) {
    unsigned char *bytes = block;

    for (uint64_t at = 0; at < size_bytes; at += content_step) {
        uint64_t word = tg__hash_u64(seed + at), left = size_bytes - at;

        memcpy(bytes + at, &word, left < 8 ? left : 8);
    }
}

bool content_is(const void *block, uint64_t size_bytes, uint64_t seed) {
    const unsigned char *bytes = block;

    for (uint64_t at = 0; at < size_bytes; at += content_step) {
        uint64_t word = tg__hash_u64(seed + at), left = size_bytes - at;

        if (memcmp(bytes + at, &word, left < 8 ? left : 8) != 0)
            return false;
    }
    return true;
}

bool content_is_zero(const void *block, uint64_t size_bytes) {
    const unsigned char *bytes = block;

    return size_bytes == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size_bytes - 1) == 0);
}
