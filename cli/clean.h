/* SPDX-License-Identifier: Apache-2.0 */
/* Names come from files that anybody may have written. Before they are shown, bytes that are not
 * UTF-8 and characters that could move a cursor, end a line or turn the direction of writing are
 * replaced by U+FFFD. */
#ifndef CLI_CLEAN_H
#define CLI_CLEAN_H

#include <stddef.h>
#include <stdio.h>

/* At most `most` characters of a text, made harmless; "..." stands for a longer rest. The caller
 * frees it. NULL: no memory. */
char *clean_copy(const char *text, size_t most);

/* Prints the same. */
void clean_print(FILE *out, const char *text, size_t most);

#endif
