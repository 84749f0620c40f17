/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: one thread of this process, from its first token on, that answers who opens our
 * blocks. A connection is an opener; with it all its leases end. When the process exits it answers
 * nobody any more, from the exit handlers on that were there before it. */
#ifndef TG_MEMORY_AGENT_H
#define TG_MEMORY_AGENT_H

#include <stdbool.h>
#include <stdint.h>

struct tg_memory;

/* Starts it, if it does not run. *id: by which openers find it. Errors: TG_EFORKED (it is the
 * parent's), -ENOMEM, -EAGAIN (no thread), the system's. */
int tg__agent_start(uint64_t *id);
/* Whether it is this process's, or that of the parent of this forked child. */
bool tg__agent_is_own(uint64_t id);
/* Leases that have ended up to now end before it returns, whether the thread has come to it or not:
 * an opener that closes, and then says so, is not found to have the block. Waits for nobody outside
 * this process. With none of the memory's locks but its turn. */
void tg__agent_look(void);
/* A memory that is out of the list of those that are asked is about to close: its leases end, and
 * none ends later. With none of its locks. */
void tg__agent_leave(struct tg_memory *memory);
/* When nobody has opened anything for so long since the first token, that is said once. */
extern _Atomic uint64_t tg__agent_patience_ms;

#endif
