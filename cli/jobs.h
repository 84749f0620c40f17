/* SPDX-License-Identifier: Apache-2.0 */
/* Reads many files on the cores that the process may use: each is opened, unpacked, parsed,
 * digested and closed by one thread. */
#ifndef CLI_JOBS_H
#define CLI_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tidegate/snapshot.h>

#include "say.h"

/* One file. The caller fills in the first two and, after jobs_run, closes the digest. */
struct job {
    const char *path;
    bool is_stream;
    struct tg_digest *digest; /* NULL: why says what was wrong */
    struct tg_digest_info info;
    char format[40]; /* "pickle 4", "pickle 2 list, xz" */
    struct sentence why;
};

struct jobs_params {
    size_t threads;        /* 0: one for each core that the process may run on */
    uint64_t memory_bytes; /* for what is unpacked or read from pipes; 0: half of what is left */
    const char *step_mark; /* see tg_digest_make */
};

/* Returns when all are done; the outcome is in the jobs, whatever thread did them. */
void jobs_run(struct job *jobs, size_t count, const struct jobs_params *params);

#endif
