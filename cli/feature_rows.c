/* SPDX-License-Identifier: Apache-2.0 */
#include "feature_rows.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* In angle brackets: it is made in the build folder. */
const struct feature features[] = {
#define PROGRAM_VERSIONS(program, oldest, newest_tried, entry_points)
#define FEATURE(name, program, since, until, engine, where, state, reason)                         \
    {name, program, since, until, engine, where, FEATURE_##state, reason},
#include <feature_rows.def>
#undef FEATURE
#undef PROGRAM_VERSIONS
};

const size_t feature_count = sizeof features / sizeof features[0];

static const struct {
    const char *program;
    struct program_versions versions;
} programs[] = {
#define PROGRAM_VERSIONS(program, oldest, newest_tried, entry_points)                              \
    {program, {oldest, newest_tried, entry_points}},
#define FEATURE(name, program, since, until, engine, where, state, reason)
#include <feature_rows.def>
#undef FEATURE
#undef PROGRAM_VERSIONS
};

const char *feature_state_text(enum feature_state state) {
    static const char *const texts[] = {"works", "observe only", "refused"};

    return texts[state];
}

const struct program_versions *program_versions_find(const char *program) {
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (strcmp(programs[i].program, program) == 0)
            return &programs[i].versions;
    }
    return NULL;
}

/* The next number, and the text moved behind it and its dot; 0 behind the last one, so that 0.9 is
 * 0.9.0. */
static unsigned long number_next(const char **text) {
    unsigned long number = 0;
    char *end;

    if (!isdigit((unsigned char)**text)) {
        *text = "";
        return 0;
    }
    number = strtoul(*text, &end, 10);
    *text = *end == '.' ? end + 1 : "";
    return number;
}

bool version_is_older(const char *a, const char *b) {
    while (*a != '\0' || *b != '\0') {
        unsigned long left = number_next(&a), right = number_next(&b);

        if (left != right)
            return left < right;
    }
    return false;
}

bool feature_holds(const struct feature *feature, const char *version) {
    return (*feature->since == '\0' || !version_is_older(version, feature->since)) &&
           (*feature->until == '\0' || version_is_older(version, feature->until));
}
