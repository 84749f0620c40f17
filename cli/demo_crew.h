/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads that fill and compare a large block together, half each: while one side of the demo
 * works, the other sleeps, and so would half of a small machine. Small blocks are not worth the
 * waking. One caller at a time. */
#ifndef CLI_DEMO_CREW_H
#define CLI_DEMO_CREW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum demo_task {
    DEMO_TOUCH, /* page-aligned memory is made at once: half of the cost page by page */
    DEMO_FILL,
    DEMO_COMPARE,
    DEMO_COMPARE_ZERO
};

struct demo_crew {
    pthread_t thread;
    bool has_thread; /* false: none was to be had, and the caller does it all */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* with it, for the thread that sleeps */
    _Atomic bool is_asleep, must_end;
    _Atomic uint32_t posted, done; /* numbers of halves; equal: what follows is the caller's */
    enum demo_task task;
    void *at;
    size_t size_bytes;
    uint64_t key, lost_bytes;
};

void demo_crew_open(struct demo_crew *crew);
void demo_crew_close(struct demo_crew *crew);

/* Touches or fills a block, or returns how many of its bytes are not as they should be. */
uint64_t demo_crew_do(struct demo_crew *crew, enum demo_task task, void *at, size_t size_bytes,
                      uint64_t key);

#endif
