/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has of its own accord: one memory on each GPU, for programs that name none. It
 * is how a preload makes the allocations of a program that knows nothing of tags come from one.
 * Where a GPU is named by a number it is the driver's, among those that it shows to this process.
 *
 * A forked child has none of its parent's: TG_EFORKED. */
#ifndef TIDEGATE_PROCESS_H
#define TIDEGATE_PROCESS_H

#include <stdint.h>

#include <tidegate/memory.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The process's memory on a GPU: opened at the first call, lent until the process ends. It joins
 * the node's ledger as $TIDEGATE_NAME ("trainer"), $TIDEGATE_ROLE and the rank in $RANK or
 * $LOCAL_RANK; where the ledger cannot be used it is alone, and a line on stderr says so. Errors:
 * -EINVAL (no such number), TG_EFORKED, those of tg_device_open and tg_memory_open: the same at
 * every later call, since they are not tried again. */
TG_API TG_MUST_USE int tg_process_memory(int device, struct tg_memory **memory);

/* An allocation by code that knows no tags. */
struct tg_process_request {
    uint64_t size_bytes;
    int device;            /* which GPU it wants memory of */
    const char *usual_tag; /* of the process's memory, for threads in no scope; NULL: none. It is
                            * opened with backup on the host, and fill_none */
};

/* A block of the tag of the thread's innermost scope, or of the usual tag. *block NULL: no tag has
 * a say, and the caller goes on as without us: tg_process_serve said so, no scope and no usual tag,
 * the scope is on another GPU, 0 bytes, more than the device has, less than 1 MiB outside packed
 * tags (the driver puts thousands of those into one granule). Errors: those of tg_tag_alloc,
 * tg_process_memory and tg_tag_open. */
TG_API TG_MUST_USE int tg_process_alloc(const struct tg_process_request *request, void **block);
/* Whether a tag has a say (not 0, as at first) or none has (0), from now on and for all threads.
 * What is there already stays, and is freed as ever. Anybody may call it at any time. */
TG_API void tg_process_serve(int is_on);
/* Frees what begins at this address, in any thread, if it is a block of the process's memories or
 * of one that was ever in a scope; it is used again after all that was given to the device before
 * has ended. Errors: -EINVAL (it is none: nothing is freed), TG_EFORKED (it may be the parent's).
 * They leave tg_last_error as it was: whatever a program frees is asked about. */
TG_API TG_MUST_USE int tg_process_free(void *block);
/* The GPU of a block that tg_process_free would free. Errors: its own, which leave tg_last_error as
 * it was; -EINVAL where `device` is NULL. */
TG_API TG_MUST_USE int tg_process_find(const void *block, int *device);

/* Somebody sees the captures of this process begin and end, and counts in *open those under way;
 * *open lives as long as the process. While it is not 0, what would wait for all of a GPU's work
 * answers TG_ECAPTURE, and freed memory rests. NULL: nobody counts any more. */
TG_API void tg_process_captures(const int *open);

#ifdef __cplusplus
}
#endif

#endif
