/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate doctor --preload`: whether the preload's hooks hold over the runtimes that programs
 * here use, and what of a program they never see. */
#ifndef CLI_DOCTOR_PRELOAD_H
#define CLI_DOCTOR_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "doctor.h"
#include "package.h"
#include "preload_probe.h"

enum { PRELOAD_ORDER_MOST = 8 };

struct preload_call_tried {
    enum preload_outcome outcome;
    int code;                  /* what the runtime, or we, answered */
    char first[PACKAGE_BYTES]; /* whose function the call came to; "": the runtime has none */
};

struct preload_runtime {
    char path[PACKAGE_BYTES];
    int version; /* as the runtime has it, such as 12090; 0: it did not say */
    struct finding finding;
    char order[PRELOAD_ORDER_MOST][PACKAGE_BYTES]; /* who has a cudaMalloc */
    size_t order_count;
    struct preload_call_tried calls[PRELOAD_CALLS];
};

/* An object that the preload cannot stand before, or that cannot be looked at. */
struct preload_object {
    const char *path; /* of the list of what is loaded */
    struct sentence finding;
};

struct preload_report {
    char preload[PACKAGE_BYTES];
    struct finding finding; /* of all as a whole, where no runtime has one */
    struct preload_runtime *runtimes;
    size_t runtime_count;
    struct preload_object *objects;
    size_t object_count;
};

struct doctor_preload_params {
    const char *pid;      /* NULL: none */
    char *const *command; /* NULL: none */
    bool json;
};

const char *preload_call_what(unsigned call);
enum preload_outcome preload_call_expected(unsigned call);
bool preload_call_is_right(const struct preload_call_tried *tried, unsigned call);
const char *preload_outcome_text(enum preload_outcome outcome);

/* Has a child try all calls over a runtime, a path or a name that the loader knows. False: the
 * loader finds no such runtime. All else that can be wrong is the runtime's finding. */
bool preload_runtime_try(const char *runtime, const char *preload, struct preload_runtime *tried);

void doctor_preload_text_print(const struct preload_report *report);
bool doctor_preload_json_print(const struct preload_report *report);

/* Returns the exit status. */
int doctor_preload(struct doctor *doctor, const struct doctor_preload_params *params);

#endif
