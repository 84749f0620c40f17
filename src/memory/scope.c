/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation by scope, for callers that name no tag, and frees by address alone.
 *
 * A free has nothing but the address, and may come from any thread, at any time, also while the
 * memory is being closed. So memories that were ever scoped stand in a list. The list's lock is the
 * one that holds off forks: a child never finds it taken. It is the innermost lock, so a look into
 * a memory happens outside of it, as a visit that close waits for. */
#include <tidegate/scope.h>

#include <errno.h>
#include <sched.h>

#include "base/error.h"
#include "base/forkguard.h"
#include "device/device.h"
#include "memory/scope.h"
#include "memory/state.h"

static struct tg_memory *listed;

static _Thread_local struct tg_tag *scopes[TG_SCOPE_DEPTH];
static _Thread_local unsigned depth;

/* ---- the list -------------------------------------------------------------------------------- */

/* That a fork takes the lock is settled: a device has been opened, which guards itself. */
void tg__scope_list(struct tg_memory *memory) {
    bool is_new;

    tg__fork_hold();
    is_new = !memory->is_listed;
    if (is_new) {
        memory->is_listed = true;
        memory->next_listed = listed;
        listed = memory;
    }
    tg__fork_release();
    if (is_new) /* whoever gives peers from now on finds it in the list */
        tg__peers_inherit(memory);
}

/* Ends the visit of `left` (NULL: none) and begins that of the next one in the list. A forked child
 * finds its parent's memories there, which answer that they are not the child's. */
static struct tg_memory *visit_next(struct tg_memory *left) {
    struct tg_memory *next;

    tg__fork_hold();
    next = left == NULL ? listed : left->next_listed;
    while (next != NULL && next->is_leaving)
        next = next->next_listed;
    if (next != NULL)
        next->visitors++;
    if (left != NULL)
        left->visitors--;
    tg__fork_release();
    return next;
}

static void end_visit(struct tg_memory *memory) {
    tg__fork_hold();
    memory->visitors--;
    tg__fork_release();
}

void tg__memory_unlist(struct tg_memory *memory) {
    struct tg_memory **at = &listed;

    tg__fork_hold();
    memory->is_leaving = true;
    while (memory->visitors > 0) { /* none of them waits for anything */
        tg__fork_release();
        sched_yield();
        tg__fork_hold();
    }
    while (*at != NULL && *at != memory)
        at = &(*at)->next_listed;
    if (*at != NULL)
        *at = memory->next_listed;
    tg__fork_release();
}

/* ---- scopes ---------------------------------------------------------------------------------- */

int tg_scope_push(struct tg_tag *tag) {
    int saved = errno, rc;

    if (tag == NULL)
        return tg__fail(-EINVAL, "a scope needs a tag: NULL was given");
    rc = tg__memory_check(tag->memory);
    if (rc == 0 && depth == TG_SCOPE_DEPTH)
        rc = tg__fail(TG_EFULL, "%d scopes are inside each other already", TG_SCOPE_DEPTH);
    errno = saved;
    if (rc != 0)
        return rc;
    tg__scope_list(tag->memory);
    scopes[depth++] = tag;
    return 0;
}

int tg_scope_pop(void) {
    if (depth == 0)
        return tg__fail(-EINVAL, "this thread is in no scope");
    depth--;
    return 0;
}

struct tg_tag *tg__scope_tag(void) {
    return depth == 0 ? NULL : scopes[depth - 1];
}

/* ---- the pair -------------------------------------------------------------------------------- */

static int check_alloc(ssize_t size_bytes, int device) {
    const struct tg_tag *tag = tg__scope_tag();
    int ordinal;

    if (size_bytes < 0)
        return tg__fail(-EINVAL, "a block of %zd bytes was asked for", size_bytes);
    if (tag == NULL)
        return tg__fail(-EINVAL, "this thread is in no scope: no tag to allocate %zd bytes from",
                        size_bytes);
    ordinal = tg__device_ordinal(tag->memory->device);
    if (device != ordinal)
        return tg__fail(-EINVAL, "tag '%s' is on device %d: nothing of device %d belongs to it",
                        tag->name, ordinal, device);
    return 0;
}

void *tg_torch_alloc(ssize_t size_bytes, int device, void *stream) {
    void *block = NULL;

    (void)stream;
    if (size_bytes == 0 || check_alloc(size_bytes, device) != 0)
        return NULL;
    if (tg_tag_alloc(scopes[depth - 1], (uint64_t)size_bytes, &block) != 0)
        return NULL;
    return block;
}

int tg__scope_ask(int (*ask)(struct tg_memory *memory, void *question), void *question) {
    struct tg_memory *memory = visit_next(NULL);
    int rc = -ENOENT;

    while (memory != NULL) {
        rc = ask(memory, question);
        if (rc != -ENOENT)
            break;
        memory = visit_next(memory);
    }
    if (memory != NULL)
        end_visit(memory);
    return rc;
}

/* What is done in each memory until one answers 0. */
typedef int (*visit_fn)(struct tg_memory *memory, void *block, int *device);

static int visit_all(visit_fn visit, void *block, int *device) {
    const struct tg_error before = *tg_last_error();
    struct tg_memory *memory = block == NULL ? NULL : visit_next(NULL);
    int saved = errno, rc = -EINVAL;

    if (memory == NULL)
        rc = tg__fail(-EINVAL, "no memory is there in which a block begins at %p", block);
    while (memory != NULL) {
        rc = visit(memory, block, device);
        if (rc == 0)
            break;
        memory = visit_next(memory);
    }
    if (memory != NULL)
        end_visit(memory);
    if (rc == 0) /* the memories before said that it is not theirs */
        tg__fail_as(&before);
    errno = saved;
    return rc;
}

static int free_there(struct tg_memory *memory, void *block, int *device) {
    (void)device;
    return tg_memory_free(memory, block, NULL);
}

static int free_idle_there(struct tg_memory *memory, void *block, int *device) {
    (void)device;
    return tg__memory_free_idle(memory, block);
}

static int find_there(struct tg_memory *memory, void *block, int *device) {
    void *first;
    int rc = tg_memory_find(memory, block, NULL, &first, NULL);

    if (rc == 0 && first != block)
        rc = tg__fail(-EINVAL, "%p lies inside a block, and is not its beginning", block);
    if (rc == 0)
        *device = tg__device_ordinal(memory->device);
    return rc;
}

int tg__scope_free(void *block) {
    return visit_all(free_there, block, NULL);
}

int tg__scope_free_idle(void *block) {
    return visit_all(free_idle_there, block, NULL);
}

int tg__scope_find(const void *block, int *device) {
    return visit_all(find_there, (void *)(uintptr_t)block, device);
}

void tg_torch_free(void *block, ssize_t size_bytes, int device, void *stream) {
    (void)size_bytes;
    (void)device;
    (void)stream;
    if (block != NULL)
        (void)!tg__scope_free(block);
}
