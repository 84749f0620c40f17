/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: functions return 0, or a negative code: -errno where the system said no, else one of
 * the TG_E... codes. The sentence behind the last failure of this thread is kept here. */
#ifndef TIDEGATE_ERROR_H
#define TIDEGATE_ERROR_H

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tg_error_code {
#define TG_ERROR(name, value, text) name = value,
#include <tidegate/errors.def>
#undef TG_ERROR
};

struct tg_error {
    int status;     /* what the failed function returned; 0: nothing has failed yet */
    int native;     /* errno or the driver's own code behind it, else 0 */
    char text[240]; /* one sentence without a trailing dot; for data with its byte offset */
};

/* The last failure of the calling thread. Never NULL; lent until this thread's next failure.
 * A function that succeeds leaves it as it was. */
TG_API const struct tg_error *tg_last_error(void);

/* What a code means, in a few words: of the table, else the system's; never NULL. Lent, static or
 * thread-local. */
TG_API const char *tg_error_text(int status);

#ifdef __cplusplus
}
#endif

#endif
