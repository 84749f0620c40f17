/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_look.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/device.h>
#include <tidegate/error.h>

#include "stop_signal.h"

static int opened_look(struct tg_device *device, struct demo_look *look) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_device_info info;
    int status = ops->info(device, &info);

    if (status == 0)
        status = ops->memory(device, &look->room.free_bytes, &look->room.total_bytes);
    if (status != 0)
        return status;
    look->room.granule_bytes = info.granule_bytes;
    look->is_direct = (info.can & TG_DEVICE_DIRECT) != 0;
    return look->is_direct ? 0 : demo_speed_of_device(device, &look->room, &look->speed);
}

static int look_open(const char *uri, struct demo_look *look) {
    struct tg_device *device;
    int status = tg_device_open(uri, &device);

    if (status != 0)
        return status;
    status = opened_look(device, look);
    tg_device_close(device);
    return status;
}

static int look_choose(const char *uri, struct demo_look *look) {
    (void)uri; /* "auto" */
    return tg_device_choose(look->uri, sizeof look->uri);
}

/* How a child ended that filled nothing in. */
static void death_note(struct demo_look *look, int ended) {
    look->status = -ECHILD;
    sentence_set(&look->why, "the process that looked at it ended by itself (%s %d)",
                 WIFSIGNALED(ended) ? "signal" : "status",
                 WIFSIGNALED(ended) ? WTERMSIG(ended) : WEXITSTATUS(ended));
}

/* A driver may take its time, and whoever asks for the end is not to wait for it. */
static void look_await(pid_t pid, int *ended) {
    while (waitpid(pid, ended, 0) < 0 && errno == EINTR) {
        if (stop_signal_came())
            kill(pid, SIGKILL);
    }
}

static bool look_in_child(int (*look_fill)(const char *, struct demo_look *), const char *uri,
                          struct demo_look *look) {
    struct demo_look *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended = 0;
    pid_t pid;

    if (shared == MAP_FAILED) {
        say_no_memory();
        return false;
    }
    pid = fork();
    if (pid == 0) {
        stop_signal_ignore();
        shared->status = look_fill(uri, shared);
        if (shared->status != 0)
            sentence_set(&shared->why, "%s", tg_last_error()->text);
        _exit(0);
    }
    if (pid < 0)
        say("no process to look at the device with: %s", strerror(errno));
    else
        look_await(pid, &ended);
    *look = *shared;
    munmap(shared, sizeof *shared);
    if (pid > 0 && ended != 0)
        death_note(look, ended);
    return pid > 0 && (ended == 0 || !stop_signal_came());
}

bool demo_look_at(const char *uri, struct demo_look *look) {
    return look_in_child(look_open, uri, look);
}

bool demo_look_choose(struct demo_look *look) {
    return look_in_child(look_choose, "auto", look);
}
