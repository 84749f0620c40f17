/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_side.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "monotonic.h"

/* The other side gives way within a second or so; a node's other programs may take their time. */
#define WAIT_MS 20000

/* A shorter wait is the ledger's own work. */
#define WAITED_NS UINT64_C(1000000)

static const struct demo_role *const roles[DEMO_SIDES] = {&demo_trainer_role, &demo_rollout_role};

const char *demo_who_name(enum demo_who who) {
    return roles[who]->name;
}

bool demo_side_must_stop(const struct demo_side *side) {
    return atomic_load_explicit(&side->gauge->must_stop, memory_order_relaxed) != 0;
}

void demo_side_measure(struct demo_side *side, uint64_t held_bytes) {
    side->reply.awake_bytes = held_bytes;
    atomic_store_explicit(&side->gauge->held_bytes[side->who], held_bytes, memory_order_relaxed);
}

void demo_side_touch(struct demo_side *side, void *at, uint64_t size_bytes) {
    demo_hands_do(&side->hands, DEMO_TOUCH, at, size_bytes, 0);
}

void demo_side_fill(struct demo_side *side, void *at, uint64_t size_bytes, uint64_t key) {
    demo_hands_do(&side->hands, DEMO_FILL, at, size_bytes, key);
}

void demo_side_verify(struct demo_side *side, void *at, uint64_t size_bytes, uint64_t key) {
    side->reply.verified_bytes += size_bytes;
    side->reply.lost_bytes += demo_hands_do(&side->hands, DEMO_COMPARE, at, size_bytes, key);
}

void demo_side_verify_zero(struct demo_side *side, void *at, uint64_t size_bytes) {
    side->reply.verified_bytes += size_bytes;
    side->reply.lost_bytes += demo_hands_do(&side->hands, DEMO_COMPARE_ZERO, at, size_bytes, 0);
}

static int ask_device(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct tg_device *device = argument;

    return tg_device_ops(device)->memory(device, free_bytes, total_bytes);
}

static int side_open(struct demo_side *side) {
    struct tg_tenant_params params = {.name = demo_who_name(side->who),
                                      .role = demo_who_name(side->who),
                                      .rank = -1};
    struct tg_device_info info;
    int status = tg_device_open(side->setup->uri, &side->device);

    if (status == 0)
        status = tg_device_ops(side->device)->info(side->device, &info);
    if (status == 0)
        status = demo_hands_reach(&side->hands, side->device);
    if (status == 0)
        status = tg_ledger_open(NULL, &side->ledger);
    if (status != 0)
        return status;
    params.uuid = info.uuid;
    params.device_name = info.name;
    params.gauge = (struct tg_gauge){.ask = ask_device, .argument = side->device};
    status = tg_ledger_join(side->ledger, &params, &side->tenant);
    return status != 0 ? status : tg_memory_open(side->device, side->tenant, &side->memory);
}

static void side_close(struct demo_side *side) {
    tg_memory_close(side->memory);
    tg_tenant_leave(side->tenant);
    tg_ledger_close(side->ledger);
    demo_hands_close(&side->hands);
    if (side->device != NULL)
        tg_device_close(side->device);
}

/* Allocation never waits, so a side that has nothing yet first waits until what it will need is
 * there: the other side's bytes, or those of its own dead predecessor. */
static int begin(struct demo_side *side, const struct demo_role *role, void *state) {
    uint64_t needed = role->needed_bytes(side->setup), start = monotonic_ns();
    int status = tg_tenant_reserve(side->tenant, role->tag, needed, WAIT_MS);

    if (status != 0)
        return status;
    side->reply.wait_ns = monotonic_ns() - start;
    if (side->reply.wait_ns < WAITED_NS)
        side->reply.wait_ns = 0;
    tg_tenant_cancel(side->tenant, role->tag, needed);
    return role->begin(side, state);
}

static int obey(struct demo_side *side, const struct demo_role *role, void *state,
                const struct demo_order *order) {
    struct demo_reply *reply = &side->reply;
    int status;

    switch ((enum demo_what)order->what) {
    case DEMO_BEGIN:
        return begin(side, role, state);
    case DEMO_SLEEP:
        status = tg_memory_sleep(side->memory, NULL, WAIT_MS, &reply->receipt);
        demo_side_measure(side, 0);
        return status;
    case DEMO_WAKE:
        status = tg_memory_wake(side->memory, NULL, WAIT_MS, &reply->receipt);
        reply->wait_ns = reply->receipt.wait_ns;
        demo_side_measure(side, reply->receipt.gained_bytes);
        return status;
    case DEMO_RUN:
        break;
    }
    status = role->run(side, state, order->step);
    return status != 0 ? status : side->hands.status;
}

/* The library's sentence, unless the failure is a role's own. */
static const char *why_of(int status) {
    const struct tg_error *last = tg_last_error();

    return last->status == status ? last->text : tg_error_text(status);
}

/* Until the supervisor closes its end, by will or by death. */
static void serve(struct demo_side *side, int fd, int opened) {
    const struct demo_role *role = roles[side->who];
    struct demo_order order;
    void *state = NULL;
    int status = opened;

    if (status == 0)
        status = role->open(side, &state);
    while (recv(fd, &order, sizeof order, 0) == sizeof order) {
        memset(&side->reply, 0, sizeof side->reply);
        side->reply.what = order.what;
        if (status == 0)
            status = obey(side, role, state, &order);
        side->reply.status = status;
        if (status != 0)
            sentence_set(&side->reply.why, "%s", why_of(status));
        if (send(fd, &side->reply, sizeof side->reply, MSG_NOSIGNAL) != sizeof side->reply)
            break;
    }
    if (state != NULL)
        role->close(state);
}

int demo_side_live(const struct demo_setup *setup, struct demo_gauge *gauge, enum demo_who who,
                   int fd) {
    struct demo_side side = {.setup = setup, .gauge = gauge, .who = who};

    demo_hands_open(&side.hands);
    serve(&side, fd, side_open(&side));
    side_close(&side);
    return 0;
}
