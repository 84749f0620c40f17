/* SPDX-License-Identifier: Apache-2.0 */
/* One mutex over all queues; a job is done without it, and stays in its queue until it is done. */
#include "device/work.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/threads.h"

/* A job is done in pieces, so that closing need not wait for a large one. Not in small ones: from
 * about half of the last cache's size on, libc copies past the cache (measured: 1.6 times as fast).
 */
enum { QUEUE_JOBS = 1024, CLOSE_MS = 1000 };
#define PIECE_BYTES (UINT64_C(256) << 20)

struct numbered {
    struct tg__job job;
    uint64_t number;
};

struct tg_queue {
    struct tg__work *work;
    uint64_t id;
    struct numbered jobs[QUEUE_JOBS]; /* a ring */
    uint64_t first, end;              /* jobs[first % QUEUE_JOBS] is in work */
    pthread_cond_t given;             /* or closed, or dropped */
    pthread_t thread;
    bool has_thread, is_closed;
    bool has_ended; /* the thread has nothing more to do with us */
    struct tg_queue *next;
};

struct tg__work {
    pthread_mutex_t mutex; /* guards all below, and the queues */
    pthread_cond_t progress;
    struct tg_queue *queues; /* the device's own is the last */
    struct tg_queue *own;
    uint64_t last_number, last_id;
    _Atomic bool is_dropped; /* what is left is not done */
    uint32_t lag_ms;
    bool hangs;
};

static bool is_dropped(const struct tg__work *work) {
    return atomic_load_explicit(&work->is_dropped, memory_order_relaxed);
}

/* ---- the threads ----------------------------------------------------------------------------- */

static void do_job(const struct tg__work *work, const struct tg__job *job) {
    uint64_t piece;

    for (uint64_t done = 0; done < job->size_bytes && !is_dropped(work); done += piece) {
        uint64_t left = job->size_bytes - done;
        unsigned char *to = (unsigned char *)job->to + done;

        piece = left < 2 * PIECE_BYTES ? left : PIECE_BYTES;
        if (job->from == NULL)
            memset(to, job->byte, piece);
        else
            memmove(to, (const unsigned char *)job->from + done, piece);
    }
}

/* With the mutex, which is free meanwhile. */
static void lag(struct tg_queue *queue) {
    struct tg__work *work = queue->work;
    struct timespec end = tg__deadline_after(work->lag_ms);
    int rc = 0;

    while (!is_dropped(work) && (work->hangs || (work->lag_ms != 0 && rc == 0))) {
        if (work->hangs)
            pthread_cond_wait(&queue->given, &work->mutex);
        else
            rc = pthread_cond_timedwait(&queue->given, &work->mutex, &end);
    }
}

static void *run_queue(void *argument) {
    struct tg_queue *queue = argument;
    struct tg__work *work = queue->work;

    pthread_mutex_lock(&work->mutex);
    while (!is_dropped(work) && (queue->first != queue->end || !queue->is_closed)) {
        struct tg__job job;

        if (queue->first == queue->end) {
            pthread_cond_wait(&queue->given, &work->mutex);
            continue;
        }
        lag(queue);
        job = queue->jobs[queue->first % QUEUE_JOBS].job;
        pthread_mutex_unlock(&work->mutex);
        do_job(work, &job);
        pthread_mutex_lock(&work->mutex);
        queue->first++;
        pthread_cond_broadcast(&work->progress);
    }
    queue->has_ended = true;
    pthread_mutex_unlock(&work->mutex);
    return NULL;
}

/* A thread of ours must not be the one that handles the program's signals. */
static int start_thread(struct tg_queue *queue) {
    int code;

    if (queue->has_thread)
        return 0;
    code = tg__thread_start(&queue->thread, run_queue, queue);
    if (code != 0)
        return tg__fail(-code, "cannot start a queue's thread: %s", tg_error_text(-code));
    queue->has_thread = true;
    return 0;
}

/* ---- queues ---------------------------------------------------------------------------------- */

static struct tg_queue *make_queue(struct tg__work *work) {
    struct tg_queue *queue = calloc(1, sizeof *queue);

    if (queue == NULL)
        return NULL;
    queue->work = work;
    queue->id = ++work->last_id;
    tg__condition_init(&queue->given);
    queue->next = work->queues;
    work->queues = queue;
    return queue;
}

static void free_queue(struct tg_queue **link) {
    struct tg_queue *queue = *link;

    *link = queue->next;
    pthread_cond_destroy(&queue->given);
    free(queue);
}

/* Closed queues go when their last job is done: here, at somebody's next call. */
static void reap(struct tg__work *work) {
    for (struct tg_queue **link = &work->queues; *link != NULL;) {
        if (!(*link)->is_closed || ((*link)->has_thread && !(*link)->has_ended)) {
            link = &(*link)->next;
            continue;
        }
        if ((*link)->has_thread)
            pthread_join((*link)->thread, NULL);
        free_queue(link);
    }
}

/* With the mutex. The open queue that is meant, or NULL and a sentence. */
static struct tg_queue *find_queue(struct tg__work *work, const struct tg_queue *wanted) {
    struct tg_queue *queue = work->queues;

    if (wanted == NULL)
        return work->own;
    while (queue != NULL && (queue != wanted || queue->is_closed))
        queue = queue->next;
    if (queue == NULL)
        tg__fail(-EINVAL, "this is no open queue of the device");
    return queue;
}

int tg__work_open(uint32_t lag_ms, bool hangs, struct tg__work **work) {
    struct tg__work *made = calloc(1, sizeof *made);

    if (made == NULL)
        return tg__fail_memory();
    made->lag_ms = lag_ms;
    made->hangs = hangs;
    made->own = make_queue(made);
    if (made->own == NULL) {
        free(made);
        return tg__fail_memory();
    }
    pthread_mutex_init(&made->mutex, NULL);
    tg__condition_init(&made->progress);
    *work = made;
    return 0;
}

static bool has_passed(const struct tg__work *work, uint64_t id, uint64_t number) {
    for (const struct tg_queue *queue = work->queues; queue != NULL; queue = queue->next) {
        if ((id == 0 || queue->id == id) && queue->first != queue->end &&
            queue->jobs[queue->first % QUEUE_JOBS].number <= number)
            return false;
    }
    return true;
}

static bool wait_until(struct tg__work *work, uint64_t id, uint64_t number, uint64_t timeout_ms) {
    struct timespec end = tg__deadline_after(timeout_ms);
    bool is_over = timeout_ms == 0;

    while (!has_passed(work, id, number)) {
        if (is_over)
            return false;
        is_over = pthread_cond_timedwait(&work->progress, &work->mutex, &end) != 0;
    }
    return true;
}

static void end_threads(struct tg__work *work) {
    pthread_mutex_lock(&work->mutex);
    wait_until(work, 0, work->last_number, work->hangs ? 0 : CLOSE_MS);
    atomic_store_explicit(&work->is_dropped, true, memory_order_relaxed);
    for (struct tg_queue *queue = work->queues; queue != NULL; queue = queue->next)
        pthread_cond_broadcast(&queue->given);
    pthread_cond_broadcast(&work->progress);
    pthread_mutex_unlock(&work->mutex);
    for (struct tg_queue *queue = work->queues; queue != NULL; queue = queue->next) {
        if (queue->has_thread)
            pthread_join(queue->thread, NULL);
    }
}

void tg__work_close(struct tg__work *work, bool is_forked) {
    if (work == NULL)
        return;
    if (is_forked) {
        /* The mutexes and conditions may be in use by threads that are not here. */
        for (struct tg_queue *queue = work->queues, *next; queue != NULL; queue = next) {
            next = queue->next;
            free(queue);
        }
        free(work);
        return;
    }
    end_threads(work);
    while (work->queues != NULL)
        free_queue(&work->queues);
    pthread_cond_destroy(&work->progress);
    pthread_mutex_destroy(&work->mutex);
    free(work);
}

int tg__work_queue_open(struct tg__work *work, struct tg_queue **queue) {
    struct tg_queue *made;

    pthread_mutex_lock(&work->mutex);
    reap(work);
    made = make_queue(work);
    pthread_mutex_unlock(&work->mutex);
    if (made == NULL)
        return tg__fail_memory();
    *queue = made;
    return 0;
}

int tg__work_queue_close(struct tg__work *work, struct tg_queue *queue) {
    struct tg_queue *found;

    if (queue == NULL)
        return tg__fail(-EINVAL, "the device's own queue is closed with the device");
    pthread_mutex_lock(&work->mutex);
    found = find_queue(work, queue);
    if (found != NULL && found != work->own) {
        found->is_closed = true;
        pthread_cond_broadcast(&found->given);
        reap(work);
    }
    pthread_mutex_unlock(&work->mutex);
    return found == NULL ? -EINVAL : 0;
}

/* ---- jobs and fences ------------------------------------------------------------------------- */

/* With the mutex. A queue may be closed while we wait for room, and is then no queue any more. */
static int wait_for_room(struct tg__work *work, struct tg_queue **queue) {
    const struct tg_queue *wanted = *queue;

    while (*queue != NULL && (*queue)->end - (*queue)->first == QUEUE_JOBS) {
        if (work->hangs)
            return tg__fail(TG_EBUSY, "the queue has %d jobs and none is ever done", QUEUE_JOBS);
        pthread_cond_wait(&work->progress, &work->mutex);
        *queue = find_queue(work, wanted);
    }
    return *queue == NULL ? -EINVAL : 0;
}

int tg__work_give(struct tg__work *work, struct tg_queue *queue, const struct tg__job *job) {
    struct tg_queue *found;
    int rc;

    pthread_mutex_lock(&work->mutex);
    found = find_queue(work, queue);
    rc = wait_for_room(work, &found);
    if (rc == 0)
        rc = start_thread(found);
    if (rc == 0) {
        found->jobs[found->end % QUEUE_JOBS] = (struct numbered){*job, ++work->last_number};
        found->end++;
        pthread_cond_signal(&found->given);
    }
    pthread_mutex_unlock(&work->mutex);
    return rc;
}

int tg__work_fence(struct tg__work *work, struct tg_queue *queue, struct tg_fence *fence) {
    struct tg_queue *found;

    pthread_mutex_lock(&work->mutex);
    found = find_queue(work, queue);
    if (found != NULL)
        *fence = (struct tg_fence){{queue == NULL ? 0 : found->id, work->last_number}};
    pthread_mutex_unlock(&work->mutex);
    return found == NULL ? -EINVAL : 0;
}

int tg__work_wait(struct tg__work *work, const struct tg_fence *fence, uint32_t timeout_ms) {
    int rc = 0;

    pthread_mutex_lock(&work->mutex);
    if (fence->word[0] > work->last_id || fence->word[1] > work->last_number)
        rc = tg__fail(-EINVAL, "this is no fence of the device");
    else if (!wait_until(work, fence->word[0], fence->word[1], timeout_ms))
        rc = tg__fail(TG_EBUSY, "the device's work has not ended within %u ms", timeout_ms);
    pthread_mutex_unlock(&work->mutex);
    return rc;
}
