/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_crew.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "demo_content.h"

/* Below this a thread takes longer to wake than the half to do. */
#define SHARED_LEAST ((size_t)512 << 10)

/* So many times the other thread gives way before it sleeps: about 100 us. */
enum { LOOKS = 200 };

/* Halves meet at the end of a page. */
#define PART_UNIT ((size_t)4096)

static uint64_t task_do(enum demo_task task, void *at, size_t size_bytes, uint64_t key) {
    switch (task) {
    case DEMO_TOUCH:
#ifdef MADV_POPULATE_WRITE
        (void)madvise(at, size_bytes, MADV_POPULATE_WRITE); /* kernels before 5.14 do not know it */
#endif
        return 0;
    case DEMO_FILL:
        demo_content_fill(at, size_bytes, key);
        return 0;
    case DEMO_COMPARE:
        return demo_content_lost(at, size_bytes, key);
    case DEMO_COMPARE_ZERO:
        break;
    }
    return demo_content_not_zero(at, size_bytes);
}

/* Whether there is a new half to do, or an end; `seen` is the last one it did. */
static bool has_news(struct demo_crew *crew, uint32_t seen) {
    return atomic_load(&crew->posted) != seen || atomic_load(&crew->must_end);
}

/* One block mostly follows the other, and waking a thread takes as long as the half it is to do: so
 * it looks about for a moment before it sleeps. */
static void news_await(struct demo_crew *crew, uint32_t seen) {
    for (int i = 0; i < LOOKS && !has_news(crew, seen); i++)
        sched_yield();
    if (has_news(crew, seen))
        return;
    pthread_mutex_lock(&crew->lock);
    atomic_store(&crew->is_asleep, true);
    while (!has_news(crew, seen))
        pthread_cond_wait(&crew->changed, &crew->lock);
    atomic_store(&crew->is_asleep, false);
    pthread_mutex_unlock(&crew->lock);
}

/* Either it sees what was just posted before it sleeps, or it is seen asleep here. */
static void news_tell(struct demo_crew *crew) {
    if (!atomic_load(&crew->is_asleep))
        return;
    pthread_mutex_lock(&crew->lock);
    pthread_cond_signal(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
}

static void *serve(void *argument) {
    struct demo_crew *crew = argument;
    uint32_t seen = 0;

    for (;;) {
        news_await(crew, seen);
        if (atomic_load(&crew->must_end))
            return NULL;
        seen = atomic_load(&crew->posted);
        crew->lost_bytes = task_do(crew->task, crew->at, crew->size_bytes, crew->key);
        atomic_store(&crew->done, seen);
    }
}

void demo_crew_open(struct demo_crew *crew) {
    memset(crew, 0, sizeof *crew);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->changed, NULL);
    crew->has_thread = pthread_create(&crew->thread, NULL, serve, crew) == 0;
}

void demo_crew_close(struct demo_crew *crew) {
    atomic_store(&crew->must_end, true);
    news_tell(crew);
    if (crew->has_thread)
        pthread_join(crew->thread, NULL);
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->lock);
}

uint64_t demo_crew_do(struct demo_crew *crew, enum demo_task task, void *at, size_t size_bytes,
                      uint64_t key) {
    size_t half = size_bytes / 2 / PART_UNIT * PART_UNIT;
    uint64_t lost_bytes;

    if (!crew->has_thread || size_bytes < SHARED_LEAST)
        return task_do(task, at, size_bytes, key);
    crew->task = task;
    crew->at = (unsigned char *)at + half;
    crew->size_bytes = size_bytes - half;
    crew->key = demo_content_key_at(key, half);
    atomic_fetch_add(&crew->posted, 1);
    news_tell(crew);
    lost_bytes = task_do(task, at, half, key);
    while (atomic_load(&crew->done) != atomic_load(&crew->posted))
        sched_yield();
    return lost_bytes + crew->lost_bytes;
}
