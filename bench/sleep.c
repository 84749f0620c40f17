/* SPDX-License-Identifier: Apache-2.0 */
/* Times sleep and wake on the host device beside memcpy; prints one line of JSON.
 *
 *     sleep MIB [TURNS]
 *
 * In each turn one after the other: a first sleep (its host memory is fresh) and memcpy from the
 * same block into fresh anonymous memory; a wake (its chunks are fresh) and memcpy into a fresh
 * memfd; a sleep into a host copy that was kept, and memcpy between touched memory. All with huge
 * pages where the system gives them. Of each the best turn counts. $TIDEGATE_DIR: give a fresh one.
 *
 * A sleep also gives the pages back, which takes the host's kernel its time (a card's driver
 * little): so of a sleep are told the phase of copying, as its receipt has it, beside memcpy; and
 * all of it, beside memcpy and giving back as many pages. */
#include "timing.h"

#include <stdbool.h>

#include <tidegate/error.h>
#include <tidegate/memory.h>

#define MIB (UINT64_C(1) << 20)

enum { TURNS_MAX = 100 };

struct sleep_times {
    uint64_t copy_ns, all_ns;
};

struct best {
    struct sleep_times first, later;
    uint64_t first_memcpy_ns, later_memcpy_ns, wake_ns, wake_memcpy_ns;
    uint64_t free_ns; /* of a memfd's pages */
};

static struct tg_memory *memory;
static void *touched; /* as large as a block, and written to */
static uint64_t size_bytes;

static void need(int status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, tg_last_error()->text);
        exit(2);
    }
}

static void keep_best(uint64_t *best_ns, uint64_t took_ns) {
    if (*best_ns == 0 || took_ns < *best_ns)
        *best_ns = took_ns;
}

static uint64_t since(uint64_t began_ns) {
    return bench_clock_ns(CLOCK_MONOTONIC) - began_ns;
}

/* Fresh memory as a host copy (fd -1) or a chunk has it. */
static void *fresh_map(int fd) {
    void *map = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);

    if (map == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    (void)madvise(map, size_bytes, MADV_HUGEPAGE);
    return map;
}

static void time_memcpy(void *to, const void *from, uint64_t *best_ns) {
    uint64_t began_ns = bench_clock_ns(CLOCK_MONOTONIC);

    memcpy(to, from, size_bytes);
    keep_best(best_ns, since(began_ns));
}

static void time_fresh_memcpy(bool is_memfd, const void *from, uint64_t *best_ns,
                              uint64_t *free_ns) {
    int fd = is_memfd ? memfd_create("bench", MFD_CLOEXEC) : -1;
    uint64_t began_ns;
    void *fresh;

    if (is_memfd && (fd < 0 || ftruncate(fd, (off_t)size_bytes) != 0)) {
        perror("memfd");
        exit(2);
    }
    fresh = fresh_map(fd);
    time_memcpy(fresh, from, best_ns);
    began_ns = bench_clock_ns(CLOCK_MONOTONIC);
    munmap(fresh, size_bytes);
    if (is_memfd)
        close(fd);
    keep_best(free_ns, since(began_ns));
}

static void time_sleep(const char *tag, struct sleep_times *best) {
    struct tg_receipt receipt;

    need(tg_memory_sleep(memory, tag, 1000, &receipt), "sleep");
    keep_best(&best->copy_ns, receipt.copy_ns);
    keep_best(&best->all_ns, receipt.all_ns);
}

static void time_wake(const char *tag, uint64_t *best_ns) {
    uint64_t began_ns = bench_clock_ns(CLOCK_MONOTONIC);

    need(tg_memory_wake(memory, tag, 1000, NULL), "wake");
    keep_best(best_ns, since(began_ns));
}

static struct tg_tag *make_tag(const char *name, int keep_host, void **block) {
    struct tg_tag_params params = {
        .backup = TG_BACKUP_HOST, .packed = 1, .keep_host = keep_host};
    struct tg_tag *tag = NULL;

    need(tg_tag_open(memory, name, &params, &tag), "tag");
    need(tg_tag_alloc(tag, size_bytes, block), "alloc");
    memset(*block, 1, size_bytes);
    return tag;
}

static void turn(struct best *best, const void *dropped_block, const void *kept_block) {
    uint64_t unused = 0;

    time_fresh_memcpy(false, dropped_block, &best->first_memcpy_ns, &unused);
    time_sleep("dropped", &best->first);
    time_fresh_memcpy(true, touched, &best->wake_memcpy_ns, &best->free_ns);
    time_wake("dropped", &best->wake_ns);
    time_memcpy(touched, kept_block, &best->later_memcpy_ns);
    time_sleep("kept", &best->later);
    time_wake("kept", &unused);
}

static void print(const struct best *best, const struct tg_tag_info *asleep, size_t turns) {
    const struct {
        const char *name;
        uint64_t number;
    } rows[] = {
        {"turns", turns},
        {"saved_bytes", asleep->size_bytes},
        {"host_bytes", asleep->host_bytes},
        {"first_sleep_copy_ns", best->first.copy_ns},
        {"first_sleep_ns", best->first.all_ns},
        {"first_memcpy_ns", best->first_memcpy_ns},
        {"later_sleep_copy_ns", best->later.copy_ns},
        {"later_sleep_ns", best->later.all_ns},
        {"later_memcpy_ns", best->later_memcpy_ns},
        {"wake_ns", best->wake_ns},
        {"wake_memcpy_ns", best->wake_memcpy_ns},
        {"free_ns", best->free_ns},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        printf("%s\"%s\": %llu", i == 0 ? "{" : ", ", rows[i].name,
               (unsigned long long)rows[i].number);
    puts("}");
}

static void open_memory(unsigned long long mib) {
    struct tg_device *device = NULL;
    char uri[64];

    /* Two tags, and the kept one's chunks beside its copy. */
    snprintf(uri, sizeof uri, "host:capacity=%lluMiB,name=bench",
             2ULL * mib + 128);
    need(tg_device_open(uri, &device), "device");
    need(tg_memory_open(device, NULL, &memory), "memory");
    size_bytes = mib * MIB;
}

int main(int argc, char **argv) {
    unsigned long long mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    size_t turns = argc > 2 ? strtoul(argv[2], NULL, 10) : 5;
    void *dropped_block, *kept_block;
    struct best best = {0};
    struct tg_tag_info asleep;
    struct tg_tag *dropped;

    if (argc < 2 || mib < 2 || mib % 2 != 0 || mib > 1 << 16 || turns < 1 || turns > TURNS_MAX) {
        fputs("usage: sleep MIB [TURNS]; MIB is even, 2 to 65536\n", stderr);
        return 2;
    }
    open_memory(mib);
    dropped = make_tag("dropped", 0, &dropped_block);
    make_tag("kept", 1, &kept_block);
    touched = fresh_map(-1);
    memset(touched, 2, size_bytes);
    need(tg_memory_sleep(memory, "kept", 1000, NULL), "sleep"); /* its copy is there from now on */
    need(tg_memory_wake(memory, "kept", 1000, NULL), "wake");
    for (size_t i = 0; i < turns; i++)
        turn(&best, dropped_block, kept_block);
    need(tg_memory_sleep(memory, "dropped", 1000, NULL), "sleep");
    tg_tag_info(dropped, &asleep);
    print(&best, &asleep, turns);
    return 0;
}
