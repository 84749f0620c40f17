/* SPDX-License-Identifier: Apache-2.0 */
/* Which tag a thread allocates from when the call that allocates names none: torch's caching
 * allocator asks a pluggable allocator for segments, and knows nothing of tags.
 *
 * A scope is the thread's own: other threads see nothing of it. It ends in the thread that began
 * it, and before its memory is closed. */
#ifndef TIDEGATE_SCOPE_H
#define TIDEGATE_SCOPE_H

#include <sys/types.h>

#include <tidegate/memory.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TG_SCOPE_DEPTH = 64 }; /* of scopes inside each other, in one thread */

/* From now on this thread allocates from the tag, until the scope is popped; scopes nest. Errors:
 * -EINVAL (NULL), TG_EFULL (too many inside each other), TG_EFORKED, TG_EBROKEN. */
TG_API TG_MUST_USE int tg_scope_push(struct tg_tag *tag);
/* Ends the innermost scope; the one around it is back. Errors: -EINVAL (there is none). */
TG_API TG_MUST_USE int tg_scope_pop(void);

/* The pair for torch.cuda.memory.CUDAPluggableAllocator, under a MemPool: the pool turns a NULL
 * into torch's own out-of-memory path. Neither prints, throws, or waits for other tenants; why an
 * alloc failed is in tg_last_error of the thread.
 *
 * alloc: a block of the tag of the thread's innermost scope. NULL without a scope, where `device`
 * (torch's number of it) is not the tag's, and where tg_tag_alloc fails: also while the tag sleeps.
 * Of 0 bytes NULL, which is no failure. `stream` says nothing: a block is nobody's work yet. */
TG_API void *tg_torch_alloc(ssize_t size_bytes, int device, void *stream);
/* free: of a block that alloc gave, in any thread and in every state of its tag. The memory is used
 * again only after all that was given to the device before has ended, whatever the stream: what
 * another stream does with the block is then harmless, as it is with the driver's own free. For
 * NULL, and for what is no block, nothing happens. */
TG_API void tg_torch_free(void *block, ssize_t size_bytes, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif
