/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that other processes of the same user open, by a token of 64 bytes: what the preload
 * answers with where a program uses the runtime's own handles of that size (doc/design/ipc.md).
 *
 * What can be opened is what tg_process_alloc gave, outside packed tags. The first token starts a
 * thread, the agent, which answers who opens; it ends with the process. A block that others have
 * open stays when its tag sleeps, and its memory stays when it is freed, until the last of them has
 * closed it or has died. All calls are thread-safe and keep errno. TG_EFORKED: the process is a
 * forked child, which has none of it; -EINVAL: a place or a token is NULL. */
#ifndef TIDEGATE_IPC_H
#define TIDEGATE_IPC_H

#include <tidegate/process.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TG_IPC_TOKEN_BYTES = 64 };

/* How every token begins. */
#define TG_IPC_MAGIC "tidegate"

/* The token of the block in which addr lies: always the same for one block, and never another
 * one's. Errors: -ENOENT (in none), -ENOTSUP (a packed tag's, or it was not made to be opened),
 * -ENOMEM, TG_EFORKED, the system's (no thread, no socket). */
TG_API TG_MUST_USE int tg_ipc_token(const void *addr, unsigned char token[TG_IPC_TOKEN_BYTES]);
/* Maps another process's block for this GPU, and for those that are its peers; the same pointer at
 * each further call, which is counted. Waits up to 10 s for the other process. Errors: -ENOENT (no
 * whole token), -ELOOP (a token of this process), -ESTALE (the block was freed, or its process has
 * ended), TG_EASLEEP (its tag sleeps), TG_EBUSY (no answer), -ENOMEM, TG_EFORKED, those of
 * tg_process_memory, the device's. */
TG_API TG_MUST_USE int tg_ipc_open(int device, const unsigned char token[TG_IPC_TOKEN_BYTES],
                                   void **addr);
/* Undoes one open; the last one unmaps, when this process's work on the device that was given
 * before has ended, and then lets the other process have its block back. Errors: -ENOENT (no open
 * gave this address), TG_EFORKED. */
TG_API TG_MUST_USE int tg_ipc_close(void *addr);
/* The same where nothing that was given to the device uses the block any more, as after a wait for
 * it: the other process has it back at once. */
TG_API TG_MUST_USE int tg_ipc_close_idle(void *addr);
/* The GPU for which an open gave this address. Errors: as tg_ipc_close. */
TG_API TG_MUST_USE int tg_ipc_find(const void *addr, int *device);

#ifdef __cplusplus
}
#endif

#endif
