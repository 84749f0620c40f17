/* SPDX-License-Identifier: Apache-2.0 */
/* What a card takes for each step, as rows of JSON: the driver's calls by chunk size through our
 * table, and sleep and wake beside the plain copies of the same run. Rows are of one run on one
 * machine: compare within it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <tidegate/device.h>
#include <tidegate/error.h>
#include <tidegate/memory.h>

#include "base/clock.h"
#include "device/cuda_load.h"

enum { SKIPPED = 77, LONG_MS = 120000, ROUNDS = 3 };

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static struct tg_device *device;
static const struct tg_device_ops *ops;
static uint64_t all_bytes; /* what each row moves */

static void check(int rc, const char *what) {
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, tg_last_error()->text);
    exit(1);
}
#define CHECK(call) check(call, #call)

static double per_second(uint64_t bytes, uint64_t ns) {
    return (double)bytes / (double)GIB / ((double)ns * 1e-9);
}

static void settle(void) {
    struct tg_fence fence;

    CHECK(ops->fence(device, NULL, &fence));
    CHECK(ops->wait(device, &fence, LONG_MS));
}

/* ---- the table ------------------------------------------------------------------------------- */

static void row_of_chunks(uint64_t chunk_bytes) {
    uint64_t count = all_bytes / chunk_bytes, addr, begin, ns[4];
    uint64_t *chunks = calloc(count, sizeof *chunks);

    CHECK(ops->reserve(device, count * chunk_bytes, &addr));
    begin = tg__clock_ns();
    for (uint64_t i = 0; i < count; i++)
        CHECK(ops->create(device, chunk_bytes, 0, &chunks[i]));
    ns[0] = tg__clock_ns() - begin;
    begin = tg__clock_ns();
    for (uint64_t i = 0; i < count; i++)
        CHECK(ops->map(device, addr + i * chunk_bytes, chunks[i], 0));
    ns[1] = tg__clock_ns() - begin;
    begin = tg__clock_ns();
    CHECK(ops->unmap(device, addr, count * chunk_bytes));
    ns[2] = tg__clock_ns() - begin;
    begin = tg__clock_ns();
    for (uint64_t i = 0; i < count; i++)
        CHECK(ops->release(device, chunks[i]));
    ns[3] = tg__clock_ns() - begin;
    CHECK(ops->unreserve(device, addr, count * chunk_bytes));
    printf("{\"row\": \"chunks\", \"chunk_mib\": %" PRIu64 ", \"count\": %" PRIu64
           ", \"create_us\": %.1f, \"map_us\": %.1f, \"unmap_all_ms\": %.3f, \"release_us\": %.1f, "
           "\"up_gib_s\": %.0f, \"down_gib_s\": %.0f}\n",
           chunk_bytes / MIB, count, (double)ns[0] / 1e3 / (double)count,
           (double)ns[1] / 1e3 / (double)count, (double)ns[2] / 1e6,
           (double)ns[3] / 1e3 / (double)count, per_second(all_bytes, ns[0] + ns[1]),
           per_second(all_bytes, ns[2] + ns[3]));
    fflush(stdout);
    free(chunks);
}

static void row_of_calls(void) {
    enum { CALLS = 2000 };
    uint64_t begin, free_bytes, total_bytes, ns[2], own_bytes = 0;
    struct tg_fence fence;
    int rc;

    begin = tg__clock_ns();
    for (int i = 0; i < CALLS; i++)
        CHECK(ops->memory(device, &free_bytes, &total_bytes));
    ns[0] = (tg__clock_ns() - begin) / CALLS;
    begin = tg__clock_ns();
    for (int i = 0; i < CALLS; i++) {
        CHECK(ops->fence(device, NULL, &fence));
        CHECK(ops->wait(device, &fence, LONG_MS));
    }
    ns[1] = (tg__clock_ns() - begin) / CALLS;
    begin = tg__clock_ns();
    rc = ops->process(device, &own_bytes);
    printf("{\"row\": \"calls\", \"memory_us\": %.2f, \"fence_and_wait_idle_us\": %.2f, "
           "\"process_us\": %.0f, \"process_status\": %d, \"own_mib\": %" PRIu64
           ", \"used_mib\": %" PRIu64 "}\n",
           (double)ns[0] / 1e3, (double)ns[1] / 1e3, (double)(tg__clock_ns() - begin) / 1e3, rc,
           own_bytes / MIB, (total_bytes - free_bytes) / MIB);
    fflush(stdout);
}

/* The plain copy that sleep and wake are compared with: touched memory, pinned once. */
static void row_of_copies(double gib_s[2]) {
    unsigned char *host = mmap(NULL, all_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t addr, chunk, begin, pin_ns;

    if (host == MAP_FAILED)
        exit(1);
    madvise(host, all_bytes, MADV_HUGEPAGE);
    memset(host, 1, all_bytes);
    CHECK(ops->reserve(device, all_bytes, &addr));
    CHECK(ops->create(device, all_bytes, 0, &chunk));
    CHECK(ops->map(device, addr, chunk, 0));
    begin = tg__clock_ns();
    CHECK(ops->pin(device, host, all_bytes, 1));
    pin_ns = tg__clock_ns() - begin;
    for (int way = 0; way < 2; way++) {
        void *there = (void *)(uintptr_t)addr;

        gib_s[way] = 0;
        for (int round = 0; round < ROUNDS; round++) {
            double speed;

            begin = tg__clock_ns();
            CHECK(ops->copy(device, way == 0 ? (void *)host : there, way == 0 ? there : host,
                            all_bytes, NULL));
            settle();
            speed = per_second(all_bytes, tg__clock_ns() - begin);
            gib_s[way] = speed > gib_s[way] ? speed : gib_s[way];
        }
    }
    CHECK(ops->pin(device, host, all_bytes, 0));
    CHECK(ops->unmap(device, addr, all_bytes));
    CHECK(ops->release(device, chunk));
    CHECK(ops->unreserve(device, addr, all_bytes));
    munmap(host, all_bytes);
    printf("{\"row\": \"copies\", \"gib\": %.2f, \"pin_gib_s\": %.1f, \"out_gib_s\": %.2f, "
           "\"in_gib_s\": %.2f}\n",
           (double)all_bytes / (double)GIB, per_second(all_bytes, pin_ns), gib_s[0], gib_s[1]);
    fflush(stdout);
}

/* ---- sleep and wake -------------------------------------------------------------------------- */

static void row_of_sleep(const char *name, struct tg_tag_params params, uint64_t block_bytes,
                         const double copy_gib_s[2]) {
    struct tg_memory *memory;
    struct tg_tag *tag;
    uint64_t begin, asleep_ns[ROUNDS], awake_ns[ROUNDS];
    uint64_t count = all_bytes / block_bytes;

    CHECK(tg_memory_open(device, NULL, &memory));
    CHECK(tg_tag_open(memory, "rows", &params, &tag));
    for (uint64_t i = 0; i < count; i++) {
        void *block;

        CHECK(tg_tag_alloc(tag, block_bytes, &block));
        CHECK(ops->fill(device, (uint64_t)(uintptr_t)block, (int)i, block_bytes, NULL));
    }
    settle();
    for (int round = 0; round < ROUNDS; round++) {
        begin = tg__clock_ns();
        CHECK(tg_memory_sleep(memory, NULL, LONG_MS, NULL));
        asleep_ns[round] = tg__clock_ns() - begin;
        begin = tg__clock_ns();
        CHECK(tg_memory_wake(memory, NULL, LONG_MS, NULL));
        awake_ns[round] = tg__clock_ns() - begin;
    }
    tg_memory_close(memory);
    printf("{\"row\": \"%s\", \"block_mib\": %" PRIu64 ", \"gib\": %.2f, "
           "\"first_sleep_gib_s\": %.2f, \"sleep_gib_s\": %.2f, \"first_wake_gib_s\": %.2f, "
           "\"wake_gib_s\": %.2f, \"copy_out_gib_s\": %.2f, \"copy_in_gib_s\": %.2f}\n",
           name, block_bytes / MIB, (double)(count * block_bytes) / (double)GIB,
           per_second(count * block_bytes, asleep_ns[0]),
           per_second(count * block_bytes, asleep_ns[ROUNDS - 1]),
           per_second(count * block_bytes, awake_ns[0]),
           per_second(count * block_bytes, awake_ns[ROUNDS - 1]), copy_gib_s[0], copy_gib_s[1]);
    fflush(stdout);
}

static int skip_without_gpu(void) {
    struct tg__cuda_calls found;

    if (tg__cuda_load(&found) == 0)
        return 0;
    fprintf(stderr, "skipped: %s\n", tg_last_error()->text);
    return SKIPPED;
}

int main(void) {
    static const uint64_t chunks_mib[] = {2, 8, 20, 64, 256, 1024};
    uint64_t free_bytes, total_bytes;
    double copy_gib_s[2];

    if (skip_without_gpu() != 0)
        return SKIPPED;
    CHECK(tg_device_open("cuda:0", &device));
    ops = tg_device_ops(device);
    CHECK(ops->memory(device, &free_bytes, &total_bytes));
    all_bytes = (free_bytes / 4 < 16 * GIB ? free_bytes / 4 : 16 * GIB) / (64 * MIB) * (64 * MIB);
    row_of_calls();
    for (size_t i = 0; i < sizeof chunks_mib / sizeof *chunks_mib; i++) {
        if (chunks_mib[i] * MIB <= all_bytes)
            row_of_chunks(chunks_mib[i] * MIB);
    }
    row_of_copies(copy_gib_s);
    row_of_sleep("none, packed", (struct tg_tag_params){.packed = 1}, 20 * MIB, copy_gib_s);
    row_of_sleep("none, general", (struct tg_tag_params){0}, 20 * MIB, copy_gib_s);
    row_of_sleep("host, packed", (struct tg_tag_params){.packed = 1, .backup = TG_BACKUP_HOST},
                 20 * MIB, copy_gib_s);
    row_of_sleep("host, general", (struct tg_tag_params){.backup = TG_BACKUP_HOST}, 20 * MIB,
                 copy_gib_s);
    row_of_sleep("host, kept, packed",
                 (struct tg_tag_params){.packed = 1, .backup = TG_BACKUP_HOST, .keep_host = 1},
                 20 * MIB, copy_gib_s);
    tg_device_close(device);
    return 0;
}
