/* SPDX-License-Identifier: Apache-2.0 */
/* Points in the device's work. A fence is {0, number} for the whole context, {queue, number} for
 * one queue: it needs no event of its own, outlives its queue, and a chain of 64 events serves any
 * number of fences.
 *
 * A point of the whole context is an event that the context records; drivers before 12.5 cannot,
 * and there a thread synchronises (cudasync.c). Waiting looks again and again: no call of the
 * driver waits for a limited time. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/captures.h"
#include "device/cuda_device.h"

/* A copy's end is seen at once, a long wait costs no processor. */
enum { SPIN_US = 100, NAP_US = 20, LONG_NAP_US = 200, LONG_MS = 10 };

/* The driver's name for the null stream of the whole process. */
#define LEGACY_STREAM ((struct tg__custream *)(uintptr_t)1)

/* ---- chains ---------------------------------------------------------------------------------- */

static struct tg__cuevent **idle_events(struct tg__cuda *cuda) {
    return cuda->idle_events.items;
}

/* Keeps an event for the next point; one that finds no room is destroyed. */
static void keep_event(struct tg__cuda *cuda, struct tg__cuevent *event) {
    if (tg__vec_room(&cuda->idle_events, 1) == 0)
        idle_events(cuda)[cuda->idle_events.count++] = event;
    else
        cuda->calls.cuEventDestroy(event);
}

static int take_event(struct tg__cuda *cuda, struct tg__cuevent **event) {
    if (cuda->idle_events.count > 0) {
        *event = idle_events(cuda)[--cuda->idle_events.count];
        return 0;
    }
    return tg__cuda_status(cuda, cuda->calls.cuEventCreate(event, TG__CU_EVENT_DISABLE_TIMING),
                           "cuEventCreate");
}

static void drop_points(struct tg__cuda *cuda, struct tg__cudachain *chain, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        keep_event(cuda, chain->points[i].event);
    chain->count -= count;
    memmove(chain->points, chain->points + count, chain->count * sizeof *chain->points);
}

/* Room for one more, which follows at once. Of the 64 that are not passed every second one goes. */
static void make_room(struct tg__cuda *cuda, struct tg__cudachain *chain) {
    uint32_t kept = 0;

    if (chain->count < TG__CUDA_EVENTS)
        return;
    for (uint32_t i = 0; i < chain->count; i++) {
        if (i % 2 == 0)
            keep_event(cuda, chain->points[i].event);
        else
            chain->points[kept++] = chain->points[i];
    }
    chain->count = kept;
}

/* Whether the point is passed: asks for the first event that stands at it or behind. */
static int look(struct tg__cuda *cuda, struct tg__cudachain *chain, uint64_t number,
                bool *is_passed) {
    uint32_t at = 0;
    int result;

    *is_passed = number <= chain->passed;
    while (at < chain->count && chain->points[at].number < number)
        at++;
    if (*is_passed || at == chain->count)
        return 0;
    result = cuda->calls.cuEventQuery(chain->points[at].event);
    if (result == TG__CU_ERROR_NOT_READY)
        return 0;
    if (result != 0)
        return tg__cuda_status(cuda, result, "cuEventQuery");
    chain->passed = chain->points[at].number;
    drop_points(cuda, chain, at + 1);
    *is_passed = true;
    return 0;
}

bool tg__cudachain_is_over(struct tg__cuda *cuda, struct tg__cudachain *chain) {
    bool is_passed = true;

    if (chain->count == 0)
        return true;
    /* What cannot be asked any more is as good as passed: no one gets another answer. */
    return look(cuda, chain, chain->points[chain->count - 1].number, &is_passed) != 0 || is_passed;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Whatever waits for the whole context ends a capture that is under way. Where nobody counts them,
 * the driver tells without harm of one that would mind the null stream. */
int tg__cudafence_mind_captures(struct tg__cuda *cuda) {
    int status;

    if (tg__captures_are_open())
        return tg__fail(TG_ECAPTURE, "work of this process is being captured: waiting for all of "
                        "the device's would end that");
    return tg__cuda_status(cuda, cuda->calls.cuStreamIsCapturing(LEGACY_STREAM, &status),
                           "cuStreamIsCapturing");
}

static int record_all(struct tg__cuda *cuda, struct tg__cuevent *event) {
    int rc = tg__cudafence_mind_captures(cuda);

    if (rc != 0)
        return rc;
    return tg__cuda_status(cuda, cuda->calls.cuCtxRecordEvent(atomic_load(&cuda->context), event),
                           "cuCtxRecordEvent");
}

static int record(struct tg__cuda *cuda, struct tg_queue *used, struct tg__cuevent *event) {
    if (used == NULL)
        return record_all(cuda, event);
    return tg__cuda_status(cuda, cuda->calls.cuEventRecord(event, used->stream), "cuEventRecord");
}

/* With the mutex; used NULL: the whole context. */
static int add_point(struct tg__cuda *cuda, struct tg_queue *used, struct tg_fence *fence) {
    struct tg__cudachain *chain = used == NULL ? &cuda->all : &used->chain;
    struct tg__cuevent *event = NULL;
    bool is_passed;
    int rc = take_event(cuda, &event);

    if (rc != 0)
        return rc;
    rc = record(cuda, used, event);
    if (rc != 0) {
        keep_event(cuda, event);
        return rc;
    }
    /* So that what is passed does not fill the chain. */
    if (chain->count > 0)
        (void)look(cuda, chain, chain->points[0].number, &is_passed);
    make_room(cuda, chain);
    chain->points[chain->count].number = ++cuda->last_number;
    chain->points[chain->count++].event = event;
    *fence = (struct tg_fence){{used == NULL ? 0 : used->id, cuda->last_number}};
    return 0;
}

/* Where the driver has no event of the whole context. */
static int ask_thread(struct tg__cuda *cuda, struct tg_fence *fence) {
    uint64_t number;
    int rc = tg__cudafence_mind_captures(cuda);

    if (rc == 0)
        rc = tg__cudasync_ask(cuda, &number);
    if (rc == 0)
        *fence = (struct tg_fence){{0, number}};
    return rc;
}

int tg__cudafence_make(struct tg__cuda *cuda, struct tg_queue *queue, struct tg_fence *fence) {
    struct tg_queue *used = NULL;
    int rc = queue == NULL ? 0 : tg__cudaqueue_get(cuda, queue, &used);

    if (rc != 0)
        return rc;
    if (queue == NULL && cuda->calls.cuCtxRecordEvent == NULL)
        return ask_thread(cuda, fence);
    pthread_mutex_lock(&cuda->queue_mutex);
    rc = add_point(cuda, used, fence);
    pthread_mutex_unlock(&cuda->queue_mutex);
    if (used != NULL)
        tg__cudaqueue_put(cuda, used);
    return rc;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* With the mutex. NULL: a queue that is gone, so all of its points are passed. */
static struct tg__cudachain *find_chain(struct tg__cuda *cuda, uint64_t id) {
    struct tg_queue *queue = cuda->queues;

    if (id == 0)
        return &cuda->all;
    while (queue != NULL && queue->id != id)
        queue = queue->next;
    return queue == NULL ? NULL : &queue->chain;
}

static int look_at(struct tg__cuda *cuda, const struct tg_fence *fence, bool *is_passed) {
    struct tg__cudachain *chain;
    int rc = 0;

    pthread_mutex_lock(&cuda->queue_mutex);
    chain = find_chain(cuda, fence->word[0]);
    *is_passed = true;
    if (fence->word[0] > cuda->last_id || fence->word[1] > cuda->last_number)
        rc = tg__fail(-EINVAL, "this is no fence of the device");
    else if (chain != NULL)
        rc = look(cuda, chain, fence->word[1], is_passed);
    pthread_mutex_unlock(&cuda->queue_mutex);
    return rc;
}

static void nap(uint64_t waited_ns) {
    uint64_t us = waited_ns < LONG_MS * TG__NS_PER_MS ? NAP_US : LONG_NAP_US;

    if (waited_ns < SPIN_US * UINT64_C(1000))
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

int tg__cudafence_wait(struct tg__cuda *cuda, const struct tg_fence *fence, uint32_t timeout_ms) {
    uint64_t begin_ns = tg__clock_ns(), waited_ns = 0;
    bool is_passed;
    int rc;

    if (fence->word[0] == 0 && fence->word[1] != 0 && cuda->calls.cuCtxRecordEvent == NULL)
        return tg__cudasync_wait(cuda, fence->word[1], timeout_ms);
    for (;;) {
        rc = look_at(cuda, fence, &is_passed);
        if (rc != 0 || is_passed)
            return rc;
        if (waited_ns >= timeout_ms * TG__NS_PER_MS)
            return tg__fail(TG_EBUSY, "the device's work has not ended within %u ms", timeout_ms);
        nap(waited_ns);
        waited_ns = tg__clock_ns() - begin_ns;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void free_chain(struct tg__cuda *cuda, struct tg__cudachain *chain) {
    for (uint32_t i = 0; i < chain->count; i++)
        cuda->calls.cuEventDestroy(chain->points[i].event);
    chain->count = 0;
}

void tg__cudafence_free_all(struct tg__cuda *cuda, bool is_forked) {
    if (!is_forked) {
        free_chain(cuda, &cuda->all);
        for (struct tg_queue *queue = cuda->queues; queue != NULL; queue = queue->next)
            free_chain(cuda, &queue->chain);
        for (size_t i = 0; i < cuda->idle_events.count; i++)
            cuda->calls.cuEventDestroy(idle_events(cuda)[i]);
    }
    tg__vec_free(&cuda->idle_events);
}
