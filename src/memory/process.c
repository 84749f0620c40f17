/* SPDX-License-Identifier: Apache-2.0 */
/* The process's own memories, and allocation for code that knows no tags. Each memory is opened
 * once and stays: its blocks may be freed at any time, by threads that nobody waits for. The lock
 * is held while one is opened, so a forked child, which may find it taken, is sent away before. */
#include <tidegate/process.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "device/captures.h"
#include "device/device.h"
#include "memory/scope.h"
#include "memory/state.h"

/* Less than this is better off with the driver, outside packed tags. */
#define LEAST_BYTES (UINT64_C(1) << 20)

#define USUAL_NAME "trainer"

struct own {
    struct tg_device *device;
    struct tg_tenant *tenant; /* NULL: alone */
    struct tg_memory *memory; /* NULL: not asked for yet, or: */
    struct tg_error failure;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all but the pid */
static struct own owns[TG_LEDGER_DEVICES];
static struct tg_ledger *ledger;
static atomic_flag has_warned = ATOMIC_FLAG_INIT;
static _Atomic pid_t owner; /* of all that is here; 0: nothing is yet */
static atomic_bool is_resting; /* no tag has a say */

/* ---- who the process is ---------------------------------------------------------------------- */

/* Printable, and cut to the room there is. False: nothing was said. */
static bool say(const char *variable, char *text, size_t text_bytes) {
    const char *said = secure_getenv(variable);
    size_t length = 0;

    for (; said != NULL && *said != '\0' && length + 1 < text_bytes; said++)
        text[length++] = *said >= ' ' && *said <= '~' ? *said : '?';
    text[length] = '\0';
    return length > 0;
}

/* -1: none. */
static int32_t rank(void) {
    static const char *const variables[] = {"RANK", "LOCAL_RANK"};

    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *said = secure_getenv(variables[i]);
        size_t digits = said == NULL ? 0 : strspn(said, "0123456789");

        if (digits > 0 && digits < 10 && said[digits] == '\0')
            return (int32_t)strtol(said, NULL, 10);
    }
    return -1;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int gauge(void *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    return tg_device_ops(device)->memory(device, free_bytes, total_bytes);
}

static int join(struct own *own) {
    char name[TG_TENANT_NAME_BYTES], role[TG_TENANT_ROLE_BYTES];
    struct tg_device_info info;
    struct tg_tenant_params params = {.name = name, .rank = rank(), .uuid = info.uuid,
                                      .device_name = info.name,
                                      .gauge = {gauge, own->device}};
    int rc = tg_device_ops(own->device)->info(own->device, &info);

    if (!say("TIDEGATE_NAME", name, sizeof name))
        memcpy(name, USUAL_NAME, sizeof USUAL_NAME);
    if (say("TIDEGATE_ROLE", role, sizeof role))
        params.role = role;
    else if (strcmp(name, USUAL_NAME) == 0)
        params.role = USUAL_NAME;
    if (rc == 0 && ledger == NULL)
        rc = tg_ledger_open(NULL, &ledger);
    return rc != 0 ? rc : tg_ledger_join(ledger, &params, &own->tenant);
}

static void open_own(struct own *own, int device) {
    int rc = tg__device_open_ordinal(device, &own->device);

    if (rc == 0) {
        if (join(own) != 0)
            tg__warn_once(&has_warned, "this process goes on without the ledger: %s",
                          tg_last_error()->text);
        rc = tg_memory_open(own->device, own->tenant, &own->memory);
    }
    if (rc == 0) {
        tg__scope_list(own->memory);
        return;
    }
    own->failure = *tg_last_error();
    own->failure.status = rc;
    tg_device_close(own->device);
    tg_tenant_leave(own->tenant);
    own->device = NULL;
    own->tenant = NULL;
}

/* The first to ask owns all. */
static bool is_owner(void) {
    pid_t pid = getpid(), none = 0;

    return atomic_compare_exchange_strong(&owner, &none, pid) || none == pid;
}

int tg_process_memory(int device, struct tg_memory **memory) {
    const struct tg_error before = *tg_last_error();
    int saved = errno;
    struct own *own;

    if (memory == NULL || device < 0 || device >= TG_LEDGER_DEVICES)
        return tg__fail(-EINVAL, "a process has memories on GPU 0 to %d, not on %d",
                        TG_LEDGER_DEVICES - 1, device);
    if (!is_owner())
        return tg__fail(TG_EFORKED, "the memories are its parent's: a forked child has none");
    own = &owns[device];
    pthread_mutex_lock(&lock);
    if (own->memory == NULL && own->failure.status == 0)
        open_own(own, device);
    pthread_mutex_unlock(&lock);
    errno = saved;
    tg__fail_as(own->memory != NULL ? &before : &own->failure);
    if (own->memory != NULL)
        *memory = own->memory;
    return own->failure.status;
}

/* ---- for code that knows no tags ------------------------------------------------------------- */

static int open_usual(const struct tg_process_request *request, struct tg_tag **tag) {
    static const struct tg_tag_params params = {.backup = TG_BACKUP_HOST, .fill_none = 1};
    struct tg_memory *memory;
    int rc = tg_process_memory(request->device, &memory);

    return rc != 0 ? rc : tg_tag_open(memory, request->usual_tag, &params, tag);
}

void tg_process_serve(int is_on) {
    atomic_store(&is_resting, is_on == 0);
}

int tg__process_choose(const struct tg_process_request *request, struct tg_tag **tag) {
    struct tg_tag *chosen = tg__scope_tag();
    int rc = 0;

    if (atomic_load(&is_resting)) {
        *tag = NULL;
        return 0;
    }
    if (chosen != NULL && tg__device_ordinal(chosen->memory->device) != request->device)
        chosen = NULL;
    if (chosen == NULL && request->usual_tag != NULL && request->size_bytes >= LEAST_BYTES)
        rc = open_usual(request, &chosen);
    if (rc != 0)
        return rc;
    if (chosen != NULL && (request->size_bytes > chosen->memory->total_bytes ||
                           (request->size_bytes < LEAST_BYTES && !chosen->params.packed)))
        chosen = NULL;
    *tag = chosen;
    return 0;
}

int tg_process_alloc(const struct tg_process_request *request, void **block) {
    struct tg_tag *tag;
    int rc;

    if (request == NULL || block == NULL)
        return tg__fail(-EINVAL, "a request, and a place for the block, are not NULL");
    if (request->size_bytes == 0) {
        *block = NULL;
        return 0;
    }
    rc = tg__process_choose(request, &tag);
    if (rc == 0 && tag == NULL)
        *block = NULL;
    return rc != 0 || tag == NULL ? rc : tg_tag_alloc(tag, request->size_bytes, block);
}

int tg_process_free(void *block) {
    const struct tg_error before = *tg_last_error();
    int rc = tg__scope_free(block);

    tg__fail_as(&before);
    return rc;
}

int tg_process_find(const void *block, int *device) {
    const struct tg_error before = *tg_last_error();
    int found = 0, rc;

    if (device == NULL)
        return tg__fail(-EINVAL, "a place for the GPU's number is not NULL");
    rc = tg__scope_find(block, &found);
    tg__fail_as(&before);
    if (rc == 0)
        *device = found;
    return rc;
}

void tg_process_captures(const int *open) {
    tg__captures_watch(open);
}
