/* SPDX-License-Identifier: Apache-2.0 */
/* Queues are streams that the null stream does not wait for. All functions but free_all are called
 * within a call's stay in the driver. A queue that is closed while a thread gives work to it lives
 * until that thread is done; its points live until the last one is passed. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "device/cuda_device.h"

static int make_stream(struct tg__cuda *cuda, struct tg__custream **stream) {
    return tg__cuda_status(cuda, cuda->calls.cuStreamCreate(stream, TG__CU_STREAM_NON_BLOCKING),
                           "cuStreamCreate");
}

/* Work that was given to it goes on. */
static void destroy_stream(struct tg__cuda *cuda, struct tg_queue *queue) {
    if (queue->stream != NULL)
        cuda->calls.cuStreamDestroy(queue->stream);
    queue->stream = NULL;
}

/* With the mutex. The open queue that is meant, or NULL and a sentence. */
static struct tg_queue *find(struct tg__cuda *cuda, const struct tg_queue *wanted) {
    struct tg_queue *queue = cuda->queues;

    if (wanted == NULL)
        return &cuda->own;
    while (queue != NULL && (queue != wanted || queue->is_closed))
        queue = queue->next;
    if (queue == NULL)
        tg__fail(-EINVAL, "this is no open queue of the device");
    return queue;
}

/* With the mutex: closed queues whose points are passed. */
static void reap(struct tg__cuda *cuda) {
    for (struct tg_queue **link = &cuda->queues; *link != NULL;) {
        struct tg_queue *queue = *link;

        if (!queue->is_closed || queue->users > 0 || !tg__cudachain_is_over(cuda, &queue->chain)) {
            link = &queue->next;
            continue;
        }
        *link = queue->next;
        free(queue);
    }
}

int tg__cudaqueue_get(struct tg__cuda *cuda, struct tg_queue *queue, struct tg_queue **used) {
    struct tg_queue *found;
    int rc = 0;

    pthread_mutex_lock(&cuda->queue_mutex);
    found = find(cuda, queue);
    if (found == NULL)
        rc = -EINVAL;
    else if (found->stream == NULL)
        rc = make_stream(cuda, &found->stream);
    if (rc == 0) {
        found->users++;
        *used = found;
    }
    pthread_mutex_unlock(&cuda->queue_mutex);
    return rc;
}

void tg__cudaqueue_put(struct tg__cuda *cuda, struct tg_queue *used) {
    pthread_mutex_lock(&cuda->queue_mutex);
    if (--used->users == 0 && used->is_closed)
        destroy_stream(cuda, used);
    pthread_mutex_unlock(&cuda->queue_mutex);
}

int tg__cudaqueue_open(struct tg__cuda *cuda, struct tg_queue **queue) {
    struct tg_queue *made = calloc(1, sizeof *made);
    int rc;

    if (made == NULL)
        return tg__fail_memory();
    rc = make_stream(cuda, &made->stream);
    if (rc != 0) {
        free(made);
        return rc;
    }
    pthread_mutex_lock(&cuda->queue_mutex);
    reap(cuda);
    made->id = ++cuda->last_id;
    made->next = cuda->queues;
    cuda->queues = made;
    pthread_mutex_unlock(&cuda->queue_mutex);
    *queue = made;
    return 0;
}

int tg__cudaqueue_close(struct tg__cuda *cuda, struct tg_queue *queue) {
    struct tg_queue *found;

    if (queue == NULL)
        return tg__fail(-EINVAL, "the device's own queue is closed with the device");
    pthread_mutex_lock(&cuda->queue_mutex);
    found = find(cuda, queue);
    if (found != NULL) {
        found->is_closed = true;
        if (found->users == 0)
            destroy_stream(cuda, found);
        reap(cuda);
    }
    pthread_mutex_unlock(&cuda->queue_mutex);
    return found == NULL ? -EINVAL : 0;
}

void tg__cudaqueue_free_all(struct tg__cuda *cuda, bool is_forked) {
    while (cuda->queues != NULL) {
        struct tg_queue *queue = cuda->queues;

        cuda->queues = queue->next;
        if (!is_forked)
            destroy_stream(cuda, queue);
        free(queue);
    }
    if (!is_forked)
        destroy_stream(cuda, &cuda->own);
}
