/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, copies, and the captures that they may be under. */
#include <stdbool.h>
#include <stdlib.h>

#include "standin.h"

enum { STREAMS = 256, GLOBAL_MODE = 0, RELAXED_MODE = 2 };

struct tg__custream {
    struct tg_device *device;
    struct tg_queue *queue;
    bool is_blocking;  /* the null stream would wait for it */
    bool is_capturing; /* all below are of the capture */
    bool is_invalid;
    int mode;
};

struct tg__cuevent {
    struct tg_device *device;
    struct tg_fence fence;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the captures */
static struct tg__custream *capturing[STREAMS];
static _Thread_local int thread_mode = GLOBAL_MODE;

/* NULL and the two small numbers are the driver's own streams. */
static bool is_own(const struct tg__custream *stream) {
    return (uintptr_t)stream <= 2;
}

struct tg_queue *standin_queue(struct tg__custream *stream) {
    return is_own(stream) ? NULL : stream->queue;
}

/* ---- captures -------------------------------------------------------------------------------- */

/* What waits for all is never allowed; looking at an event is not, while a capture in the global
 * mode runs and this thread has not said that it knows what it does. */
int standin_mind_captures(int is_of_all) {
    int result = 0;

    pthread_mutex_lock(&mutex);
    for (int i = 0; i < STREAMS; i++) {
        struct tg__custream *stream = capturing[i];

        if (stream == NULL || (!is_of_all && (thread_mode == RELAXED_MODE ||
                                              stream->mode != GLOBAL_MODE)))
            continue;
        stream->is_invalid = true;
        result = TG__CU_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = thread_mode;

    thread_mode = *mode;
    *mode = before;
    return 0;
}

int cuStreamBeginCapture_v2(struct tg__custream *stream, int mode) {
    int result = standin_begin(), at = 0;

    if (result != 0)
        return result;
    if (is_own(stream) || stream->is_capturing)
        return TG__CU_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    while (at < STREAMS && capturing[at] != NULL)
        at++;
    if (at < STREAMS) {
        capturing[at] = stream;
        stream->is_capturing = true;
        stream->is_invalid = false;
        stream->mode = mode;
    }
    pthread_mutex_unlock(&mutex);
    return at < STREAMS ? 0 : TG__CU_ERROR_OUT_OF_MEMORY;
}

/* With the mutex. */
static void forget_capture(struct tg__custream *stream) {
    for (int i = 0; i < STREAMS; i++) {
        if (capturing[i] == stream)
            capturing[i] = NULL;
    }
    stream->is_capturing = false;
}

int cuStreamEndCapture(struct tg__custream *stream, void **graph) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (is_own(stream) || !stream->is_capturing)
        return TG__CU_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    forget_capture(stream);
    result = stream->is_invalid ? TG__CU_ERROR_STREAM_CAPTURE_INVALIDATED : 0;
    pthread_mutex_unlock(&mutex);
    *graph = NULL;
    return result;
}

int cuStreamIsCapturing(struct tg__custream *stream, int *status) {
    int result = standin_begin();

    if (result != 0)
        return result;
    *status = 0;
    pthread_mutex_lock(&mutex);
    if (!is_own(stream))
        *status = stream->is_capturing ? 1 + stream->is_invalid : 0;
    for (int i = 0; is_own(stream) && i < STREAMS; i++) {
        if (capturing[i] != NULL && capturing[i]->is_blocking)
            result = TG__CU_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* ---- streams and their work ------------------------------------------------------------------ */

int cuStreamCreate(struct tg__custream **stream, unsigned flags) {
    struct tg_device *device;
    struct tg__custream *made;
    int result = standin_enter(&device);

    if (result != 0)
        return result;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return TG__CU_ERROR_OUT_OF_MEMORY;
    made->device = device;
    made->is_blocking = (flags & TG__CU_STREAM_NON_BLOCKING) == 0;
    result = standin_result(device->ops->queue_open(device, &made->queue));
    if (result != 0)
        free(made);
    else
        *stream = made;
    return result;
}

int cuStreamDestroy_v2(struct tg__custream *stream) {
    int result = standin_begin();

    if (result != 0)
        return result;
    if (is_own(stream))
        return TG__CU_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&mutex);
    forget_capture(stream); /* which ends with its stream */
    pthread_mutex_unlock(&mutex);
    result = standin_result(stream->device->ops->queue_close(stream->device, stream->queue));
    free(stream);
    return result;
}

static bool is_captured(const struct tg__custream *stream) {
    return !is_own(stream) && stream->is_capturing;
}

int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t size_bytes,
                  struct tg__custream *stream) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result != 0 || is_captured(stream))
        return result;
    return standin_result(device->ops->copy(device, (void *)(uintptr_t)to,
                                            (const void *)(uintptr_t)from, size_bytes,
                                            standin_queue(stream)));
}

int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t size_bytes,
                    struct tg__custream *stream) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result != 0 || is_captured(stream))
        return result;
    return standin_result(device->ops->fill(device, to, byte, size_bytes, standin_queue(stream)));
}

int cuStreamSynchronize(struct tg__custream *stream) {
    struct tg_device *device;
    struct tg_fence fence;
    int result = standin_enter(&device);

    if (result == 0)
        result = standin_mind_captures(is_captured(stream));
    if (result == 0)
        result = standin_result(device->ops->fence(device, standin_queue(stream), &fence));
    return result != 0 ? result : standin_wait(device, &fence);
}

/* ---- events ---------------------------------------------------------------------------------- */

int cuEventCreate(struct tg__cuevent **event, unsigned flags) {
    struct tg_device *device;
    struct tg__cuevent *made;
    int result = standin_enter(&device);

    (void)flags;
    if (result != 0)
        return result;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return TG__CU_ERROR_OUT_OF_MEMORY;
    made->device = device;
    *event = made;
    return 0;
}

int cuEventDestroy_v2(struct tg__cuevent *event) {
    free(event);
    return 0;
}

int cuEventRecord(struct tg__cuevent *event, struct tg__custream *stream) {
    struct tg_device *device;
    int result = standin_enter(&device);

    return result != 0 ? result
                       : standin_result(device->ops->fence(device, standin_queue(stream),
                                                           &event->fence));
}

int cuCtxRecordEvent(struct tg__cuctx *context, struct tg__cuevent *event) {
    struct tg_device *device;
    int result = standin_enter(&device);

    (void)context;
    if (result == 0)
        result = standin_mind_captures(1);
    return result != 0 ? result : standin_result(device->ops->fence(device, NULL, &event->fence));
}

int cuEventQuery(struct tg__cuevent *event) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result == 0)
        result = standin_mind_captures(0);
    return result != 0 ? result
                       : standin_result(event->device->ops->wait(event->device, &event->fence, 0));
}

int cuEventSynchronize(struct tg__cuevent *event) {
    struct tg_device *device;
    int result = standin_enter(&device);

    if (result == 0)
        result = standin_mind_captures(0);
    return result != 0 ? result : standin_wait(event->device, &event->fence);
}
