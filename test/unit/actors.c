/* SPDX-License-Identifier: Apache-2.0 */
#include "actors.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "../api/tested_device.h"
#include "base/clock.h"
#include "memory/agent.h"
#include "memory/import.h"
#include "memory/scope.h"

void (*actor_system)(int call, uint64_t nth, bool after);
uint64_t (*actor_system_failed)(void);
int (*actor_other)(struct tg_memory *memory, void *place, const struct order *order,
                   struct answer *answer);

struct self {
    struct tg_device *device; /* a fault device */
    struct tg_memory *memory;
    struct tg_tag *tag;
    void *places[ACTOR_PLACES];
    uint64_t sizes[ACTOR_PLACES];
    pid_t child;
};

/* ---- what an actor does ---------------------------------------------------------------------- */

static int alloc(struct self *self, const struct order *order, bool is_offered) {
    const struct tg_tag_params params = {.packed = strcmp(order->text, "packed") == 0};
    struct tg_tag *tag = self->tag;
    int rc = 0;

    if (!is_offered)
        rc = tg_tag_open(self->memory, order->text, &params, &tag);
    if (rc == 0)
        rc = tg__tag_alloc(tag, order->number, is_offered ? TG__CHUNK_OFFERED : 0,
                           &self->places[order->place]);
    self->sizes[order->place] = order->number;
    return rc;
}

static int give_token(struct self *self, const struct order *order, struct answer *answer) {
    const char *block = self->places[order->place];
    unsigned char bytes[TG_IPC_TOKEN_BYTES];
    int rc = tg_ipc_token(block + order->number, bytes);

    if (rc == 0)
        memcpy(&answer->token, bytes, sizeof bytes);
    return rc;
}

static int open_token(struct self *self, const struct order *order, struct answer *answer) {
    int rc = tg__import_open(self->memory, &order->token, &self->places[order->place]);

    if (rc == 0) {
        self->sizes[order->place] = order->token.size_bytes;
        answer->number = (uintptr_t)self->places[order->place];
    }
    return rc;
}

struct one_of_many {
    struct tg_memory *memory;
    const struct tg__token *token;
    int status;
};

static void *open_as_one(void *argument) {
    struct one_of_many *one = argument;
    void *place;

    one->status = tg__import_open(one->memory, one->token, &place);
    return NULL;
}

static int open_as_many(const struct self *self, const struct order *order,
                        struct answer *answer) {
    struct one_of_many all[ACTOR_CROWD];
    pthread_t threads[ACTOR_CROWD];
    uint64_t began_ns = tg__clock_ns();
    int rc = 0;

    for (int i = 0; i < ACTOR_CROWD; i++) {
        all[i] = (struct one_of_many){.memory = self->memory, .token = &order->token};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, open_as_one, &all[i]), 0);
    }
    for (int i = 0; i < ACTOR_CROWD; i++) {
        pthread_join(threads[i], NULL);
        rc = rc != 0 ? rc : all[i].status;
    }
    answer->number = (tg__clock_ns() - began_ns) / TG__NS_PER_MS;
    return rc;
}

static int sleep_all(struct self *self, struct answer *answer) {
    struct tg_receipt receipt;
    size_t length = 0;
    int rc = tg_memory_sleep(self->memory, NULL, 10000, &receipt);

    for (uint32_t i = 0; i < receipt.item_count; i++) {
        if (strncmp(receipt.items[i].name, "stays", 5) == 0)
            length += (size_t)snprintf(answer->text + length, sizeof answer->text - length,
                                       "%s: %d;", receipt.items[i].name,
                                       (int)(receipt.items[i].size_bytes / GRANULE));
    }
    answer->number = receipt.gained_bytes;
    return rc;
}

static int trim(struct self *self, const struct order *order, struct answer *answer) {
    struct tg_range range = {(uintptr_t)self->places[order->place], GRANULE};
    struct tg_receipt receipt;
    int rc = tg_memory_trim(self->memory, &range, 1, 10000, &receipt);

    answer->number = receipt.gained_bytes;
    return rc;
}

/* Work that is under way when its memory is closed. */
static int fill_and_close(struct self *self, const struct order *order) {
    const struct tg_device_ops *ops = tg_device_ops(self->device);
    void *place = self->places[order->place];
    int rc = ops->fill(self->device, (uintptr_t)place, (int)order->number,
                       self->sizes[order->place], NULL);

    return rc != 0 ? rc : tg_ipc_close(place);
}

static void fork_child(struct self *self) {
    self->child = fork();
    if (self->child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        for (;;)
            pause();
    }
}

static uint64_t count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;

    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

static uint64_t count_unread(void) {
    uint64_t count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct pollfd socket = {.fd = fd, .events = POLLIN};
        struct stat info;

        if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode))
            count += poll(&socket, 1, 0) > 0;
    }
    return count;
}

static int mute(void) {
    int ends[2];
    static const char sign = '.';

    ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
    while (write(ends[1], &sign, 1) == 1)
        ;
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, 0), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    return 0;
}

static void fail_calls(struct self *self, const struct order *order) {
    bool after = strcmp(order->text, "after") == 0;
    struct tg__fault_plan plan = {.op = (enum tg__op)order->place, .nth = order->number,
                                  .mode = order->number == 0 ? TG__FAULT_NONE
                                          : after            ? TG__FAULT_AFTER
                                                             : TG__FAULT_ONCE};

    if (order->act == ACT_SYSTEM)
        actor_system(order->place, order->number, after);
    else
        tg__fault_arm(self->device, &plan);
}

static int act(struct self *self, const struct order *order, struct answer *answer) {
    void *place = self->places[order->place % ACTOR_PLACES];
    uint64_t size_bytes = self->sizes[order->place % ACTOR_PLACES], total_bytes;

    switch (order->act) {
    case ACT_ALLOC:
    case ACT_ALLOC_IN:
        return alloc(self, order, order->act == ACT_ALLOC);
    case ACT_FREE:
        return tg_memory_free(self->memory, place, NULL);
    case ACT_TOKEN:
        return give_token(self, order, answer);
    case ACT_OPEN:
        return open_token(self, order, answer);
    case ACT_CROWD:
        return open_as_many(self, order, answer);
    case ACT_CLOSE:
    case ACT_CLOSE_IDLE:
        return order->act == ACT_CLOSE ? tg_ipc_close(place) : tg_ipc_close_idle(place);
    case ACT_WRITE:
        content_write(place, size_bytes, order->number);
        return 0;
    case ACT_CHECK:
        return content_is(place, size_bytes, order->number) ? 0 : -1;
    case ACT_SLEEP:
        return sleep_all(self, answer);
    case ACT_WAKE:
        return tg_memory_wake(self->memory, NULL, 10000, NULL);
    case ACT_FREE_BYTES:
        return tg_device_ops(self->device)->memory(self->device, &answer->number, &total_bytes);
    case ACT_TAG:
        answer->number = world_info(self->tag).device_bytes;
        return 0;
    case ACT_LAG:
        return fill_and_close(self, order);
    case ACT_TRIM:
        return trim(self, order, answer);
    case ACT_BYTE:
        answer->number = ((volatile unsigned char *)place)[size_bytes - 1];
        return 0;
    case ACT_CHILD:
        fork_child(self);
        answer->number = (uint64_t)self->child;
        return 0;
    case ACT_HASTE:
        self->memory->open_wait_ms = (uint32_t)order->number;
        return 0;
    case ACT_FAULT:
    case ACT_SYSTEM:
        fail_calls(self, order);
        return 0;
    case ACT_FAILED:
        answer->number = tg__fault_failed(self->device, TG__OP_ANY) +
                         (actor_system_failed != NULL ? actor_system_failed() : 0);
        return 0;
    case ACT_DESCRIPTORS:
        answer->number = count_descriptors();
        return 0;
    case ACT_MUTE:
        return mute();
    case ACT_UNREAD:
        answer->number = count_unread();
        return 0;
    case ACT_PATIENCE:
        tg__agent_patience_ms = order->number;
        return 0;
    default:
        return actor_other != NULL ? actor_other(self->memory, place, order, answer) : -EINVAL;
    }
}

static void begin(struct self *self, const char *options) {
    static const struct tg_tag_params saved = {.backup = TG_BACKUP_HOST};
    struct tg_device *device;

    content_step = 256;
    ck_assert_ok(tg_device_open(tested_uri("", options), &device));
    ck_assert_ok(tg__fault_wrap(device, &self->device));
    ck_assert_ok(tg_memory_open(self->device, NULL, &self->memory));
    ck_assert_ok(tg_tag_open(self->memory, "t", &saved, &self->tag));
    tg__scope_list(self->memory);
}

static int end(struct self *self) {
    tg_memory_close(self->memory);
    tg_device_close(self->device);
    if (self->child > 0)
        kill(self->child, SIGKILL);
    return 0;
}

static int run(int in, int out, void *argument) {
    static struct self self;
    struct order order = {.act = ACT_END};

    begin(&self, argument);
    while (read(in, &order, sizeof order) == (ssize_t)sizeof order && order.act != ACT_END) {
        struct answer answer = {.status = 0};

        answer.status = act(&self, &order, &answer);
        if (answer.status != 0)
            snprintf(answer.text, sizeof answer.text, "%.200s", tg_last_error()->text);
        if (write(out, &answer, sizeof answer) != (ssize_t)sizeof answer)
            return 1;
    }
    return end(&self);
}

/* ---- what a test does with it ---------------------------------------------------------------- */

struct actor actor_start(const char *options) {
    struct actor actor = {.err = "/tmp/tidegate-actor-XXXXXX"};
    int fd = mkstemp(actor.err), before = dup(STDERR_FILENO);

    ck_assert_int_ge(fd, 0);
    fcntl(before, F_SETFD, FD_CLOEXEC);
    dup2(fd, STDERR_FILENO);
    actor.child = start(run, (void *)(uintptr_t)options);
    dup2(before, STDERR_FILENO);
    close(before);
    close(fd);
    /* No later sister keeps its pipes. */
    return actor;
}

struct answer actor_do(struct actor *actor, struct order order) {
    struct pollfd news = {.fd = actor->child.in, .events = POLLIN};
    struct answer answer;

    ck_assert_int_eq(write(actor->child.out, &order, sizeof order), (int)sizeof order);
    ck_assert_msg(poll(&news, 1, 60000) == 1, "an actor hangs");
    ck_assert_msg(read(actor->child.in, &answer, sizeof answer) == (ssize_t)sizeof answer,
                  "an actor has died at order %d", (int)order.act);
    return answer;
}

struct answer actor_must(struct actor *actor, struct order order) {
    struct answer answer = actor_do(actor, order);

    ck_assert_msg(answer.status == 0, "order %d of place %d: %d, %s", (int)order.act, order.place,
                  answer.status, answer.text);
    return answer;
}

void actor_wait_for_free(struct actor *actor, uint64_t bytes) {
    uint64_t free_bytes = 0;

    for (int i = 0; i < 60000 && free_bytes != bytes; i += 5) {
        free_bytes = actor_must(actor, to(ACT_FREE_BYTES, 0, 0)).number;
        if (free_bytes != bytes)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    ck_assert_uint_eq(free_bytes, bytes);
}

void actor_end(struct actor *actor) {
    struct order order = {.act = ACT_END};
    int status;

    ck_assert_int_eq(write(actor->child.out, &order, sizeof order), (int)sizeof order);
    ck_assert_int_eq(waitpid(actor->child.pid, &status, 0), actor->child.pid);
    ck_assert_int_eq(status, 0);
    close(actor->child.in);
    close(actor->child.out);
    unlink(actor->err);
}

void actor_kill(struct actor *actor) {
    int status;

    kill(actor->child.pid, SIGKILL);
    ck_assert_int_eq(waitpid(actor->child.pid, &status, 0), actor->child.pid);
    close(actor->child.in);
    close(actor->child.out);
    unlink(actor->err);
}

int actor_connect(const struct tg__token *token) {
    struct sockaddr_un address;
    socklen_t length = tg__token_address(token->agent, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, length), 0);
    return fd;
}

void actor_expect_end(int fd) {
    struct pollfd socket = {.fd = fd, .events = POLLIN};
    char byte;

    ck_assert_int_eq(poll(&socket, 1, 60000), 1);
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
}
