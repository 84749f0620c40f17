/* SPDX-License-Identifier: Apache-2.0 */
#include "user_command.h"

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verb.h"

static int start(const struct user_command_params *params, posix_spawn_file_actions_t *actions,
                 pid_t *pid) {
    posix_spawnattr_t attributes;
    sigset_t defaults;
    short flags = POSIX_SPAWN_SETSIGDEF;
    int error = posix_spawnattr_init(&attributes);

    if (error != 0)
        return error;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    if (params->mask != NULL) {
        posix_spawnattr_setsigmask(&attributes, params->mask);
        flags |= POSIX_SPAWN_SETSIGMASK;
    }
    posix_spawnattr_setflags(&attributes, flags);
    error = posix_spawnp(pid, params->argv[0], actions, &attributes, params->argv, environ);
    posix_spawnattr_destroy(&attributes);
    return error;
}

int user_command_start(const struct user_command_params *params, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    if (error != 0)
        return error;
    if (params->is_to_stderr)
        error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (error == 0)
        error = start(params, &actions, pid);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

int user_command_status(int end) {
    return WIFSIGNALED(end) ? EXIT_SIGNALLED + WTERMSIG(end) : WEXITSTATUS(end);
}

int user_command_status_unstarted(int error) {
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}
