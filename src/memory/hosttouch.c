/* SPDX-License-Identifier: Apache-2.0 */
/* The first touch of a mapping for host copies, by several threads: the kernel zeroes a page when
 * it gives it, and one thread alone gets half a second of that for each GiB or two. */
#include "memory/hostmap.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/threads.h"

/* Of Linux 5.14; the headers may be older. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { MOST_THREADS = 16 };
#define SHARE_BYTES ((size_t)64 << 20) /* for less a thread does not pay */
#define UNIT_BYTES ((size_t)2 << 20)   /* two threads in one huge page would wait for each other */

struct share {
    pthread_t thread;
    unsigned char *bytes;
    size_t size_bytes;
    int status;
    bool is_started;
};

/* One write to each page: what an older kernel needs. Zeroes are what is there. */
static void write_pages(const struct share *share) {
    size_t page = tg__hostmap_pages(1);

    for (size_t at = 0; at < share->size_bytes; at += page)
        *(volatile unsigned char *)(share->bytes + at) = 0;
}

static void *touch_share(void *argument) {
    struct share *share = argument;
    int code = madvise(share->bytes, share->size_bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;

    if (code == EINVAL)
        write_pages(share);
    share->status = code == EINVAL ? 0 : -code;
    return NULL;
}

static uint32_t thread_count(size_t size_bytes, uint32_t asked) {
    size_t most = size_bytes / SHARE_BYTES + 1;
    cpu_set_t allowed;

    if (asked == 0) {
        CPU_ZERO(&allowed);
        asked = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed)
                                                                    : 1;
    }
    asked = asked > MOST_THREADS ? MOST_THREADS : asked;
    return asked > most ? (uint32_t)most : asked;
}

/* Every share but the first has a thread of its own, or, where there is none to be had, the
 * caller's. */
int tg__hostmap_touch(struct tg__hostmap *map, size_t size_bytes, uint32_t threads) {
    struct share shares[MOST_THREADS] = {0};
    uint32_t count = thread_count(size_bytes, threads);
    size_t each, at = 0;
    int rc = 0;

    assert(count >= 1 && count <= MOST_THREADS);
    each = size_bytes / count / UNIT_BYTES * UNIT_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        struct share *share = &shares[i];

        share->bytes = map->bytes + at;
        share->size_bytes = i + 1 < count ? each : size_bytes - at;
        at += share->size_bytes;
        share->is_started = i > 0 && share->size_bytes > 0 &&
                            tg__thread_start(&share->thread, touch_share, share) == 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct share *share = &shares[i];

        if (share->is_started)
            pthread_join(share->thread, NULL);
        else if (share->size_bytes > 0)
            touch_share(share);
        rc = rc != 0 ? rc : share->status;
    }
    return rc == 0 ? 0
                   : tg__fail(rc, "the kernel gives no pages for %zu bytes of host memory: %s",
                              size_bytes, tg_error_text(rc));
}
