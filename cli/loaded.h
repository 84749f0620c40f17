/* SPDX-License-Identifier: Apache-2.0 */
/* Which files the loader has put into processes: of one that runs, or of all that a command starts.
 */
#ifndef CLI_LOADED_H
#define CLI_LOADED_H

#include <stdbool.h>

#include "say.h"
#include "texts.h"

/* Both give whole paths, each once, in the order in which they came; the caller frees them, also
 * after a failure. */

/* Of the process. False: *why says why not. */
bool loaded_of_process(unsigned long long pid, struct texts *loaded, struct sentence *why);

/* Runs the command to its end, its output on stderr, and has the loader write into the folder what
 * it does there and in all its children. *status: the exit status, or 128 and the signal's number.
 * False: it was not run, or nothing could be read; *why says it, *status is as shells have it. */
bool loaded_of_command(char *const *argv, const char *folder, struct texts *loaded, int *status,
                       struct sentence *why);

#endif
