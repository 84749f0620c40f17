/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "clean.h"
#include "doctor_preload.h"

enum { TEXT_MOST = 4096 };

#define INDENT "      "

static void print(const char *text) {
    clean_print(stdout, text, TEXT_MOST);
}

/* "ok    PATH: FINDING", with "CUDA 12.9, " or nothing before the finding. */
static void line_print(enum finding_state state, const char *path, const char *version,
                       const char *text) {
    printf("%-5s ", finding_state_text(state));
    print(path);
    printf(": %s", version);
    print(text);
    putchar('\n');
}

static void order_print(const struct preload_runtime *runtime) {
    fputs(INDENT "cudaMalloc is asked in turn of", stdout);
    for (size_t i = 0; i < runtime->order_count; i++) {
        fputs(i == 0 ? " " : ", ", stdout);
        print(runtime->order[i]);
    }
    putchar('\n');
}

static void call_print(const struct preload_call_tried *tried, unsigned call,
                       const char *preload) {
    bool is_right = preload_call_is_right(tried, call);

    printf("%-5s %-9s %s %s", is_right ? "" : "bad", preload_outcome_text(tried->outcome),
           preload_call_symbol(call), preload_call_what(call));
    if (tried->code != 0)
        printf(": %d", tried->code);
    if (!is_right && tried->outcome != preload_call_expected(call))
        printf(", and should be %s", preload_outcome_text(preload_call_expected(call)));
    if (tried->first[0] != '\0' && strcmp(tried->first, preload) != 0) {
        fputs("; first in ", stdout);
        print(tried->first);
    }
    putchar('\n');
}

static void runtime_print(const struct preload_runtime *runtime, const char *preload) {
    char version[32] = "";

    if (runtime->version > 0)
        snprintf(version, sizeof version, "CUDA %d.%d, ", runtime->version / 1000,
                 runtime->version % 1000 / 10);
    line_print(runtime->finding.state, runtime->path, version, runtime->finding.text.text);
    finding_advice_print(&runtime->finding, INDENT);
    if (runtime->order_count == 0)
        return;
    order_print(runtime);
    for (unsigned i = 0; i < PRELOAD_CALLS; i++)
        call_print(&runtime->calls[i], i, preload);
}

void doctor_preload_text_print(const struct preload_report *report) {
    line_print(report->finding.state, report->preload, "", report->finding.text.text);
    finding_advice_print(&report->finding, INDENT);
    for (size_t i = 0; i < report->runtime_count; i++)
        runtime_print(&report->runtimes[i], report->preload);
    for (size_t i = 0; i < report->object_count; i++)
        line_print(FINDING_WARN, report->objects[i].path, "", report->objects[i].finding.text);
}
