/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a command line means: those named, and those in the folders named. */
#ifndef CLI_COLLECT_H
#define CLI_COLLECT_H

#include <stdbool.h>
#include <stddef.h>

#include "texts.h"

struct collected_file {
    char *path;     /* as given, or the folder as given, '/' and the way from there */
    bool is_stream; /* a pipe or standard input: can be read once only */
};

/* In the order given; those of one folder sorted, step9 before step10. */
struct collected {
    struct collected_file *files;
    size_t count, room;
    void *seen; /* devices and inodes of what is in the list, and of folders entered */
};

/* Adds what a path means: a folder's snapshots (see layout_counts) with those of all folders in it,
 * else the file itself whatever its name. A file that is in the list already, under whatever name,
 * is not added again. What cannot be read is said and noted. False: no memory. */
bool collect_path(struct collected *collected, const char *path, struct texts *notes);

void collected_free(struct collected *collected);

#endif
