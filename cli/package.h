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

/* The folder of the library that this command's package opens, PACKAGE_BYTES: that of
 * $TIDEGATE_LIBRARY, the build's, the wheel's, or where both were installed with the command.
 * False: none is found. */
bool package_library_folder(char *folder);

/* Lists of folders cannot hold every path, and have no way to quote one: false then, said. */
bool package_path_can_be_listed(const char *path);

/* Appends an item to the list in an environment variable, unless it is in it. False: no memory. */
bool environment_append(const char *variable, char separator, const char *item);

#endif
