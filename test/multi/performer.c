/* SPDX-License-Identifier: Apache-2.0 */
#include "performer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "../unit/storetrap.h"
#include "content.h"
#include "device/fault.h"
#include "memory/state.h"
#include "stage.h"

struct performer_block {
    void *addr; /* NULL: no block of this number */
    uint64_t size_bytes, seed;
    uint32_t tag;
    bool is_zero; /* slept without backup: zero, until content is written anew */
};

static const struct {
    const char *name;
    struct tg_tag_params params;
} plan[] = {
    {"weights", {.backup = TG_BACKUP_HOST}},
    {"optimizer", {.backup = TG_BACKUP_HOST, .packed = 1, .checked = 1}},
    {"kept", {.backup = TG_BACKUP_HOST, .packed = 1, .keep_host = 1}},
    {"kv_cache", {.backup = TG_BACKUP_NONE, .packed = 1}},
};

/* Several to a tag: an actor is killed between the steps of its host memory, too. */
enum { TAG_COUNT = sizeof plan / sizeof plan[0], STEP_BYTES = 2 << 20 };

static struct {
    struct tg_device *device;
    struct tg_ledger *ledger;
    struct tg_tenant *tenant;
    struct tg_memory *memory;
    struct tg_tag *tags[TAG_COUNT];
    struct performer_block blocks[ACTOR_BLOCKS];
    uint64_t seed;
    uint64_t wait_ns; /* of the last order, where it was a wake */
} self;

/* ---- orders --------------------------------------------------------------------------------- */

static uint32_t tag_index(const char *name) {
    for (uint32_t i = 0; i < TAG_COUNT; i++) {
        if (strcmp(plan[i].name, name) == 0)
            return i;
    }
    fprintf(stderr, "no tag %s in the plan of actors\n", name);
    abort();
}

static bool tag_is_awake(uint32_t tag) {
    struct tg_tag_info info;

    tg_tag_info(self.tags[tag], &info);
    return info.state == TG_TAG_AWAKE;
}

static int block_alloc(const struct order *order, uint64_t *number) {
    uint32_t tag = tag_index(order->tag);
    struct performer_block *block = NULL;
    int status;

    for (uint32_t i = 0; i < ACTOR_BLOCKS && block == NULL; i++) {
        if (self.blocks[i].addr == NULL)
            block = &self.blocks[i];
    }
    if (block == NULL)
        return -ENOSPC;
    status = tg_tag_alloc(self.tags[tag], order->size_bytes, &block->addr);
    if (status < 0)
        return status;
    *number = (uint64_t)(block - self.blocks);
    block->size_bytes = order->size_bytes;
    block->seed = random_next(&self.seed);
    block->tag = tag;
    block->is_zero = false;
    content_write(block->addr, block->size_bytes, block->seed);
    return 0;
}

static int block_free(uint64_t number) {
    struct performer_block *block = &self.blocks[number];
    int status = tg_memory_free(self.memory, block->addr, NULL);

    if (status == 0)
        block->addr = NULL;
    return status;
}

static uint64_t block_lost(struct performer_block *block) {
    uint64_t lost = 0;

    if (!block->is_zero)
        return content_lost(block->addr, block->size_bytes, block->seed);
    for (size_t i = 0; i < block->size_bytes / 8; i++)
        lost += ((uint64_t *)block->addr)[i] != 0 ? 8 : 0;
    content_write(block->addr, block->size_bytes, block->seed);
    block->is_zero = false;
    return lost;
}

/* Bytes lost in all blocks of the tag, if it is awake. */
static uint64_t tag_verify(const char *tag_name) {
    uint32_t tag = tag_index(tag_name);
    uint64_t lost = 0;

    for (uint32_t i = 0; i < ACTOR_BLOCKS && tag_is_awake(tag); i++) {
        if (self.blocks[i].addr != NULL && self.blocks[i].tag == tag)
            lost += block_lost(&self.blocks[i]);
    }
    return lost;
}

/* What has fallen asleep without backup comes back as zero. */
static void note_dropped(void) {
    for (uint32_t i = 0; i < ACTOR_BLOCKS; i++) {
        struct performer_block *block = &self.blocks[i];
        if (block->addr != NULL && plan[block->tag].params.backup == TG_BACKUP_NONE &&
            !tag_is_awake(block->tag))
            block->is_zero = true;
    }
}

/* A child that uses what it inherited: every call must say so, and harm nothing. It stays until its
 * parent is gone, to keep open what it should not have. Value: its pid. */
static int fork_child(uint64_t *value) {
    int pair[2];
    int said = 0;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    pid = fork();
    if (pid == 0) {
        struct tg_receipt receipt;
        void *block;
        said = tg_tenant_reserve(self.tenant, "kv_cache", 2 * MIB, 0) == TG_EFORKED &&
               tg_memory_sleep(self.memory, NULL, 0, &receipt) == TG_EFORKED &&
               tg_memory_wake(self.memory, NULL, 0, &receipt) == TG_EFORKED &&
               tg_tag_alloc(self.tags[0], 2 * MIB, &block) == TG_EFORKED;
        (void)!write(pair[1], &said, sizeof said);
        for (;;)
            pause();
    }
    if (pid < 0 || read(pair[0], &said, sizeof said) != sizeof said)
        said = 0;
    close(pair[0]);
    close(pair[1]);
    *value = (uint64_t)pid;
    return said ? 0 : -EPROTO;
}

static int signal_at_call(const struct order *order) {
    struct tg__fault_plan fault = {
        .op = TG__OP_ANY,
        .mode = order->number == 0 ? TG__FAULT_NONE
                                   : order->is_after ? TG__FAULT_KILL_AFTER : TG__FAULT_KILL_BEFORE,
        .nth = order->number,
        .signal = order->signal};

    tg__fault_arm(self.device, &fault);
    return 0;
}

static const char *tags_of(const struct order *order) {
    return order->tag[0] == '\0' ? NULL : order->tag;
}

static int wake(const struct order *order, bool is_try, uint64_t *value) {
    struct tg_receipt receipt;
    int status = is_try ? tg_memory_wake_try(self.memory, tags_of(order), order->wait_ms, &receipt)
                        : tg_memory_wake(self.memory, tags_of(order), order->wait_ms, &receipt);

    *value = receipt.gained_bytes;
    self.wait_ns = receipt.wait_ns;
    return status;
}

static int sleep_now(const struct order *order, uint64_t *value) {
    struct tg_receipt receipt;
    int status = tg_memory_sleep_drop(self.memory, tags_of(order),
                                      order->drop[0] == '\0' ? NULL : order->drop, order->wait_ms,
                                      &receipt);

    note_dropped();
    *value = receipt.gained_bytes;
    return status;
}

static _Noreturn void leave(void) {
    tg_memory_close(self.memory);
    tg_tenant_leave(self.tenant);
    tg_ledger_close(self.ledger);
    tg_device_close(self.device);
    exit(0);
}

/* Orders that a test gives to set a trap or to look. */
static int obey_test(const struct order *order, uint64_t *value) {
    switch (order->kind) {
    case ORDER_FORK:
        return fork_child(value);
    case ORDER_EXIT:
        exit(0);
    case ORDER_EXEC:
        execl("/bin/sleep", "sleep", "300", (char *)NULL);
        return -errno;
    case ORDER_SIGNAL_AT_STORE:
        store_trap(order->number, order->is_after, order->signal);
        return 0;
    case ORDER_SIGNAL_AT_CALL:
        return signal_at_call(order);
    case ORDER_STORES:
        *value = store_count();
        return 0;
    case ORDER_CALLS:
        *value = tg__fault_calls(self.device, TG__OP_ANY);
        return 0;
    case ORDER_LEAVE:
        leave();
    default:
        return -EINVAL;
    }
}

static int obey(const struct order *order, uint64_t *value) {
    switch (order->kind) {
    case ORDER_ALLOC:
        return block_alloc(order, value);
    case ORDER_FREE:
        return block_free(order->number);
    case ORDER_VERIFY:
        *value = tag_verify(order->tag);
        return 0;
    case ORDER_PREPARE:
        return tg_memory_prepare(self.memory, tags_of(order), NULL);
    case ORDER_SLEEP:
        return sleep_now(order, value);
    case ORDER_REPACK:
        return tg_memory_repack(self.memory, tags_of(order), order->wait_ms, NULL);
    case ORDER_WAKE:
    case ORDER_WAKE_TRY:
        return wake(order, order->kind == ORDER_WAKE_TRY, value);
    case ORDER_WAKE_END:
        tg_memory_wake_end(self.memory, (int)order->number);
        return 0;
    case ORDER_RESERVE:
        return tg_tenant_reserve(self.tenant, order->tag, order->size_bytes, order->wait_ms);
    case ORDER_CANCEL:
        tg_tenant_cancel(self.tenant, order->tag, order->size_bytes);
        return 0;
    default:
        return obey_test(order, value);
    }
}

/* ---- the process ---------------------------------------------------------------------------- */

static int gauge(void *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    return tg_device_ops(device)->memory(device, free_bytes, total_bytes);
}

static int open_device(const struct actor_params *params) {
    struct tg_device *host = NULL;
    int status = tg_device_open(params->uri, &host);

    if (status < 0)
        return status;
    self.device = host;
    return params->has_faults ? tg__fault_wrap(host, &self.device) : 0;
}

static int open_all(const struct actor_params *params) {
    struct tg_device_info info;
    struct tg_tenant_params tenant = {.name = params->name, .role = "test", .rank = -1};
    int status = open_device(params);

    if (status == 0)
        status = tg_device_ops(self.device)->info(self.device, &info);
    if (status == 0)
        status = tg_ledger_open(params->dir, &self.ledger);
    if (status < 0)
        return status;
    tenant.uuid = info.uuid;
    tenant.device_name = info.name;
    tenant.gauge = (struct tg_gauge){gauge, self.device};
    status = tg_ledger_join(self.ledger, &tenant, &self.tenant);
    if (status == 0)
        status = tg_memory_open(self.device, self.tenant, &self.memory);
    if (status == 0)
        self.memory->step_bytes = STEP_BYTES;
    for (uint32_t i = 0; i < TAG_COUNT && status == 0; i++)
        status = tg_tag_open(self.memory, plan[i].name, &plan[i].params, &self.tags[i]);
    return status;
}

static void say(int socket, int status, uint64_t value, uint64_t began_ns) {
    struct answer answer = {
        .status = status, .value = value, .took_ns = stage_now_ns() - began_ns,
        .wait_ns = self.wait_ns};

    if (status < 0)
        memcpy(answer.text, tg_last_error()->text, sizeof answer.text);
    if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
        _exit(3); /* the test is gone */
}

_Noreturn void performer_run(const struct actor_params *params, int socket) {
    const struct rlimit no_core = {0, 0};
    struct order order;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    self.seed = params->seed;
    say(socket, open_all(params), 0, stage_now_ns());
    while (recv(socket, &order, sizeof order, 0) == sizeof order) {
        uint64_t began_ns = stage_now_ns(), value = 0;
        int status;

        self.wait_ns = 0;
        status = obey(&order, &value);
        say(socket, status, value, began_ns);
    }
    _exit(0);
}
