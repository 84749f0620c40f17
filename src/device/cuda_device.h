/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the cuda device, for the files that implement it: cuda.c (open, close, the table),
 * cudacall.c (the context, and what the driver's answers mean), cudachunk.c (memory and addresses),
 * cudaqueue.c (streams, copies) and cudafence.c (points in the device's work).
 *
 * The primary context is the one that the program's other libraries use. It is retained at the
 * first call that needs one, made current for the length of each call, and released at close: the
 * thread's own current context never changes. Wrong use is found in our own books, before the
 * driver is asked: what a driver says to a handle that is none is its own affair. */
#ifndef TG_DEVICE_CUDA_DEVICE_H
#define TG_DEVICE_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/forkguard.h"
#include "device/cuda_abi.h"
#include "device/device.h"
#include "device/grid.h"
#include "device/handles.h"
#include "device/nvml.h"
#include "device/spans.h"

enum { TG__CUDA_EVENTS = 64 };

/* Points of one order of work, oldest first: when an event is done, all before it are. A fence is a
 * number; it is passed when an event of that number or a later one is done. When there are many,
 * every second one goes: its fences are then passed a little later than they could be. */
struct tg__cudachain {
    uint64_t passed; /* the last number known to be done */
    uint32_t count;
    struct {
        uint64_t number;
        struct tg__cuevent *event;
    } points[TG__CUDA_EVENTS];
};

struct tg_queue {
    uint64_t id;
    struct tg__custream *stream; /* NULL: not made yet, or destroyed */
    uint32_t users;              /* threads that are giving work to it */
    bool is_closed;
    struct tg__cudachain chain;
    struct tg_queue *next;
};

/* What waits for the whole context where the driver has no event for it; see cudafence.c. */
struct tg__cudasync;

struct tg__cuda {
    struct tg_device device; /* first */
    struct tg__cuda_calls calls;
    int ordinal, number; /* in this process's list, and the driver's name for it */
    struct tg_device_info info;
    struct tg__forkguard guard; /* no descriptor: only whether we are a forked child */
    _Atomic int broken;         /* the sticky result that ended the context; 0: none */
    _Atomic(struct tg__cuctx *) context; /* NULL until the first call that needs it */

    pthread_mutex_t mutex; /* guards the books and the making of the context */
    struct tg__handles handles; /* of struct tg__cudachunk */
    struct tg__grid grid;
    struct tg__spans pins;

    pthread_mutex_t queue_mutex; /* guards all below; taken after no other */
    struct tg_queue own;         /* the device's own; its points are those of the whole context */
    struct tg_queue *queues;     /* the callers' */
    struct tg__cudachain all;    /* points of the whole context */
    struct tg__vec idle_events;  /* of struct tg__cuevent * */
    uint64_t last_id, last_number;
    struct tg__cudasync *sync; /* NULL until needed */

    pthread_mutex_t nvml_mutex; /* guards the next */
    struct tg__nvml *nvml;      /* NULL until needed */
};

/* ---- cudacall.c ---- */

/* A call's stay in the driver: our context is current, and other threads' captures are no concern
 * of this thread's. */
struct tg__cudacall {
    struct tg__cuda *cuda;
    int saved_errno, saved_mode;
};

/* 0, TG_EFORKED or TG_EBROKEN. */
int tg__cuda_check(struct tg__cuda *cuda);
/* Errors: as check, and what the driver says to making a context. */
int tg__cuda_enter(struct tg__cuda *cuda, struct tg__cudacall *call);
int tg__cuda_leave(struct tg__cudacall *call, int rc);
/* What a driver's result is as a status; for a failure with a sentence that begins with `what`. A
 * sticky one breaks the device. */
int tg__cuda_status(struct tg__cuda *cuda, int result, const char *what);
const char *tg__cuda_name(const struct tg__cuda *cuda, int result);

/* ---- cudachunk.c ---- */

int tg__cudachunk_granule(struct tg__cuda *cuda, uint64_t *granule_bytes);
int tg__cudachunk_reserve(struct tg__cuda *cuda, uint64_t size_bytes, uint64_t *addr);
int tg__cudachunk_unreserve(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes);
int tg__cudachunk_create(struct tg__cuda *cuda, uint64_t size_bytes, uint32_t flags,
                         uint64_t *chunk);
int tg__cudachunk_release(struct tg__cuda *cuda, uint64_t chunk);
int tg__cudachunk_map(struct tg__cuda *cuda, uint64_t addr, uint64_t chunk, uint64_t devices);
int tg__cudachunk_unmap(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes);
int tg__cudachunk_access(struct tg__cuda *cuda, uint64_t addr, uint64_t size_bytes,
                         uint64_t devices);
int tg__cudachunk_native(struct tg__cuda *cuda, uint64_t chunk, uint64_t *native);
int tg__cudachunk_export(struct tg__cuda *cuda, uint64_t chunk, int *fd);
int tg__cudachunk_import(struct tg__cuda *cuda, int fd, uint64_t size_bytes, uint64_t *chunk);
/* Gives back what is left; is_forked: only this process's memory. */
void tg__cudachunk_free_all(struct tg__cuda *cuda, bool is_forked);

/* ---- cudaqueue.c ---- */

/* The open queue's stream, until it is put back; queue NULL: the device's own. Errors: -EINVAL, the
 * driver's. */
int tg__cudaqueue_get(struct tg__cuda *cuda, struct tg_queue *queue, struct tg_queue **used);
void tg__cudaqueue_put(struct tg__cuda *cuda, struct tg_queue *used);
int tg__cudaqueue_open(struct tg__cuda *cuda, struct tg_queue **queue);
int tg__cudaqueue_close(struct tg__cuda *cuda, struct tg_queue *queue);
void tg__cudaqueue_free_all(struct tg__cuda *cuda, bool is_forked);

/* ---- cudafence.c ---- */

/* TG_ECAPTURE where what concerns the whole context would end a capture that is under way. */
int tg__cudafence_mind_captures(struct tg__cuda *cuda);
int tg__cudafence_make(struct tg__cuda *cuda, struct tg_queue *queue, struct tg_fence *fence);
int tg__cudafence_wait(struct tg__cuda *cuda, const struct tg_fence *fence, uint32_t timeout_ms);
/* Whether no point of it is left; with the queue mutex. */
bool tg__cudachain_is_over(struct tg__cuda *cuda, struct tg__cudachain *chain);
void tg__cudafence_free_all(struct tg__cuda *cuda, bool is_forked);

/* ---- cudapool.c ---- */

/* Gives back what the driver's default pool keeps. Errors: TG_ECAPTURE, the driver's. */
int tg__cudapool_trim(struct tg__cuda *cuda, uint64_t *gained_bytes);

/* ---- cudasync.c ---- */

/* The number of a point behind all work so far. Errors: -EAGAIN, -ENOMEM. */
int tg__cudasync_ask(struct tg__cuda *cuda, uint64_t *number);
/* Errors: TG_EBUSY, what synchronising answered. */
int tg__cudasync_wait(struct tg__cuda *cuda, uint64_t number, uint32_t timeout_ms);
/* Waits at most 1 s for its thread. */
void tg__cudasync_close(struct tg__cudasync *sync, bool is_forked);

#endif
