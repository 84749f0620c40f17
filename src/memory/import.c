/* SPDX-License-Identifier: Apache-2.0 */
/* Opens take turns, since a peer is asked one thing at a time; what is open already, and closes, do
 * not wait for them. An import on its way out goes as far as the device and the other side let it,
 * and is tried again at each later call: nothing on that way needs memory. */
#include "memory/import.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/device.h"
#include "memory/agent.h"
#include "memory/export.h"
#include "memory/peer.h"
#include "memory/scope.h"

struct import {
    struct tg__range range; /* of size 0: not reserved */
    struct import *next;
    struct tg_memory *memory;
    struct tg__token token;
    uint64_t chunk; /* 0: none */
    struct tg__peer *peer;
    uint32_t count; /* opens that were not closed; 0: on its way out */
    bool is_mapped, is_leased;
    uint64_t granted; /* devices that have access beside the memory's own */
    struct tg__gate gate;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* of opens; taken before: */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows */
static struct import *imports;
static struct tg__peer *peers;
static _Atomic pid_t owner; /* of all that is here; 0: nothing is yet */
static atomic_uint leaving; /* how many imports are on their way out */
static atomic_uint late;    /* how many peers are */

/* ---- peers ----------------------------------------------------------------------------------- */

static void put_peer(struct tg__peer *peer) {
    struct tg__peer **at = &peers;

    if (peer == NULL || --peer->users > 0)
        return;
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    if (peer->is_late)
        atomic_fetch_sub(&late, 1);
    tg__peer_close(peer);
}

static struct tg__peer *find_peer(uint64_t agent) {
    struct tg__peer *peer = peers;

    while (peer != NULL && (peer->agent != agent || peer->is_spent))
        peer = peer->next;
    return peer;
}

/* With turn, without lock. */
static int get_peer(uint64_t agent, uint64_t deadline_ns, struct tg__peer **peer) {
    struct tg__peer *found;
    int rc = 0;

    pthread_mutex_lock(&lock);
    found = find_peer(agent);
    if (found != NULL)
        found->users++;
    pthread_mutex_unlock(&lock);
    if (found == NULL) {
        rc = tg__peer_connect(agent, deadline_ns, &found);
        if (rc != 0)
            return rc;
        found->users = 1;
        pthread_mutex_lock(&lock);
        found->next = peers;
        peers = found;
        pthread_mutex_unlock(&lock);
    }
    *peer = found;
    return 0;
}

/* ---- going ----------------------------------------------------------------------------------- */

/* False: it must wait. */
static bool step_out(struct import *import) {
    struct tg_memory *memory = import->memory;
    const struct tg_device_ops *ops = memory->ops;

    if (!tg__gate_is_open(memory, &import->gate))
        return false;
    if (import->is_mapped &&
        ops->unmap(memory->device, import->range.addr, import->range.size_bytes) != 0)
        return false;
    import->is_mapped = false;
    if (import->chunk != 0 && ops->release(memory->device, import->chunk) != 0)
        return false;
    import->chunk = 0;
    if (import->range.size_bytes != 0 &&
        ops->unreserve(memory->device, import->range.addr, import->range.size_bytes) != 0)
        return false;
    import->range.size_bytes = 0;
    if (import->is_leased && !tg__peer_tell(import->peer, &import->token))
        return false;
    put_peer(import->peer);
    free(import);
    return true;
}

/* Of one memory; NULL: of all. With lock. */
static void retry(const struct tg_memory *memory) {
    const struct tg_error before = *tg_last_error();
    struct import **at = &imports;

    for (struct tg__peer *peer = peers; peer != NULL; peer = peer->next) {
        if (peer->is_late)
            tg__peer_drain(peer);
    }
    while (*at != NULL) {
        struct import *import = *at, *next = import->next;

        if (import->count == 0 && (memory == NULL || import->memory == memory) &&
            step_out(import)) {
            *at = next;
            atomic_fetch_sub(&leaving, 1);
        } else {
            at = &import->next;
        }
    }
    tg__fail_as(&before);
}

void tg__imports_retry(struct tg_memory *memory) {
    if (atomic_load(&leaving) == 0 && atomic_load(&late) == 0)
        return;
    pthread_mutex_lock(&lock);
    retry(memory);
    pthread_mutex_unlock(&lock);
}

/* ---- coming ---------------------------------------------------------------------------------- */

static bool is_of(const struct import *import, const struct tg_memory *memory,
                  const struct tg__token *token) {
    return import->memory == memory && memcmp(&import->token, token, sizeof *token) == 0;
}

/* One more open of what is mapped, also of what is only about to go. NULL: it is not. */
static struct import *open_again(const struct tg_memory *memory, const struct tg__token *token) {
    struct import *import;

    pthread_mutex_lock(&lock);
    for (import = imports; import != NULL; import = import->next) {
        if (is_of(import, memory, token) && import->is_mapped && import->count < UINT32_MAX)
            break;
    }
    if (import != NULL && import->count++ == 0) {
        atomic_fetch_sub(&leaving, 1);
        import->gate.is_shut = false;
    }
    pthread_mutex_unlock(&lock);
    return import;
}

/* The other side has been told of the last close, so that it lends anew. */
static int wait_for_way(const struct tg_memory *memory, const struct tg__token *token,
                        uint64_t deadline_ns) {
    bool is_there = true;
    int rc = 0;

    while (rc == 0 && is_there) {
        is_there = false;
        pthread_mutex_lock(&lock);
        retry(memory);
        for (const struct import *each = imports; each != NULL; each = each->next)
            is_there = is_there || is_of(each, memory, token);
        pthread_mutex_unlock(&lock);
        if (is_there)
            rc = tg__peer_pause(deadline_ns);
    }
    return rc;
}

/* The block may be lent yet to who has given up, so it is closed as if it were. */
static void give_up(struct import *import) {
    pthread_mutex_lock(&lock);
    if (!import->peer->is_late)
        atomic_fetch_add(&late, 1);
    import->peer->is_late = true;
    pthread_mutex_unlock(&lock);
    import->is_leased = true;
}

/* An agent lets strangers go where too many come; it is there still if it can be connected to. */
static int ask(struct import *import, uint64_t deadline_ns, struct tg__reply *reply) {
    int rc = -ECONNRESET;

    while (rc == -ECONNRESET) {
        rc = get_peer(import->token.agent, deadline_ns, &import->peer);
        if (rc != 0)
            return rc;
        rc = tg__peer_ask(import->peer, &import->token, deadline_ns, reply);
        if (rc != -ECONNRESET)
            break;
        pthread_mutex_lock(&lock);
        put_peer(import->peer);
        import->peer = NULL;
        pthread_mutex_unlock(&lock);
        if (tg__peer_pause(deadline_ns) != 0)
            return TG_EBUSY;
    }
    import->is_leased = rc == 0 || rc == -EMFILE;
    if (import->peer->is_spent)
        give_up(import);
    return rc;
}

static int map(struct import *import, uint64_t size_bytes) {
    struct tg_memory *memory = import->memory;
    const struct tg_device_ops *ops = memory->ops;
    int fd = import->peer->guard.fds[TG__PEER_CHUNK];
    int rc = size_bytes == 0 || size_bytes % memory->granule_bytes != 0
                 ? tg__fail(-EINVAL, "%" PRIu64 " bytes are no chunk", size_bytes)
                 : ops->reserve(memory->device, size_bytes, &import->range.addr);

    if (rc == 0) {
        import->range.size_bytes = size_bytes;
        rc = ops->import_fd(memory->device, fd, size_bytes, &import->chunk);
    }
    if (rc != 0) {
        import->chunk = 0;
    } else {
        import->granted = atomic_load(&memory->peers);
        rc = ops->map(memory->device, import->range.addr, import->chunk, import->granted);
    }
    import->is_mapped = rc == 0;
    tg__forkguard_close(&import->peer->guard, TG__PEER_CHUNK);
    return tg__memory_note(memory, rc);
}

/* With lock. The memory's peers have access to what is mapped. */
static int let_peers_in(struct import *import) {
    struct tg_memory *memory = import->memory;
    uint64_t peers_now = atomic_load(&memory->peers);
    int rc;

    if (!import->is_mapped || (peers_now & ~import->granted) == 0)
        return 0;
    rc = memory->ops->access(memory->device, import->range.addr, import->range.size_bytes,
                             peers_now);
    if (rc == 0)
        import->granted = peers_now;
    return tg__memory_note(memory, rc);
}

/* With turn. Whatever fails, what it has so far is on its way out. A peer that came while it was
 * mapped is let in here, and one that comes later finds it in the list. */
static int open_new(struct import *import, uint64_t deadline_ns) {
    int rc = wait_for_way(import->memory, &import->token, deadline_ns);
    struct tg__reply reply;
    struct tg_error why;

    if (rc == 0)
        rc = ask(import, deadline_ns, &reply);
    if (rc == 0)
        rc = map(import, reply.size_bytes);
    pthread_mutex_lock(&lock);
    if (rc == 0)
        rc = let_peers_in(import);
    why = *tg_last_error();
    import->count = rc == 0;
    import->next = imports;
    imports = import;
    if (rc != 0) {
        atomic_fetch_add(&leaving, 1);
        retry(import->memory);
    }
    pthread_mutex_unlock(&lock);
    if (rc != 0)
        tg__fail_as(&why);
    return rc;
}

/* The first to ask owns all. */
static bool is_owner(void) {
    pid_t pid = getpid(), none = 0;

    return atomic_compare_exchange_strong(&owner, &none, pid) || none == pid;
}

static int fail_forked(void) {
    return tg__fail(TG_EFORKED, "what is open is the parent's: a forked child has none of it");
}

int tg__import_open(struct tg_memory *memory, const struct tg__token *token, void **addr) {
    struct import *import, *made;
    uint64_t deadline_ns;
    int rc = tg__memory_check(memory);

    if (rc != 0)
        return rc;
    /* Before the turn: whoever had it until then has kept it no longer than we may wait. */
    deadline_ns = tg__clock_ns() + memory->open_wait_ms * TG__NS_PER_MS;
    if (!is_owner())
        return fail_forked();
    import = open_again(memory, token);
    if (import == NULL) {
        made = calloc(1, sizeof *made);
        if (made == NULL)
            return tg__fail_memory();
        made->memory = memory;
        made->token = *token;
        pthread_mutex_lock(&turn);
        import = open_again(memory, token); /* another thread was first */
        if (import == NULL) {
            import = made;
            rc = open_new(made, deadline_ns);
        } else {
            free(made);
        }
        pthread_mutex_unlock(&turn);
    }
    if (rc == 0)
        *addr = (void *)(uintptr_t)import->range.addr;
    return rc;
}

/* ---- for the rest of the memory -------------------------------------------------------------- */

int tg__imports_access(struct tg_memory *memory) {
    int rc = 0;

    pthread_mutex_lock(&lock);
    for (struct import *each = imports; each != NULL; each = each->next) {
        int result = each->memory == memory ? let_peers_in(each) : 0;

        rc = rc != 0 ? rc : result;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* What the device does not take back is its own at its close; the lease is not kept for that. */
void tg__imports_drop(struct tg_memory *memory) {
    struct import **at = &imports;

    pthread_mutex_lock(&lock);
    for (struct import *each = imports; each != NULL; each = each->next) {
        if (each->memory == memory && each->count > 0) {
            each->count = 0;
            atomic_fetch_add(&leaving, 1);
        }
    }
    retry(memory);
    while (*at != NULL) {
        struct import *import = *at;

        if (import->memory != memory) {
            at = &import->next;
            continue;
        }
        *at = import->next;
        atomic_fetch_sub(&leaving, 1);
        put_peer(import->peer);
        free(import);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the calls ------------------------------------------------------------------------------- */

struct naming {
    uint64_t addr;
    struct tg__token *token;
};

static int name_in(struct tg_memory *memory, void *argument) {
    const struct naming *naming = argument;

    if (getpid() != memory->pid)
        return tg__fail(TG_EFORKED, "this memory is its parent's: a forked child has none");
    return tg__export_token(memory, naming->addr, naming->token);
}

int tg_ipc_token(const void *addr, unsigned char token[TG_IPC_TOKEN_BYTES]) {
    const struct tg_error before = *tg_last_error();
    struct tg__token made = {.pid = (uint32_t)getpid()};
    struct naming naming = {(uintptr_t)addr, &made};
    int saved = errno, rc;

    if (token == NULL)
        return tg__fail(-EINVAL, "a place for the token is not NULL");
    rc = tg__scope_ask(name_in, &naming);
    if (rc == 0)
        rc = tg__agent_start(&made.agent);
    if (rc == 0) {
        tg__token_seal(&made);
        memcpy(token, &made, sizeof made);
        tg__fail_as(&before);
    }
    errno = saved;
    return rc;
}

int tg_ipc_open(int device, const unsigned char token[TG_IPC_TOKEN_BYTES], void **addr) {
    const struct tg_error before = *tg_last_error();
    struct tg_memory *memory;
    struct tg__token wanted;
    int saved = errno, rc;

    if (token == NULL || addr == NULL)
        return tg__fail(-EINVAL, "a token, and a place for the address, are not NULL");
    memcpy(&wanted, token, sizeof wanted);
    if (!tg__token_is_whole(&wanted))
        return -ENOENT;
    rc = tg_process_memory(device, &memory);
    if (rc == 0 && tg__agent_is_own(wanted.agent))
        rc = tg__fail(-ELOOP, "a token is opened by other processes than the one that gave it");
    if (rc == 0)
        rc = tg__import_open(memory, &wanted, addr);
    if (rc == 0)
        tg__fail_as(&before);
    errno = saved;
    return rc;
}

/* With lock. NULL: there is none. */
static struct import *find_open(const void *addr) {
    struct import *import = imports;

    while (import != NULL && (import->count == 0 || import->range.addr != (uintptr_t)addr))
        import = import->next;
    return import;
}

int tg_ipc_find(const void *addr, int *device) {
    const struct import *import;

    if (device == NULL)
        return tg__fail(-EINVAL, "a place for the GPU's number is not NULL");
    if (owner == 0)
        return -ENOENT;
    if (!is_owner())
        return fail_forked();
    pthread_mutex_lock(&lock);
    import = find_open(addr);
    if (import != NULL)
        *device = tg__device_ordinal(import->memory->device);
    pthread_mutex_unlock(&lock);
    return import != NULL ? 0 : -ENOENT;
}

static int close_import(void *addr, bool is_idle) {
    const struct tg_error before = *tg_last_error();
    struct import *import;
    int saved = errno;

    if (owner == 0)
        return -ENOENT;
    if (!is_owner())
        return fail_forked();
    pthread_mutex_lock(&lock);
    import = find_open(addr);
    if (import != NULL && --import->count == 0) {
        atomic_fetch_add(&leaving, 1);
        if (!is_idle)
            tg__gate_shut(import->memory, &import->gate, NULL);
        retry(NULL);
    }
    pthread_mutex_unlock(&lock);
    tg__fail_as(&before);
    errno = saved;
    return import != NULL ? 0 : -ENOENT;
}

int tg_ipc_close(void *addr) {
    return close_import(addr, false);
}

int tg_ipc_close_idle(void *addr) {
    return close_import(addr, true);
}
