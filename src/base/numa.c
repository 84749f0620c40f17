/* SPDX-License-Identifier: Apache-2.0 */
/* sysfs knows the node of a device and the CPUs of a node. Who may not read it goes without. */
#include "base/numa.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/sysfile.h"

/* "0-3,8,10-11" and a line's end. Numbers beyond what a set holds are left out. */
static bool read_list(const char *text, cpu_set_t *cpus) {
    const char *at = text;
    char *end;

    CPU_ZERO(cpus);
    while (*at >= '0' && *at <= '9') {
        unsigned long first = strtoul(at, &end, 10), last = first;

        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++)
            CPU_SET(first, cpus);
        at = *end == ',' ? end + 1 : end;
    }
    return (*at == '\n' || *at == '\0') && CPU_COUNT(cpus) > 0;
}

static bool read_cpus(const char *root, const char *pci, cpu_set_t *cpus) {
    char path[PATH_MAX], text[TG__SYSFILE_BYTES];
    cpu_set_t found;
    long node;
    char *end;

    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, pci);
    if (!tg__sysfile_read(path, text))
        return false;
    node = strtol(text, &end, 10);
    if (end == text || node < 0) /* -1: the machine has but one, or its firmware does not say */
        return false;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%ld/cpulist", root, node);
    if (!tg__sysfile_read(path, text) || !read_list(text, &found))
        return false;
    *cpus = found;
    return true;
}

bool tg__numa_cpus(const char *root, const char *pci, cpu_set_t *cpus) {
    int saved = errno;
    bool is_known = pci[0] != '\0' && read_cpus(root, pci, cpus);

    errno = saved;
    return is_known;
}
