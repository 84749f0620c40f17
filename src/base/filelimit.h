/* SPDX-License-Identifier: Apache-2.0 */
/* RLIMIT_FSIZE (ulimit -f): who makes a file larger than it is sent SIGXFSZ, which ends a process
 * that never asked for files. So it is looked at before. */
#ifndef TG_BASE_FILELIMIT_H
#define TG_BASE_FILELIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

static inline bool tg__filelimit_allows(uint64_t size_bytes) {
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           size_bytes <= limit.rlim_cur;
}

#endif
