/* SPDX-License-Identifier: Apache-2.0 */
/* The host device: memory of this machine that stands for a card's. Here are its options, and the
 * table: each entry checks its pre-conditions, takes the mutex and calls the file that does it.
 *
 * What a card's driver would answer by a fault of the device is a fault here, too: a copy to an
 * address where nothing is mapped ends the process with SIGSEGV, raised by the queue's thread. */
#include "device/host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/shmfile.h"
#include "device/options.h"
#include "device/pins.h"

enum { MOST_MS = 60000 };

static struct tg__host *host_of(struct tg_device *device) {
    return (struct tg__host *)device;
}

/* Begins an entry: in a forked child the mutex may be held for ever. */
static int enter(struct tg_device *device, struct tg__host **host) {
    int rc = tg__capacity_check(host_of(device)->capacity);

    if (rc != 0)
        return rc;
    *host = host_of(device);
    pthread_mutex_lock(&(*host)->mutex);
    return 0;
}

static int leave(struct tg__host *host, int rc) {
    pthread_mutex_unlock(&host->mutex);
    return rc;
}

static int check_size(uint64_t size_bytes) {
    if (size_bytes > 0 && size_bytes <= TG__HOST_MOST_BYTES &&
        size_bytes % TG__HOST_GRANULE_BYTES == 0)
        return 0;
    return tg__fail(-EINVAL, "%" PRIu64 " bytes: a size is a multiple of 2 MiB and not 0",
                    size_bytes);
}

static int check_range(uint64_t addr, uint64_t size_bytes) {
    if (addr % TG__HOST_GRANULE_BYTES != 0 || addr == 0)
        return tg__fail(-EINVAL, "address %#" PRIx64 " is not a multiple of 2 MiB", addr);
    return check_size(size_bytes);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int host_info(struct tg_device *device, struct tg_device_info *info) {
    struct tg__host *host = host_of(device);
    int rc = tg__capacity_check(host->capacity);

    if (rc != 0)
        return rc;
    memset(info, 0, sizeof *info);
    memcpy(info->uuid, tg__capacity_uuid(host->capacity), sizeof info->uuid);
    snprintf(info->name, sizeof info->name, "host device \"%s\"", host->name);
    info->granule_bytes = TG__HOST_GRANULE_BYTES;
    info->can = TG_DEVICE_EXPORT | TG_DEVICE_DIRECT;
    return 0;
}

static int host_memory(struct tg_device *device, uint64_t *free_bytes, uint64_t *total_bytes) {
    return tg__capacity_memory(host_of(device)->capacity, free_bytes, total_bytes);
}

static int host_process(struct tg_device *device, uint64_t *own_bytes) {
    return tg__capacity_process(host_of(device)->capacity, own_bytes);
}

static int host_reserve(struct tg_device *device, uint64_t size_bytes, uint64_t *addr) {
    struct tg__host *host;
    int saved = errno, rc = check_size(size_bytes);

    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__hostrange_reserve(host, size_bytes, addr));
    errno = saved;
    return rc;
}

static int host_unreserve(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg__host *host;
    int saved = errno, rc = check_range(addr, size_bytes);

    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__hostrange_unreserve(host, addr, size_bytes));
    errno = saved;
    return rc;
}

static int host_create(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                       uint64_t *chunk) {
    struct tg__host *host;
    int saved = errno, rc = check_size(size_bytes);

    if (rc == 0 && (flags & ~(uint32_t)TG_CHUNK_EXPORTABLE) != 0)
        rc = tg__fail(-EINVAL, "flags %#x: the host device's chunks can be exportable and nothing "
                      "else: ask info for what a device can", flags);
    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__hostchunk_create(host, size_bytes, flags, chunk));
    errno = saved;
    return rc;
}

static int host_release(struct tg_device *device, uint64_t chunk) {
    struct tg__host *host;
    int saved = errno, rc = enter(device, &host);

    if (rc == 0)
        rc = leave(host, tg__hostchunk_release(host, chunk));
    errno = saved;
    return rc;
}

static int check_devices(uint64_t devices) {
    if (devices > 1)
        return tg__fail(-EINVAL, "devices %#" PRIx64 ": the host device has ordinal 0 and no "
                        "others beside it", devices);
    return 0;
}

static int host_map(struct tg_device *device, uint64_t addr, uint64_t chunk, uint64_t devices) {
    struct tg__host *host;
    int saved = errno, rc = check_range(addr, TG__HOST_GRANULE_BYTES);

    if (rc == 0)
        rc = check_devices(devices);
    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0) {
        struct tg__hostchunk *found = tg__hostchunk_find(host, chunk);
        rc = leave(host, found == NULL ? -EINVAL : tg__hostrange_map(host, addr, found));
    }
    errno = saved;
    return rc;
}

static int host_unmap(struct tg_device *device, uint64_t addr, uint64_t size_bytes) {
    struct tg__host *host;
    int saved = errno, rc = check_range(addr, size_bytes);

    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__hostrange_unmap(host, addr, size_bytes));
    errno = saved;
    return rc;
}

/* What is mapped is the host's to read and write. */
static int host_access(struct tg_device *device, uint64_t addr, uint64_t size_bytes,
                       uint64_t devices) {
    struct tg__gridpiece piece;
    struct tg__host *host;
    int saved = errno, rc = check_range(addr, size_bytes);

    if (rc == 0)
        rc = check_devices(devices);
    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__grid_find_whole(&host->grid, addr, size_bytes, &piece));
    errno = saved;
    return rc;
}

/* Copies, fills and fences go to the queues, which have a lock of their own. */
static int give_job(struct tg_device *device, const struct tg__job *job, struct tg_queue *queue) {
    struct tg__host *host = host_of(device);
    int saved = errno, rc = tg__capacity_check(host->capacity);

    if (rc == 0 && (job->size_bytes == 0 || job->to == NULL))
        rc = tg__fail(-EINVAL, "a copy or fill of 0 bytes, or to or from address 0");
    if (rc == 0)
        rc = tg__work_give(host->work, queue, job);
    errno = saved;
    return rc;
}

static int host_copy(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg__job job = {.to = from == NULL ? NULL : to, .from = from, .size_bytes = size_bytes};

    return give_job(device, &job, queue);
}

static int host_fill(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes,
                     struct tg_queue *queue) {
    struct tg__job job = {.to = (void *)(uintptr_t)addr, .byte = byte, .size_bytes = size_bytes};

    return give_job(device, &job, queue);
}

static int host_fence(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence) {
    struct tg__host *host = host_of(device);
    int rc = tg__capacity_check(host->capacity);

    return rc != 0 ? rc : tg__work_fence(host->work, queue, fence);
}

static int host_wait(struct tg_device *device, const struct tg_fence *fence, uint32_t timeout_ms) {
    struct tg__host *host = host_of(device);
    int rc = tg__capacity_check(host->capacity);

    return rc != 0 ? rc : tg__work_wait(host->work, fence, timeout_ms);
}

/* Host memory is fit for copies as it is: only the book is kept, so that wrong use shows. */
static int host_pin(struct tg_device *device, void *memory, uint64_t size_bytes, int on) {
    struct tg__host *host;
    int saved = errno, rc = enter(device, &host);

    if (rc != 0)
        return rc;
    rc = tg__pins_check(&host->pins, memory, size_bytes, on);
    if (rc == 0)
        tg__pins_note(&host->pins, memory, size_bytes, on);
    errno = saved;
    return leave(host, rc);
}

static int host_export(struct tg_device *device, uint64_t chunk, int *fd) {
    struct tg__host *host;
    int saved = errno, rc = enter(device, &host);

    if (rc == 0)
        rc = leave(host, tg__hostchunk_export(host, chunk, fd));
    errno = saved;
    return rc;
}

static int host_import(struct tg_device *device, int fd, uint64_t size_bytes, uint64_t *chunk) {
    struct tg__host *host;
    int saved = errno, rc = check_size(size_bytes);

    if (rc == 0)
        rc = enter(device, &host);
    if (rc == 0)
        rc = leave(host, tg__hostchunk_import(host, fd, size_bytes, chunk));
    errno = saved;
    return rc;
}

static int host_queue_open(struct tg_device *device, struct tg_queue **queue) {
    struct tg__host *host = host_of(device);
    int saved = errno, rc = tg__capacity_check(host->capacity);

    if (rc == 0)
        rc = tg__work_queue_open(host->work, queue);
    errno = saved;
    return rc;
}

static int host_queue_close(struct tg_device *device, struct tg_queue *queue) {
    struct tg__host *host = host_of(device);
    int rc = tg__capacity_check(host->capacity);

    return rc != 0 ? rc : tg__work_queue_close(host->work, queue);
}

static int host_unpool(struct tg_device *device, uint64_t *gained_bytes) {
    int rc = tg__capacity_check(host_of(device)->capacity);

    if (rc == 0)
        *gained_bytes = 0;
    return rc;
}

static const struct tg_device_ops host_ops = {
    .info = host_info,
    .memory = host_memory,
    .process = host_process,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .create = host_create,
    .release = host_release,
    .map = host_map,
    .unmap = host_unmap,
    .access = host_access,
    .copy = host_copy,
    .fill = host_fill,
    .fence = host_fence,
    .wait = host_wait,
    .pin = host_pin,
    .export_fd = host_export,
    .import_fd = host_import,
    .queue_open = host_queue_open,
    .queue_close = host_queue_close,
    .unpool = host_unpool,
};

/* ---- open and close -------------------------------------------------------------------------- */

/* The work ends first: it uses the memory. The slot in the capacity goes last. */
static void host_close(struct tg_device *device) {
    struct tg__host *host = host_of(device);
    bool is_forked = tg__capacity_check(host->capacity) == TG_EFORKED;
    int saved = errno;

    tg__work_close(host->work, is_forked);
    tg__hostrange_free_all(host, is_forked);
    tg__hostchunk_free_all(host, is_forked);
    tg__straggler_end(host->straggler, is_forked);
    tg__spans_free(&host->pins);
    tg__capacity_close(host->capacity);
    free(host);
    errno = saved;
}

static void name_chunks(struct tg__host *host) {
    uint64_t number;

    memcpy(&number, tg__capacity_uuid(host->capacity), sizeof number);
    snprintf(host->chunk_name, sizeof host->chunk_name, "tidegate-chunk-%016" PRIx64, number);
}

/* What we hold counts as long as the straggler lives: it has a ticket of its own. */
static int start_straggler(struct tg__host *host, uint32_t write_ms) {
    struct tg__shmfile *heir;
    int rc;

    if (write_ms == 0)
        return 0;
    rc = tg__capacity_open_heir(host->name, &heir);
    if (rc != 0)
        return rc;
    rc = tg__straggler_start(write_ms, tg__shmfile_ticket_fd(heir), &host->straggler);
    if (rc == 0)
        tg__capacity_set_heir(host->capacity, tg__shmfile_ticket(heir));
    tg__shmfile_close(heir);
    return rc;
}

int tg__host_open(const struct tg__host_params *params, struct tg_device **device) {
    struct tg__host *host = calloc(1, sizeof *host);
    int rc;

    if (host == NULL)
        return tg__fail_memory();
    rc = tg__work_open(params->lag_ms, params->hangs, &host->work);
    if (rc != 0)
        goto release;
    rc = tg__capacity_open(params->name, params->capacity_bytes, params->takes_any,
                           &host->capacity);
    if (rc != 0)
        goto close;
    snprintf(host->name, sizeof host->name, "%s", params->name);
    rc = start_straggler(host, params->straggler_ms);
    if (rc != 0)
        goto leave;
    name_chunks(host);
    pthread_mutex_init(&host->mutex, NULL);
    tg__grid_init(&host->grid, TG__HOST_GRANULE_BYTES);
    tg__spans_init(&host->pins);
    tg__handles_init(&host->handles);
    host->device.ops = &host_ops;
    host->device.close = host_close;
    *device = &host->device;
    return 0;
leave:
    tg__capacity_close(host->capacity);
close:
    tg__work_close(host->work, false);
release:
    free(host);
    return rc;
}

/* ---- by URI ---------------------------------------------------------------------------------- */

enum { CAPACITY, NAME, LAG, HANG, STRAGGLER, OPTIONS };

int tg__host_open_uri(const char *options, struct tg_device **device) {
    struct tg__option known[OPTIONS] = {
        [CAPACITY] = {.key = "capacity", .kind = TG__OPTION_SIZE, .max = UINT64_C(1) << 40,
                      .example = "4GiB"},
        [NAME] = {.key = "name", .kind = TG__OPTION_WORD, .example = "host", .word = "host"},
        [LAG] = {.key = "lag", .kind = TG__OPTION_NUMBER, .max = MOST_MS, .example = "5"},
        [HANG] = {.key = "hang", .kind = TG__OPTION_NUMBER, .max = 1, .example = "1"},
        [STRAGGLER] = {.key = "straggler", .kind = TG__OPTION_NUMBER, .max = MOST_MS,
                       .example = "200"},
    };
    int rc = tg__options_parse("host", options, strlen(options), known, OPTIONS);
    struct tg__host_params params;

    if (rc != 0)
        return rc;
    if (!known[CAPACITY].is_given)
        return tg__fail(-EINVAL, "host: the capacity is missing: host:capacity=4GiB");
    params = (struct tg__host_params){
        .name = known[NAME].word,
        .capacity_bytes = known[CAPACITY].number,
        .lag_ms = (uint32_t)known[LAG].number,
        .hangs = known[HANG].number == 1,
        .straggler_ms = (uint32_t)known[STRAGGLER].number,
    };
    return tg__host_open(&params, device);
}
