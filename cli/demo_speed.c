/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_speed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "demo_run.h"
#include "monotonic.h"

#define PIECE_MOST (UINT64_C(64) << 20)

enum { TRIES = 3 };

/* Untouched memory of either kind; MAP_FAILED: none. */
static void *fresh(bool is_device, size_t size_bytes) {
    void *at;
    int fd;

    if (!is_device)
        return mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fd = memfd_create("tidegate-demo", MFD_CLOEXEC);
    if (fd < 0)
        return MAP_FAILED;
    at = ftruncate(fd, (off_t)size_bytes) != 0
             ? MAP_FAILED
             : mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at;
}

static int by_size(const void *left, const void *right) {
    const double *a = left, *b = right;

    return *a < *b ? -1 : *a > *b;
}

static double copied(void *to, const void *from, size_t size_bytes) {
    uint64_t start_ns = monotonic_ns();

    memcpy(to, from, size_bytes);
    return demo_report_rate(size_bytes, monotonic_ns() - start_ns);
}

static double median(double *tries) {
    qsort(tries, TRIES, sizeof tries[0], by_size);
    return tries[TRIES / 2];
}

/* Into new memory, and then into the same once more. */
static bool measure(const void *from, size_t size_bytes, bool is_device, double *to_fresh,
                    double *to_touched) {
    double first[TRIES], second[TRIES];

    for (int i = 0; i < TRIES; i++) {
        void *to = fresh(is_device, size_bytes);

        if (to == MAP_FAILED)
            return false;
        first[i] = copied(to, from, size_bytes);
        second[i] = copied(to, from, size_bytes);
        munmap(to, size_bytes);
    }
    *to_fresh = median(first);
    *to_touched = median(second);
    return true;
}

bool demo_speed_measure(uint64_t capacity_bytes, struct demo_speed *speed) {
    size_t size_bytes = (size_t)(capacity_bytes < 4 * PIECE_MOST ? capacity_bytes / 4 : PIECE_MOST);
    void *from = fresh(false, size_bytes);
    double to_touched_device;
    bool is_measured;

    if (from == MAP_FAILED)
        return false;
    memset(from, 1, size_bytes);
    is_measured = measure(from, size_bytes, false, &speed->to_fresh_host,
                          &speed->to_touched_host) &&
                  measure(from, size_bytes, true, &speed->to_fresh_device, &to_touched_device);
    munmap(from, size_bytes);
    return is_measured;
}
