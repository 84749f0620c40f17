/* SPDX-License-Identifier: Apache-2.0 */
/* Soak: processes take turns on one device for a long time, with random sizes, tags, sleeps, wakes
 * and kills, against a shadow of what each must hold.
 *
 *     soak [--seconds N] [--seed N] [--tenants N] [--kill-every N]
 *
 * prints one line of JSON; exit status 0: all is well.
 *
 * Each actor is ordered about by this one loop: it allocates and frees at random, sleeps and wakes,
 * and verifies what is awake. Now and then one is killed at a random moment and started anew. What
 * must hold: no byte lost in anyone who was not killed; never more memory behind the chunks of all
 * actors than the device has, as the kernel counts it; and no wake beyond its deadline by more than
 * 50 ms, after taking off what a thread of this process that only sleeps is late by. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor.h"
#include "content.h"
#include "memfds.h"
#include "stage.h"

enum {
    CAPACITY_MIB = 96,
    WAKE_MS = 2000,
    LATE_LIMIT_MS = 50,
    SAMPLE_MS = 50,
    BLOCKS_MAX = 12,
    TAGS = 4
};

static const char uri[] = "host:capacity=96MiB,name=soak";
static const char *const tags[TAGS] = {"weights", "optimizer", "kept", "kv_cache"};

/* What the soak knows of one actor. */
struct shadow {
    struct actor actor;
    bool is_waiting;   /* an order is out */
    struct order last; /* the one that is, or was */
    bool is_asleep;
    uint64_t blocks[BLOCKS_MAX]; /* numbers + 1; 0: free place */
    uint64_t held_mib;
    uint32_t verify_tag; /* next in a round of verifying; TAGS: not verifying */
};

static struct {
    uint64_t hand_overs, kills, orders, verified, lost_bytes, double_samples, samples;
    uint64_t late, no_fit, worst_late_ms, most_bytes;
} totals;

static struct shadow shadows[ACTORS_MAX];
static int tenant_count = 4;
static uint64_t dice;
static uint64_t seconds = 120, kill_every = 60;

/* ---- how late a sleeping thread wakes on this machine ---------------------------------------- */

enum { CONTROL_REST_MS = 5, CONTROL_SLOT_MS = 100, CONTROL_SLOTS = 30 };

/* The worst of each tenth of a second, for longer than a wake may wait. */
static _Atomic uint64_t control_late_ns[CONTROL_SLOTS];

static void *control_run(void *argument) {
    uint64_t slot_before = 0;

    (void)argument;
    for (;;) {
        uint64_t before_ns = stage_now_ns(), late_ns, slot;

        stage_rest_ms(CONTROL_REST_MS);
        late_ns = stage_now_ns() - before_ns - CONTROL_REST_MS * UINT64_C(1000000);
        slot = stage_now_ns() / (CONTROL_SLOT_MS * UINT64_C(1000000)) % CONTROL_SLOTS;
        if (slot != slot_before || late_ns > atomic_load(&control_late_ns[slot]))
            atomic_store(&control_late_ns[slot], late_ns);
        slot_before = slot;
    }
    return NULL;
}

static uint64_t control_worst_ns(void) {
    uint64_t worst_ns = 0;

    for (int i = 0; i < CONTROL_SLOTS; i++) {
        uint64_t late_ns = atomic_load(&control_late_ns[i]);
        worst_ns = late_ns > worst_ns ? late_ns : worst_ns;
    }
    return worst_ns;
}

/* ---- one actor ------------------------------------------------------------------------------ */

static void begin(struct shadow *shadow, int index) {
    char name[32];
    struct actor_params params = {.name = name, .uri = uri, .seed = random_next(&dice)};

    snprintf(name, sizeof name, "tenant%d", index);
    memset(shadow, 0, sizeof *shadow);
    shadow->verify_tag = TAGS;
    actor_start(&shadow->actor, &params);
}

static void give_order(struct shadow *shadow, struct order order) {
    shadow->last = order;
    shadow->is_waiting = true;
    totals.orders++;
    actor_order(&shadow->actor, order);
}

static uint64_t *free_place(struct shadow *shadow) {
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (shadow->blocks[i] == 0)
            return &shadow->blocks[i];
    }
    return NULL;
}

static void order_alloc(struct shadow *shadow) {
    uint64_t size_bytes = (1 + random_next(&dice) % (12 * MIB / 8)) * 8;

    give_order(shadow, order_make(ORDER_ALLOC, tags[random_next(&dice) % TAGS], size_bytes, 0));
}

static void order_free(struct shadow *shadow) {
    int at = (int)(random_next(&dice) % BLOCKS_MAX);
    struct order order = {.kind = ORDER_FREE};

    for (int i = 0; i < BLOCKS_MAX && shadow->blocks[at] == 0; i++)
        at = (at + 1) % BLOCKS_MAX;
    order.number = shadow->blocks[at] - 1;
    shadow->blocks[at] = 0;
    give_order(shadow, order);
}

static bool has_blocks(const struct shadow *shadow) {
    for (int i = 0; i < BLOCKS_MAX; i++) {
        if (shadow->blocks[i] != 0)
            return true;
    }
    return false;
}

/* A sleeper wakes; who is awake verifies all after a wake, works a little and sleeps again. */
static void order_next(struct shadow *shadow) {
    uint64_t choice = random_next(&dice) % 16;

    if (shadow->verify_tag < TAGS)
        give_order(shadow, order_make(ORDER_VERIFY, tags[shadow->verify_tag++], 0, 0));
    else if (shadow->is_asleep && (choice < 15 || !has_blocks(shadow)))
        give_order(shadow, order_make(ORDER_WAKE, "", 0, WAKE_MS));
    else if (shadow->is_asleep)
        order_free(shadow);
    else if (choice < 3 && free_place(shadow) != NULL)
        order_alloc(shadow);
    else if (choice < 5 && has_blocks(shadow))
        order_free(shadow);
    else if (choice == 5)
        give_order(shadow, order_make(ORDER_SLEEP, tags[random_next(&dice) % TAGS], 0, WAKE_MS));
    else
        give_order(shadow, order_make(ORDER_SLEEP, "", 0, WAKE_MS));
}

/* One that succeeds has waited in time and may copy for longer; one that fails has ended. */
static void judge_wake(const struct answer *answer) {
    uint64_t allowed_ns = WAKE_MS * UINT64_C(1000000) + control_worst_ns();
    uint64_t took_ns = answer->status == 0 ? answer->wait_ns : answer->took_ns;
    uint64_t late_ms = took_ns > allowed_ns ? (took_ns - allowed_ns) / 1000000 : 0;

    if (answer->status == TG_ENOFIT)
        totals.no_fit++;
    if (late_ms > totals.worst_late_ms)
        totals.worst_late_ms = late_ms;
    totals.late += late_ms > LATE_LIMIT_MS;
}

static bool is_expected(const struct shadow *shadow, int status) {
    if (status == 0 || status == TG_ENOFIT)
        return true;
    /* Alloc in a tag that sleeps alone; a device that another has just filled; two who wait. */
    return (shadow->last.kind == ORDER_ALLOC &&
            (status == TG_EASLEEP || status == TG_EDEVICEMEMORY || status == -ENOSPC)) ||
           (shadow->last.kind == ORDER_WAKE && (status == TG_ECYCLE || status == TG_ENEVERFITS));
}

/* False: the run has failed. */
static bool take_answer(struct shadow *shadow) {
    struct answer answer = actor_answer(&shadow->actor, 0);

    shadow->is_waiting = false;
    if (!is_expected(shadow, answer.status)) {
        fprintf(stderr, "%s: order %d, tag '%s': %d %s\n", shadow->actor.name,
                (int)shadow->last.kind, shadow->last.tag, answer.status, answer.text);
        return false;
    }
    switch (shadow->last.kind) {
    case ORDER_ALLOC:
        if (answer.status == 0)
            *free_place(shadow) = answer.value + 1;
        break;
    case ORDER_VERIFY:
        totals.verified++;
        totals.lost_bytes += answer.value;
        break;
    case ORDER_SLEEP:
        shadow->is_asleep |= shadow->last.tag[0] == '\0';
        break;
    case ORDER_WAKE:
        judge_wake(&answer);
        if (answer.status == 0) {
            totals.hand_overs++;
            shadow->is_asleep = false;
            shadow->verify_tag = 0;
        } else if (answer.status == TG_ENEVERFITS) {
            order_free(shadow); /* it has grown too large ever to wake */
        }
        break;
    default:
        break;
    }
    return true;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void kill_one(void) {
    int index = (int)(random_next(&dice) % (uint64_t)tenant_count);

    actor_kill(&shadows[index].actor);
    begin(&shadows[index], index);
    totals.kills++;
}

static void sample(void) {
    pid_t pids[ACTORS_MAX];
    uint64_t bytes;

    for (int i = 0; i < tenant_count; i++)
        pids[i] = shadows[i].actor.pid;
    bytes = memfds_bytes(pids, tenant_count);
    totals.samples++;
    totals.double_samples += bytes > CAPACITY_MIB * MIB;
    if (bytes > totals.most_bytes)
        totals.most_bytes = bytes;
}

/* Everybody without an order gets one; then waits for the first answer. */
static bool turn(void) {
    struct pollfd ready[ACTORS_MAX];

    for (int i = 0; i < tenant_count; i++) {
        if (!shadows[i].is_waiting)
            order_next(&shadows[i]);
        ready[i] = (struct pollfd){.fd = shadows[i].actor.socket, .events = POLLIN};
    }
    if (poll(ready, (nfds_t)tenant_count, 4 * WAKE_MS) <= 0) {
        fprintf(stderr, "nobody answers\n");
        return false;
    }
    for (int i = 0; i < tenant_count; i++) {
        if (ready[i].revents != 0 && !take_answer(&shadows[i]))
            return false;
    }
    return true;
}

static bool run(void) {
    uint64_t end_ns = stage_now_ns() + seconds * UINT64_C(1000000000), next_sample_ns = 0;
    uint64_t next_kill = kill_every;
    bool is_well = true;

    for (int i = 0; i < tenant_count; i++)
        begin(&shadows[i], i);
    while (is_well && stage_now_ns() < end_ns) {
        is_well = turn() && totals.lost_bytes == 0;
        if (is_well && kill_every != 0 && totals.hand_overs >= next_kill) {
            kill_one();
            next_kill = totals.hand_overs + 1 + random_next(&dice) % (2 * kill_every);
        }
        if (stage_now_ns() >= next_sample_ns) {
            sample();
            next_sample_ns = stage_now_ns() + SAMPLE_MS * UINT64_C(1000000);
        }
    }
    for (int i = 0; i < tenant_count; i++)
        actor_kill(&shadows[i].actor);
    return is_well;
}

static bool options_read(int argc, char **argv) {
    static const struct option names[] = {{"seconds", required_argument, NULL, 's'},
                                          {"seed", required_argument, NULL, 'r'},
                                          {"tenants", required_argument, NULL, 't'},
                                          {"kill-every", required_argument, NULL, 'k'},
                                          {NULL, 0, NULL, 0}};
    int letter;

    dice = stage_now_ns();
    while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (letter == 's')
            seconds = strtoull(optarg, NULL, 10);
        else if (letter == 'r')
            dice = strtoull(optarg, NULL, 10);
        else if (letter == 't')
            tenant_count = atoi(optarg);
        else if (letter == 'k')
            kill_every = strtoull(optarg, NULL, 10);
        else
            return false;
    }
    return optind == argc && tenant_count >= 2 && tenant_count <= ACTORS_MAX;
}

int main(int argc, char **argv) {
    pthread_t control;
    uint64_t seed;
    bool is_well;

    if (!options_read(argc, argv)) {
        fputs("usage: soak [--seconds N] [--seed N] [--tenants 2-16] [--kill-every N]\n", stderr);
        return 2;
    }
    seed = dice;
    stage_open();
    if (pthread_create(&control, NULL, control_run, NULL) != 0)
        return 2;
    is_well = run();
    is_well = is_well && totals.lost_bytes == 0 && totals.double_samples == 0 && totals.late == 0;
    printf("{\"seed\": %llu, \"seconds\": %llu, \"tenants\": %d, \"hand_overs\": %llu, "
           "\"kills\": %llu, \"orders\": %llu, \"verified\": %llu, \"bytes_lost\": %llu, "
           "\"samples\": %llu, \"double_occupancy\": %llu, \"most_bytes\": %llu, "
           "\"no_fit\": %llu, \"late_beyond_50_ms\": %llu, \"worst_late_ms\": %llu}\n",
           (unsigned long long)seed, (unsigned long long)seconds, tenant_count,
           (unsigned long long)totals.hand_overs, (unsigned long long)totals.kills,
           (unsigned long long)totals.orders, (unsigned long long)totals.verified,
           (unsigned long long)totals.lost_bytes, (unsigned long long)totals.samples,
           (unsigned long long)totals.double_samples, (unsigned long long)totals.most_bytes,
           (unsigned long long)totals.no_fit, (unsigned long long)totals.late,
           (unsigned long long)totals.worst_late_ms);
    stage_close();
    return is_well ? 0 : 1;
}
