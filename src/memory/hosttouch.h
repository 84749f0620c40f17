/* SPDX-License-Identifier: Apache-2.0 */
/* The first touch of a mapping while others already use its beginning: several threads take pieces
 * in order, and the caller waits for as much as it needs next. */
#ifndef TG_MEMORY_HOSTTOUCH_H
#define TG_MEMORY_HOSTTOUCH_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TG__TOUCH_THREADS = 16 };

struct tg__touch;

struct tg__toucher {
    struct tg__touch *touch;
    pthread_t thread;
    size_t at; /* the piece it works on; SIZE_MAX: none. Guarded by the touch's lock */
};

struct tg__touch {
    unsigned char *bytes;
    size_t size_bytes;
    uint32_t thread_count;
    struct tg__toucher touchers[TG__TOUCH_THREADS + 1]; /* the first is the caller */
    bool is_bound; /* the threads run on these alone; the caller's own is never bound */
    cpu_set_t cpus;
    pthread_mutex_t lock;                           /* guards what follows */
    pthread_cond_t advanced;
    size_t taken_bytes; /* from the beginning: pieces given to a toucher */
    int status;         /* the first failure */
};

/* Starts the threads, so many with the caller's (0: as many as pay), or as many as there are to be
 * had. Whole pages. near: where the pages are to lie (NULL: anywhere). If the caller may run there
 * and elsewhere, the threads run there alone, and the caller does not touch. Cannot fail;
 * tg__touch_end must follow. */
void tg__touch_begin(struct tg__touch *touch, unsigned char *bytes, size_t size_bytes,
                     uint32_t threads, const cpu_set_t *near);
/* Waits until the first end_bytes have their pages, helping where nobody has begun, unless others
 * are bound who will. Errors: -ENOMEM
 * and what else the kernel says. */
int tg__touch_wait(struct tg__touch *touch, size_t end_bytes);
/* No further piece is begun; returns when the threads have ended. */
void tg__touch_end(struct tg__touch *touch);

#endif
