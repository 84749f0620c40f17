/* SPDX-License-Identifier: Apache-2.0 */
/* The process is made by clone, not by fork: no handlers of the program's run in it, and no SIGCHLD
 * tells of it. It may be a copy of a process of many threads, so it calls nothing that could wait
 * for one of their locks: system calls alone. */
#include "device/straggler.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/forkguard.h"

enum { SOCKET = 0, CHUNKS = 1 << 16, ANSWER_MS = 1000, PAUSE_MS = 1 };
#define STEP_BYTES (UINT64_C(2) << 20)

enum what { HOLD, DROP, END };

struct word {
    enum what what;
    uint64_t inode, size_bytes;
};

struct tg__straggler {
    struct tg__forkguard guard; /* slot SOCKET: our end */
};

/* Room for a descriptor beside a word. */
union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
};

/* ---- the other process ----------------------------------------------------------------------- */

struct held {
    uint64_t inode, size_bytes;
    unsigned char *memory; /* NULL: a vacant place */
};

static void hold(struct held *chunks, const struct word *word, int fd) {
    void *memory = mmap(NULL, word->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);
    for (int i = 0; i < CHUNKS && memory != MAP_FAILED; i++) {
        if (chunks[i].memory == NULL) {
            chunks[i] = (struct held){word->inode, word->size_bytes, memory};
            return;
        }
    }
}

static void drop(struct held *chunks, const struct word *word, int socket) {
    for (int i = 0; i < CHUNKS; i++) {
        if (chunks[i].memory != NULL && chunks[i].inode == word->inode) {
            munmap(chunks[i].memory, chunks[i].size_bytes);
            chunks[i].memory = NULL;
        }
    }
    send(socket, word, sizeof *word, MSG_NOSIGNAL);
}

/* As kernels do whose process is gone: a word of each granule, again and again. */
static void write_on(const struct held *chunks, uint32_t write_ms) {
    uint64_t end_ns = tg__clock_ns() + write_ms * TG__NS_PER_MS, now_ns;

    while ((now_ns = tg__clock_ns()) < end_ns) {
        for (int i = 0; i < CHUNKS; i++) {
            for (uint64_t at = 0; chunks[i].memory != NULL && at < chunks[i].size_bytes;
                 at += STEP_BYTES)
                memcpy(chunks[i].memory + at, &now_ns, sizeof now_ns);
        }
        poll(NULL, 0, PAUSE_MS);
    }
}

/* The next word, and the descriptor that comes with it or -1. Its answer: bytes, 0 at the end. */
static ssize_t receive(int socket, struct word *word, int *fd) {
    union control control;
    struct iovec data = {word, sizeof *word};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    *fd = -1;
    if (head != NULL && head->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(head), sizeof *fd);
    return got;
}

static void close_others(int socket, int ticket_fd) {
    unsigned low = (unsigned)(socket < ticket_fd ? socket : ticket_fd);
    unsigned high = (unsigned)(socket < ticket_fd ? ticket_fd : socket);

    if (low > 0)
        close_range(0, low - 1, 0);
    if (high > low + 1)
        close_range(low + 1, high - 1, 0);
    close_range(high + 1, ~0u, 0);
}

static _Noreturn void straggle(int socket, int ticket_fd, uint32_t write_ms) {
    struct held *chunks;
    struct word word = {.what = HOLD};
    int fd;

    setsid();
    prctl(PR_SET_NAME, "tidegate-strag", 0, 0, 0);
    close_others(socket, ticket_fd);
    chunks = mmap(NULL, CHUNKS * sizeof *chunks, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunks == MAP_FAILED)
        _exit(1);
    while (receive(socket, &word, &fd) == (ssize_t)sizeof word && word.what != END) {
        if (word.what == HOLD)
            hold(chunks, &word, fd);
        else
            drop(chunks, &word, socket);
        word.what = HOLD;
    }
    if (word.what != END)
        write_on(chunks, write_ms);
    _exit(0);
}

/* ---- this process ---------------------------------------------------------------------------- */

static pid_t clone_quietly(void) {
    return (pid_t)syscall(SYS_clone, 0UL, NULL, NULL, NULL, 0UL);
}

/* With all signals blocked. The straggler's parent ends at once, so that it has none. */
static int start_process(int socket, int ticket_fd, uint32_t write_ms) {
    pid_t between = clone_quietly(), gone;
    int status = 0;

    if (between < 0)
        return tg__fail(-errno, "cannot start the straggler: %s", tg_error_text(-errno));
    if (between == 0) {
        pid_t straggler = clone_quietly();

        if (straggler == 0)
            straggle(socket, ticket_fd, write_ms);
        _exit(straggler < 0 ? 1 : 0);
    }
    do {
        gone = waitpid(between, &status, __WALL);
    } while (gone < 0 && errno == EINTR);
    if (gone == between && status != 0)
        return tg__fail(-EAGAIN, "cannot start the straggler: no more processes are possible");
    return 0;
}

/* While no fork can happen. */
static int start_with_socket(struct tg__straggler *straggler, int ticket_fd, uint32_t write_ms) {
    const struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    sigset_t all, before;
    int ends[2], rc;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return tg__fail(-errno, "cannot make a socket for the straggler: %s",
                        tg_error_text(-errno));
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    rc = start_process(ends[1], ticket_fd, write_ms);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (rc != 0)
        close(ends[0]);
    else
        straggler->guard.fds[SOCKET] = ends[0];
    return rc;
}

int tg__straggler_start(uint32_t write_ms, int ticket_fd, struct tg__straggler **straggler) {
    struct tg__straggler *made = calloc(1, sizeof *made);
    int rc;

    if (made == NULL)
        return tg__fail_memory();
    rc = tg__forkguard_add(&made->guard);
    if (rc != 0)
        goto release;
    tg__fork_hold();
    rc = start_with_socket(made, ticket_fd, write_ms);
    tg__fork_release();
    if (rc != 0)
        goto remove;
    *straggler = made;
    return 0;
remove:
    tg__forkguard_remove(&made->guard);
release:
    free(made);
    return rc;
}

/* 0, or -errno without a sentence. */
static int say(const struct tg__straggler *straggler, const struct word *word, int fd) {
    union control control = {{0}};
    struct iovec data = {(void *)(uintptr_t)word, sizeof *word};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *head;

        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    return sendmsg(straggler->guard.fds[SOCKET], &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int tg__straggler_hold(struct tg__straggler *straggler, uint64_t inode, int fd,
                       uint64_t size_bytes) {
    struct word word = {HOLD, inode, size_bytes};
    int rc = say(straggler, &word, fd);

    if (rc == 0 || rc == -EPIPE || rc == -ECONNRESET)
        return 0;
    return tg__fail(rc, "cannot give a chunk to the straggler: %s", tg_error_text(rc));
}

void tg__straggler_drop(struct tg__straggler *straggler, uint64_t inode) {
    struct word word = {DROP, inode, 0}, answer = {0};

    if (say(straggler, &word, -1) != 0)
        return;
    /* An answer that came late, to an earlier word, is passed over. */
    while (recv(straggler->guard.fds[SOCKET], &answer, sizeof answer, 0) > 0 &&
           answer.inode != inode)
        continue;
}

void tg__straggler_end(struct tg__straggler *straggler, bool is_forked) {
    struct word word = {.what = END}, answer;

    if (straggler == NULL)
        return;
    if (!is_forked && say(straggler, &word, -1) == 0) {
        while (recv(straggler->guard.fds[SOCKET], &answer, sizeof answer, 0) > 0)
            continue;
    }
    tg__forkguard_remove(&straggler->guard);
    free(straggler);
}
