/* SPDX-License-Identifier: Apache-2.0 */
/* Times the ledger between real processes; prints one line of JSON.
 *
 *     ledger alone ROUNDS      reserve and cancel with nobody else there, ns a pair
 *     ledger wake ROUNDS       from one process's give to the return of another's waiting reserve
 *     ledger contend TENANTS   a second of processes that take turns: each one's waits
 *
 * $TIDEGATE_DIR names the folder of the ledger: give a fresh one. No device: the gauge answers a
 * constant, and a turn is a sleep, so that two cores serve eight processes. */
#include "timing.h"

#include <stdatomic.h>
#include <sys/wait.h>

#include <tidegate/error.h>
#include <tidegate/ledger.h>

#define MIB (UINT64_C(1) << 20)

#define TURN_NS UINT64_C(1000000)

enum { TENANTS_MAX = 32, WAITS_MAX = 4096 };

static const uint64_t total_bytes = 1024 * MIB;

/* What processes share beside the ledger. */
struct board {
    _Atomic uint64_t given_ns;
    _Atomic uint32_t is_over;
    _Atomic uint32_t wait_count[TENANTS_MAX];
    uint64_t wait_ns[TENANTS_MAX][WAITS_MAX];
};

static void need(int status, const char *what) {
    if (status < 0) {
        fprintf(stderr, "%s: %s\n", what, tg_last_error()->text);
        exit(2);
    }
}

static int gauge(void *argument, uint64_t *free_bytes, uint64_t *total) {
    (void)argument;
    *free_bytes = *total = total_bytes;
    return 0;
}

static struct tg_tenant *join(const char *name) {
    static const uint8_t uuid[16] = "bench ledger";
    struct tg_tenant_params params = {
        .name = name, .rank = -1, .uuid = uuid, .device_name = "bench", .gauge = {gauge, NULL}};
    struct tg_ledger *ledger = NULL;
    struct tg_tenant *tenant = NULL;

    need(tg_ledger_open(NULL, &ledger), "open");
    need(tg_ledger_join(ledger, &params, &tenant), "join");
    return tenant;
}

static struct board *board_make(void) {
    void *map = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (map == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return map;
}

static void rest(uint64_t ns) {
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)ns};

    nanosleep(&time, NULL);
}

static int alone(size_t rounds) {
    enum { PAIRS = 1000 };
    static struct bench_times times;
    struct tg_tenant *tenant = join("alone");

    times.runs = rounds;
    for (size_t i = 0; i < rounds; i++) {
        bench_begin(&times, i);
        for (int pair = 0; pair < PAIRS; pair++) {
            need(tg_tenant_reserve(tenant, "kv_cache", 64 * MIB, 0), "reserve");
            tg_tenant_cancel(tenant, "kv_cache", 64 * MIB);
        }
        bench_end(&times, i);
    }
    qsort(times.wall_ns, rounds, sizeof times.wall_ns[0], bench_compare);
    printf("{\"rounds\": %zu, \"min_ns\": %.1f, \"median_ns\": %.1f}\n", rounds,
           (double)times.wall_ns[0] / PAIRS, (double)times.wall_ns[rounds / 2] / PAIRS);
    return 0;
}

/* Takes what the parent gives, again and again, and says how long after the give it ran. */
static void waiter(struct board *board, size_t rounds) {
    struct tg_tenant *tenant = join("waiter");

    for (size_t i = 0; i < rounds; i++) {
        need(tg_tenant_reserve(tenant, "kv_cache", total_bytes, 10000), "wait");
        board->wait_ns[0][i] = bench_clock_ns(CLOCK_MONOTONIC) - atomic_load(&board->given_ns);
        atomic_store(&board->wait_count[0], (uint32_t)i + 1);
        rest(TURN_NS / 2);
        tg_tenant_cancel(tenant, "kv_cache", total_bytes);
        rest(TURN_NS / 2); /* the parent's turn */
    }
    exit(0);
}

static int wake(struct board *board, size_t rounds) {
    struct tg_tenant *tenant = join("giver");
    int status = 0;
    pid_t child;

    need(tg_tenant_reserve(tenant, "kv_cache", total_bytes, 10000), "reserve");
    child = fork();
    if (child == 0)
        waiter(board, rounds);
    for (size_t i = 0; i < rounds; i++) {
        rest(3 * TURN_NS); /* by now the waiter waits */
        atomic_store(&board->given_ns, bench_clock_ns(CLOCK_MONOTONIC));
        tg_tenant_cancel(tenant, "kv_cache", total_bytes);
        while (atomic_load(&board->wait_count[0]) <= i)
            rest(TURN_NS / 10);
        need(tg_tenant_reserve(tenant, "kv_cache", total_bytes, 10000), "reserve");
    }
    waitpid(child, &status, 0);
    qsort(board->wait_ns[0], rounds, sizeof board->wait_ns[0][0], bench_compare);
    printf("{\"rounds\": %zu, \"median_ns\": %llu, \"p99_ns\": %llu, \"max_ns\": %llu}\n", rounds,
           (unsigned long long)board->wait_ns[0][rounds / 2],
           (unsigned long long)board->wait_ns[0][rounds - 1 - rounds / 100],
           (unsigned long long)board->wait_ns[0][rounds - 1]);
    return status == 0 ? 0 : 2;
}

/* Two of three parts of the device: one tenant at a time. */
static void contender(struct board *board, size_t self) {
    struct tg_tenant *tenant = join("contender");
    const uint64_t size_bytes = total_bytes / 3 * 2;
    uint32_t turns = 0;

    while (atomic_load(&board->is_over) == 0 && turns < WAITS_MAX) {
        uint64_t began = bench_clock_ns(CLOCK_MONOTONIC);
        need(tg_tenant_reserve(tenant, "kv_cache", size_bytes, 20000), "reserve");
        board->wait_ns[self][turns++] = bench_clock_ns(CLOCK_MONOTONIC) - began;
        rest(TURN_NS);
        tg_tenant_cancel(tenant, "kv_cache", size_bytes);
    }
    board->wait_count[self] = turns;
    exit(0);
}

/* Fair: with N tenants, everybody waits for N - 1 turns of mean length. */
static int contend(struct board *board, size_t tenants) {
    uint64_t began = bench_clock_ns(CLOCK_MONOTONIC), worst = 0, fair;
    uint32_t turns = 0, fewest = UINT32_MAX;
    int failed = 0;

    for (size_t i = 0; i < tenants; i++) {
        if (fork() == 0)
            contender(board, i);
    }
    rest(999999999);
    atomic_store(&board->is_over, 1);
    for (size_t i = 0; i < tenants; i++) {
        int status = 0;
        wait(&status);
        failed |= status;
    }
    fair = bench_clock_ns(CLOCK_MONOTONIC) - began;
    for (size_t i = 0; i < tenants; i++) {
        turns += board->wait_count[i];
        fewest = board->wait_count[i] < fewest ? board->wait_count[i] : fewest;
        for (uint32_t k = 0; k < board->wait_count[i]; k++)
            worst = board->wait_ns[i][k] > worst ? board->wait_ns[i][k] : worst;
    }
    if (failed != 0 || turns == 0)
        return 2;
    fair = fair / turns * (tenants - 1);
    printf("{\"tenants\": %zu, \"turns\": %u, \"fewest_turns\": %u, \"worst_wait_ns\": %llu, "
           "\"fair_wait_ns\": %llu}\n", tenants, turns, fewest, (unsigned long long)worst,
           (unsigned long long)fair);
    return 0;
}

int main(int argc, char **argv) {
    size_t count = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 0;

    if (argc == 3 && strcmp(argv[1], "alone") == 0 && count >= 1 && count <= BENCH_RUNS_MAX)
        return alone(count);
    if (argc == 3 && strcmp(argv[1], "wake") == 0 && count >= 100 && count <= WAITS_MAX)
        return wake(board_make(), count);
    if (argc == 3 && strcmp(argv[1], "contend") == 0 && count >= 2 && count <= TENANTS_MAX)
        return contend(board_make(), count);
    fputs("usage: ledger alone 1-1000 | wake 100-4096 | contend 2-32\n", stderr);
    return 2;
}
