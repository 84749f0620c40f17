/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of other processes that this one has mapped. */
#ifndef TG_MEMORY_IMPORT_H
#define TG_MEMORY_IMPORT_H

#include "memory/state.h"
#include "memory/token.h"

/* On the memory's device; the rest as tg_ipc_open. */
int tg__import_open(struct tg_memory *memory, const struct tg__token *token, void **addr);
/* Takes further steps with what is on its way out of this memory's device. With its lock. */
void tg__imports_retry(struct tg_memory *memory);
/* The memory has new peers, which may have what is mapped there. Errors: the device's, for some. */
int tg__imports_access(struct tg_memory *memory);
/* The memory is closed: what it has goes. With its lock. */
void tg__imports_drop(struct tg_memory *memory);

#endif
