/* SPDX-License-Identifier: Apache-2.0 */
#include "programs.h"

#include <string.h>

#include "options.h"
#include "say.h"

static const char *const names[PROGRAM_COUNT] = {
#define PROGRAM(name, options, plugins, is_lenient) #name,
#include "programs.def"
#undef PROGRAM
};

const char *program_name(enum program program) {
    return names[program];
}

bool program_find(const char *name, size_t length, enum program *program) {
    const char *nearest;
    char given[64];

    for (size_t i = 0; i < PROGRAM_COUNT; i++) {
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) {
            *program = (enum program)i;
            return true;
        }
    }
    if (length >= sizeof given)
        length = sizeof given - 1;
    memcpy(given, name, length);
    given[length] = '\0';
    nearest = option_nearest(given, names, PROGRAM_COUNT);
    /* Of so few names the first is worth telling, however far it is. */
    say("there are no seams for '%s'; maybe: %s?", given, nearest == NULL ? names[0] : nearest);
    return false;
}
