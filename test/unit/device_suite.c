/* SPDX-License-Identifier: Apache-2.0 */
/* One process: what each entry promises, and what it refuses. */
#include "device_suite.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static const struct device_suite *kind;
static struct tg_device *device;
static const struct tg_device_ops *ops;

static void set_up(void) {
    ck_assert_ok(kind->open(&device));
    ops = tg_device_ops(device);
}

static void tear_down(void) {
    tg_device_close(device);
}

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(info_is_the_same_twice) {
    struct tg_device_info info, again;

    ck_assert_ok(ops->info(device, &info));
    ck_assert_ok(ops->info(device, &again));
    ck_assert_mem_eq(info.uuid, again.uuid, sizeof info.uuid);
    ck_assert_mem_ne(info.uuid, (uint8_t[16]){0}, sizeof info.uuid);
    ck_assert_ptr_nonnull(memchr(info.name, '\0', sizeof info.name));
    ck_assert_uint_eq(info.granule_bytes, GRANULE);
    ck_assert_ptr_nonnull(tg_device_uri(device));
}
END_TEST

START_TEST(memory_is_taken_by_create_and_free_after_release) {
    uint64_t before = device_free_bytes(device), first, second;

    ck_assert_ok(ops->create(device, GRANULE, 0, &first));
    ck_assert_uint_ne(first, 0);
    device_check_free(device, before - GRANULE);
    ck_assert_ok(ops->create(device, 3 * GRANULE, 0, &second));
    ck_assert_uint_ne(first, second);
    device_check_free(device, before - 4 * GRANULE);
    ck_assert_ok(ops->release(device, first));
    device_check_free(device, before - 3 * GRANULE);
    ck_assert_ok(ops->release(device, second));
    device_check_free(device, before);
}
END_TEST

static void check_charged(uint64_t bytes) {
    uint64_t own_bytes;

    ck_assert_ok(ops->process(device, &own_bytes));
    ck_assert_uint_ge(own_bytes + device_slack_bytes, bytes);
    ck_assert_uint_le(own_bytes, bytes + device_slack_bytes);
}

/* Held by handle or by mapping alone: the driver charges it. */
START_TEST(the_process_is_charged_what_it_holds) {
    uint64_t before, chunk, addr, first;
    int rc;

    ck_assert_ok(ops->create(device, GRANULE, 0, &first));
    rc = ops->process(device, &before);
    if (rc == -ENOTSUP) /* a driver that sees other process ids than we do */
        return;
    ck_assert_ok(rc);
    addr = device_make(device, 2 * GRANULE, TG_CHUNK_EXPORTABLE, &chunk);
    check_charged(before + 2 * GRANULE);
    ck_assert_ok(ops->release(device, chunk));
    check_charged(before + 2 * GRANULE);
    ck_assert_ok(ops->unmap(device, addr, 2 * GRANULE));
    check_charged(before);
    ck_assert_ok(ops->unreserve(device, addr, 2 * GRANULE));
    ck_assert_ok(ops->release(device, first));
}
END_TEST

START_TEST(memory_lives_while_it_is_mapped) {
    uint64_t before = device_free_bytes(device), chunk;
    uint64_t addr = device_make(device, GRANULE, 0, &chunk);

    ck_assert_ok(ops->fill(device, addr, 7, GRANULE, NULL));
    device_settle(device);
    ck_assert_ok(ops->release(device, chunk));
    device_check_free(device, before - GRANULE);
    ck_assert(device_is_all(device, addr, 7, GRANULE));
    ck_assert_ok(ops->unmap(device, addr, GRANULE));
    device_check_free(device, before);
    ck_assert_ok(ops->unreserve(device, addr, GRANULE));
}
END_TEST

START_TEST(content_lives_while_it_is_unmapped) {
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);

    ck_assert_ok(ops->fill(device, addr, 9, GRANULE, NULL));
    device_settle(device);
    ck_assert_ok(ops->unmap(device, addr, GRANULE));
    ck_assert_ok(ops->map(device, addr, chunk, 0));
    ck_assert(device_is_all(device, addr, 9, GRANULE));
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

START_TEST(new_memory_is_zero) {
    for (int i = 0; i < 4; i++) {
        uint64_t chunk, addr = device_make(device, 4 * GRANULE, 0, &chunk);

        ck_assert(device_is_all(device, addr, 0, 4 * GRANULE));
        ck_assert_ok(ops->fill(device, addr, 0xab, 4 * GRANULE, NULL));
        device_settle(device);
        device_unmake(device, addr, 4 * GRANULE, chunk);
    }
}
END_TEST

START_TEST(more_than_is_free_is_refused) {
    uint64_t before = device_free_bytes(device), total, unused, chunk = 77, half[2], half_bytes;

    ck_assert_ok(ops->memory(device, &unused, &total));
    total = total / GRANULE * GRANULE; /* a card's need not be whole granules */
    ck_assert_fails(ops->create(device, total + GRANULE, 0, &chunk), TG_EDEVICEMEMORY);
    ck_assert_fails(ops->create(device, before / GRANULE * GRANULE + GRANULE, 0, &chunk),
                    TG_EDEVICEMEMORY);
    ck_assert_uint_eq(chunk, 77);
    device_check_free(device, before);
    half_bytes = (before - device_slack_bytes) / 2 / GRANULE * GRANULE;
    ck_assert_ok(ops->create(device, half_bytes, 0, &half[0]));
    ck_assert_ok(ops->create(device, half_bytes, 0, &half[1]));
    ck_assert_fails(ops->create(device, device_slack_bytes + 2 * GRANULE, 0, &chunk),
                    TG_EDEVICEMEMORY);
    ck_assert_ok(ops->release(device, half[0]));
    ck_assert_ok(ops->create(device, GRANULE, 0, &chunk));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->release(device, half[1]));
    device_check_free(device, before);
}
END_TEST

/* ---- addresses ------------------------------------------------------------------------------- */

START_TEST(one_chunk_is_seen_at_two_addresses) {
    uint64_t chunk, first = device_make(device, 2 * GRANULE, 0, &chunk), second;

    ck_assert_ok(ops->reserve(device, 2 * GRANULE, &second));
    ck_assert_ok(ops->map(device, second, chunk, 0));
    ck_assert_ok(ops->fill(device, first, 1, 2 * GRANULE, NULL));
    ck_assert_ok(ops->fill(device, second + 5, 2, GRANULE, NULL));
    ck_assert(device_is_all(device, first + 5, 2, GRANULE));
    ck_assert(device_is_all(device, first, 1, 5));
    ck_assert_ok(ops->unmap(device, first, 2 * GRANULE));
    ck_assert(device_is_all(device, second + 5, 2, GRANULE));
    ck_assert_ok(ops->unmap(device, second, 2 * GRANULE));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->unreserve(device, first, 2 * GRANULE));
    ck_assert_ok(ops->unreserve(device, second, 2 * GRANULE));
}
END_TEST

/* Three chunks of 1, 2 and 1 granules side by side in a range of five. */
static uint64_t make_neighbours(uint64_t chunks[3]) {
    uint64_t addr, at;

    ck_assert_ok(ops->reserve(device, 5 * GRANULE, &addr));
    at = addr;
    for (int i = 0; i < 3; i++) {
        uint64_t size = i == 1 ? 2 * GRANULE : GRANULE;

        ck_assert_ok(ops->create(device, size, 0, &chunks[i]));
        ck_assert_ok(ops->map(device, at, chunks[i], 0));
        at += size;
    }
    return addr;
}

START_TEST(neighbours_are_unmapped_at_once_and_whole) {
    uint64_t before = device_free_bytes(device), chunks[3], addr = make_neighbours(chunks);

    ck_assert_fails(ops->unmap(device, addr, 2 * GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, addr + 2 * GRANULE, GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, addr + 2 * GRANULE, 2 * GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, addr, 5 * GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, addr + 4 * GRANULE, GRANULE), -EINVAL);
    for (int i = 0; i < 3; i++)
        ck_assert_ok(ops->release(device, chunks[i]));
    ck_assert(device_is_all(device, addr, 0, 4 * GRANULE));
    device_check_free(device, before - 4 * GRANULE);
    ck_assert_ok(ops->unmap(device, addr, 3 * GRANULE));
    device_check_free(device, before - GRANULE);
    ck_assert_ok(ops->unmap(device, addr + 3 * GRANULE, GRANULE));
    device_check_free(device, before);
    ck_assert_ok(ops->unreserve(device, addr, 5 * GRANULE));
}
END_TEST

/* For who may touch it already nothing changes; a device that is not there is told. */
START_TEST(access_is_given_to_whole_neighbours) {
    uint64_t chunk, addr = device_make(device, 2 * GRANULE, 0, &chunk);

    ck_assert_ok(ops->access(device, addr, 2 * GRANULE, 1));
    ck_assert_ok(ops->access(device, addr, 2 * GRANULE, 0));
    ck_assert(ops->access(device, addr, 2 * GRANULE, UINT64_C(1) << 63) != 0);
    ck_assert_fails(ops->access(device, addr, GRANULE, 0), -EINVAL);
    ck_assert_fails(ops->access(device, addr + 4096, GRANULE, 0), -EINVAL);
    ck_assert_ok(ops->unmap(device, addr, 2 * GRANULE));
    ck_assert_fails(ops->access(device, addr, 2 * GRANULE, 0), -EINVAL);
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->unreserve(device, addr, 2 * GRANULE));
}
END_TEST

START_TEST(mappings_do_not_overlap_nor_leave_the_range) {
    uint64_t chunk, wide, addr;

    ck_assert_ok(ops->reserve(device, 3 * GRANULE, &addr));
    ck_assert_ok(ops->create(device, GRANULE, 0, &chunk));
    ck_assert_ok(ops->create(device, 2 * GRANULE, 0, &wide));
    ck_assert_ok(ops->map(device, addr + GRANULE, chunk, 0));
    ck_assert_fails(ops->map(device, addr + GRANULE, chunk, 0), -EINVAL);
    ck_assert_fails(ops->map(device, addr, wide, 0), -EINVAL);
    ck_assert_fails(ops->map(device, addr + GRANULE, wide, 0), -EINVAL);
    ck_assert_fails(ops->map(device, addr + 2 * GRANULE, wide, 0), -EINVAL);
    ck_assert_ok(ops->map(device, addr, chunk, 0));
    ck_assert_fails(ops->unreserve(device, addr, 3 * GRANULE), -EINVAL);
    ck_assert_ok(ops->unmap(device, addr, 2 * GRANULE));
    ck_assert_ok(ops->map(device, addr + GRANULE, wide, 0));
    ck_assert_ok(ops->unmap(device, addr + GRANULE, 2 * GRANULE));
    ck_assert_fails(ops->unreserve(device, addr, GRANULE), -EINVAL);
    ck_assert_fails(ops->unreserve(device, addr + GRANULE, 2 * GRANULE), -EINVAL);
    ck_assert_ok(ops->unreserve(device, addr, 3 * GRANULE));
    ck_assert_fails(ops->unreserve(device, addr, 3 * GRANULE), -EINVAL);
    ck_assert_fails(ops->map(device, addr, chunk, 0), -EINVAL);
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->release(device, wide));
}
END_TEST

START_TEST(ranges_are_whole_granules) {
    uint64_t addr, large;

    ck_assert_ok(ops->reserve(device, GRANULE, &addr));
    ck_assert_uint_eq(addr % GRANULE, 0);
    ck_assert_ok(ops->reserve(device, UINT64_C(1) << 40, &large));
    ck_assert_uint_eq(large % GRANULE, 0);
    ck_assert_ok(ops->unreserve(device, large, UINT64_C(1) << 40));
    ck_assert_ok(ops->unreserve(device, addr, GRANULE));
}
END_TEST

/* ---- wrong use ------------------------------------------------------------------------------- */

START_TEST(wrong_sizes_and_addresses_are_refused) {
    static const uint64_t sizes[] = {0, 1, GRANULE - 1, GRANULE + 1, UINT64_MAX,
                                     UINT64_MAX - GRANULE + 1};
    uint64_t before = device_free_bytes(device), chunk, unused = 5;
    uint64_t addr = device_make(device, GRANULE, 0, &chunk);

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ck_assert_fails(ops->reserve(device, sizes[i], &unused), -EINVAL);
        ck_assert_fails(ops->create(device, sizes[i], 0, &unused), -EINVAL);
        ck_assert_fails(ops->unmap(device, addr, sizes[i]), -EINVAL);
        ck_assert_fails(ops->unreserve(device, addr, sizes[i]), -EINVAL);
        ck_assert_fails(ops->import_fd(device, 0, sizes[i], &unused), -EINVAL);
    }
    ck_assert_fails(ops->create(device, GRANULE, 1u << 31, &unused), -EINVAL);
    ck_assert_fails(ops->map(device, addr + 4096, chunk, 0), -EINVAL);
    ck_assert_fails(ops->map(device, 0, chunk, 0), -EINVAL);
    ck_assert_fails(ops->unmap(device, addr + 4096, GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, 0, GRANULE), -EINVAL);
    ck_assert_fails(ops->unmap(device, UINT64_MAX - GRANULE + 1, GRANULE), -EINVAL);
    ck_assert_uint_eq(unused, 5);
    ck_assert(device_is_all(device, addr, 0, GRANULE));
    device_unmake(device, addr, GRANULE, chunk);
    device_check_free(device, before);
}
END_TEST

START_TEST(what_is_no_chunk_is_refused) {
    static const uint64_t handles[] = {0, 1, 77, UINT64_MAX, UINT64_C(1) << 32};
    uint64_t addr, released, chunk;
    int fd = -7;

    ck_assert_ok(ops->reserve(device, GRANULE, &addr));
    for (size_t i = 1; i < sizeof handles / sizeof *handles; i++) {
        ck_assert_fails(ops->release(device, handles[i]), -EINVAL);
        ck_assert_fails(ops->map(device, addr, handles[i], 0), -EINVAL);
        ck_assert_fails(ops->export_fd(device, handles[i], &fd), -EINVAL);
    }
    ck_assert_ok(ops->create(device, GRANULE, 0, &released));
    ck_assert_ok(ops->release(device, released));
    ck_assert_fails(ops->release(device, released), -EINVAL);
    ck_assert_ok(ops->create(device, GRANULE, 0, &chunk));
    ck_assert_fails(ops->release(device, released), -EINVAL);
    ck_assert_fails(ops->map(device, addr, released, 0), -EINVAL);
    ck_assert_fails(ops->export_fd(device, chunk, &fd), -EINVAL);
    ck_assert_int_eq(fd, -7);
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->unreserve(device, addr, GRANULE));
}
END_TEST

START_TEST(what_is_no_chunks_descriptor_is_refused) {
    uint64_t chunk = 5;
    int pipes[2];

    ck_assert_int_eq(pipe(pipes), 0);
    ck_assert_fails(ops->import_fd(device, -1, GRANULE, &chunk), -EINVAL);
    ck_assert_fails(ops->import_fd(device, 1000000, GRANULE, &chunk), -EINVAL);
    ck_assert_fails(ops->import_fd(device, pipes[0], GRANULE, &chunk), -EINVAL);
    ck_assert_uint_eq(chunk, 5);
    close(pipes[0]);
    close(pipes[1]);
}
END_TEST

#define PAGE UINT64_C(4096)

START_TEST(pinned_is_exactly_the_same_range) {
    static _Alignas(PAGE) unsigned char memory[4 * PAGE]; /* a driver pins whole pages */

    ck_assert_fails(ops->pin(device, NULL, PAGE, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory, 0, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory, PAGE, 0), -EINVAL);
    ck_assert_ok(ops->pin(device, memory, 2 * PAGE, 1));
    ck_assert_fails(ops->pin(device, memory, 2 * PAGE, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory + PAGE, 2 * PAGE, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory, PAGE, 0), -EINVAL);
    ck_assert_fails(ops->pin(device, memory + PAGE, PAGE, 0), -EINVAL);
    ck_assert_ok(ops->pin(device, memory + 2 * PAGE, PAGE, 1));
    ck_assert_ok(ops->pin(device, memory, 2 * PAGE, 0));
    ck_assert_fails(ops->pin(device, memory + PAGE, 2 * PAGE, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory, 4 * PAGE, 1), -EINVAL);
    ck_assert_fails(ops->pin(device, memory, 2 * PAGE, 0), -EINVAL);
    ck_assert_ok(ops->pin(device, memory, 2 * PAGE, 1));
    ck_assert_ok(ops->pin(device, memory, 2 * PAGE, 0));
    ck_assert_ok(ops->pin(device, memory + 2 * PAGE, PAGE, 0));
}
END_TEST

START_TEST(errno_stays) {
    uint64_t chunk;
    int fd;

    errno = 99;
    ck_assert_fails(ops->create(device, UINT64_C(1) << 45, 0, &chunk), TG_EDEVICEMEMORY);
    ck_assert_fails(ops->import_fd(device, 1000000, GRANULE, &chunk), -EINVAL);
    ck_assert_ok(ops->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk));
    ck_assert_ok(ops->export_fd(device, chunk, &fd));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_int_eq(errno, 99);
    close(fd);
}
END_TEST

/* ---- copies, fills, order -------------------------------------------------------------------- */

/* What stands at an offset of a pattern. */
static unsigned char pattern(uint64_t seed, uint64_t at) {
    return (unsigned char)((at * UINT64_C(0x9e3779b97f4a7c15) + seed) >> 56);
}

START_TEST(copies_of_odd_sizes_in_all_directions) {
    static const uint64_t sizes[] = {1, 2, 3, 7, 8, 63, 4095, 4097, GRANULE - 1, GRANULE + 5};
    uint64_t chunks[3], addr = make_neighbours(chunks);
    unsigned char *out = malloc(2 * GRANULE), *back = malloc(2 * GRANULE);

    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *first = (void *)(uintptr_t)(addr + 3 + i);
        void *second = (void *)(uintptr_t)(addr + 2 * GRANULE - 11 - i);

        for (uint64_t at = 0; at < sizes[i]; at++)
            out[at] = pattern(i, at);
        memset(back, 0, 2 * GRANULE);
        ck_assert_ok(ops->fill(device, addr, 0x55, 4 * GRANULE, NULL));
        ck_assert_ok(ops->copy(device, first, out, sizes[i], NULL));
        ck_assert_ok(ops->copy(device, second, first, sizes[i] <= GRANULE ? sizes[i] : GRANULE,
                               NULL));
        ck_assert_ok(ops->copy(device, back, second, sizes[i] <= GRANULE ? sizes[i] : GRANULE,
                               NULL));
        device_settle(device);
        ck_assert_mem_eq(back, out, sizes[i] <= GRANULE ? sizes[i] : GRANULE);
        ck_assert(device_is_all(device, addr, 0x55, 3 + i));
    }
    free(out);
    free(back);
    ck_assert_ok(ops->unmap(device, addr, 4 * GRANULE));
    for (int i = 0; i < 3; i++)
        ck_assert_ok(ops->release(device, chunks[i]));
    ck_assert_ok(ops->unreserve(device, addr, 5 * GRANULE));
}
END_TEST

START_TEST(copies_and_fills_of_nothing_are_refused) {
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);
    char byte = 0;

    ck_assert_fails(ops->copy(device, (void *)(uintptr_t)addr, &byte, 0, NULL), -EINVAL);
    ck_assert_fails(ops->copy(device, NULL, &byte, 1, NULL), -EINVAL);
    ck_assert_fails(ops->copy(device, &byte, NULL, 1, NULL), -EINVAL);
    ck_assert_fails(ops->fill(device, addr, 1, 0, NULL), -EINVAL);
    ck_assert_fails(ops->fill(device, 0, 1, 1, NULL), -EINVAL);
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

START_TEST(work_of_a_queue_is_done_in_order) {
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);
    struct tg_queue *queue;
    unsigned char seen[300];

    ck_assert_ok(ops->queue_open(device, &queue));
    for (int i = 0; i < 300; i++) {
        ck_assert_ok(ops->fill(device, addr, i, GRANULE, queue));
        ck_assert_ok(ops->copy(device, seen + i, (void *)(uintptr_t)(addr + GRANULE - 1), 1,
                               queue));
    }
    device_settle(device);
    for (int i = 0; i < 300; i++)
        ck_assert_uint_eq(seen[i], (unsigned char)i);
    ck_assert_ok(ops->queue_close(device, queue));
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

/* More jobs than any queue holds: the giver waits, nothing is lost. */
START_TEST(a_full_queue_makes_the_giver_wait) {
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);
    enum { JOBS = 5000 };
    unsigned char *seen = malloc(JOBS);

    for (int i = 0; i < JOBS; i++) {
        ck_assert_ok(ops->fill(device, addr, i, 64, NULL));
        ck_assert_ok(ops->copy(device, seen + i, (void *)(uintptr_t)addr, 1, NULL));
    }
    device_settle(device);
    for (int i = 0; i < JOBS; i++)
        ck_assert_uint_eq(seen[i], (unsigned char)i);
    free(seen);
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

START_TEST(a_fence_of_all_sees_every_queue) {
    uint64_t chunk, addr = device_make(device, 8 * GRANULE, 0, &chunk);
    struct tg_queue *queues[4];
    struct tg_fence fence;

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++) {
            ck_assert_ok(ops->queue_open(device, &queues[i]));
            ck_assert_ok(ops->fill(device, addr + (uint64_t)i * 2 * GRANULE, round, 2 * GRANULE,
                                   queues[i]));
        }
        if (round % 2 == 0)
            ck_assert_ok(ops->fence(device, NULL, &fence));
        for (int i = 0; i < 4; i++)
            ck_assert_ok(ops->queue_close(device, queues[i]));
        if (round % 2 != 0)
            ck_assert_ok(ops->fence(device, NULL, &fence));
        ck_assert_ok(ops->wait(device, &fence, 20000));
        ck_assert(device_is_all(device, addr, round, 8 * GRANULE));
    }
    device_unmake(device, addr, 8 * GRANULE, chunk);
}
END_TEST

START_TEST(a_passed_fence_stays_passed) {
    struct tg_fence past = {{0, 0}}, idle, fence;
    struct tg_queue *queue;
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);

    ck_assert_ok(ops->wait(device, &past, 0));
    ck_assert_ok(ops->fence(device, NULL, &idle));
    ck_assert_ok(ops->wait(device, &idle, 20000));
    ck_assert_ok(ops->wait(device, &idle, 0));
    ck_assert_ok(ops->queue_open(device, &queue));
    ck_assert_ok(ops->fill(device, addr, 1, GRANULE, queue));
    ck_assert_ok(ops->fence(device, queue, &fence));
    ck_assert_ok(ops->wait(device, &fence, 20000));
    ck_assert_ok(ops->wait(device, &fence, 0));
    ck_assert_ok(ops->queue_close(device, queue));
    ck_assert_ok(ops->wait(device, &fence, 0));
    ck_assert_ok(ops->wait(device, &past, 0));
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

START_TEST(a_closed_queue_is_no_queue) {
    struct tg_queue *queue;
    struct tg_fence fence;
    uint64_t chunk, addr = device_make(device, GRANULE, 0, &chunk);

    ck_assert_ok(ops->queue_open(device, &queue));
    ck_assert_ok(ops->queue_close(device, queue));
    ck_assert_fails(ops->queue_close(device, NULL), -EINVAL);
    ck_assert_fails(ops->queue_close(device, queue), -EINVAL);
    ck_assert_fails(ops->fill(device, addr, 1, 1, queue), -EINVAL);
    ck_assert_fails(ops->fence(device, queue, &fence), -EINVAL);
    device_unmake(device, addr, GRANULE, chunk);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, TURNS = 24 };

static void *take_turns(void *argument) {
    int byte = (int)(intptr_t)argument;

    for (int i = 0; i < TURNS; i++) {
        uint64_t size = (uint64_t)(1 + i % 3) * GRANULE, chunk;
        uint64_t addr = device_make(device, size, i % 2 == 0 ? TG_CHUNK_EXPORTABLE : 0, &chunk);

        ck_assert_ok(ops->fill(device, addr, byte, size, NULL));
        ck_assert(device_is_all(device, addr, byte, size));
        device_unmake(device, addr, size, chunk);
    }
    return NULL;
}

START_TEST(threads_do_not_disturb_each_other) {
    uint64_t before = device_free_bytes(device);
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_turns, (void *)(intptr_t)(i + 1)),
                         0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    device_check_free(device, before);
}
END_TEST

TCase *device_calls(const struct device_suite *suite) {
    TCase *cases = tcase_create("calls");

    kind = suite;
    tcase_set_timeout(cases, 60);
    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_add_test(cases, info_is_the_same_twice);
    tcase_add_test(cases, memory_is_taken_by_create_and_free_after_release);
    tcase_add_test(cases, the_process_is_charged_what_it_holds);
    tcase_add_test(cases, memory_lives_while_it_is_mapped);
    tcase_add_test(cases, content_lives_while_it_is_unmapped);
    tcase_add_test(cases, new_memory_is_zero);
    tcase_add_test(cases, more_than_is_free_is_refused);
    tcase_add_test(cases, one_chunk_is_seen_at_two_addresses);
    tcase_add_test(cases, neighbours_are_unmapped_at_once_and_whole);
    tcase_add_test(cases, access_is_given_to_whole_neighbours);
    tcase_add_test(cases, mappings_do_not_overlap_nor_leave_the_range);
    tcase_add_test(cases, ranges_are_whole_granules);
    tcase_add_test(cases, wrong_sizes_and_addresses_are_refused);
    tcase_add_test(cases, what_is_no_chunk_is_refused);
    tcase_add_test(cases, what_is_no_chunks_descriptor_is_refused);
    tcase_add_test(cases, pinned_is_exactly_the_same_range);
    tcase_add_test(cases, errno_stays);
    tcase_add_test(cases, copies_of_odd_sizes_in_all_directions);
    tcase_add_test(cases, copies_and_fills_of_nothing_are_refused);
    tcase_add_test(cases, work_of_a_queue_is_done_in_order);
    tcase_add_test(cases, a_full_queue_makes_the_giver_wait);
    tcase_add_test(cases, a_fence_of_all_sees_every_queue);
    tcase_add_test(cases, a_passed_fence_stays_passed);
    tcase_add_test(cases, a_closed_queue_is_no_queue);
    tcase_add_test(cases, threads_do_not_disturb_each_other);
    return cases;
}

int device_suite_run(const struct device_suite *suite) {
    TCase *parts[] = {device_calls(suite), device_processes(suite), device_random(suite),
                      suite->own};
    Suite *all = suite_create(suite->name);
    SRunner *runner = srunner_create(all);
    int failed;

    device_slack_bytes = suite->slack_bytes;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] == NULL)
            continue;
        tcase_add_unchecked_fixture(parts[i], suite->set_up, suite->tear_down);
        suite_add_tcase(all, parts[i]);
    }
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
