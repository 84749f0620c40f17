/* SPDX-License-Identifier: Apache-2.0 */
/* Between the host and a device whose memory it cannot reach: memory pinned for the device's
 * copies, and a copy. Functions return 0 or a negative status. */
#ifndef CLI_DEMO_LINK_H
#define CLI_DEMO_LINK_H

#include <stddef.h>

#include <tidegate/device.h>

/* New memory, touched and pinned. Errors: -ENOMEM, the device's. */
int demo_link_pinned_make(struct tg_device *device, size_t size_bytes, void **memory);
/* NULL is allowed. Memory that stays pinned stays mapped, too. */
void demo_link_pinned_drop(struct tg_device *device, void *memory, size_t size_bytes);

/* Copies, and waits until it is done. */
int demo_link_copy(struct tg_device *device, void *to, const void *from, size_t size_bytes);

#endif
