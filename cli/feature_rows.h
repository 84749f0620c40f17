/* SPDX-License-Identifier: Apache-2.0 */
/* What works with which versions: the Python package's own table, compiled in when the command is
 * built (tools/feature-table). */
#ifndef CLI_FEATURE_ROWS_H
#define CLI_FEATURE_ROWS_H

#include <stdbool.h>
#include <stddef.h>

enum feature_state { FEATURE_WORKS, FEATURE_OBSERVES, FEATURE_REFUSED };

/* Texts are "" where the row says nothing. */
struct feature {
    const char *name;
    const char *program; /* "": any */
    const char *since;   /* the first version of the program that it holds for */
    const char *until;   /* the first that it no longer holds for */
    const char *engine;
    const char *where; /* what else must hold */
    enum feature_state state;
    const char *reason;
};

extern const struct feature features[];
extern const size_t feature_count;

/* "works", "observe only", "refused" */
const char *feature_state_text(enum feature_state state);

/* Versions of a program that Tidegate has seams in. */
struct program_versions {
    const char *oldest;       /* with seams */
    const char *newest_tried; /* later ones work as far as nothing has changed */
    const char *entry_points; /* from here on the package is found by itself */
};

/* NULL: the table does not know the program. */
const struct program_versions *program_versions_find(const char *program);

/* Whether version a is older than b: their numbers count, "0.9.0.dev1" is 0.9.0. */
bool version_is_older(const char *a, const char *b);

/* Whether the row speaks of this version of its program. */
bool feature_holds(const struct feature *feature, const char *version);

#endif
