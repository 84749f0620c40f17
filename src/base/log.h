/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says by itself: one line on stderr, once for each object that has cause. */
#ifndef TG_BASE_LOG_H
#define TG_BASE_LOG_H

#include <stdatomic.h>

/* Prints "tidegate: …" and a line's end to stderr, unless *said was set; sets it. Keeps errno and
 * the thread's last error. */
void tg__warn_once(atomic_flag *said, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
