/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last failure, and the texts of the codes. State: one record per thread. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct tg_error last;
static _Thread_local char system_text[80];

int tg__fail(int status, const char *format, ...) {
    int saved = errno;
    va_list args;

    last.status = status;
    last.native = status > TG_EFORMAT ? -status : 0;
    va_start(args, format);
    vsnprintf(last.text, sizeof last.text, format, args);
    va_end(args);
    errno = saved;
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
