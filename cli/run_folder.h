/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of one run, named to all its processes by TIDEGATE_RUN.
 *
 * A process in which a seam became active appends one line to the file "seams" in it, with a single
 * write: its pid, a space, the program's name ("4711 verl"); what follows another space is for
 * people. It never makes the file: where it is missing, the run is over or on another machine. The
 * lines outlive their writers, so that the run can tell at its end what was never active. */
#ifndef CLI_RUN_FOLDER_H
#define CLI_RUN_FOLDER_H

#include <stdbool.h>

#include "programs.h"

#define RUN_FOLDER_BYTES 1024
#define RUN_INSIDE_BYTES (RUN_FOLDER_BYTES + 32) /* of what lies in it */

struct run_folder {
    char path[RUN_FOLDER_BYTES]; /* empty: none */
};

/* Makes the folder, for this user alone, with no seam in it. False: nowhere, which is said. */
bool run_folder_make(struct run_folder *folder);

/* Makes PATH/python/tidegate lead to the package's own folder, and answers PATH/python
 * (RUN_INSIDE_BYTES): a folder for PYTHONPATH that brings nothing but the package. False: it cannot
 * be made, which is said. */
bool run_folder_link(const struct run_folder *folder, const char *package, char *python);

/* Sets the flag of each program that some process told of, and clears the others. */
void run_folder_seams(const struct run_folder *folder, bool is_active[PROGRAM_COUNT]);

void run_folder_remove(const struct run_folder *folder);

#endif
