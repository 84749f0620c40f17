/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "clean.h"

/* A sentence may quote a path; what is longer is no path. */
#define SHOWN_MOST 8192

void sentence_set(struct sentence *sentence, const char *format, ...) {
    va_list args;

    va_start(args, format);
    vsnprintf(sentence->text, sizeof sentence->text, format, args);
    va_end(args);
}

void say_no_memory(void) {
    fputs("tidegate: not enough memory\n", stderr);
}

void say(const char *format, ...) {
    char *text, *shown;
    va_list args;
    int length;

    va_start(args, format);
    length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        say_no_memory();
        return;
    }
    shown = clean_copy(text, SHOWN_MOST);
    if (shown == NULL)
        say_no_memory();
    else
        fprintf(stderr, "tidegate: %s\n", shown);
    free(shown);
    free(text);
}
