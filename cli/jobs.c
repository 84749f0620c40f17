/* SPDX-License-Identifier: Apache-2.0 */
/* Threads take the next file from a common counter; the main thread is one of them, so that it also
 * works where no thread can be had. Pipes come first, one at a time: they can be read only once, so
 * none may have to begin again for want of memory. */
#include "jobs.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "budget.h"
#include "input.h"

enum {
    THREADS_MAX = 256,
    UNPACKED_PER_BYTE = 25 /* what snapshots unpack to, roughly: xz 17 to 40, gzip 10 to 20 */
};

struct pool {
    struct job *jobs;
    size_t count;
    const struct jobs_params *params;
    struct budget budget;
    atomic_size_t next; /* the first job that no thread has taken; order does not matter */
};

static void format_write(struct job *job, const struct tg_snapshot_info *info,
                         enum packing packing) {
    snprintf(job->format, sizeof job->format, "pickle %u%s%s%s", info->protocol,
             info->is_list ? " list" : "", packing == PACKING_NONE ? "" : ", ",
             packing_name(packing));
}

/* Parse and digest; the snapshot lives on the input's bytes, the digest does not. */
static void digest_make(struct job *job, struct input *input, const char *step_mark) {
    struct tg_snapshot_info info;
    struct tg_snapshot *snapshot;
    struct tg_digest *digest;
    int status = tg_snapshot_parse_mapped(input->bytes, input->size_bytes, input_let_go, input,
                                          &snapshot);

    if (status != 0) {
        bool names_byte = status <= TG_EFORMAT && input->packing != PACKING_NONE;

        sentence_set(&job->why, "%s%s", tg_last_error()->text,
                     names_byte ? " (bytes of the unpacked data)" : "");
        return;
    }
    tg_snapshot_info(snapshot, &info);
    if (tg_digest_make(snapshot, step_mark, &digest) != 0) {
        sentence_set(&job->why, "%s", tg_last_error()->text);
    } else {
        format_write(job, &info, input->packing);
        tg_digest_info(digest, &job->info);
        job->digest = digest;
    }
    tg_snapshot_close(snapshot);
}

/* What reading will take besides the file's own pages: what it unpacks to, and half of that again
 * for the reader's tables. A guess; the budget copes with wrong ones. */
static uint64_t claim_of(const struct input *input) {
    size_t bytes = input->mapped != NULL ? input->mapped_bytes : input->raw.size_bytes;
    uint64_t unpacked = (uint64_t)bytes * UNPACKED_PER_BYTE;
    bool is_packed = packing_detect(input->mapped != NULL ? input->mapped : input->raw.bytes,
                                    bytes) != PACKING_NONE;

    return is_packed ? unpacked + unpacked / 2 : bytes / 2;
}

static void job_do(struct job *job, struct pool *pool) {
    enum unpack_result unpacked;
    struct budget_share share;
    struct input input;
    uint64_t claim;

    budget_share_init(&share, &pool->budget);
    if (!input_open(&input, job->path, &share, &job->why)) {
        budget_leave(&share);
        return;
    }
    claim = claim_of(&input);
    budget_enter(&share, claim);
    while ((unpacked = input_unpack(&input, &job->why)) == UNPACK_LATER) {
        budget_leave(&share);
        claim *= 2;
        budget_enter(&share, claim);
    }
    if (unpacked == UNPACKED)
        digest_make(job, &input, pool->params->step_mark);
    if (input.has_shrunk) {
        tg_digest_close(job->digest);
        job->digest = NULL;
        sentence_set(&job->why, "became shorter while it was read: is it still being written?");
    }
    input_close(&input);
    budget_leave(&share);
}

static void *work(void *argument) {
    struct pool *pool = argument;
    size_t i;

    while ((i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count) {
        if (!pool->jobs[i].is_stream)
            job_do(&pool->jobs[i], pool);
    }
    return NULL;
}

static size_t cores(void) {
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (size_t)CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the set holds */
    return online > 0 ? (size_t)online : 1;
}

void jobs_run(struct job *jobs, size_t count, const struct jobs_params *params) {
    struct pool pool = {.jobs = jobs, .count = count, .params = params};
    size_t wanted = params->threads != 0 ? params->threads : cores();
    pthread_t threads[THREADS_MAX];
    size_t started = 0;

    if (wanted > count)
        wanted = count;
    if (wanted > THREADS_MAX)
        wanted = THREADS_MAX;
    budget_init(&pool.budget,
                params->memory_bytes != 0 ? params->memory_bytes : budget_default_bytes());
    for (size_t i = 0; i < count; i++) {
        if (jobs[i].is_stream)
            job_do(&jobs[i], &pool);
    }
    while (started + 1 < wanted &&
           pthread_create(&threads[started], NULL, work, &pool) == 0)
        started++;
    work(&pool);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    budget_destroy(&pool.budget);
}
