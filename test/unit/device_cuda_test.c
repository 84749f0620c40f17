/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device under the contract's tests: on the stand-in driver, and on a card. */
#include <stdio.h>
#include <stdlib.h>

#include "children.h"
#include "device_suite.h"

enum { SKIPPED = 77 };

/* Contexts come and go with the processes of the tests; on the stand-in they cost nothing. */
#define CARD_SLACK_BYTES (UINT64_C(2) << 30)

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

/* With its context: what that costs is no part of the figures that the tests compare. */
static int open_cuda(struct tg_device **device) {
    struct tg_queue *queue;
    int rc = tg_device_open("cuda:0", device);

    if (rc == 0)
        rc = tg_device_ops(*device)->queue_open(*device, &queue);
    if (rc == 0)
        rc = tg_device_ops(*device)->queue_close(*device, queue);
    return rc;
}

int main(void) {
    uint64_t slack_bytes = getenv("TIDEGATE_STANDIN") != NULL ? 0 : CARD_SLACK_BYTES;
    const struct device_suite cuda = {"device_cuda", open_cuda, set_up, tear_down, NULL,
                                      slack_bytes};

    return device_suite_run(&cuda);
}
