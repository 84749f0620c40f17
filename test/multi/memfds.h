/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory stands behind the chunks of some processes, as the kernel counts it: each memfd
 * once, whoever maps it. Independent of all accounts of ours.
 *
 * The processes run on while they are looked at one after the other. So all are looked at twice,
 * and only what was there both times counts: it was there at one moment, all of it. */
#ifndef TEST_MULTI_MEMFDS_H
#define TEST_MULTI_MEMFDS_H

#include <stdint.h>
#include <sys/types.h>

uint64_t memfds_bytes(const pid_t *pids, int count);

#endif
