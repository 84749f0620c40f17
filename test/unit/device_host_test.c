/* SPDX-License-Identifier: Apache-2.0 */
/* The host device under the contract's tests. What it alone promises is in host_test.c. */
#include "children.h"
#include "device_suite.h"

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static int open_host(struct tg_device **device) {
    return tg_device_open("host:capacity=64MiB", device);
}

int main(void) {
    const struct device_suite host = {"device_host", open_host, set_up, tear_down, NULL, 0};

    return device_suite_run(&host);
}
