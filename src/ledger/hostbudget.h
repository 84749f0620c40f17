/* SPDX-License-Identifier: Apache-2.0 */
/* How much host memory may be taken: the system's figures, and what follows from them.
 *
 * The kernel kills before any allocation fails, so what is taken is asked for before it is touched.
 * The figures: MemAvailable, and for every cgroup above this process its limit less what it uses,
 * where pages of files that nobody needs count as free. A margin stays for everybody else. */
#ifndef TG_LEDGER_HOSTBUDGET_H
#define TG_LEDGER_HOSTBUDGET_H

#include <stdint.h>

struct tg__host_figures {
    uint64_t available_bytes; /* MemAvailable */
    uint64_t headroom_bytes;  /* the least of all cgroups; UINT64_MAX: no limit */
    uint64_t option_bytes;    /* TIDEGATE_HOST_BYTES, for all tenants together; UINT64_MAX: unset */
};

/* Reads them under `root`: "" but in tests. Errors: -EINVAL (the option is no size), -errno. */
int tg__host_figures(const char *root, struct tg__host_figures *figures);

/* What may still be taken. untouched_bytes: reserved by tenants and not yet in the system's own
 * figures; all_bytes: what tenants have of both kinds. Pure. */
uint64_t tg__host_budget(const struct tg__host_figures *figures, uint64_t untouched_bytes,
                         uint64_t all_bytes);

#endif
