/* SPDX-License-Identifier: Apache-2.0 */
/* The version of the GPUs' driver, as the kernel tells it. */
#ifndef CLI_KERNEL_DRIVER_H
#define CLI_KERNEL_DRIVER_H

#include <stdbool.h>

#define KERNEL_DRIVER_BYTES 32

/* False: the kernel has none. "": it has, and its version is not known. */
bool kernel_driver_read(char version[static KERNEL_DRIVER_BYTES]);

#endif
