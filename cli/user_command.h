/* SPDX-License-Identifier: Apache-2.0 */
/* A command of the user's that a verb runs: started, and its end told, as shells do. */
#ifndef CLI_USER_COMMAND_H
#define CLI_USER_COMMAND_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct user_command_params {
    char *const *argv;    /* found by PATH */
    const sigset_t *mask; /* the signals that it blocks; NULL: those of this process */
    bool is_to_stderr;    /* its stdout is not the verb's answer */
};

/* That this process ignores SIGPIPE is not for the command. 0, or the error of starting it. */
int user_command_start(const struct user_command_params *params, pid_t *pid);

/* The exit status for an end as waitpid has it: 128 and the signal's number where one ended it. */
int user_command_status(int end);

/* The exit status for an error of starting it. */
int user_command_status_unstarted(int error);

#endif
