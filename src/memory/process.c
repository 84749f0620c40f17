/* SPDX-License-Identifier: Apache-2.0 */
/* The process's own devices, tenants and memories, and allocation for code that knows no tags. Each
 * is opened once and stays: blocks may be freed at any time, by threads that nobody waits for. The
 * lock is held while one is opened, so a forked child, which may find it taken, is sent away
 * before. */
#include <tidegate/process.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/saturate.h"
#include "device/captures.h"
#include "device/device.h"
#include "memory/scope.h"
#include "memory/state.h"

/* Less than this is better off with the driver, outside packed tags. */
#define LEAST_BYTES (UINT64_C(1) << 20)

#define USUAL_NAME "trainer"

/* What becomes of the host copies of the usual tag when it wakes. */
#define KEEP_HOST "TIDEGATE_DEFAULT_KEEP_HOST"
enum { UNREAD, GIVEN_BACK, KEPT };

/* What a process has on a GPU, each part over those before. */
enum part { DEVICE, TENANT, MEMORY, PARTS };

struct own {
    struct tg_device *device;
    struct tg_tenant *tenant;
    struct tg_memory *memory;
    bool is_tried[PARTS];
    struct tg_error failures[PARTS]; /* status 0: it is there, once it was tried */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is neither atomic nor pid */
static struct own owns[TG_LEDGER_DEVICES];
static struct tg_ledger *ledger;
static struct {
    char name[TG_TENANT_NAME_BYTES], role[TG_TENANT_ROLE_BYTES];
    bool is_known;
    bool has_joined; /* as that */
} who;
static atomic_flag has_warned = ATOMIC_FLAG_INIT;
static _Atomic uint64_t gpus;
static _Atomic pid_t owner; /* of all that is here; 0: nothing is yet */
static atomic_bool is_resting; /* no tag has a say */

/* ---- who the process is ---------------------------------------------------------------------- */

/* As the package has it, so that who asks first makes no difference: printable, a sign of several
 * bytes counts once, without spaces around, cut to the room there is. False: nothing was said. */
static bool say(const char *variable, char *text, size_t text_bytes) {
    const char *said = secure_getenv(variable);
    size_t length = 0;

    said = said == NULL ? "" : said + strspn(said, " ");
    for (; *said != '\0' && length + 1 < text_bytes; said++) {
        if ((*said & 0xc0) != 0x80)
            text[length++] = *said >= ' ' && *said <= '~' ? *said : '?';
    }
    while (*said == '\0' && length > 0 && text[length - 1] == ' ')
        length--;
    text[length] = '\0';
    return length > 0;
}

/* With lock. */
static void read_who(void) {
    if (!say("TIDEGATE_NAME", who.name, sizeof who.name))
        memcpy(who.name, USUAL_NAME, sizeof USUAL_NAME);
    if (!say("TIDEGATE_ROLE", who.role, sizeof who.role) && strcmp(who.name, USUAL_NAME) == 0)
        memcpy(who.role, USUAL_NAME, sizeof USUAL_NAME);
    who.is_known = true;
}

static bool can_be_called(const char *text, size_t text_bytes) {
    size_t length = strnlen(text, text_bytes);

    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] > '~')
            return false;
    }
    return length < text_bytes;
}

/* With lock. */
static int introduce(const char *name, const char *role) {
    bool is_same = strcmp(name, who.name) == 0 && strcmp(role, who.role) == 0;

    if (who.has_joined && !is_same)
        return tg__fail(-EALREADY, "this process is in the ledger as '%s' (role '%s'), and stays "
                        "that: it was called '%s' (role '%s') too late", who.name, who.role, name,
                        role);
    strcpy(who.name, name); /* their lengths were checked */
    strcpy(who.role, role);
    who.is_known = true;
    return 0;
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

static int open_device(struct own *own, int device) {
    return tg__device_open_ordinal(device, &own->device);
}

static int join_as(struct own *own, const char *name, const char *role) {
    struct tg_device_info info;
    struct tg_tenant_params params = {.name = name, .role = *role == '\0' ? NULL : role,
                                      .rank = rank(), .uuid = info.uuid, .device_name = info.name,
                                      .gauge = {gauge, own->device}};
    int rc = tg_device_ops(own->device)->info(own->device, &info);

    if (rc == 0 && ledger == NULL)
        rc = tg_ledger_open(NULL, &ledger);
    return rc != 0 ? rc : tg_ledger_join(ledger, &params, &own->tenant);
}

static int join(struct own *own, int device) {
    int rc;

    (void)device;
    if (!who.is_known)
        read_who();
    rc = join_as(own, who.name, who.role);
    if (rc == 0)
        who.has_joined = true;
    else
        tg__warn_once(&has_warned, "this process goes on without the ledger: %s",
                      tg_last_error()->text);
    return rc;
}

static int open_memory(struct own *own, int device) {
    int rc = tg_memory_open(own->device, own->tenant, &own->memory);

    if (rc != 0)
        return rc;
    tg__scope_list(own->memory);
    atomic_fetch_or(&gpus, UINT64_C(1) << device);
    return 0;
}

/* Tried once; its first answer is that to all. */
static int try(struct own *own, int device, enum part part) {
    static int (*const begin[])(struct own *own, int device) = {open_device, join, open_memory};
    struct tg_error *failure = &own->failures[part];

    if (!own->is_tried[part]) {
        int rc = begin[part](own, device);

        own->is_tried[part] = true;
        if (rc != 0)
            *failure = *tg_last_error();
        failure->status = rc;
    }
    if (failure->status != 0)
        tg__fail_as(failure);
    return failure->status;
}

static int need(struct own *own, int device, enum part part) {
    int rc = try(own, device, DEVICE);

    if (rc != 0 || part == DEVICE)
        return rc;
    rc = try(own, device, TENANT);
    return part == TENANT ? rc : try(own, device, MEMORY);
}

/* The first to ask owns all. */
static bool is_owner(void) {
    pid_t pid = getpid(), none = 0;

    return atomic_compare_exchange_strong(&owner, &none, pid) || none == pid;
}

static int check_owner(void) {
    return is_owner() ? 0 : tg__fail(TG_EFORKED, "the memories are its parent's: a forked child "
                                     "has none");
}

/* What is owned up to this part, NULL where it is not. `out`: where the caller wants it. */
static const struct own *ask(int device, enum part part, const void *out, int *status) {
    const struct tg_error before = *tg_last_error();
    int saved = errno;

    if (out == NULL || device < 0 || device >= TG_LEDGER_DEVICES)
        *status = tg__fail(-EINVAL, "a process has memories on GPU 0 to %d, not on %d",
                           TG_LEDGER_DEVICES - 1, device);
    else
        *status = check_owner();
    if (*status != 0)
        return NULL;
    pthread_mutex_lock(&lock);
    *status = need(&owns[device], device, part);
    pthread_mutex_unlock(&lock);
    errno = saved;
    if (*status != 0)
        return NULL;
    tg__fail_as(&before);
    return &owns[device];
}

int tg_process_device(int device, struct tg_device **opened) {
    int rc;
    const struct own *own = ask(device, DEVICE, opened, &rc);

    if (own != NULL)
        *opened = own->device;
    return rc;
}

int tg_process_tenant(int device, struct tg_tenant **tenant) {
    int rc;
    const struct own *own = ask(device, TENANT, tenant, &rc);

    if (own != NULL)
        *tenant = own->tenant;
    return rc;
}

int tg_process_memory(int device, struct tg_memory **memory) {
    int rc;
    const struct own *own = ask(device, MEMORY, memory, &rc);

    if (own != NULL)
        *memory = own->memory;
    return rc;
}

uint64_t tg_process_gpus(void) {
    return atomic_load(&owner) == getpid() ? atomic_load(&gpus) : 0;
}

int tg_process_introduce(const char *name, const char *role) {
    int rc;

    if (role == NULL)
        role = "";
    if (name == NULL || *name == '\0' || !can_be_called(name, sizeof who.name) ||
        !can_be_called(role, sizeof who.role))
        return tg__fail(-EINVAL, "a process has a name of 1 to %zu printable signs, and a role of "
                        "up to %zu", sizeof who.name - 1, sizeof who.role - 1);
    rc = check_owner();
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&lock);
    rc = introduce(name, role);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- who holds a GPU ------------------------------------------------------------------------- */

/* False: the ledger cannot be read, or does not have the device. */
static bool look_into_ledger(const struct own *own, const uint8_t *uuid,
                             struct tg_process_node *node) {
    struct tg_node_view *view = &node->view;

    if (own->tenant == NULL || tg_ledger_read(ledger, view) != 0)
        return false;
    for (node->place = 0; node->place < view->device_count; node->place++) {
        if (memcmp(view->devices[node->place].uuid, uuid, sizeof view->devices[0].uuid) == 0)
            break;
    }
    node->self = tg_tenant_id(own->tenant);
    return node->place < view->device_count;
}

/* The ledger has what the driver said when somebody last asked for it. */
static int bring_up_to_date(struct tg_device *device, struct tg_process_node *node) {
    struct tg_device_view *view = &node->view.devices[node->place];
    uint64_t held_bytes = 0;
    int rc = gauge(device, &view->free_bytes, &view->total_bytes);

    for (uint32_t i = 0; i < node->view.tenant_count; i++) {
        const struct tg_tenant_view *tenant = &node->view.tenants[i];

        for (uint32_t j = 0; j < tenant->tag_count && tenant->device == node->place; j++)
            held_bytes = tg__sum(held_bytes, tenant->tags[j].occupied_bytes);
    }
    view->unattributed_bytes =
        tg__less(tg__less(view->total_bytes, view->free_bytes), held_bytes);
    return rc;
}

int tg_process_look(int device, struct tg_process_node *node) {
    struct tg_device_info info;
    int rc;
    const struct own *own = ask(device, DEVICE, node, &rc);

    if (own == NULL)
        return rc;
    rc = tg_device_ops(own->device)->info(own->device, &info);
    if (rc != 0)
        return rc;
    node->rank = rank();
    if (!look_into_ledger(own, info.uuid, node)) {
        memset(&node->view, 0, sizeof node->view);
        node->view.device_count = 1;
        node->place = node->self = 0;
    }
    return bring_up_to_date(own->device, node);
}

/* ---- for code that knows no tags ------------------------------------------------------------- */

static int read_keeps_host(void) {
    static atomic_flag has_said = ATOMIC_FLAG_INIT;
    const char *said = secure_getenv(KEEP_HOST);

    if (said != NULL && strcmp(said, "1") == 0)
        return KEPT;
    if (said != NULL && *said != '\0' && strcmp(said, "0") != 0)
        tg__warn_once(&has_said, KEEP_HOST "='%.40s' is neither 1 nor 0; taken as 0", said);
    return GIVEN_BACK;
}

/* Read once, since every allocation asks and another thread may change the environment. */
static bool keeps_host(void) {
    static atomic_int known = UNREAD;
    int now = atomic_load(&known);

    if (now == UNREAD) {
        int saved = errno;

        now = read_keeps_host();
        atomic_store(&known, now);
        errno = saved;
    }
    return now == KEPT;
}

int tg_process_tag(int device, const char *usual_tag, struct tg_tag **tag) {
    const struct tg_tag_params params = {
        .backup = TG_BACKUP_HOST, .fill_none = 1, .keep_host = keeps_host()};
    struct tg_memory *memory;
    int rc = tg_process_memory(device, &memory);

    return rc != 0 ? rc : tg_tag_open(memory, usual_tag, &params, tag);
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
        rc = tg_process_tag(request->device, request->usual_tag, &chosen);
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
    if (rc != 0 || tag == NULL)
        return rc;
    return tg__tag_alloc(tag, request->size_bytes, tag->memory->can_export ? TG__CHUNK_OFFERED : 0,
                         block);
}

int tg_process_free(void *block) {
    const struct tg_error before = *tg_last_error();
    int rc = tg__scope_free(block);

    tg__fail_as(&before);
    return rc;
}

int tg_process_free_idle(void *block) {
    const struct tg_error before = *tg_last_error();
    int rc = tg__scope_free_idle(block);

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
