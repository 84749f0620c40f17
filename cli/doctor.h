/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `tidegate doctor`, what each of them finds, and the two ways of telling it. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <stdbool.h>

#include <tidegate/device.h>

#include "feature_rows.h"
#include "packages.h"
#include "place.h"
#include "say.h"

struct json_t;

/* Skipped: what it needs is not there, and has a line of its own. */
enum finding_state { FINDING_OK, FINDING_WARN, FINDING_BAD, FINDING_SKIPPED };

struct finding {
    enum finding_state state;
    struct sentence text;
    struct sentence advice;  /* what turns it ok; "" where it is ok, or skipped */
    struct sentence command; /* the advice as a line for a shell; "": it is not for a shell */
};

struct doctor {
    const char *asked_device; /* --device; NULL: the GPUs */
    const char *asked_python; /* --python or NULL */
    char place[PLACE_BYTES];
    char scratch[PLACE_BYTES + 32]; /* a directory in or beside the place; "": there is none */
    struct sentence scratch_why;
    struct tg_device *device; /* NULL: there is none */
    struct sentence device_why;
    bool has_python;
    struct packages packages;
    struct sentence python_why;
};

enum {
#define CHECK(name, summary) CHECK_##name,
#include "doctor_checks.def"
#undef CHECK
    CHECK_COUNT
};

typedef void doctor_check_fn(struct doctor *doctor, struct finding *finding);

#define CHECK(name, summary) doctor_check_fn doctor_##name;
#include "doctor_checks.def"
#undef CHECK

/* What a check finds; and, where it is not ok, what to do. command: a line for a shell that does
 * it, NULL or "". */
__attribute__((format(printf, 3, 4))) void finding_set(struct finding *finding,
                                                       enum finding_state state,
                                                       const char *format, ...);
__attribute__((format(printf, 3, 4))) void finding_advise(struct finding *finding,
                                                          const char *command,
                                                          const char *format, ...);

/* A command with a path in single quotes; "" where the path has one itself. */
void command_of_path(struct sentence *command, const char *before, const char *path,
                     const char *after);

const char *finding_state_text(enum finding_state state);

/* What to do, on a line of its own; nothing where there is no advice. */
void finding_advice_print(const struct finding *finding, const char *indent);

/* Adds its fields to an object: as json_put. */
int finding_json_put(struct json_t *object, const struct finding *finding);

/* Whether the row speaks of a program that is installed, and of its version and engine. */
bool doctor_feature_applies(const struct doctor *doctor, const struct feature *feature);

void doctor_text_print(const struct doctor *doctor, const struct finding findings[CHECK_COUNT]);
/* False: no memory. */
bool doctor_json_print(const struct doctor *doctor, const struct finding findings[CHECK_COUNT]);

const char *check_name(unsigned check);

#endif
