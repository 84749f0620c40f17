/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes share a block, sleep and wake around it, and free it, while each system call and
 * each call of the device fails once in either of them, the first, the second, …: what fails is
 * told and works when it is done again, no byte is wrong, and nothing is left over. Then 2,000
 * random steps of three processes, any of which may be killed, against what must be in every
 * block. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#include "actors.h"
#include "base/map.h"
#include "suite.h"

#define OPTIONS "capacity=64MiB"
#define CAPACITY (UINT64_C(64) * MIB)

/* ---- failing system calls -------------------------------------------------------------------- */

enum {
    FAIL_SOCKET, FAIL_BIND, FAIL_LISTEN, FAIL_ACCEPT, FAIL_CONNECT, FAIL_SENDMSG, FAIL_SEND,
    FAIL_RECVMSG, FAIL_RECV, FAIL_POLL, FAIL_GETSOCKOPT, FAIL_THREAD, FAIL_CALLOC, FAIL_REALLOC,
    FAIL_FCNTL, FAIL_RANDOM, FAIL_EVENT, FAIL_KINDS
};

static atomic_int armed = FAIL_KINDS;
static atomic_uint_fast64_t calls, failed, wanted;

static void arm(int kind, uint64_t nth, bool after) {
    (void)after;
    armed = FAIL_KINDS;
    calls = failed = 0;
    wanted = nth;
    if (nth != 0)
        armed = kind;
}

static uint64_t count_failed(void) {
    return failed;
}

static bool fails(int kind, int code) {
    if (armed != kind || atomic_fetch_add(&calls, 1) + 1 != wanted)
        return false;
    failed++;
    errno = code;
    return true;
}

/* The linker's names. */
#define WRAP(type, name, parameters, arguments, kind, code)     \
    type __real_##name parameters;                              \
    type __wrap_##name parameters;                              \
    type __wrap_##name parameters {                             \
        return fails(kind, code) ? -1 : __real_##name arguments; \
    }

WRAP(int, socket, (int family, int type, int protocol), (family, type, protocol), FAIL_SOCKET,
     EMFILE)
WRAP(int, bind, (int fd, const struct sockaddr *addr, socklen_t length), (fd, addr, length),
     FAIL_BIND, ENOMEM)
WRAP(int, listen, (int fd, int backlog), (fd, backlog), FAIL_LISTEN, ENOMEM)
WRAP(int, accept4, (int fd, struct sockaddr *addr, socklen_t *length, int flags),
     (fd, addr, length, flags), FAIL_ACCEPT, EMFILE)
WRAP(int, connect, (int fd, const struct sockaddr *addr, socklen_t length), (fd, addr, length),
     FAIL_CONNECT, ENOMEM)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
     FAIL_SENDMSG, ENOBUFS)
WRAP(ssize_t, send, (int fd, const void *bytes, size_t size, int flags), (fd, bytes, size, flags),
     FAIL_SEND, ENOBUFS)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags),
     FAIL_RECVMSG, ENOMEM)
WRAP(ssize_t, recv, (int fd, void *bytes, size_t size, int flags), (fd, bytes, size, flags),
     FAIL_RECV, ENOMEM)
WRAP(int, poll, (struct pollfd *fds, nfds_t count, int wait_ms), (fds, count, wait_ms), FAIL_POLL,
     ENOMEM)
WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *length),
     (fd, level, name, value, length), FAIL_GETSOCKOPT, ENOBUFS)
WRAP(ssize_t, getrandom, (void *bytes, size_t size, unsigned flags), (bytes, size, flags),
     FAIL_RANDOM, EINTR)
WRAP(int, eventfd, (unsigned count, int flags), (count, flags), FAIL_EVENT, EMFILE)

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *argument) {
    return fails(FAIL_THREAD, EAGAIN) ? EAGAIN
                                      : __real_pthread_create(thread, attributes, run, argument);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    return fails(FAIL_CALLOC, ENOMEM) ? NULL : __real_calloc(count, size);
}

void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size) {
    return fails(FAIL_REALLOC, ENOMEM) ? NULL : __real_realloc(memory, size);
}

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...) {
    va_list args;
    void *argument;

    va_start(args, command);
    argument = va_arg(args, void *);
    va_end(args);
    return fails(FAIL_FCNTL, EMFILE) ? -1 : __real_fcntl64(fd, command, argument);
}

/* ---- one way through ------------------------------------------------------------------------- */

/* What a failing call made fail works when it is done again; it may have to be done a few times,
 * where a failure ends a connection. */
static struct answer insist(struct actor *actor, struct order order) {
    struct answer answer = actor_do(actor, order);

    for (int i = 0; i < 5 && answer.status != 0; i++) {
        ck_assert_msg(answer.text[0] != '\0', "order %d fails without a word", (int)order.act);
        answer = actor_do(actor, order);
    }
    ck_assert_msg(answer.status == 0, "order %d: %d, %s", (int)order.act, answer.status,
                  answer.text);
    return answer;
}

/* Until it has as many as that; what the agent lets go, it lets go by and by. */
static void wait_for_descriptors(struct actor *actor, uint64_t count) {
    uint64_t now = 0;

    for (int i = 0; i < 12000; i++) {
        now = actor_must(actor, to(ACT_DESCRIPTORS, 0, 0)).number;
        if (now == count)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    ck_assert_uint_eq(now, count);
}

/* What is on its way out is looked at once more. */
static void stir(struct actor *actor) {
    for (int i = 0; i < 2; i++) {
        actor_must(actor, to(ACT_ALLOC, 9, GRANULE));
        actor_must(actor, to(ACT_FREE, 9, 0));
    }
}

/* A block whose memory could not be made to be opened, for want of a descriptor, is made anew. */
static struct tg__token name_block(struct actor *exporter) {
    struct answer answer = actor_do(exporter, to(ACT_TOKEN, 0, 0));

    if (answer.status == -ENOTSUP) {
        insist(exporter, to(ACT_FREE, 0, 0));
        insist(exporter, to(ACT_ALLOC, 0, ACTOR_SIZE));
        actor_must(exporter, to(ACT_WRITE, 0, 7));
    }
    return insist(exporter, to(ACT_TOKEN, 0, 0)).token;
}

/* Returns how many calls were made to fail. */
static uint64_t go_through(struct order fault, bool is_openers) {
    struct actor exporter = actor_start(OPTIONS), opener = actor_start(OPTIONS);
    struct actor *faulty = is_openers ? &opener : &exporter;
    struct order open;
    uint64_t of_exporter = actor_must(&exporter, to(ACT_DESCRIPTORS, 0, 0)).number;
    uint64_t of_opener = actor_must(&opener, to(ACT_DESCRIPTORS, 0, 0)).number, count;

    actor_must(faulty, fault);
    insist(&exporter, to(ACT_ALLOC, 0, ACTOR_SIZE));
    insist(&exporter, to(ACT_ALLOC, 1, ACTOR_SIZE));
    actor_must(&exporter, to(ACT_WRITE, 0, 7));
    actor_must(&exporter, to(ACT_WRITE, 1, 9));
    open = to_open(0, name_block(&exporter));
    insist(&opener, open);
    actor_must(&opener, to(ACT_CHECK, 0, 7));
    actor_must(&opener, to(ACT_WRITE, 0, 8));
    insist(&exporter, to(ACT_SLEEP, 0, 0));
    insist(&exporter, to(ACT_WAKE, 0, 0));
    actor_must(&exporter, to(ACT_CHECK, 0, 8));
    actor_must(&exporter, to(ACT_CHECK, 1, 9));
    insist(&opener, to(ACT_CLOSE, 0, 0));
    insist(&opener, open);
    actor_must(&opener, to(ACT_CHECK, 0, 8));
    insist(&exporter, to(ACT_FREE, 0, 0));
    actor_must(&opener, to(ACT_CHECK, 0, 8));
    insist(&opener, to(ACT_CLOSE, 0, 0));
    insist(&exporter, to(ACT_FREE, 1, 0));
    count = actor_must(faulty, to(ACT_FAILED, 0, 0)).number;
    fault.number = 0;
    actor_must(faulty, fault);
    stir(&opener);
    stir(&exporter);
    actor_wait_for_free(&exporter, CAPACITY);
    wait_for_descriptors(&opener, of_opener);
    wait_for_descriptors(&exporter, of_exporter + 2); /* where openers come, and what wakes it */
    actor_end(&opener);
    actor_end(&exporter);
    return count;
}

static char *dir;

static void set_up(void) {
    actor_system = arm;
    actor_system_failed = count_failed;
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

/* From 0: half of the loop is the opener's. */
START_TEST(each_system_call_fails_once) {
    bool is_openers = _i >= FAIL_KINDS;
    uint64_t nth = 0;

    do
        nth++;
    while (go_through(to(ACT_SYSTEM, _i % FAIL_KINDS, nth), is_openers) > 0 && nth < 40);
}
END_TEST

START_TEST(each_call_of_the_device_fails_once) {
    bool is_openers = _i >= TG__OP_COUNT;
    uint64_t nth = 0;

    do
        nth++;
    while (go_through(to(ACT_FAULT, _i % TG__OP_COUNT, nth), is_openers) > 0 && nth < 40);
}
END_TEST

/* ---- at random ------------------------------------------------------------------------------- */

enum { TRIO = 3, PLACES = 8, STEPS = 2000 };

/* A block of one of three, and who else has it: bit i. */
struct shared {
    struct tg__token token;
    uint64_t seed; /* 0: no block */
    int owner;
    unsigned openers;
    bool is_freed;
};

static struct actor trio[TRIO];
static bool sleeps[TRIO];
static struct shared blocks[TRIO * PLACES];
static uint64_t state;

static uint64_t draw(uint64_t below) {
    state = tg__hash_u64(state + 1);
    return state % below;
}

/* An opener's place for a block of that number is the number itself. */
static void make_or_free(struct shared *block, int number) {
    int owner = block->owner;

    if (block->seed == 0 && !sleeps[owner]) {
        block->seed = ++state;
        actor_must(&trio[owner], to(ACT_ALLOC, number, GRANULE));
        actor_must(&trio[owner], to(ACT_WRITE, number, block->seed));
        block->token = actor_must(&trio[owner], to(ACT_TOKEN, number, 0)).token;
    } else if (block->seed != 0 && !block->is_freed) {
        actor_must(&trio[owner], to(ACT_FREE, number, 0));
        block->is_freed = true;
        if (block->openers == 0)
            *block = (struct shared){.owner = owner};
    }
}

static void open_or_close(struct shared *block, int number, int who) {
    struct answer answer;

    if (block->seed == 0 || who == block->owner)
        return;
    if ((block->openers & 1U << who) != 0) {
        actor_must(&trio[who], to(ACT_CHECK, number, block->seed));
        actor_must(&trio[who], to(ACT_CLOSE, number, 0));
        block->openers &= ~(1U << who);
        if (block->openers == 0 && block->is_freed)
            *block = (struct shared){.owner = block->owner};
        return;
    }
    answer = actor_do(&trio[who], to_open(number, block->token));
    if (block->is_freed) {
        ck_assert_int_eq(answer.status, -ESTALE);
    } else if (!sleeps[block->owner]) {
        ck_assert_msg(answer.status == 0, "%d, %s", answer.status, answer.text);
    } else { /* it may have stayed */
        ck_assert(answer.status == 0 || answer.status == TG_EASLEEP);
    }
    if (answer.status == 0)
        block->openers |= 1U << who;
}

static void write_it(struct shared *block, int number, int who) {
    bool has_it = who == block->owner ? !block->is_freed && !sleeps[who]
                                      : (block->openers & 1U << who) != 0;

    if (block->seed == 0 || !has_it)
        return;
    actor_must(&trio[who], to(ACT_CHECK, number, block->seed));
    block->seed = ++state;
    actor_must(&trio[who], to(ACT_WRITE, number, block->seed));
}

static void sleep_or_wake(int who) {
    actor_must(&trio[who], to(sleeps[who] ? ACT_WAKE : ACT_SLEEP, 0, 0));
    sleeps[who] = !sleeps[who];
    for (int i = 0; i < TRIO * PLACES && !sleeps[who]; i++) {
        if (blocks[i].owner == who && blocks[i].seed != 0 && !blocks[i].is_freed)
            actor_must(&trio[who], to(ACT_CHECK, i, blocks[i].seed));
    }
}

static void kill_one(int who) {
    actor_kill(&trio[who]);
    trio[who] = actor_start(OPTIONS);
    sleeps[who] = false;
    for (int i = 0; i < TRIO * PLACES; i++) {
        blocks[i].openers &= ~(1U << who);
        if (blocks[i].owner == who && blocks[i].seed != 0)
            blocks[i].is_freed = true;
        if (blocks[i].is_freed && blocks[i].openers == 0)
            blocks[i] = (struct shared){.owner = blocks[i].owner};
    }
}

static void step(void) {
    int number = (int)draw(TRIO * PLACES), who = (int)draw(TRIO);
    struct shared *block = &blocks[number];
    uint64_t chance = draw(100);

    if (chance < 25)
        make_or_free(block, number);
    else if (chance < 65)
        open_or_close(block, number, who);
    else if (chance < 85)
        write_it(block, number, who);
    else if (chance < 98)
        sleep_or_wake(who);
    else
        kill_one(who);
}

START_TEST(three_processes_at_random) {
    const char *said = getenv("TIDEGATE_SEED");

    state = said != NULL ? strtoull(said, NULL, 10) : (uint64_t)time(NULL);
    fprintf(stderr, "TIDEGATE_SEED=%llu\n", (unsigned long long)state);
    for (int i = 0; i < TRIO; i++)
        trio[i] = actor_start(OPTIONS);
    for (int i = 0; i < TRIO * PLACES; i++)
        blocks[i].owner = i % TRIO;
    for (int i = 0; i < STEPS; i++)
        step();
    for (int i = 0; i < TRIO; i++)
        actor_end(&trio[i]);
    trio[0] = actor_start(OPTIONS);
    actor_wait_for_free(&trio[0], CAPACITY);
    actor_end(&trio[0]);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("ipcfault");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 600);
    tcase_add_loop_test(cases, each_system_call_fails_once, 0, 2 * FAIL_KINDS);
    tcase_add_loop_test(cases, each_call_of_the_device_fails_once, 0, 2 * TG__OP_COUNT);
    tcase_add_test(cases, three_processes_at_random);
    return suite_run("ipcfault", cases);
}
