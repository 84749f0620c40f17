/* SPDX-License-Identifier: Apache-2.0 */
/* An opener's connection to another process's agent. One for all that it has of that process: the
 * other side counts leases by it, so it lives as long as they. Who uses a peer sees to it that no
 * two threads ask at a time. */
#ifndef TG_MEMORY_PEER_H
#define TG_MEMORY_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/forkguard.h"
#include "memory/token.h"

enum { TG__PEER_SOCKET, TG__PEER_CHUNK }; /* slots of the guard */

struct tg__peer {
    struct tg__forkguard guard; /* TG__PEER_CHUNK: what the last answer brought */
    uint64_t agent;
    uint32_t users; /* imports, and who asks; the owner's */
    bool is_spent;  /* cannot be asked any more, but for closes */
    bool is_late;   /* answers may come that nobody waits for; the owner's */
    struct tg__peer *next; /* the owner's */
};

/* Errors: -ESTALE (nobody is there, or another user), TG_EBUSY (not in time), -ENOMEM, the
 * system's. */
int tg__peer_connect(uint64_t agent, uint64_t deadline_ns, struct tg__peer **peer);
void tg__peer_close(struct tg__peer *peer);
/* Asks for the token's block; its descriptor is in the guard then. Errors: -ECONNRESET (it has
 * gone, or has let us go: connect again), TG_EBUSY (not in time): these have spent the peer;
 * -EMFILE (the block is lent, and its descriptor has not come), those of the other side. */
int tg__peer_ask(struct tg__peer *peer, const struct tg__token *token, uint64_t deadline_ns,
                 struct tg__reply *reply);
/* That the token's block is closed. False: not now. That the other side has gone is success. */
bool tg__peer_tell(const struct tg__peer *peer, const struct tg__token *token);
/* Takes what has been answered meanwhile to who gave up: a descriptor that is not read keeps its
 * chunk's memory. Of a spent peer. */
void tg__peer_drain(struct tg__peer *peer);
/* Waits a moment before something is tried again. TG_EBUSY: the deadline has passed. */
int tg__peer_pause(uint64_t deadline_ns);

#endif
