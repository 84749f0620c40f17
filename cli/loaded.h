/* SPDX-License-Identifier: Apache-2.0 */
/* Which files the loader has put into processes: of one that runs, or of all that a command starts.
 */
#ifndef CLI_LOADED_H
#define CLI_LOADED_H

#include <stdbool.h>
#include <stddef.h>

#include "say.h"

/* Whole paths, each once, in the order in which they came. */
struct loaded {
    char **paths;
    size_t count, room;
};

void loaded_free(struct loaded *loaded);

/* Of the process. False: *why says why not. */
bool loaded_of_process(unsigned long long pid, struct loaded *loaded, struct sentence *why);

/* Runs the command to its end, its output on stderr, and has the loader write into the folder what
 * it does there and in all its children. *status: the exit status, or 128 and the signal's number.
 * False: it was not run, or nothing could be read; *why says it, *status is as shells have it. */
bool loaded_of_command(char *const *argv, const char *folder, struct loaded *loaded, int *status,
                       struct sentence *why);

#endif
