/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last failure, and the texts of the codes. State: one record per thread. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct tg_error last;
static _Thread_local char system_text[80];

static int fail(int status, int native, const char *format, va_list args) {
    int saved = errno;

    last.status = status;
    last.native = native;
    vsnprintf(last.text, sizeof last.text, format, args);
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
