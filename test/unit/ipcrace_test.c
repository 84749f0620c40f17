/* SPDX-License-Identifier: Apache-2.0 */
/* What of memory that other processes open happens between two steps of a call: a message that is
 * taken while the agent is about to wait, a peer that comes while a block is mapped, an exit, a
 * close, a lack that lasts for one call. The agent's thread is held at a system call and let go on,
 * so nothing here is left to chance but the crowd at an exit. */
#include "memory/agent.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "base/error.h"
#include "ipcpair.h"
#include "memory/export.h"
#include "memory/import.h"
#include "memory/scope.h"

#define CAPACITY (UINT64_C(64) * MIB)

enum {
    ACT_HOLD = ACT_OTHERS, /* number: enum place where the agent's thread stays; NOWHERE: go on */
    ACT_HELD,       /* until it is */
    ACT_LOOK,       /* as a sleep does */
    ACT_TRY,        /* the first half of a wake, */
    ACT_TRY_END,    /* and the second */
    ACT_SHORT,      /* number: enum place where the next call is refused for want of something */
    ACT_PEER_COMES, /* while the next block is mapped; number: what its device says to that */
    ACT_REACHED,    /* number: devices that were given access since */
    ACT_LEAVE,      /* place: lent, and ended while its memory leaves; number: blocks still kept */
    ACT_GUEST,      /* token: of a block in a memory beside the actor's own, */
    ACT_GUEST_ENDS, /* which is closed */
    ACT_LINGER,     /* an exit waits in a handler that is older than the agent, until told */
    ACT_EXIT,       /* no answer */
    ACT_HAMMER      /* token: opens and closes it until its process has ended */
};

enum place { NOWHERE, AT_POLL, AT_SENDMSG, AT_RECVMSG };

/* ---- holding the agent's thread -------------------------------------------------------------- */

static atomic_int held_at, short_at;
static atomic_bool is_held;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void pass(int place) {
    if (held_at != place || gettid() == getpid())
        return;
    is_held = true;
    while (held_at == place)
        nap();
    is_held = false;
}

static bool falls_short(int place) {
    int wanted = place;

    return atomic_compare_exchange_strong(&short_at, &wanted, NOWHERE);
}

/* The linker's names. */
int __real_poll(struct pollfd *fds, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms) {
    if (wait_ms != 0) /* a look is under the agent's lock */
        pass(AT_POLL);
    return __real_poll(fds, count, wait_ms);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    pass(AT_SENDMSG);
    if (falls_short(AT_SENDMSG)) {
        errno = ENOBUFS;
        return -1;
    }
    return __real_sendmsg(fd, message, flags);
}

/* As the system where the process has no descriptor left: the message comes without. */
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
    ssize_t length = __real_recvmsg(fd, message, flags);
    const struct cmsghdr *head = length > 0 ? CMSG_FIRSTHDR(message) : NULL;
    int sent;

    if (head != NULL && falls_short(AT_RECVMSG)) {
        memcpy(&sent, CMSG_DATA(head), sizeof sent);
        close(sent);
        message->msg_controllen = 0;
        message->msg_flags |= MSG_CTRUNC;
    }
    return length;
}

/* ---- a peer that comes ----------------------------------------------------------------------- */

enum { PEER = 1 << 5 };

static const struct tg_device_ops *device_ops;
static struct tg_device_ops peer_ops;
static struct tg_memory *peer_memory;
static uint64_t reached;
static int refusal;

/* What cudaDeviceEnablePeerAccess does in another thread, but for what is in a table already. */
static int map_as_a_peer_comes(struct tg_device *device, uint64_t addr, uint64_t chunk,
                               uint64_t devices) {
    int rc = device_ops->map(device, addr, chunk, devices & ~(uint64_t)PEER);

    atomic_fetch_or(&peer_memory->peers, PEER);
    ck_assert_int_eq(tg__imports_access(peer_memory), 0);
    return rc;
}

static int note_access(struct tg_device *device, uint64_t addr, uint64_t size_bytes,
                       uint64_t devices) {
    int rc = refusal;

    (void)device;
    (void)addr;
    (void)size_bytes;
    refusal = 0;
    reached |= rc == 0 ? devices : 0;
    return rc == 0 ? 0 : tg__fail(rc, "no peer is let in");
}

static void let_peer_come(struct tg_memory *memory, int answer) {
    if (peer_memory == NULL) {
        peer_memory = memory;
        device_ops = memory->ops;
        peer_ops = *device_ops;
        peer_ops.map = map_as_a_peer_comes;
        peer_ops.access = note_access;
        memory->ops = &peer_ops;
    }
    atomic_store(&memory->peers, 0);
    reached = 0;
    refusal = answer;
}

/* ---- the other acts -------------------------------------------------------------------------- */

static atomic_int *opened; /* by all who hammer */
static int said[2], told[2];

static void linger(void) {
    char byte = 0;

    ck_assert_int_eq(write(said[1], &byte, 1), 1);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
}

static int wait_until_held(void) {
    for (int i = 0; i < 60000 && !is_held; i++)
        nap();
    return is_held ? 0 : -ETIMEDOUT;
}

static int hammer(struct tg_memory *memory, const struct order *order) {
    void *place;
    int rc = 0;

    while (rc == 0) {
        rc = tg__import_open(memory, &order->token, &place);
        if (rc == 0) {
            atomic_fetch_add(opened, 1);
            rc = tg_ipc_close(place);
        }
    }
    return rc;
}

/* As a close of the memory and the agent's thread cross. */
static int leave(struct tg_memory *memory, void *place, struct answer *answer) {
    struct tg__token token = {.agent = 0};
    struct tg__lease lease = {.pid = 0};
    int fd, rc = tg__export_token(memory, (uintptr_t)place, &token);

    if (rc == 0)
        rc = tg__export_lend(memory, &token, &lease, &fd);
    if (rc != 0)
        return rc;
    close(fd);
    tg__memory_unlist(memory);
    tg__export_end(&lease);
    for (const struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next)
        answer->number += tg__exports_live(tag);
    return 0;
}

static struct tg_memory *guest;

static int give_guest(const struct tg_memory *memory, struct answer *answer) {
    unsigned char bytes[TG_IPC_TOKEN_BYTES];
    struct tg_tag *tag;
    void *block;
    int rc = tg_memory_open(memory->device, NULL, &guest);

    if (rc == 0)
        rc = tg_tag_open(guest, "guest", NULL, &tag);
    if (rc == 0)
        rc = tg__tag_alloc(tag, ACTOR_SIZE, TG__CHUNK_OFFERED, &block);
    if (rc != 0)
        return rc;
    tg__scope_list(guest);
    content_write(block, ACTOR_SIZE, 3);
    rc = tg_ipc_token(block, bytes);
    memcpy(&answer->token, bytes, sizeof bytes);
    return rc;
}

static int other(struct tg_memory *memory, void *place, const struct order *order,
                 struct answer *answer) {
    switch ((int)order->act) {
    case ACT_HOLD:
        held_at = (int)order->number;
        return 0;
    case ACT_HELD:
        return wait_until_held();
    case ACT_LOOK:
        tg__agent_look();
        return 0;
    case ACT_TRY:
        return tg_memory_wake_try(memory, NULL, 10000, NULL);
    case ACT_TRY_END:
        tg_memory_wake_end(memory, 1);
        return 0;
    case ACT_SHORT:
        short_at = (int)order->number;
        return 0;
    case ACT_PEER_COMES:
        let_peer_come(memory, (int)order->number);
        return 0;
    case ACT_REACHED:
        answer->number = reached;
        return 0;
    case ACT_LEAVE:
        return leave(memory, place, answer);
    case ACT_GUEST:
        return give_guest(memory, answer);
    case ACT_GUEST_ENDS:
        tg_memory_close(guest);
        return 0;
    case ACT_LINGER:
        return atexit(linger) == 0 ? 0 : -ENOMEM;
    case ACT_EXIT:
        exit(0);
    case ACT_HAMMER:
        return hammer(memory, order);
    default:
        return -EINVAL;
    }
}

/* ---- the tests' own -------------------------------------------------------------------------- */

static void set_up(void) {
    actor_other = other;
    opened = mmap(NULL, sizeof *opened, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(opened, MAP_FAILED);
    ck_assert_int_eq(pipe(said), 0);
    ck_assert_int_eq(pipe(told), 0);
    set_up_both();
}

static struct order as(int act, int place, uint64_t number) {
    return to((enum act)act, place, number);
}

/* What of the exporter's stays when it sleeps. */
static void expect_kept(uint64_t bytes) {
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    ck_assert_uint_eq(actor_must(&exporter, to(ACT_TAG, 0, 0)).number, bytes);
    actor_must(&exporter, to(ACT_WAKE, 0, 0));
}

static void ask(int fd, enum tg__request_kind kind, const struct tg__token *token) {
    struct tg__request request = {.kind = kind, .token = *token};

    ck_assert_int_eq(send(fd, &request, sizeof request, 0), (int)sizeof request);
}

static void expect_status(int fd, int status) {
    struct pollfd socket = {.fd = fd, .events = POLLIN};
    struct tg__reply reply;

    ck_assert_msg(poll(&socket, 1, 60000) == 1, "no answer comes");
    ck_assert_int_eq(recv(fd, &reply, sizeof reply, 0), (int)sizeof reply);
    ck_assert_int_eq(reply.status, status);
}

/* A connection that is no stranger's any more, and the agent before a wait of which it is the only
 * end. */
static int hold_agent(const struct tg__token *token) {
    struct tg__token none = *token;
    int fd = actor_connect(token);

    ask(fd, TG__REQUEST_OPEN, token);
    expect_status(fd, 0);
    actor_must(&exporter, as(ACT_HOLD, 0, AT_POLL));
    none.generation += 1000;
    tg__token_seal(&none);
    ask(fd, TG__REQUEST_CLOSE, &none);
    actor_must(&exporter, as(ACT_HELD, 0, 0));
    return fd;
}

/* ---- what a look takes from the thread ------------------------------------------------------- */

START_TEST(garbage_that_a_look_has_read_ends_its_connection) {
    struct tg__token token = make(0, 1);
    int fd = hold_agent(&token);

    ck_assert_int_eq(send(fd, "garbage", 7, 0), 7);
    actor_must(&exporter, as(ACT_LOOK, 0, 0));
    actor_must(&exporter, as(ACT_HOLD, 0, NOWHERE));
    actor_expect_end(fd);
    end_both();
}
END_TEST

START_TEST(an_open_that_a_look_has_read_is_answered_when_its_tag_is_awake) {
    struct tg__token token = make(0, 1), other_token = make(1, 2);
    int fd;

    fd = hold_agent(&other_token);
    actor_must(&exporter, to(ACT_SLEEP, 0, 0));
    actor_must(&exporter, as(ACT_TRY, 0, 0));
    ask(fd, TG__REQUEST_OPEN, &token);
    actor_must(&exporter, as(ACT_LOOK, 0, 0));
    actor_must(&exporter, as(ACT_HOLD, 0, NOWHERE));
    actor_must(&exporter, as(ACT_TRY_END, 0, 0));
    expect_status(fd, 0);
    close(fd);
    end_both();
}
END_TEST

/* ---- what is short for a moment -------------------------------------------------------------- */

/* An answer that the system has no room for comes later, and ends nothing that is open. */
START_TEST(an_answer_that_cannot_be_sent_yet_costs_no_lease) {
    struct tg__token token = make(0, 1), second = make(1, 2);

    actor_must(&opener, to_open(0, token));
    actor_must(&exporter, as(ACT_SHORT, 0, AT_SENDMSG));
    actor_must(&opener, to_open(1, second));
    expect_kept(2 * ACTOR_SIZE);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    actor_must(&opener, to(ACT_CHECK, 1, 2));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_must(&opener, to(ACT_CLOSE, 1, 0));
    expect_kept(0);
    end_both();
}
END_TEST

/* Whose process has no descriptor left for it gives the block back at once. */
START_TEST(an_opener_without_a_descriptor_left_keeps_no_block) {
    struct tg__token token = make(0, 1), second = make(1, 2);
    struct answer answer;

    actor_must(&opener, to_open(0, token));
    actor_must(&opener, as(ACT_SHORT, 0, AT_RECVMSG));
    answer = actor_do(&opener, to_open(1, second));
    ck_assert_int_eq(answer.status, -EMFILE);
    ck_assert_ptr_nonnull(strstr(answer.text, "no descriptor left"));
    expect_kept(ACTOR_SIZE);
    actor_must(&opener, to_open(1, second));
    actor_must(&opener, to(ACT_CHECK, 1, 2));
    actor_must(&opener, to(ACT_CLOSE, 1, 0));
    expect_kept(ACTOR_SIZE);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

/* ---- peers ----------------------------------------------------------------------------------- */

START_TEST(a_peer_that_comes_while_a_block_is_opened_has_access) {
    struct tg__token token = make(0, 1);

    actor_must(&opener, as(ACT_PEER_COMES, 0, 0));
    actor_must(&opener, to_open(0, token));
    ck_assert_uint_eq(actor_must(&opener, as(ACT_REACHED, 0, 0)).number, PEER);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

START_TEST(a_block_that_a_peer_is_refused_is_not_open) {
    struct tg__token token = make(0, 1);

    actor_must(&opener, as(ACT_PEER_COMES, 0, (uint64_t)-EIO));
    ck_assert_int_eq(actor_do(&opener, to_open(0, token)).status, -EIO);
    expect_kept(0);
    actor_must(&opener, to_open(0, token));
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

START_TEST(a_peer_that_comes_while_a_block_is_made_has_access) {
    actor_must(&opener, as(ACT_PEER_COMES, 0, 0));
    actor_must(&opener, to(ACT_ALLOC, 0, ACTOR_SIZE));
    ck_assert_uint_eq(actor_must(&opener, as(ACT_REACHED, 0, 0)).number, PEER);
    end_both();
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

START_TEST(a_lease_that_ends_while_its_memory_closes_is_forgotten) {
    make(0, 1);
    ck_assert_uint_eq(actor_must(&exporter, as(ACT_LEAVE, 0, 0)).number, 0);
    end_both();
}
END_TEST

START_TEST(a_memory_closes_whose_blocks_others_have) {
    struct tg__token token = make(0, 1);
    struct tg__token of_guest = actor_must(&exporter, as(ACT_GUEST, 0, 0)).token;

    actor_must(&opener, to_open(1, of_guest));
    actor_must(&exporter, as(ACT_GUEST_ENDS, 0, 0));
    actor_must(&opener, to(ACT_CHECK, 1, 3));
    actor_must(&opener, to(ACT_CLOSE, 1, 0));
    ck_assert_int_eq(actor_do(&opener, to_open(1, of_guest)).status, -ESTALE);
    actor_must(&opener, to_open(0, token));
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    end_both();
}
END_TEST

/* Without an answer. */
static void order_only(struct actor *actor, struct order order) {
    ck_assert_int_eq(write(actor->child.out, &order, sizeof order), (int)sizeof order);
}

static struct answer answer_of(struct actor *actor) {
    struct pollfd news = {.fd = actor->child.in, .events = POLLIN};
    struct answer answer;

    ck_assert_msg(poll(&news, 1, 60000) == 1, "an actor hangs");
    ck_assert_int_eq(read(actor->child.in, &answer, sizeof answer), (int)sizeof answer);
    return answer;
}

static void expect_exit(struct actor *actor) {
    int status;

    ck_assert_int_eq(waitpid(actor->child.pid, &status, 0), actor->child.pid);
    ck_assert_msg(status == 0, "the exit ended with %#x", (unsigned)status);
    close(actor->child.in);
    close(actor->child.out);
    unlink(actor->err);
}

/* What it would ask may be gone by then: it answers nobody, and says so to who asks. */
START_TEST(an_agent_ends_before_what_it_stands_on) {
    struct tg__token token, second;
    struct pollfd news = {.fd = said[0], .events = POLLIN};

    actor_must(&exporter, as(ACT_LINGER, 0, 0));
    token = make(0, 1);
    second = make(1, 2);
    actor_must(&opener, to(ACT_HASTE, 0, 50000));
    actor_must(&opener, to_open(0, token));
    order_only(&exporter, as(ACT_EXIT, 0, 0));
    ck_assert_int_eq(poll(&news, 1, 60000), 1);
    ck_assert_int_eq(actor_do(&opener, to_open(1, second)).status, -ESTALE);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    ck_assert_int_eq(write(told[1], "", 1), 1);
    expect_exit(&exporter);
    actor_must(&opener, to(ACT_CHECK, 0, 1));
    actor_must(&opener, to(ACT_CLOSE, 0, 0));
    actor_wait_for_free(&opener, CAPACITY);
    actor_end(&opener);
}
END_TEST

/* In the middle of an answer that never ends. */
START_TEST(an_exit_does_not_wait_for_a_stuck_agent) {
    struct tg__token token = make(0, 1);

    actor_must(&opener, to(ACT_HASTE, 0, 50000));
    actor_must(&exporter, as(ACT_HOLD, 0, AT_SENDMSG));
    order_only(&opener, to_open(0, token));
    actor_must(&exporter, as(ACT_HELD, 0, 0));
    order_only(&exporter, as(ACT_EXIT, 0, 0));
    expect_exit(&exporter);
    ck_assert_int_eq(answer_of(&opener).status, -ESTALE);
    actor_wait_for_free(&opener, CAPACITY);
    actor_end(&opener);
}
END_TEST

START_TEST(a_process_exits_while_openers_come_and_go) {
    enum { OPENERS = 3, OPENS = 60, ROUNDS = 8 };
    struct actor crowd[OPENERS] = {opener, actor_start(OPTIONS), actor_start(OPTIONS)};

    for (int round = 0; round < ROUNDS; round++) {
        struct order order = {.act = (enum act)ACT_HAMMER, .token = make(0, 1)};

        atomic_store(opened, 0);
        for (int i = 0; i < OPENERS; i++) {
            actor_must(&crowd[i], to(ACT_HASTE, 0, 50000));
            order_only(&crowd[i], order);
        }
        for (int i = 0; i < 60000 && atomic_load(opened) < OPENS; i++)
            nap();
        ck_assert_int_ge(atomic_load(opened), OPENS);
        order_only(&exporter, as(ACT_EXIT, 0, 0));
        expect_exit(&exporter);
        for (int i = 0; i < OPENERS; i++)
            ck_assert_int_eq(answer_of(&crowd[i]).status, -ESTALE);
        actor_wait_for_free(&crowd[0], CAPACITY);
        exporter = actor_start(OPTIONS);
    }
    for (int i = 0; i < OPENERS; i++)
        actor_end(&crowd[i]);
    actor_end(&exporter);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("ipcrace");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, garbage_that_a_look_has_read_ends_its_connection);
    tcase_add_test(cases, an_open_that_a_look_has_read_is_answered_when_its_tag_is_awake);
    tcase_add_test(cases, an_answer_that_cannot_be_sent_yet_costs_no_lease);
    tcase_add_test(cases, an_opener_without_a_descriptor_left_keeps_no_block);
    tcase_add_test(cases, a_peer_that_comes_while_a_block_is_opened_has_access);
    tcase_add_test(cases, a_block_that_a_peer_is_refused_is_not_open);
    tcase_add_test(cases, a_peer_that_comes_while_a_block_is_made_has_access);
    tcase_add_test(cases, a_lease_that_ends_while_its_memory_closes_is_forgotten);
    tcase_add_test(cases, a_memory_closes_whose_blocks_others_have);
    tcase_add_test(cases, an_agent_ends_before_what_it_stands_on);
    tcase_add_test(cases, an_exit_does_not_wait_for_a_stuck_agent);
    tcase_add_test(cases, a_process_exits_while_openers_come_and_go);
    return suite_run("ipcrace", cases);
}
