/* SPDX-License-Identifier: Apache-2.0 */
/* A growing list of texts that it owns: the notes of a run, or the paths of a folder. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include <stdbool.h>
#include <stddef.h>

struct texts {
    char **items;
    size_t count, room;
};

/* False: no memory, and nothing is added. */
__attribute__((format(printf, 2, 3))) bool texts_add(struct texts *texts, const char *format, ...);

/* Adds the text and says it on stderr, too. */
__attribute__((format(printf, 2, 3))) bool texts_say(struct texts *texts, const char *format, ...);

void texts_free(struct texts *texts);

#endif
