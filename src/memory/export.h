/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of this process that others have: leases, and what they keep. A block with a lease is
 * kept: out of its tag's tables, with its chunk, so that no sleep sees it. All with the memory's
 * lock but those that say otherwise. */
#ifndef TG_MEMORY_EXPORT_H
#define TG_MEMORY_EXPORT_H

#include "memory/state.h"
#include "memory/token.h"

/* That one opener has one block. */
struct tg__lease {
    struct tg__lease *next;   /* of the block */
    struct tg__lease *beside; /* of the opener; the agent's */
    struct tg_memory *memory; /* NULL: it has closed; the agent's */
    struct tg__block *block;  /* under the memory's lock */
    uint64_t generation;
    pid_t pid; /* the opener's, for people; 0: it is not seen from here */
};

/* What is the block's of a token: addr, generation, size. Takes the lock. Errors: -ENOENT,
 * -ENOTSUP. */
int tg__export_token(struct tg_memory *memory, uint64_t addr, struct tg__token *token);
/* A lease of the token's block, and a descriptor of its chunk, the caller's. Takes the lock.
 * Errors: -ENOENT (no block of this memory), -EAGAIN (its tag is in motion), TG_EASLEEP, -ENOTSUP,
 * -ENOMEM, the device's. */
int tg__export_lend(struct tg_memory *memory, const struct tg__token *token,
                    struct tg__lease *lease, int *fd);
/* The lease has ended, and is nobody's. Takes the lock. With the agent's. */
void tg__export_end(struct tg__lease *lease);

/* A kept block is freed: it goes when its leases have ended, behind its gate, which is shut. */
void tg__export_free(struct tg__block *block);
/* What has no lease any more goes back to its tag, if that is awake, or goes. */
void tg__exports_look(struct tg_memory *memory);
/* How many of the kept blocks are not freed. */
size_t tg__exports_live(const struct tg_tag *tag);
/* The memory is about to close: leases end, and what they kept goes. Takes the lock. With the
 * agent's. */
void tg__exports_drop(struct tg_memory *memory);

#endif
