/* SPDX-License-Identifier: Apache-2.0 */
/* The book of the host memory that is pinned, so that wrong use shows on every kind of device. */
#ifndef TG_DEVICE_PINS_H
#define TG_DEVICE_PINS_H

#include <stdint.h>

#include "device/spans.h"

/* Whether this range may be pinned (on = 1) or unpinned now. Then the note cannot fail. Errors:
 * -EINVAL, -ENOMEM. */
int tg__pins_check(struct tg__spans *pins, const void *memory, uint64_t size_bytes, int on);
void tg__pins_note(struct tg__spans *pins, const void *memory, uint64_t size_bytes, int on);

#endif
