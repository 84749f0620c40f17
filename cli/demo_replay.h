/* SPDX-License-Identifier: Apache-2.0 */
/* Where the demo's plan comes from: a recording of the user's, or the one inside the command. */
#ifndef CLI_DEMO_REPLAY_H
#define CLI_DEMO_REPLAY_H

#include "demo_plan.h"

/* Reads the snapshot at `path`, "-" for standard input, NULL for the recording that the command
 * brings, and makes the plan. False: said; nothing is to be freed. */
bool demo_replay_load(const char *path, struct demo_plan *plan);

/* What the first line calls it: the file's name without what tells its kind; `room` bytes. */
void demo_replay_name(const char *path, char *name, size_t room);

#endif
