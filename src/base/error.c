/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last failure, and the texts of the codes. State: one record per thread. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct tg_error last;
static _Thread_local char system_text[80];

/* What makes a sentence too long is a path in it, and what matters comes behind: so it is the
 * middle that goes. */
__attribute__((format(printf, 1, 0))) static void say_both_ends(const char *format,
                                                                va_list args) {
    static const char gap[] = "...";
    const size_t head = sizeof last.text / 3, tail = sizeof last.text - head - sizeof gap;
    char *whole;
    int length = vasprintf(&whole, format, args);

    if (length < 0)
        return;
    snprintf(last.text + head, sizeof last.text - head, "%s%s", gap,
             whole + (size_t)length - tail);
    free(whole);
}

__attribute__((format(printf, 3, 0)))
static int fail(int status, int native, const char *format, va_list args) {
    int saved = errno;
    va_list again;

    last.status = status;
    last.native = native;
    va_copy(again, args);
    if (vsnprintf(last.text, sizeof last.text, format, args) >= (int)sizeof last.text)
        say_both_ends(format, again);
    va_end(again);
    errno = saved;
    return status;
}

int tg__fail(int status, const char *format, ...) {
    va_list args;

    va_start(args, format);
    fail(status, status > TG_EFORMAT ? -status : 0, format, args);
    va_end(args);
    return status;
}

int tg__fail_native(int status, int native, const char *format, ...) {
    va_list args;

    va_start(args, format);
    fail(status, native, format, args);
    va_end(args);
    return status;
}

int tg__fail_memory(void) {
    return tg__fail(-ENOMEM, "not enough memory");
}

void tg__fail_as(const struct tg_error *error) {
    last = *error;
}

const struct tg_error *tg_last_error(void) {
    return &last;
}

const char *tg_error_text(int status) {
    switch (status) {
    case 0:
        return "no error";
#define TG_ERROR(name, value, text) \
    case name:                      \
        return text;
#include <tidegate/errors.def>
#undef TG_ERROR
    default:
        /* The GNU form: the text may be static and the buffer unused. */
        return strerror_r(-status, system_text, sizeof system_text);
    }
}
