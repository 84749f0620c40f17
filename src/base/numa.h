/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs are near a device: those of the memory node that it is attached to. */
#ifndef TG_BASE_NUMA_H
#define TG_BASE_NUMA_H

#include <sched.h>
#include <stdbool.h>

/* pci: as the system names the device, "0000:3b:00.0". The system's files are read under `root`: ""
 * but in tests. False: the device has no node, or the system does not tell. Keeps errno. */
bool tg__numa_cpus(const char *root, const char *pci, cpu_set_t *cpus);

#endif
