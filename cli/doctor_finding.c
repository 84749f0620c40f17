/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "doctor.h"

void finding_set(struct finding *finding, enum finding_state state, const char *format, ...) {
    va_list args;

    finding->state = state;
    va_start(args, format);
    vsnprintf(finding->text.text, sizeof finding->text.text, format, args);
    va_end(args);
}

void finding_advise(struct finding *finding, const char *command, const char *format, ...) {
    va_list args;

    va_start(args, format);
    vsnprintf(finding->advice.text, sizeof finding->advice.text, format, args);
    va_end(args);
    if (command != NULL)
        sentence_set(&finding->command, "%s", command);
}

void command_of_path(struct sentence *command, const char *before, const char *path,
                     const char *after) {
    command->text[0] = '\0';
    if (strchr(path, '\'') == NULL)
        sentence_set(command, "%s'%s'%s", before, path, after);
}

const char *finding_state_text(enum finding_state state) {
    static const char *const texts[] = {"ok", "warn", "bad", "skipped"};

    return texts[state];
}

const char *check_name(unsigned check) {
    static const char *const names[CHECK_COUNT] = {
#define CHECK(name, summary) #name,
#include "doctor_checks.def"
#undef CHECK
    };

    return names[check];
}
