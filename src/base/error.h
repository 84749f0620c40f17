/* SPDX-License-Identifier: Apache-2.0 */
/* How the library's rooms report a failure. The function that first decides which failure it is
 * calls tg__fail; those above it only pass the status on. */
#ifndef TG_BASE_ERROR_H
#define TG_BASE_ERROR_H

#include <tidegate/error.h>

/* Fills this thread's record and returns `status`, which is negative. Keeps errno. The text is
 * printf's; too long, it is cut. */
int tg__fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, with the code of the driver that refused. */
int tg__fail_native(int status, int native, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed allocation: -ENOMEM. */
int tg__fail_memory(void);

/* Sets the record to one that was copied before something else could fail. */
void tg__fail_as(const struct tg_error *error);

#endif
