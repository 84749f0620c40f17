/* SPDX-License-Identifier: Apache-2.0 */
/* A file that others read at any time: what is there is whole, the old one or the new one. It is
 * written beside its place under another name and then renamed. */
#ifndef CLI_REPLACED_FILE_H
#define CLI_REPLACED_FILE_H

#include <stdbool.h>
#include <stdio.h>

struct replaced_file {
    FILE *out;  /* write here */
    char *path; /* of the file, through links; owned */
    char *made; /* the name meanwhile; owned */
};

/* False: it could not be made, or what has the name is no file; said. */
bool replaced_file_open(struct replaced_file *file, const char *path);

/* Puts it into its place. False: not written, and the old one is as it was; said. */
bool replaced_file_close(struct replaced_file *file);

#endif
