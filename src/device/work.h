/* SPDX-License-Identifier: Apache-2.0 */
/* The host device's queues: each is a thread of its own that does its jobs in order. Threads come
 * with a queue's first job; all signals are blocked in them.
 *
 * Jobs are numbered as they are given, over all queues. A fence is such a number and a queue's, so
 * it needs no memory: it is passed when no job up to it is left there. */
#ifndef TG_DEVICE_WORK_H
#define TG_DEVICE_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include <tidegate/device.h>

struct tg__work;

struct tg__job {
    void *to;
    const void *from; /* NULL: a fill with byte */
    uint64_t size_bytes;
    int byte;
};

/* lag_ms: each job begins so much later. hangs: none is ever done. Errors: -ENOMEM. */
int tg__work_open(uint32_t lag_ms, bool hangs, struct tg__work **work);
/* Waits up to 1 s for the jobs given, drops the rest, ends the threads. In a forked child, where
 * there are none, it only gives memory back. */
void tg__work_close(struct tg__work *work, bool is_forked);

/* queue NULL: the device's own. A full queue makes the caller wait. Errors: -EINVAL (no queue of
 * this device), -EAGAIN (no thread), TG_EBUSY (the queue is full and hangs). */
int tg__work_give(struct tg__work *work, struct tg_queue *queue, const struct tg__job *job);
/* queue NULL: all. Errors: -EINVAL. */
int tg__work_fence(struct tg__work *work, struct tg_queue *queue, struct tg_fence *fence);
/* Errors: TG_EBUSY, -EINVAL (no fence of this device). */
int tg__work_wait(struct tg__work *work, const struct tg_fence *fence, uint32_t timeout_ms);
/* Errors: -ENOMEM. */
int tg__work_queue_open(struct tg__work *work, struct tg_queue **queue);
/* Errors: -EINVAL. */
int tg__work_queue_close(struct tg__work *work, struct tg_queue *queue);

#endif
