/* SPDX-License-Identifier: Apache-2.0 */
/* One lock guards all that is here. It is held while messages are handled, which waits for nobody:
 * whoever does not read his answer, or sends what is none, is let go. So the thread and a sleep may
 * both handle them. Memories are asked with it held, never the other way round. */
#include "memory/agent.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/forkguard.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/vec.h"
#include "memory/export.h"
#include "memory/scope.h"

enum {
    BACKLOG = 128,
    STRANGERS = 64,      /* connections that have asked for nothing yet; more: the oldest goes */
    MESSAGES = 256,      /* of one connection before the next one's turn */
    STRANGER_MS = 10000, /* for so long one may say nothing */
    RETRY_MS = 10,       /* what must wait, for a sleep, a wake or memory, is tried again */
    SHORT_MS = 100,      /* where the process has no descriptor left */
    EXIT_MS = 1000       /* an exit waits no longer for what is being handled */
};

enum { SOCKET, CHUNK, NEWS }; /* slots of a guard */

struct connection {
    struct connection *next; /* that came before */
    struct tg__forkguard guard;
    pid_t pid;
    uint64_t since_ns;
    struct tg__lease *leases; /* by `beside` */
    struct tg__request waiting;
    bool is_waiting; /* for its tag's motion to end, or to be told */
    bool is_known;   /* has had a lease */
    bool is_over;
};

static struct {
    pthread_mutex_t lock;
    struct tg__forkguard guard; /* SOCKET: where openers come; NEWS: what wakes the thread */
    struct connection *connections; /* the latest first */
    struct tg__vec polled;          /* the thread's */
    uint64_t given_ns;              /* the first token; 0: none, or somebody has opened one */
    bool is_guarded, is_short;
} agent = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic pid_t owner;  /* 0: it does not run */
static _Atomic uint64_t own; /* its number */
static atomic_bool is_ending; /* the process exits */

_Atomic uint64_t tg__agent_patience_ms = 30000;

/* ---- leases ---------------------------------------------------------------------------------- */

struct question {
    const struct tg__token *token;
    struct tg__lease *lease;
    int *fd;
};

static int lend_in(struct tg_memory *memory, void *argument) {
    struct question *question = argument;

    return tg__export_lend(memory, question->token, question->lease, question->fd);
}

static void end_lease(struct tg__lease *lease) {
    tg__export_end(lease);
    free(lease);
}

static struct tg__lease **find_lease(struct connection *connection, uint64_t generation) {
    struct tg__lease **at = &connection->leases;

    while (*at != NULL && (*at)->generation != generation)
        at = &(*at)->beside;
    return at;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* 0, -EAGAIN (the system is short of something; later), else it cannot be told. Who lets answers
 * pile up is such a one, too: an opener reads each before it asks again. */
static int reply(struct connection *connection, const struct tg__reply *reply, int fd) {
    char room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {(void *)(uintptr_t)reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *head = (struct cmsghdr *)room;

    if (fd >= 0) {
        message.msg_control = room;
        message.msg_controllen = CMSG_LEN(sizeof fd);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    if (sendmsg(connection->guard.fds[SOCKET], &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 0;
    return errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS || errno == EINTR
               ? -EAGAIN
               : -EPIPE;
}

/* 0: it has it, and the descriptor for it is in the guard. */
static int lend(struct connection *connection, const struct tg__token *token) {
    struct tg__lease *lease;
    int fd = -1, rc;

    if (*find_lease(connection, token->generation) != NULL)
        return -EEXIST;
    lease = calloc(1, sizeof *lease);
    if (lease == NULL)
        return -ENOMEM;
    lease->pid = connection->pid;
    rc = tg__scope_ask(lend_in, &(struct question){token, lease, &fd});
    if (rc != 0) {
        free(lease);
        return rc;
    }
    tg__fork_hold();
    rc = tg__forkguard_put(&connection->guard, CHUNK, fd);
    tg__fork_release();
    if (rc != 0) {
        end_lease(lease);
        return rc;
    }
    lease->beside = connection->leases;
    connection->leases = lease;
    connection->is_known = true;
    agent.given_ns = 0;
    return 0;
}

static void answer_close(struct connection *connection, const struct tg__token *token) {
    struct tg__lease **at = find_lease(connection, token->generation), *lease = *at;

    if (lease == NULL)
        return;
    *at = lease->beside;
    end_lease(lease);
}

/* Errors: -EAGAIN (later). A lease that nobody was told of ends at once, and no other with it: who
 * has those has them still. */
static int answer_open(struct connection *connection, const struct tg__token *token) {
    int rc = token->agent == own ? lend(connection, token) : -ENOENT, sent;
    struct tg__reply answer = {.status = rc, .generation = token->generation,
                               .size_bytes = token->size_bytes};

    if (rc == -EAGAIN)
        return rc;
    sent = reply(connection, &answer, connection->guard.fds[CHUNK]);
    tg__forkguard_close(&connection->guard, CHUNK);
    if (sent != 0 && rc == 0)
        answer_close(connection, token);
    if (sent == -EAGAIN)
        return sent;
    connection->is_over = sent != 0;
    return 0;
}

static void answer(struct connection *connection, const struct tg__request *request) {
    if (!tg__token_is_whole(&request->token)) {
        connection->is_over = true;
    } else if (request->kind == TG__REQUEST_OPEN) {
        connection->is_waiting = answer_open(connection, &request->token) == -EAGAIN;
        connection->waiting = *request;
    } else if (request->kind == TG__REQUEST_CLOSE) {
        answer_close(connection, &request->token);
    } else {
        connection->is_over = true;
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void read_messages(struct connection *connection) {
    struct tg__request request;

    if (connection->is_waiting)
        connection->is_waiting = answer_open(connection, &connection->waiting.token) == -EAGAIN;
    for (int i = 0; i < MESSAGES && !connection->is_waiting && !connection->is_over && !is_ending;
         i++) {
        ssize_t length = recv(connection->guard.fds[SOCKET], &request, sizeof request,
                              MSG_DONTWAIT | MSG_TRUNC);

        if (length == (ssize_t)sizeof request)
            answer(connection, &request);
        else if (length >= 0 || errno == ECONNRESET)
            connection->is_over = true;
        else
            return;
    }
}

static void end_leases(struct connection *connection) {
    while (connection->leases != NULL) {
        struct tg__lease *lease = connection->leases;

        connection->leases = lease->beside;
        end_lease(lease);
    }
}

static void let_go(struct connection *connection) {
    end_leases(connection);
    tg__forkguard_remove(&connection->guard);
    free(connection);
}

static void look_at(struct connection *connection) {
    struct pollfd socket = {.fd = connection->guard.fds[SOCKET]};

    read_messages(connection);
    if (connection->is_waiting && poll(&socket, 1, 0) > 0) /* it has gone */
        connection->is_over = true;
    if (!connection->is_known &&
        tg__clock_ns() - connection->since_ns > STRANGER_MS * TG__NS_PER_MS)
        connection->is_over = true;
    if (connection->is_over)
        end_leases(connection);
}

static void handle_all(void) {
    for (struct connection *each = agent.connections; each != NULL; each = each->next) {
        if (!each->is_over)
            look_at(each);
    }
}

/* By the thread alone, which may otherwise be waiting for one of them. */
static void take_out_ended(void) {
    struct connection **at = &agent.connections;

    while (*at != NULL) {
        struct connection *connection = *at;

        if (connection->is_over) {
            *at = connection->next;
            let_go(connection);
        } else {
            at = &connection->next;
        }
    }
}

/* The oldest of those that have asked for nothing, if they are more than that. By the thread. */
static bool drop_stranger(size_t allowed) {
    struct connection **at = &agent.connections, **oldest = NULL, *dropped;
    size_t count = 0;

    for (; *at != NULL; at = &(*at)->next) {
        if ((*at)->is_known || (*at)->is_waiting)
            continue;
        count++;
        oldest = at;
    }
    if (count <= allowed)
        return false;
    dropped = *oldest;
    *oldest = dropped->next;
    let_go(dropped);
    return true;
}

/* Whether an opener is there, and may be one. */
static int accept_into(struct connection *connection) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    int fd, rc;

    tg__fork_hold();
    fd = accept4(agent.guard.fds[SOCKET], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    rc = fd >= 0 ? tg__forkguard_put(&connection->guard, SOCKET, fd) : -errno;
    tg__fork_release();
    if (rc != 0)
        return rc;
    if (getsockopt(connection->guard.fds[SOCKET], SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return -errno;
    connection->is_over = peer.uid != geteuid();
    connection->pid = peer.pid;
    connection->since_ns = tg__clock_ns();
    return 0;
}

static int accept_one(void) {
    struct connection *connection = calloc(1, sizeof *connection);
    int rc;

    if (connection == NULL)
        return -ENOMEM;
    rc = tg__forkguard_add(&connection->guard);
    if (rc != 0) {
        free(connection);
        return rc;
    }
    rc = accept_into(connection);
    if (rc != 0) {
        let_go(connection);
        return rc;
    }
    connection->next = agent.connections;
    agent.connections = connection;
    look_at(connection);
    return 0;
}

/* Each is looked at when it comes, so who asks at once is no stranger when the next one comes. */
static void accept_all(void) {
    int rc = 0;

    for (int i = 0; i < BACKLOG && rc == 0; i++) {
        rc = accept_one();
        if (rc == 0)
            (void)drop_stranger(STRANGERS);
    }
    agent.is_short = rc != 0 && rc != -EAGAIN && rc != -ECONNABORTED && rc != -EINTR &&
                     !drop_stranger(0);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* With lock. Once, when it is so. */
static bool is_patience_over(void) {
    if (agent.given_ns == 0 ||
        tg__clock_ns() - agent.given_ns < tg__agent_patience_ms * TG__NS_PER_MS)
        return false;
    agent.given_ns = 0;
    return true;
}

/* Without lock: whoever reads stderr may be late, and a sleep takes the lock. */
static void warn(void) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;

    tg__warn_once(&has_warned, "a handle of this process's memory was given out, and nobody has "
                               "opened it: only programs under the preload can");
}

/* With lock. -1: for ever. */
static int patience(void) {
    uint64_t now = tg__clock_ns(), warns_ns;
    int wait_ms = agent.is_short ? SHORT_MS : -1;

    for (const struct connection *each = agent.connections; each != NULL; each = each->next) {
        if (each->is_waiting)
            return RETRY_MS;
        if (!each->is_known)
            wait_ms = wait_ms < 0 ? STRANGER_MS / 2 : wait_ms;
    }
    if (agent.given_ns == 0)
        return wait_ms;
    warns_ns = agent.given_ns + tg__agent_patience_ms * TG__NS_PER_MS;
    warns_ns = warns_ns > now ? (warns_ns - now) / TG__NS_PER_MS + 1 : 1;
    return wait_ms >= 0 && (uint64_t)wait_ms < warns_ns ? wait_ms : (int)warns_ns;
}

/* With lock. What the thread waits for, its own news first; where there is no memory for the list
 * the rest is looked at in a while. Returns for how long. */
static int list_news(void) {
    const struct connection *each;
    struct pollfd *sockets;
    size_t count = 2;
    int wait_ms = patience();

    for (each = agent.connections; each != NULL; each = each->next)
        count++;
    agent.polled.count = 0;
    if (tg__vec_room(&agent.polled, count) != 0) {
        count = agent.polled.capacity;
        wait_ms = RETRY_MS;
    }
    sockets = agent.polled.items;
    if (count > 0)
        sockets[agent.polled.count++] =
            (struct pollfd){.fd = agent.guard.fds[NEWS], .events = POLLIN};
    if (count > 1)
        sockets[agent.polled.count++] = (struct pollfd){
            .fd = agent.is_short ? -1 : agent.guard.fds[SOCKET], .events = POLLIN};
    for (each = agent.connections; each != NULL && agent.polled.count < count; each = each->next)
        sockets[agent.polled.count++] = (struct pollfd){
            .fd = each->guard.fds[SOCKET], .events = each->is_waiting ? 0 : POLLIN};
    return wait_ms;
}

/* Between the list and the wait another thread may take what would have ended the wait. */
static void wait_for_news(void) {
    eventfd_t count;
    int wait_ms;

    pthread_mutex_lock(&agent.lock);
    wait_ms = list_news();
    pthread_mutex_unlock(&agent.lock);
    (void)poll(agent.polled.items, agent.polled.count, wait_ms);
    (void)!eventfd_read(agent.guard.fds[NEWS], &count);
}

/* With lock. Who asks is told at once that nobody answers any more; leases are left as they are,
 * since openers have their blocks until they close them. */
static void end_all(void) {
    for (const struct connection *each = agent.connections; each != NULL; each = each->next)
        (void)!shutdown(each->guard.fds[SOCKET], SHUT_WR);
    tg__forkguard_close(&agent.guard, SOCKET);
}

static void *serve(void *unused) {
    bool warns, ends = false;

    (void)unused;
    while (!ends) {
        wait_for_news();
        pthread_mutex_lock(&agent.lock);
        ends = is_ending;
        if (ends) {
            end_all();
        } else {
            handle_all();
            accept_all();
            take_out_ended();
        }
        warns = !ends && is_patience_over();
        pthread_mutex_unlock(&agent.lock);
        if (warns)
            warn();
    }
    return NULL;
}

/* At exit: what the thread asks, a driver above all, is taken down after this by handlers that were
 * there before it. The wait has an end because the exiting thread may have been interrupted by a
 * signal, in a call of ours with a lock. */
static void stop(void) {
    const struct timespec pause = {.tv_nsec = TG__NS_PER_MS};

    if (owner != getpid())
        return;
    is_ending = true;
    (void)!eventfd_write(agent.guard.fds[NEWS], 1);
    for (int i = 0; i < EXIT_MS; i++) {
        if (pthread_mutex_trylock(&agent.lock) == 0) {
            pthread_mutex_unlock(&agent.lock);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* ---- its beginning --------------------------------------------------------------------------- */

static int listen_to(uint64_t id) {
    struct sockaddr_un address;
    socklen_t length = tg__token_address(id, &address);
    int fd, rc;

    tg__fork_hold();
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rc = fd >= 0 ? tg__forkguard_put(&agent.guard, SOCKET, fd) : -errno;
    tg__fork_release();
    if (rc == 0 && (bind(agent.guard.fds[SOCKET], (struct sockaddr *)&address, length) != 0 ||
                    listen(agent.guard.fds[SOCKET], BACKLOG) != 0))
        rc = -errno;
    return rc == 0 ? 0 : tg__fail(rc, "no agent can be started: no socket: %s", tg_error_text(rc));
}

static int make_news(void) {
    int fd, rc;

    tg__fork_hold();
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = fd >= 0 ? tg__forkguard_put(&agent.guard, NEWS, fd) : -errno;
    tg__fork_release();
    return rc == 0 ? 0 : tg__fail(rc, "no agent can be started: no event: %s", tg_error_text(rc));
}

static int start(void) {
    uint64_t id;
    pthread_t thread;
    int rc = 0;

    if (!agent.is_guarded)
        rc = tg__forkguard_add(&agent.guard);
    agent.is_guarded = rc == 0;
    if (rc == 0 && getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id)
        rc = tg__fail(-errno, "no agent can be started: no random number");
    if (rc == 0)
        rc = listen_to(id);
    if (rc == 0)
        rc = make_news();
    if (rc == 0) {
        tg__vec_init(&agent.polled, sizeof(struct pollfd), NULL);
        agent.given_ns = tg__clock_ns();
        rc = -tg__thread_start(&thread, serve, NULL);
        if (rc != 0)
            rc = tg__fail(rc, "no agent can be started: no thread: %s", tg_error_text(rc));
    }
    if (rc != 0) {
        tg__forkguard_close(&agent.guard, SOCKET);
        tg__forkguard_close(&agent.guard, NEWS);
        return rc;
    }
    pthread_detach(thread);
    own = id;
    owner = getpid();
    (void)!atexit(stop); /* where there is no memory for it the system ends the connections */
    return 0;
}

int tg__agent_start(uint64_t *id) {
    int rc = 0;

    if (owner != 0 && owner != getpid())
        return tg__fail(TG_EFORKED, "the agent is its parent's: a forked child has none");
    pthread_mutex_lock(&agent.lock);
    if (owner == 0)
        rc = start();
    pthread_mutex_unlock(&agent.lock);
    if (rc == 0)
        *id = own;
    return rc;
}

bool tg__agent_is_own(uint64_t id) {
    return owner != 0 && own == id;
}

/* With lock. Whether something is left to do whose message the thread will not see any more. */
static bool leaves_work(void) {
    const struct connection *each = agent.connections;

    while (each != NULL && !each->is_waiting && !each->is_over)
        each = each->next;
    return each != NULL;
}

void tg__agent_look(void) {
    const struct tg_error before = *tg_last_error();

    if (owner == 0 || owner != getpid() || is_ending)
        return;
    pthread_mutex_lock(&agent.lock);
    handle_all();
    if (leaves_work())
        (void)!eventfd_write(agent.guard.fds[NEWS], 1);
    pthread_mutex_unlock(&agent.lock);
    tg__fail_as(&before);
}

/* One that does not run yet has lent nothing of it, and cannot any more: it is out of the list. */
void tg__agent_leave(struct tg_memory *memory) {
    if (owner == 0 || owner != getpid())
        return;
    pthread_mutex_lock(&agent.lock);
    tg__exports_drop(memory);
    pthread_mutex_unlock(&agent.lock);
}
