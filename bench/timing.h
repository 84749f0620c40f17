/* SPDX-License-Identifier: Apache-2.0 */
/* What the bench programs share: a file in memory, repeated timing, one line of JSON. Header-only,
 * since each program is one file. */
#ifndef TIDEGATE_BENCH_TIMING_H
#define TIDEGATE_BENCH_TIMING_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BENCH_RUNS_MAX 1000

struct bench_file {
    const unsigned char *bytes;
    size_t size_bytes;
};

/* What each run took: by the wall clock, and of the processor. On an idle machine they are alike;
 * on a busy one the processor's time still tells how much work a run is. */
struct bench_times {
    uint64_t wall_ns[BENCH_RUNS_MAX], cpu_ns[BENCH_RUNS_MAX];
    size_t runs;
};

static inline uint64_t bench_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Around the work of run i: begin stores the clocks, end turns them into durations. */
static inline void bench_begin(struct bench_times *times, size_t i) {
    times->cpu_ns[i] = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    times->wall_ns[i] = bench_clock_ns(CLOCK_MONOTONIC);
}

static inline void bench_end(struct bench_times *times, size_t i) {
    times->wall_ns[i] = bench_clock_ns(CLOCK_MONOTONIC) - times->wall_ns[i];
    times->cpu_ns[i] = bench_clock_ns(CLOCK_THREAD_CPUTIME_ID) - times->cpu_ns[i];
}

/* Maps a file for reading; ends the program with a sentence where it cannot. */
static inline struct bench_file bench_open(const char *path) {
    struct bench_file file = {NULL, 0};
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0) {
        file.size_bytes = (size_t)status.st_size;
        map = mmap(NULL, file.size_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    }
    if (map == MAP_FAILED) {
        fprintf(stderr, "%s: cannot be mapped: %s\n", path, strerror(errno));
        exit(2);
    }
    close(fd);
    file.bytes = (const unsigned char *)map;
    return file;
}

static inline int bench_compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The most memory that this program has held, its mapped file included; 0: not known. The kernel's
 * ru_maxrss would count what the program that started this one held. */
static inline uint64_t bench_peak_bytes(void) {
    FILE *status = fopen("/proc/self/status", "re");
    char line[128];
    unsigned long long kib = 0;

    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return kib * 1024;
}

/* Prints {"bytes": .., "runs": .., "first_ns": .., "min_ns": .., "median_ns": ..,
 * "first_cpu_ns": .., "min_cpu_ns": .., "mb_per_s": .., "peak_bytes": ..EXTRA}. MB are 1e6 bytes,
 * mb_per_s is that of min_cpu_ns; extra is "" or more pairs behind a comma. Sorts the times. */
static inline void bench_print(const struct bench_file *file, struct bench_times *times,
                               const char *extra) {
    size_t runs = times->runs;
    unsigned long long first = times->wall_ns[0], first_cpu = times->cpu_ns[0];

    qsort(times->wall_ns, runs, sizeof times->wall_ns[0], bench_compare);
    qsort(times->cpu_ns, runs, sizeof times->cpu_ns[0], bench_compare);
    uint64_t median = (times->wall_ns[(runs - 1) / 2] + times->wall_ns[runs / 2]) / 2;
    printf("{\"bytes\": %zu, \"runs\": %zu, \"first_ns\": %llu, \"min_ns\": %llu, "
           "\"median_ns\": %llu, \"first_cpu_ns\": %llu, \"min_cpu_ns\": %llu, "
           "\"mb_per_s\": %.1f, \"peak_bytes\": %llu%s}\n",
           file->size_bytes, runs, first, (unsigned long long)times->wall_ns[0],
           (unsigned long long)median, first_cpu, (unsigned long long)times->cpu_ns[0],
           (double)file->size_bytes * 1e3 / (double)times->cpu_ns[0],
           (unsigned long long)bench_peak_bytes(), extra);
}

/* The number of runs from argv[2], 1 to BENCH_RUNS_MAX; 5 where it is not given. */
static inline size_t bench_runs(int argc, char **argv) {
    long runs = argc > 2 ? strtol(argv[2], NULL, 10) : 5;
    if (runs < 1)
        runs = 1;
    return runs > BENCH_RUNS_MAX ? BENCH_RUNS_MAX : (size_t)runs;
}

#endif
