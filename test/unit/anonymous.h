/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of host memory: how much of it this process has, as the system counts. */
#ifndef TEST_ANONYMOUS_H
#define TEST_ANONYMOUS_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>

/* Of memory that is no file's. */
static inline uint64_t anonymous_bytes(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    unsigned long kib = 0;

    ck_assert_ptr_nonnull(status);
    while (fgets(line, sizeof line, status) != NULL && sscanf(line, "RssAnon: %lu kB", &kib) != 1)
        continue;
    fclose(status);
    return (uint64_t)kib << 10;
}

#endif
