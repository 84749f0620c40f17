/* SPDX-License-Identifier: Apache-2.0 */
/* The preload in a command's environment, for programs that know nothing of tags. */
#ifndef CLI_RUN_PRELOAD_H
#define CLI_RUN_PRELOAD_H

#include <stdbool.h>

/* Whether a tag can have this name; if not that is said. */
bool run_preload_check(const char *tag);

/* The preload that lies beside the library of this command, PACKAGE_BYTES. False: there is none,
 * which is said. */
bool run_preload_path(char *path);

/* Names the preload in LD_PRELOAD, behind all that is there: other hooks see every call as they
 * would without us. default_tag: where large device memory of threads in no scope comes from; NULL:
 * as the environment has it. keep_host: that tag keeps its host memory when it wakes; else as the
 * environment has it. False: the preload is not there, or its path cannot be handed on,
 * which is said. */
bool run_preload_hand_on(const char *default_tag, bool keep_host);

#endif
