/* SPDX-License-Identifier: Apache-2.0 */
/* Every step is bounded by the caller's deadline: the other side may be stopped anywhere. */
#include "memory/peer.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define PAUSE_NS (5 * TG__NS_PER_MS)

static int fail_late(void) {
    return tg__fail(TG_EBUSY, "the process whose memory it is does not answer");
}

int tg__peer_pause(uint64_t deadline_ns) {
    uint64_t now = tg__clock_ns();
    struct timespec pause = {.tv_nsec = PAUSE_NS};

    if (now >= deadline_ns)
        return fail_late();
    nanosleep(&pause, NULL);
    return 0;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int make_socket(struct tg__peer *peer) {
    int fd, rc;

    tg__fork_hold();
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rc = fd >= 0 ? tg__forkguard_put(&peer->guard, TG__PEER_SOCKET, fd) : -errno;
    tg__fork_release();
    return rc == 0 ? 0 : tg__fail(rc, "no socket: %s", tg_error_text(rc));
}

/* An agent whose queue is full has not come to it yet. */
static int connect_to(const struct tg__peer *peer, uint64_t deadline_ns) {
    struct sockaddr_un address;
    socklen_t length = tg__token_address(peer->agent, &address);
    int rc = 0;

    while (rc == 0 && connect(peer->guard.fds[TG__PEER_SOCKET], (struct sockaddr *)&address,
                              length) != 0) {
        if (errno != EAGAIN && errno != EINTR)
            return errno == ECONNREFUSED
                       ? tg__fail(-ESTALE, "the process whose memory it was has ended")
                       : tg__fail(-errno, "the process whose memory it is cannot be reached: %s",
                                  tg_error_text(-errno));
        rc = tg__peer_pause(deadline_ns);
    }
    return rc;
}

/* Anybody may take a name that is free. */
static int check_user(const struct tg__peer *peer) {
    struct ucred server;
    socklen_t length = sizeof server;

    if (getsockopt(peer->guard.fds[TG__PEER_SOCKET], SOL_SOCKET, SO_PEERCRED, &server, &length) !=
        0)
        return tg__fail(-errno, "nobody can tell whose socket it is: %s", tg_error_text(-errno));
    if (server.uid != geteuid())
        return tg__fail(-ESTALE, "another user answers for the process whose memory it was");
    return 0;
}

int tg__peer_connect(uint64_t agent, uint64_t deadline_ns, struct tg__peer **peer) {
    struct tg__peer *made = calloc(1, sizeof *made);
    int rc;

    if (made == NULL)
        return tg__fail_memory();
    made->agent = agent;
    rc = tg__forkguard_add(&made->guard);
    if (rc != 0) {
        free(made);
        return rc;
    }
    rc = make_socket(made);
    if (rc == 0)
        rc = connect_to(made, deadline_ns);
    if (rc == 0)
        rc = check_user(made);
    if (rc == 0)
        *peer = made;
    else
        tg__peer_close(made);
    return rc;
}

/* A child that was made without the handlers of fork may have a copy of the descriptor: shut down,
 * it is of no use. */
void tg__peer_close(struct tg__peer *peer) {
    (void)!shutdown(peer->guard.fds[TG__PEER_SOCKET], SHUT_RDWR);
    tg__forkguard_remove(&peer->guard);
    free(peer);
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* 0, -EAGAIN, -ECONNRESET. */
static int send_request(const struct tg__peer *peer, uint32_t kind, const struct tg__token *token) {
    const struct tg__request request = {.kind = kind, .token = *token};
    ssize_t sent = send(peer->guard.fds[TG__PEER_SOCKET], &request, sizeof request,
                        MSG_DONTWAIT | MSG_NOSIGNAL);

    if (sent == (ssize_t)sizeof request)
        return 0;
    return sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)
               ? -EAGAIN
               : -ECONNRESET;
}

/* A descriptor that is received and a fork do not cross. */
static ssize_t receive(struct tg__peer *peer, struct tg__reply *reply) {
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    const struct cmsghdr *head;
    ssize_t length;
    int fd;

    tg__fork_hold();
    length = recvmsg(peer->guard.fds[TG__PEER_SOCKET], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    head = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof fd)) {
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
        (void)!tg__forkguard_put(&peer->guard, TG__PEER_CHUNK, fd);
    }
    tg__fork_release();
    return length;
}

static bool has_chunk(const struct tg__peer *peer) {
    return peer->guard.fds[TG__PEER_CHUNK] >= 0;
}

/* 0, -EAGAIN, -ECONNRESET; an answer that is none, too, is the end of a peer. That a descriptor was
 * sent and none has come is this process's own lack. */
static int read_reply(struct tg__peer *peer, const struct tg__token *token,
                      struct tg__reply *reply) {
    ssize_t length = receive(peer, reply);

    if (length < 0 && errno != ECONNRESET)
        return -EAGAIN;
    if (length != (ssize_t)sizeof *reply || reply->generation != token->generation ||
        reply->status > 0 || (reply->status != 0 && has_chunk(peer))) {
        tg__forkguard_close(&peer->guard, TG__PEER_CHUNK);
        return -ECONNRESET;
    }
    return 0;
}

static int wait_for(const struct tg__peer *peer, short what, uint64_t deadline_ns) {
    struct pollfd socket = {.fd = peer->guard.fds[TG__PEER_SOCKET], .events = what};
    uint64_t now = tg__clock_ns();

    if (now >= deadline_ns)
        return fail_late();
    (void)poll(&socket, 1, (int)((deadline_ns - now) / TG__NS_PER_MS) + 1);
    return 0;
}

static int exchange(struct tg__peer *peer, const struct tg__token *token, uint64_t deadline_ns,
                    struct tg__reply *reply) {
    int rc = send_request(peer, TG__REQUEST_OPEN, token);

    while (rc == -EAGAIN) {
        rc = wait_for(peer, POLLOUT, deadline_ns);
        if (rc == 0)
            rc = send_request(peer, TG__REQUEST_OPEN, token);
    }
    if (rc == 0)
        rc = -EAGAIN;
    while (rc == -EAGAIN) {
        rc = wait_for(peer, POLLIN, deadline_ns);
        if (rc == 0)
            rc = read_reply(peer, token, reply);
    }
    return rc;
}

int tg__peer_ask(struct tg__peer *peer, const struct tg__token *token, uint64_t deadline_ns,
                 struct tg__reply *reply) {
    int rc = exchange(peer, token, deadline_ns, reply);

    if (rc != 0) { /* an answer may come later, and would be taken for another one's */
        peer->is_spent = true;
        return rc;
    }
    if (reply->status == 0 && !has_chunk(peer))
        return tg__fail(-EMFILE, "the block is there, and this process has no descriptor left for "
                        "it");
    if (reply->status == -ENOENT)
        return tg__fail(-ESTALE, "the block was freed by the process whose it was");
    if (reply->status != 0)
        return tg__fail(reply->status, "the process whose memory it is refuses: %s",
                        tg_error_text(reply->status));
    return 0;
}

bool tg__peer_tell(const struct tg__peer *peer, const struct tg__token *token) {
    return send_request(peer, TG__REQUEST_CLOSE, token) != -EAGAIN;
}

void tg__peer_drain(struct tg__peer *peer) {
    struct tg__reply reply;

    while (receive(peer, &reply) > 0)
        tg__forkguard_close(&peer->guard, TG__PEER_CHUNK);
}
