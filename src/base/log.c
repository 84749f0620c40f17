/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings: the library prints only what its user must know and no status can carry, each once, to
 * stderr. State: the caller's flag. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void tg__warn_once(atomic_flag *said, const char *format, ...) {
    static const char prefix[] = "tidegate: ";
    int saved = errno, length;
    char line[400];
    va_list args;

    if (atomic_flag_test_and_set(said))
        return;
    length = snprintf(line, sizeof line, "%s", prefix);
    va_start(args, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, args);
    va_end(args);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    /* One write: lines of several processes do not mix. Nothing can be done where it fails. */
    (void)!write(STDERR_FILENO, line, (size_t)length);
    errno = saved;
}
