/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a test of memory runs on: the host device, or, with TIDEGATE_TEST_STANDIN in the
 * environment, the cuda device whose driver stands in for one. Both have the same options. */
#ifndef TEST_TESTED_DEVICE_H
#define TEST_TESTED_DEVICE_H

#include <stdio.h>
#include <stdlib.h>

/* The URI of a device with these options of host:, behind a prefix such as "fault:nth=3/". */
static inline const char *tested_uri(const char *prefix, const char *options) {
    static char uri[256];
    char driver[256];

    if (getenv("TIDEGATE_TEST_STANDIN") == NULL) {
        snprintf(uri, sizeof uri, "%shost:%s", prefix, options);
        return uri;
    }
    /* A context that costs nothing: the tests count bytes. */
    snprintf(driver, sizeof driver, "%s,context=0", options);
    setenv("TIDEGATE_STANDIN", driver, 1);
    snprintf(uri, sizeof uri, "%scuda:0", prefix);
    return uri;
}

#endif
