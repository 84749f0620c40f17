/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for what leaves a device: of exactly the size asked for, within the node's budget, on
 * huge pages where there are some, and not copied by a fork.
 *
 * Each is one anonymous mapping. In a forked child it is not there: touching its bytes faults, and
 * of the functions only free may be called, which leaves everything the parent's. One thread at a
 * time calls these functions for one mapping; its bytes are the caller's to share. */
#ifndef TIDEGATE_HOSTMEM_H
#define TIDEGATE_HOSTMEM_H

#include <stdint.h>

#include <tidegate/device.h>
#include <tidegate/ledger.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tg_hostmem;

struct tg_hostmem_info {
    void *bytes;          /* lent until free */
    uint64_t size_bytes;  /* as asked for; the mapping is whole pages, which is what is charged */
    int is_pinned;
};

/* A mapping of zeroes, charged to the tenant's tag in the ledger; no page of it is touched yet.
 * tenant is lent until free; NULL, and one whose ledger is lost: the node's budget is asked, and
 * nobody is charged. Errors: -EINVAL (0 bytes, or no name of a tag), -ENOMEM, TG_EHOSTMEMORY,
 * TG_EFULL and TG_EHELD (the ledger's), TG_EFORKED. */
TG_API TG_MUST_USE int tg_hostmem_alloc(struct tg_tenant *tenant, const char *tag,
                                        uint64_t size_bytes, struct tg_hostmem **memory);
/* Has the kernel give every page now, by so many threads (0: as many as pay, at most 16), which
 * end with the call: one alone takes half a second for each GiB or two, and whoever writes there
 * first would wait for it. Where the pages come from is the calling thread's NUMA policy: pages for
 * a device's copies are better left to tg_hostmem_pin. Errors: -ENOMEM and what else the kernel
 * says; TG_EFORKED. */
TG_API TG_MUST_USE int tg_hostmem_touch(struct tg_hostmem *memory, uint32_t threads);
/* Makes it fit for copies at the speed of the device's link; device is lent until free. Pages that
 * nobody has touched yet come first, by several threads that end with the call, at the device's
 * NUMA node if the caller may run there. Once more for the same device: a no-op. Errors: -EINVAL
 * (it is pinned for another one), TG_EFORKED, those of tg_hostmem_touch, the device's: then it is
 * host memory as any other. */
TG_API TG_MUST_USE int tg_hostmem_pin(struct tg_hostmem *memory, struct tg_device *device);
/* For NULL all zero. */
TG_API void tg_hostmem_info(const struct tg_hostmem *memory, struct tg_hostmem_info *info);
/* Gives it back: nothing on the device may still copy to or from it. NULL is allowed. A device that
 * does not let go of it any more keeps it until the process ends, and it stays charged. */
TG_API void tg_hostmem_free(struct tg_hostmem *memory);

#ifdef __cplusplus
}
#endif

#endif
