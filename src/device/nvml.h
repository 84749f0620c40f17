/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's management library says of a GPU: it needs no context, and knows processes. All
 * functions of one `struct tg__nvml` are called one at a time. */
#ifndef TG_DEVICE_NVML_H
#define TG_DEVICE_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct tg__nvml;

/* The GPU of this UUID. Errors: -ENOTSUP with the reason, -ENOMEM. */
int tg__nvml_open(const uint8_t uuid[16], struct tg__nvml **nvml);
void tg__nvml_close(struct tg__nvml *nvml, bool is_forked);

/* Errors: -ENOTSUP. */
int tg__nvml_memory(const struct tg__nvml *nvml, uint64_t *free_bytes, uint64_t *total_bytes);
/* What the driver charges to this process; has_context: whether it computes on the GPU at all. The
 * driver counts processes by its own ids. They are taken for ours where all of them exist here and
 * one is this process's, or where we cannot be among them. Errors: -ENOTSUP, -ENOMEM. */
int tg__nvml_process(const struct tg__nvml *nvml, bool has_context, uint64_t *own_bytes);
/* How many other processes compute on it. Errors: -ENOTSUP, -ENOMEM. */
int tg__nvml_others(const struct tg__nvml *nvml, bool has_context, uint32_t *count);

#endif
