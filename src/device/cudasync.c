/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that synchronises the whole context, for drivers that cannot record an event of it. Who
 * asks gets a number; a synchronisation that begins later ends behind that point. The caller waits
 * for the thread as long as he likes: the driver's own call knows no end. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/threads.h"
#include "device/cuda_device.h"

enum { CLOSE_MS = 1000 };

struct tg__cudasync {
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t asked, progress;
    uint64_t wanted, done;   /* numbers; done: a synchronisation that began after it has ended */
    int result;              /* of the last one */
    bool is_ending, is_over; /* the thread is to go; it has gone */
    bool is_orphan;          /* the device is closed: the thread frees this */
    pthread_t thread;
    struct tg__cuctx *context;
    struct tg__cuda_calls calls; /* a copy: it may outlive the device */
};

static void free_sync(struct tg__cudasync *sync) {
    pthread_cond_destroy(&sync->asked);
    pthread_cond_destroy(&sync->progress);
    pthread_mutex_destroy(&sync->mutex);
    free(sync);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void synchronise(struct tg__cudasync *sync) {
    uint64_t number = sync->wanted;
    int result;

    pthread_mutex_unlock(&sync->mutex);
    result = sync->calls.cuCtxSynchronize();
    pthread_mutex_lock(&sync->mutex);
    sync->result = result;
    sync->done = number;
    pthread_cond_broadcast(&sync->progress);
}

static void *run(void *argument) {
    struct tg__cudasync *sync = argument;
    int mode = TG__CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_orphan;

    sync->calls.cuCtxPushCurrent(sync->context);
    sync->calls.cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_lock(&sync->mutex);
    while (!sync->is_ending) {
        if (sync->wanted == sync->done)
            pthread_cond_wait(&sync->asked, &sync->mutex);
        else
            synchronise(sync);
    }
    sync->is_over = true;
    is_orphan = sync->is_orphan;
    pthread_cond_broadcast(&sync->progress);
    pthread_mutex_unlock(&sync->mutex);
    if (is_orphan)
        free_sync(sync);
    return NULL;
}

static int start(struct tg__cudasync *sync) {
    int code = tg__thread_start(&sync->thread, run, sync);

    if (code != 0)
        return tg__fail(-code, "cannot start the thread that waits for the GPU: %s",
                        tg_error_text(-code));
    return 0;
}

/* With the queue mutex. */
static int open_sync(struct tg__cuda *cuda) {
    struct tg__cudasync *sync = calloc(1, sizeof *sync);
    int rc;

    if (sync == NULL)
        return tg__fail_memory();
    pthread_mutex_init(&sync->mutex, NULL);
    tg__condition_init(&sync->asked);
    tg__condition_init(&sync->progress);
    sync->context = atomic_load(&cuda->context);
    sync->calls = cuda->calls;
    rc = start(sync);
    if (rc != 0)
        free_sync(sync);
    else
        cuda->sync = sync;
    return rc;
}

/* ---- asking and waiting ---------------------------------------------------------------------- */

int tg__cudasync_ask(struct tg__cuda *cuda, uint64_t *number) {
    struct tg__cudasync *sync;
    int rc = 0;

    pthread_mutex_lock(&cuda->queue_mutex);
    if (cuda->sync == NULL)
        rc = open_sync(cuda);
    if (rc == 0) {
        sync = cuda->sync;
        *number = ++cuda->last_number;
        pthread_mutex_lock(&sync->mutex);
        sync->wanted = *number;
        pthread_cond_signal(&sync->asked);
        pthread_mutex_unlock(&sync->mutex);
    }
    pthread_mutex_unlock(&cuda->queue_mutex);
    return rc;
}

int tg__cudasync_wait(struct tg__cuda *cuda, uint64_t number, uint32_t timeout_ms) {
    struct timespec end = tg__deadline_after(timeout_ms);
    struct tg__cudasync *sync;
    bool is_over = timeout_ms == 0, is_known;
    int rc;

    pthread_mutex_lock(&cuda->queue_mutex);
    sync = cuda->sync;
    is_known = number <= cuda->last_number;
    pthread_mutex_unlock(&cuda->queue_mutex);
    if (sync == NULL || !is_known)
        return tg__fail(-EINVAL, "this is no fence of the device");
    pthread_mutex_lock(&sync->mutex);
    while (sync->done < number && !is_over)
        is_over = pthread_cond_timedwait(&sync->progress, &sync->mutex, &end) != 0;
    if (sync->done < number)
        rc = tg__fail(TG_EBUSY, "the device's work has not ended within %u ms", timeout_ms);
    else
        rc = tg__cuda_status(cuda, sync->result, "cuCtxSynchronize");
    pthread_mutex_unlock(&sync->mutex);
    return rc;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* A thread that is still in the driver after that second stays there, and frees what it has when it
 * comes out. */
void tg__cudasync_close(struct tg__cudasync *sync, bool is_forked) {
    struct timespec end = tg__deadline_after(CLOSE_MS);
    bool is_over;

    if (sync == NULL)
        return;
    if (is_forked) {
        free(sync); /* its mutex may be in use by a thread that is not here */
        return;
    }
    pthread_mutex_lock(&sync->mutex);
    sync->is_ending = true;
    pthread_cond_signal(&sync->asked);
    while (!sync->is_over &&
           pthread_cond_timedwait(&sync->progress, &sync->mutex, &end) == 0)
        continue;
    is_over = sync->is_over;
    sync->is_orphan = !is_over;
    pthread_mutex_unlock(&sync->mutex);
    if (!is_over) {
        pthread_detach(sync->thread);
        return;
    }
    pthread_join(sync->thread, NULL);
    free_sync(sync);
}
