/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory by itself, for those who copy by other means than tags: torch, in its own streams. */
#include <tidegate/hostmem.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/forkguard.h"
#include "base/log.h"
#include "base/numa.h"
#include "device/device.h"
#include "memory/hostmap.h"

struct tg_hostmem {
    struct tg__hostmap map;
    size_t size_bytes, charged_bytes;
    struct tg_tenant *tenant; /* who is charged; NULL: none */
    struct tg_device *device; /* pinned for it; NULL: not pinned */
    bool is_touched;          /* and charged so */
    struct tg__forkguard guard;
    char tag[TG_TAG_NAME_BYTES];
};

static int reserve(struct tg_hostmem *memory) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    int rc = tg_tenant_host_reserve(memory->tenant, memory->tag, memory->charged_bytes);

    if (rc != TG_EPOISONED && rc != TG_EREPLACED)
        return rc;
    tg__warn_once(&has_warned, "the ledger is lost (%s): host memory is charged to nobody",
                  tg_last_error()->text);
    memory->tenant = NULL;
    return tg_tenant_host_reserve(NULL, memory->tag, memory->charged_bytes);
}

static void give(struct tg_hostmem *memory) {
    tg_tenant_host_give(memory->tenant, memory->tag, memory->charged_bytes, memory->is_touched);
}

static int make(struct tg_hostmem *memory) {
    int rc = reserve(memory);

    if (rc != 0)
        return rc;
    rc = tg__hostmap_make(&memory->map, memory->charged_bytes);
    if (rc != 0)
        goto give;
    rc = tg__forkguard_add(&memory->guard);
    if (rc != 0)
        goto unmap;
    return 0;
unmap:
    (void)tg__hostmap_free(&memory->map);
give:
    give(memory);
    return rc;
}

int tg_hostmem_alloc(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes,
                     struct tg_hostmem **memory) {
    int saved = errno, rc;
    struct tg_hostmem *fresh;

    if (memory == NULL || tag == NULL || strlen(tag) >= TG_TAG_NAME_BYTES)
        return tg__fail(-EINVAL, "host memory needs a tag of 1 to %d characters and a place",
                        TG_TAG_NAME_BYTES - 1);
    /* Half of all addresses: rounding up cannot wrap. */
    if (size_bytes == 0 || size_bytes > SIZE_MAX / 2)
        return tg__fail(-EINVAL, "host memory of %" PRIu64 " bytes", size_bytes);
    fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return tg__fail_memory();
    fresh->tenant = tenant;
    fresh->size_bytes = size_bytes;
    fresh->charged_bytes = tg__hostmap_pages(size_bytes);
    strcpy(fresh->tag, tag);
    rc = make(fresh);
    if (rc == 0)
        *memory = fresh;
    else
        free(fresh);
    errno = saved;
    return rc;
}

static int check(const struct tg_hostmem *memory) {
    if (memory == NULL)
        return tg__fail(-EINVAL, "no host memory");
    return tg__forkguard_is_forked(&memory->guard)
               ? tg__fail(TG_EFORKED, "host memory of '%s' is the parent's", memory->tag)
               : 0;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void commit(struct tg_hostmem *memory) {
    if (!memory->is_touched)
        tg_tenant_host_commit(memory->tenant, memory->tag, memory->charged_bytes);
    memory->is_touched = true;
}

/* Once: a page stays where it was touched first. */
static int touch(struct tg_hostmem *memory, uint32_t threads, const cpu_set_t *near) {
    int rc = 0;

    if (!memory->is_touched)
        rc = tg__hostmap_touch(&memory->map, memory->charged_bytes, threads, near);
    if (rc == 0)
        commit(memory);
    return rc;
}

int tg_hostmem_touch(struct tg_hostmem *memory, uint32_t threads) {
    int saved = errno, rc = check(memory);

    if (rc == 0)
        rc = touch(memory, threads, NULL);
    errno = saved;
    return rc;
}

/* ---- the device ------------------------------------------------------------------------------ */

static int set_pinned(struct tg_hostmem *memory, struct tg_device *device, int on) {
    return tg_device_ops(device)->pin(device, memory->map.bytes, memory->charged_bytes, on);
}

/* As soon as its node is known, and before the driver would touch on this thread's. */
static int touch_near(struct tg_hostmem *memory, const struct tg_device *device) {
    cpu_set_t cpus;
    bool is_known = tg__numa_cpus("", tg__device_pci(device), &cpus);

    return touch(memory, 0, is_known ? &cpus : NULL);
}

int tg_hostmem_pin(struct tg_hostmem *memory, struct tg_device *device) {
    int saved = errno, rc = check(memory);

    if (rc != 0)
        return rc;
    if (device == NULL || (memory->device != NULL && memory->device != device))
        return tg__fail(-EINVAL, "host memory is pinned for one device, and stays so");
    if (memory->device == NULL)
        rc = touch_near(memory, device);
    if (rc == 0 && memory->device == NULL)
        rc = set_pinned(memory, device, 1);
    if (rc == 0)
        memory->device = device;
    errno = saved;
    return rc;
}

void tg_hostmem_info(const struct tg_hostmem *memory, struct tg_hostmem_info *info) {
    memset(info, 0, sizeof *info);
    if (memory == NULL)
        return;
    info->bytes = memory->map.bytes;
    info->size_bytes = memory->size_bytes;
    info->is_pinned = memory->device != NULL;
}

void tg_hostmem_free(struct tg_hostmem *memory) {
    struct tg_error why = *tg_last_error();
    int saved = errno, rc = 0;

    if (memory == NULL)
        return;
    /* In a child the mapping is not there, and at its address may be another. */
    if (!tg__forkguard_is_forked(&memory->guard)) {
        if (memory->device != NULL)
            rc = set_pinned(memory, memory->device, 0);
        if (rc == 0)
            rc = tg__hostmap_free(&memory->map);
        if (rc == 0)
            give(memory);
    }
    tg__forkguard_remove(&memory->guard);
    free(memory);
    tg__fail_as(&why);
    errno = saved;
}
