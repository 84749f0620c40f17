/* SPDX-License-Identifier: Apache-2.0 */
/* The Python package that belongs to this command, and lists in the environment. */
#ifndef CLI_PACKAGE_H
#define CLI_PACKAGE_H

#include <stdbool.h>
#include <stddef.h>

#define PACKAGE_BYTES 4096

/* Finds the package beside the command: in the source tree that it was built in, or where the same
 * wheel put both. folder: PACKAGE_BYTES, the folder "tidegate" itself. False: there is none. */
bool package_find(char *folder);

/* The library of the build that the command is of, PACKAGE_BYTES. False: it does not lie there, as
 * where both were installed. */
bool package_library(char *library);

/* Appends an item to the list in an environment variable, unless it is in it. False: no memory. */
bool environment_append(const char *variable, char separator, const char *item);

#endif
