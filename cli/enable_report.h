/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate enable` tells, and the two ways of telling it. */
#ifndef CLI_ENABLE_REPORT_H
#define CLI_ENABLE_REPORT_H

#include <stdbool.h>

#include "feature_rows.h"
#include "packages.h"

enum enable_way {
    ENABLE_UNKNOWN,    /* the program is not there: what each version needs */
    ENABLE_NONE,       /* it is older than all that have seams */
    ENABLE_MODULE,     /* it is told to import the package, too */
    ENABLE_ENTRY_POINT /* it finds the package by itself */
};

struct enable_report {
    const char *program;
    const char *found; /* its version there, as packages has it */
    bool is_on_ray;    /* its workers take their environment from the command, not from the shell */
    const char *options; /* of its own, that it needs besides, with blanks between them; or "" */
    const char *mode;
    const struct program_versions *versions;
    enum enable_way way;
    bool is_python_there;
    struct packages packages;
};

#define ENABLE_WORDS_MOST 2

/* Writes the words to add for a way, and returns how many. */
size_t enable_words(const struct enable_report *report, enum enable_way way,
                    char words[ENABLE_WORDS_MOST][128]);

void enable_text_print(const struct enable_report *report);
/* False: no memory. */
bool enable_json_print(const struct enable_report *report);

#endif
