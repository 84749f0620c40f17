/* SPDX-License-Identifier: Apache-2.0 */
/* Pages and estates for code that knows no tags and no memories: found wherever they may be. */
#include "memory/page.h"

#include <errno.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"
#include "memory/import.h"
#include "memory/scope.h"

/* What all memories are asked. */
struct question {
    struct tg__range range;
    uint64_t number, devices;
    uint64_t *native;
    int device;
};

int tg_pages_reserve(int device, uint64_t size_bytes, uint64_t *addr) {
    struct tg_memory *memory;
    int rc = tg_process_memory(device, &memory);

    return rc != 0 ? rc : tg__estate_reserve(memory, size_bytes, addr);
}

int tg_page_create(const struct tg_process_request *request, uint32_t flags, uint64_t *page) {
    struct tg_tag *tag;
    int rc = tg__process_choose(request, &tag);

    if (rc != 0)
        return rc;
    if (tag == NULL)
        *page = 0;
    else if ((flags & TG_PAGE_OTHER) != 0)
        rc = tg__fail(-ENOTSUP, "memory of that kind cannot sleep");
    else
        rc = tg__page_create(tag, request->size_bytes, flags, page);
    return rc;
}

/* Of a forked child's memories none is its own. */
static int check(const struct tg_memory *memory) {
    return getpid() == memory->pid ? 0 : TG_EFORKED;
}

/* The memory's own device has access anyway: nothing need be asked of it. */
static uint64_t others(const struct tg_memory *memory, uint64_t devices) {
    return devices & ~(UINT64_C(1) << tg__device_ordinal(memory->device));
}

#define ASK(name, answer)                                        \
    static int name(struct tg_memory *memory, void *argument) {  \
        struct question *question = argument;                    \
        int rc = check(memory);                                  \
                                                                 \
        return rc != 0 ? rc : (answer);                          \
    }

ASK(unreserve_in, tg__estate_unreserve(memory, question->range))
ASK(release_in, tg__page_release(memory, question->number))
ASK(map_in, tg__page_map(memory, question->number, question->range))
ASK(unmap_in, tg__pages_unmap(memory, question->range))
ASK(access_in, tg__pages_access(memory, question->range, others(memory, question->devices)))
ASK(hold_in, tg__page_hold(memory, question->number, question->native))
ASK(hold_all_in, tg__pages_hold(memory, question->range))

int tg_pages_unreserve(uint64_t addr, uint64_t size_bytes) {
    return tg__scope_ask(unreserve_in, &(struct question){.range = {addr, size_bytes}});
}

int tg_page_release(uint64_t page) {
    return tg__scope_ask(release_in, &(struct question){.number = page});
}

int tg_page_map(uint64_t page, uint64_t addr, uint64_t size_bytes) {
    return tg__scope_ask(
        map_in, &(struct question){.number = page, .range = {addr, size_bytes}});
}

int tg_pages_unmap(uint64_t addr, uint64_t size_bytes) {
    return tg__scope_ask(unmap_in, &(struct question){.range = {addr, size_bytes}});
}

int tg_pages_access(uint64_t addr, uint64_t size_bytes, uint64_t devices) {
    return tg__scope_ask(access_in,
                         &(struct question){.range = {addr, size_bytes}, .devices = devices});
}

int tg_page_hold(uint64_t page, uint64_t *native) {
    return tg__scope_ask(hold_in, &(struct question){.number = page, .native = native});
}

int tg_pages_hold(uint64_t addr, uint64_t size_bytes) {
    return tg__scope_ask(hold_all_in, &(struct question){.range = {addr, size_bytes}});
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* With lock. The chunks of a tag in motion follow at its end. */
static int let_into(struct tg_memory *memory) {
    int rc = 0;

    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        int result = tg__tag_is_moving(tag) ? 0 : tg__chunks_access(tag);

        rc = rc != 0 ? rc : result;
    }
    return rc;
}

/* Of each GPU; memories that come later find them here. */
static _Atomic uint64_t peers[TG_LEDGER_DEVICES];

/* Memory that only stands for a GPU's has no peers. */
static bool is_on(const struct tg_memory *memory, int device) {
    return check(memory) == 0 && memory->device->native != NULL &&
           tg__device_ordinal(memory->device) == device;
}

static int let_peers_in(struct tg_memory *memory, uint64_t devices) {
    int rc;

    pthread_mutex_lock(&memory->lock);
    atomic_fetch_or(&memory->peers, devices);
    rc = let_into(memory);
    pthread_mutex_unlock(&memory->lock);
    return rc != 0 ? rc : tg__imports_access(memory);
}

/* -ENOENT, so that all memories are asked, unless one fails. */
static int peers_in(struct tg_memory *memory, void *argument) {
    struct question *question = argument;
    int rc = is_on(memory, question->device) ? let_peers_in(memory, question->devices) : 0;

    return rc == 0 ? -ENOENT : rc;
}

static int peers_out(struct tg_memory *memory, void *argument) {
    struct question *question = argument;

    if (is_on(memory, question->device))
        atomic_fetch_and(&memory->peers, ~question->devices);
    return -ENOENT;
}

void tg__peers_inherit(struct tg_memory *memory) {
    const struct tg_error before = *tg_last_error();
    int saved = errno;

    for (int device = 0; device < TG_LEDGER_DEVICES; device++) {
        uint64_t devices = atomic_load(&peers[device]);

        /* A device that refuses is its user's to find, as after a wake. */
        if (devices != 0 && is_on(memory, device))
            (void)!let_peers_in(memory, devices);
    }
    errno = saved;
    tg__fail_as(&before);
}

static int check_peers(int device) {
    if (device >= 0 && device < TG_LEDGER_DEVICES)
        return 0;
    return tg__fail(-EINVAL, "a process has memories on GPU 0 to %d, not on %d",
                    TG_LEDGER_DEVICES - 1, device);
}

int tg_process_peers(int device, uint64_t devices) {
    int rc = check_peers(device);

    if (rc != 0)
        return rc;
    atomic_fetch_or(&peers[device], devices);
    rc = tg__scope_ask(peers_in, &(struct question){.device = device, .devices = devices});
    return rc == -ENOENT ? 0 : rc;
}

int tg_process_peers_end(int device, uint64_t devices) {
    int rc = check_peers(device);

    if (rc != 0)
        return rc;
    atomic_fetch_and(&peers[device], ~devices);
    rc = tg__scope_ask(peers_out, &(struct question){.device = device, .devices = devices});
    return rc == -ENOENT ? 0 : rc;
}
