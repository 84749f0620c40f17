/* SPDX-License-Identifier: Apache-2.0 */
#include "actor.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"
#include "performer.h"
#include "stage.h"

enum { START_MS = 20000, ANSWER_MS = 60000 };

static bool needs_namespace(const struct actor_params *params) {
    return params->is_pid_one || params->clock_ahead_s != 0;
}

/* For the children of this process. */
static int enter_namespace(const struct actor_params *params) {
    FILE *offsets;

    if (params->is_pid_one && unshare(CLONE_NEWPID) < 0)
        return -1;
    if (params->clock_ahead_s == 0)
        return 0;
    if (unshare(CLONE_NEWTIME) < 0)
        return -1;
    offsets = fopen("/proc/self/timens_offsets", "w");
    if (offsets == NULL)
        return -1;
    fprintf(offsets, "monotonic %u 0\n", (unsigned)params->clock_ahead_s);
    return fclose(offsets);
}

/* In a child that has entered new namespaces for its own children: the grandchild lives in them,
 * and the child passes its end on. */
static _Noreturn void run_in_namespace(const struct actor_params *params, int socket) {
    int status = 0;
    pid_t pid;

    if (enter_namespace(params) < 0) {
        struct answer refused = {.status = -errno};
        (void)!send(socket, &refused, sizeof refused, MSG_NOSIGNAL);
        _exit(4);
    }
    pid = fork();
    if (pid == 0)
        performer_run(params, socket);
    close(socket);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        _exit(5);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 6);
}

bool actor_start(struct actor *actor, const struct actor_params *params) {
    struct answer joined;
    int pair[2];

    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "%s", strerror(errno));
    actor->pid = fork();
    must(actor->pid >= 0, "%s", strerror(errno));
    if (actor->pid == 0) {
        close(pair[0]);
        if (needs_namespace(params))
            run_in_namespace(params, pair[1]);
        performer_run(params, pair[1]);
    }
    close(pair[1]);
    actor->socket = pair[0];
    snprintf(actor->name, sizeof actor->name, "%s", params->name);
    joined = actor_answer(actor, START_MS);
    if (needs_namespace(params) && (joined.status == -EPERM || joined.status == -ENOSPC)) {
        actor_kill(actor);
        return false;
    }
    must(joined.status == 0, "%s cannot join: %s", params->name, joined.text);
    return true;
}

void actor_order(struct actor *actor, struct order order) {
    /* A dead actor is told by the answer that does not come. */
    (void)!send(actor->socket, &order, sizeof order, MSG_NOSIGNAL);
}

struct answer actor_answer(struct actor *actor, uint32_t timeout_ms) {
    struct pollfd ready = {.fd = actor->socket, .events = POLLIN};
    struct answer answer = {.status = -ESRCH};

    must(poll(&ready, 1, (int)timeout_ms) == 1, "%s does not answer in %u ms", actor->name,
                  timeout_ms);
    if (recv(actor->socket, &answer, sizeof answer, 0) != sizeof answer)
        answer.status = -ESRCH;
    return answer;
}

int actor_first(struct actor *actors, int count, uint32_t timeout_ms) {
    struct pollfd ready[ACTORS_MAX];

    must(count <= ACTORS_MAX, "%d actors", count);
    for (int i = 0; i < count; i++)
        ready[i] = (struct pollfd){.fd = actors[i].socket, .events = POLLIN};
    must(poll(ready, (nfds_t)count, (int)timeout_ms) > 0, "none of %d answers in %u ms",
                  count, timeout_ms);
    for (int i = 0; i < count; i++) {
        if (ready[i].revents != 0)
            return i;
    }
    return -1;
}

struct order order_make(enum order_kind kind, const char *tag, uint64_t size_bytes,
                        uint32_t wait_ms) {
    struct order order = {.kind = kind, .size_bytes = size_bytes, .wait_ms = wait_ms};

    snprintf(order.tag, sizeof order.tag, "%s", tag);
    return order;
}

struct answer actor_do(struct actor *actor, struct order order) {
    actor_order(actor, order);
    return actor_answer(actor, ANSWER_MS);
}

uint64_t actor_must(struct actor *actor, struct order order) {
    struct answer answer = actor_do(actor, order);

    must(answer.status == 0, "%s: order %d, tag '%s': %d %s", actor->name,
                  (int)order.kind, order.tag, answer.status, answer.text);
    return answer.value;
}

void actor_signal(struct actor *actor, int signal) {
    must(kill(actor->pid, signal) == 0, "%s", strerror(errno));
}

int actor_gone(struct actor *actor, uint32_t timeout_ms) {
    uint64_t end_ns = stage_now_ns() + timeout_ms * UINT64_C(1000000);
    int status = 0;

    while (waitpid(actor->pid, &status, WNOHANG) == 0) {
        must(stage_now_ns() < end_ns, "%s lives on", actor->name);
        stage_rest_ms(1);
    }
    close(actor->socket);
    actor->pid = 0;
    if (WIFSIGNALED(status))
        return WTERMSIG(status);
    return WEXITSTATUS(status) == 0 ? 0 : -1;
}

void actor_kill(struct actor *actor) {
    if (actor->pid == 0)
        return;
    (void)kill(actor->pid, SIGKILL);
    (void)actor_gone(actor, ANSWER_MS);
}

void actor_leave(struct actor *actor) {
    int status = 0;

    actor_order(actor, (struct order){.kind = ORDER_LEAVE});
    must(waitpid(actor->pid, &status, 0) == actor->pid, "%s", strerror(errno));
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s left with status %#x",
                  actor->name, (unsigned)status);
    close(actor->socket);
    actor->pid = 0;
}
