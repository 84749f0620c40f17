/* SPDX-License-Identifier: Apache-2.0 */
/* The first touch of a mapping for host copies, by several threads: the kernel zeroes a page when
 * it gives it, and one thread alone gets half a second of that for each GiB or two.
 *
 * Pieces are taken in order, so what is touched grows from the beginning, and who copies into it
 * need not wait for the end.
 *
 * A page lies at the node of the CPU that touched it first. Containers forbid mbind, so it is our
 * threads that go to the GPU's node. */
#include "memory/hosttouch.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/threads.h"
#include "memory/hostmap.h"

/* Of Linux 5.14; the headers may be older. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SHARE_BYTES ((size_t)64 << 20) /* for less a thread does not pay */
/* Whole huge pages, in one of which two threads would wait for each other; some milliseconds. */
#define PIECE_BYTES ((size_t)16 << 20)

/* ---- pages ----------------------------------------------------------------------------------- */

/* One write to each page: what an older kernel needs. Zeroes are what is there. */
static void write_pages(unsigned char *bytes, size_t size_bytes) {
    size_t page = tg__hostmap_pages(1);

    for (size_t at = 0; at < size_bytes; at += page)
        *(volatile unsigned char *)(bytes + at) = 0;
}

static int touch_pages(unsigned char *bytes, size_t size_bytes) {
    int code = madvise(bytes, size_bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;

    if (code == EINVAL)
        write_pages(bytes, size_bytes);
    return code == EINVAL ? 0 : -code;
}

/* ---- touchers -------------------------------------------------------------------------------- */

/* The toucher's last piece is touched now; is there another? With lock. */
static bool take(struct tg__toucher *toucher) {
    struct tg__touch *touch = toucher->touch;
    bool is_left = touch->taken_bytes < touch->size_bytes;

    toucher->at = is_left ? touch->taken_bytes : SIZE_MAX;
    if (is_left)
        touch->taken_bytes += PIECE_BYTES;
    pthread_cond_signal(&touch->advanced);
    return is_left;
}

/* With lock, which it gives up meanwhile. */
static void touch_taken(struct tg__toucher *toucher) {
    struct tg__touch *touch = toucher->touch;
    size_t left = touch->size_bytes - toucher->at;
    int rc;

    pthread_mutex_unlock(&touch->lock);
    rc = touch_pages(touch->bytes + toucher->at, left < PIECE_BYTES ? left : PIECE_BYTES);
    pthread_mutex_lock(&touch->lock);
    if (rc != 0) {
        touch->status = touch->status != 0 ? touch->status : rc;
        touch->taken_bytes = touch->size_bytes;
    }
}

static void *touch_on(void *argument) {
    struct tg__toucher *toucher = argument;
    const struct tg__touch *touch = toucher->touch;

    if (touch->is_bound) /* a refusal costs speed alone */
        (void)!sched_setaffinity(0, sizeof touch->cpus, &touch->cpus);
    pthread_mutex_lock(&toucher->touch->lock);
    while (take(toucher))
        touch_taken(toucher);
    pthread_mutex_unlock(&toucher->touch->lock);
    return NULL;
}

/* From the beginning, without a gap. With lock. */
static size_t touched_bytes(const struct tg__touch *touch) {
    size_t size_bytes = touch->taken_bytes;

    for (uint32_t i = 0; i < touch->thread_count; i++) {
        if (touch->touchers[i].at < size_bytes)
            size_bytes = touch->touchers[i].at;
    }
    return size_bytes;
}

/* ---- for others ------------------------------------------------------------------------------ */

/* Where the threads run: of those that are near what this thread may use, if that is a choice. */
static void choose_cpus(struct tg__touch *touch, const cpu_set_t *near) {
    cpu_set_t chosen;

    CPU_ZERO(&touch->cpus);
    if (sched_getaffinity(0, sizeof touch->cpus, &touch->cpus) != 0 || near == NULL)
        return;
    CPU_AND(&chosen, near, &touch->cpus);
    touch->is_bound = CPU_COUNT(&chosen) > 0 && !CPU_EQUAL(&chosen, &touch->cpus);
    if (touch->is_bound)
        touch->cpus = chosen;
}

static uint32_t most_threads(const struct tg__touch *touch, uint32_t asked) {
    size_t most = touch->size_bytes / SHARE_BYTES + 1;

    if (asked == 0)
        asked = CPU_COUNT(&touch->cpus) > 0 ? (uint32_t)CPU_COUNT(&touch->cpus) : 1;
    asked = asked > TG__TOUCH_THREADS ? TG__TOUCH_THREADS : asked;
    return asked > most ? (uint32_t)most : asked;
}

void tg__touch_begin(struct tg__touch *touch, unsigned char *bytes, size_t size_bytes,
                     uint32_t threads, const cpu_set_t *near) {
    uint32_t most;

    touch->bytes = bytes;
    touch->size_bytes = size_bytes;
    touch->taken_bytes = 0;
    touch->status = 0;
    touch->thread_count = 1;
    touch->is_bound = false;
    choose_cpus(touch, near);
    most = most_threads(touch, threads) + touch->is_bound; /* the caller only waits then */
    assert(most >= 1 && most <= TG__TOUCH_THREADS + 1);
    for (uint32_t i = 0; i <= TG__TOUCH_THREADS; i++)
        touch->touchers[i] = (struct tg__toucher){.touch = touch, .at = SIZE_MAX};
    pthread_mutex_init(&touch->lock, NULL);
    pthread_cond_init(&touch->advanced, NULL);
    while (touch->thread_count < most) {
        struct tg__toucher *toucher = &touch->touchers[touch->thread_count];

        if (tg__thread_start(&toucher->thread, touch_on, toucher) != 0)
            return;
        touch->thread_count++;
    }
}

int tg__touch_wait(struct tg__touch *touch, size_t end_bytes) {
    struct tg__toucher *own = &touch->touchers[0];
    bool is_left_to_others = touch->is_bound && touch->thread_count > 1;
    int rc;

    pthread_mutex_lock(&touch->lock);
    while (touch->status == 0 && touched_bytes(touch) < end_bytes) {
        if (touch->taken_bytes >= end_bytes || is_left_to_others) {
            pthread_cond_wait(&touch->advanced, &touch->lock);
        } else if (take(own)) {
            touch_taken(own);
            own->at = SIZE_MAX;
        }
    }
    rc = touch->status;
    pthread_mutex_unlock(&touch->lock);
    return rc == 0 ? 0
                   : tg__fail(rc, "the kernel gives no pages for %zu bytes of host memory: %s",
                              touch->size_bytes, tg_error_text(rc));
}

void tg__touch_end(struct tg__touch *touch) {
    pthread_mutex_lock(&touch->lock);
    touch->taken_bytes = touch->size_bytes;
    pthread_mutex_unlock(&touch->lock);
    for (uint32_t i = 1; i < touch->thread_count; i++)
        pthread_join(touch->touchers[i].thread, NULL);
    pthread_cond_destroy(&touch->advanced);
    pthread_mutex_destroy(&touch->lock);
}

int tg__hostmap_touch(struct tg__hostmap *map, size_t size_bytes, uint32_t threads,
                      const cpu_set_t *near) {
    struct tg__touch touch;
    int rc;

    tg__touch_begin(&touch, map->bytes, size_bytes, threads, near);
    rc = tg__touch_wait(&touch, size_bytes);
    tg__touch_end(&touch);
    return rc;
}
