/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_control.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stop_signal.h"
#include "monotonic.h"

#define NS_PER_MS UINT64_C(1000000)

/* Ten times a second. */
#define PASS_MS 100

#define END_WAIT_MS 2000

/* Longer than somebody needs who looks at how the other side waits meanwhile. */
#define STOPPED_MOST_MS 8000

/* Somebody else may try to kill a side, too; but what is always killed will not get far. */
#define UNASKED_KILLS_MOST 20

/* A terminal's Ctrl-C and hang-up reach the whole group; the supervisor alone decides. */
static void child_run(struct demo_control *control, enum demo_who who, int fd, pid_t supervisor) {
    char name[32]; /* what ps and top show */

    snprintf(name, sizeof name, "demo-%s", demo_who_name(who));
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(1);
    stop_signal_ignore();
    for (int i = 0; i < DEMO_SIDES; i++) {
        if (control->children[i].fd >= 0)
            close(control->children[i].fd);
    }
    _exit(demo_side_live(control->setup, control->gauge, who, fd));
}

static bool child_start(struct demo_control *control, enum demo_who who) {
    struct demo_child *child = &control->children[who];
    pid_t supervisor = getpid();
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        sentence_set(&control->why, "the %s could not be started: %s", demo_who_name(who),
                     strerror(errno));
        return false;
    }
    fflush(NULL); /* or the child would have the same bytes to write */
    child->pid = fork();
    if (child->pid == 0) {
        close(ends[0]);
        child_run(control, who, ends[1], supervisor);
    }
    close(ends[1]);
    if (child->pid < 0) {
        sentence_set(&control->why, "the %s could not be started: %s", demo_who_name(who),
                     strerror(errno));
        close(ends[0]);
        return false;
    }
    child->fd = ends[0];
    child->is_new = true;
    child->is_busy = child->is_doomed = false;
    return true;
}

static bool gauge_open(struct demo_control *control) {
    void *shared = mmap(NULL, sizeof *control->gauge, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED) {
        sentence_set(&control->why, "not enough memory");
        return false;
    }
    control->gauge = shared;
    return true;
}

enum demo_outcome demo_control_open(struct demo_control *control,
                                    const struct demo_setup *setup) {
    control->setup = setup;
    for (int i = 0; i < DEMO_SIDES; i++)
        control->children[i] = (struct demo_child){.pid = -1, .fd = -1};
    if (gauge_open(control) && child_start(control, DEMO_TRAINER) &&
        child_start(control, DEMO_ROLLOUT))
        return DEMO_DONE;
    return DEMO_FAILED;
}

/* Waits for a child that was told to end. */
static void child_reap(struct demo_child *child) {
    uint64_t deadline_ns = monotonic_ns() + END_WAIT_MS * NS_PER_MS;
    const struct timespec moment = {.tv_nsec = 2000000};

    while (waitpid(child->pid, NULL, WNOHANG) == 0) {
        if (monotonic_ns() >= deadline_ns) {
            kill(child->pid, SIGKILL);
            waitpid(child->pid, NULL, 0);
            break;
        }
        nanosleep(&moment, NULL);
    }
    child->pid = -1;
}

void demo_control_close(struct demo_control *control) {
    if (control->gauge != NULL)
        atomic_store(&control->gauge->must_stop, 1);
    for (int i = 0; i < DEMO_SIDES; i++) {
        if (control->children[i].fd >= 0)
            close(control->children[i].fd);
    }
    for (int i = 0; i < DEMO_SIDES; i++) {
        if (control->children[i].pid > 0)
            child_reap(&control->children[i]);
    }
    if (control->gauge != NULL)
        munmap(control->gauge, sizeof *control->gauge);
}

void demo_control_order(struct demo_control *control, enum demo_who who, enum demo_what what,
                        uint32_t step) {
    struct demo_child *child = &control->children[who];
    struct demo_order order = {.what = what, .step = step};

    if (what == DEMO_BEGIN)
        child->is_new = false;
    child->is_busy = true;
    child->has_died = false;
    /* If it is dead, its socket's end will say so. */
    (void)!send(child->fd, &order, sizeof order, MSG_NOSIGNAL);
}

/* The socket of a side has ended: it is dead. Starts another. */
static enum demo_outcome child_bury(struct demo_control *control, enum demo_who who) {
    struct demo_child *child = &control->children[who];
    int status = 0;

    close(child->fd);
    child->fd = -1;
    waitpid(child->pid, &status, 0);
    child->pid = -1;
    child->has_died = true;
    atomic_store(&control->gauge->held_bytes[who], 0);
    control->kills++;
    control->unasked_kills += !child->is_doomed;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        sentence_set(&control->why, "the %s ended by itself (%s %d)", demo_who_name(who),
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    else if (control->unasked_kills > UNASKED_KILLS_MOST)
        sentence_set(&control->why, "the %s was killed again and again", demo_who_name(who));
    else if (child_start(control, who))
        return DEMO_DONE;
    return DEMO_FAILED;
}

/* Takes a reply, or notices a death. */
static enum demo_outcome child_hear(struct demo_control *control, enum demo_who who) {
    struct demo_child *child = &control->children[who];
    ssize_t got = recv(child->fd, &child->reply, sizeof child->reply, MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return DEMO_DONE;
    if (got != sizeof child->reply)
        return child_bury(control, who);
    if (child->is_doomed) /* it was quicker than its death, which is still to come */
        return DEMO_DONE;
    child->is_busy = false;
    if (child->reply.status == 0)
        return DEMO_DONE;
    sentence_set(&control->why, "the %s: %.400s", demo_who_name(who), child->reply.why.text);
    return DEMO_FAILED;
}

static bool is_anyone_busy(const struct demo_control *control) {
    return control->children[DEMO_TRAINER].is_busy || control->children[DEMO_ROLLOUT].is_busy;
}

/* Listens for at most `wait_ms`. */
static enum demo_outcome hear_all(struct demo_control *control, int wait_ms) {
    enum demo_outcome outcome = DEMO_DONE;
    struct pollfd polls[DEMO_SIDES];

    for (int i = 0; i < DEMO_SIDES; i++)
        polls[i] = (struct pollfd){.fd = control->children[i].fd, .events = POLLIN};
    if (poll(polls, DEMO_SIDES, wait_ms) <= 0)
        return DEMO_DONE;
    for (int i = 0; i < DEMO_SIDES && outcome == DEMO_DONE; i++) {
        if (polls[i].revents != 0)
            outcome = child_hear(control, (enum demo_who)i);
    }
    return outcome;
}

/* Whoever is asked and stands still (SIGSTOP, Ctrl-Z of one process) would be waited for without
 * end. Where the supervisor stood still, too, the time does not count. */
static enum demo_outcome stopped_look(struct demo_control *control) {
    uint64_t now = monotonic_ns(), passed = now - control->looked_ns;

    control->looked_ns = now;
    for (int i = 0; i < DEMO_SIDES; i++) {
        struct demo_child *child = &control->children[i];
        siginfo_t info = {.si_pid = 0};

        if (!child->is_busy || child->pid < 0 ||
            waitid(P_PID, (id_t)child->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            child->stopped_ns = 0;
        else
            child->stopped_ns += passed < NS_PER_MS * PASS_MS * 2 ? passed : 0;
        if (child->stopped_ns > STOPPED_MOST_MS * NS_PER_MS) {
            sentence_set(&control->why, "the %s (pid %d) is stopped and does not go on",
                         demo_who_name((enum demo_who)i), (int)child->pid);
            return DEMO_FAILED;
        }
    }
    return DEMO_DONE;
}

/* How long to listen: until the next pass, or the moment of the kill. */
static int listen_ms(const struct demo_kill *kill, bool is_killed) {
    uint64_t now = monotonic_ns();

    if (is_killed || kill->at_ns >= now + PASS_MS * NS_PER_MS)
        return PASS_MS;
    return kill->at_ns <= now ? 0 : (int)((kill->at_ns - now) / NS_PER_MS);
}

enum demo_outcome demo_control_await(struct demo_control *control, const struct demo_kill *plan) {
    static const struct demo_kill nobody = {.who = DEMO_SIDES};
    const struct demo_kill *kill_plan = plan == NULL ? &nobody : plan;
    bool is_killed = kill_plan->who == DEMO_SIDES;
    enum demo_outcome outcome = DEMO_DONE;

    while (outcome == DEMO_DONE && (is_anyone_busy(control) || !is_killed)) {
        if (stop_signal_came())
            return DEMO_STOPPED;
        if (!is_killed && (monotonic_ns() >= kill_plan->at_ns || !is_anyone_busy(control))) {
            struct demo_child *child = &control->children[kill_plan->who];

            kill(child->pid, SIGKILL);
            child->is_doomed = child->is_busy = true;
            is_killed = true;
        }
        outcome = hear_all(control, listen_ms(kill_plan, is_killed));
        if (outcome == DEMO_DONE)
            outcome = stopped_look(control);
        if (control->passes != NULL)
            control->passes(control->argument);
    }
    return outcome;
}
