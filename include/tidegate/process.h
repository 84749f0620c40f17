/* SPDX-License-Identifier: Apache-2.0 */
/* What this process has of its own accord: on each GPU one device, one tenant of the node's ledger,
 * and one memory, whoever asks first. It is how a preload makes the allocations of a program that
 * knows nothing of tags come from one, and how all else in the process sleeps and wakes with them.
 * Where a GPU is named by a number it is the driver's, among those that it shows to this process.
 *
 * Each is opened at the first call and lent until the process ends; what could not be opened is not
 * tried again, and has the same answer at every later call. A forked child has none of its
 * parent's: TG_EFORKED. */
#ifndef TIDEGATE_PROCESS_H
#define TIDEGATE_PROCESS_H

#include <stdint.h>

#include <tidegate/memory.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device. Errors: -EINVAL (no such number), TG_EFORKED, those of tg_device_open. */
TG_API TG_MUST_USE int tg_process_device(int device, struct tg_device **opened);

/* Who the process is, instead of what the environment says ($TIDEGATE_NAME or "trainer",
 * $TIDEGATE_ROLE): heard until it has joined the ledger on some GPU. role NULL: none. Errors:
 * -EINVAL (what no tenant can be called), -EALREADY (it has joined as another, and stays that),
 * TG_EFORKED. */
TG_API TG_MUST_USE int tg_process_introduce(const char *name, const char *role);
/* The process in the node's ledger, with the rank in $RANK or $LOCAL_RANK. Where the ledger cannot
 * be used a line on stderr says so, once. Errors: as tg_process_device, those of tg_ledger_open and
 * tg_ledger_join. */
TG_API TG_MUST_USE int tg_process_tenant(int device, struct tg_tenant **tenant);

/* The memory, of that tenant, or alone where there is none. Errors: as tg_process_device, those of
 * tg_memory_open. */
TG_API TG_MUST_USE int tg_process_memory(int device, struct tg_memory **memory);
/* On which GPUs it is open, a bit for each number. Takes no lock. 0 in a forked child. */
TG_API uint64_t tg_process_gpus(void);

/* An allocation by code that knows no tags. */
struct tg_process_request {
    uint64_t size_bytes;
    int device;            /* which GPU it wants memory of */
    const char *usual_tag; /* of the process's memory, for threads in no scope; NULL: none */
};

/* The usual tag of that name: opened with backup on the host, and fill_none; with keep_host where
 * $TIDEGATE_DEFAULT_KEEP_HOST was 1 at the first call. Errors: those of tg_process_memory and
 * tg_tag_open. */
TG_API TG_MUST_USE int tg_process_tag(int device, const char *usual_tag, struct tg_tag **tag);

/* A block of the tag of the thread's innermost scope, or of the usual tag. *block NULL: no tag has
 * a say, and the caller goes on as without us: tg_process_serve said so, no scope and no usual tag,
 * the scope is on another GPU, 0 bytes, more than the device has, less than 1 MiB outside packed
 * tags (the driver puts thousands of those into one granule). Errors: those of tg_tag_alloc and
 * tg_process_tag. */
TG_API TG_MUST_USE int tg_process_alloc(const struct tg_process_request *request, void **block);
/* Whether a tag has a say (not 0, as at first) or none has (0), from now on and for all threads.
 * What is there already stays, and is freed as ever. Anybody may call it at any time. */
TG_API void tg_process_serve(int is_on);
/* Frees what begins at this address, in any thread, if it is a block of the process's memories or
 * of one that was ever in a scope; it is used again after all that was given to the device before
 * has ended. Errors: -EINVAL (it is none: nothing is freed), TG_EFORKED (it may be the parent's).
 * They leave tg_last_error as it was: whatever a program frees is asked about. */
TG_API TG_MUST_USE int tg_process_free(void *block);
/* The same where nothing that was given to the block's GPU uses it any more, as behind a wait for
 * all of that: the memory is the GPU's again when this returns. Errors: the same. */
TG_API TG_MUST_USE int tg_process_free_idle(void *block);
/* The GPU of a block that tg_process_free would free. Errors: its own, which leave tg_last_error as
 * it was; -EINVAL where `device` is NULL. */
TG_API TG_MUST_USE int tg_process_find(const void *block, int *device);

/* Who holds a GPU, for whoever has been refused memory there. */
struct tg_process_node {
    struct tg_node_view view; /* as of tg_ledger_read; without the ledger it has this GPU alone */
    uint32_t place;           /* the GPU's among view.devices, as the driver says it now */
    uint32_t self;            /* this process's tg_tenant_id; 0: it is not in the ledger */
    int32_t rank;             /* -1: none */
};

/* Waits for nobody. About 100 KB: allocate it. Errors: as tg_process_device, the device's. */
TG_API TG_MUST_USE int tg_process_look(int device, struct tg_process_node *node);

/* Somebody sees the captures of this process begin and end, and counts in *open those under way;
 * *open lives as long as the process. While it is not 0, what would wait for all of a GPU's work
 * answers TG_ECAPTURE, and freed memory rests. NULL: nobody counts any more. */
TG_API void tg_process_captures(const int *open);

#ifdef __cplusplus
}
#endif

#endif
