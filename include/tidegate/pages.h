/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a program maps itself, page by page, at addresses that it reserved: what the preload
 * answers with where a program asks the driver for that (doc/design/expandable.md). A page belongs
 * to a tag and sleeps with it. Addresses and pages are found in the process's memories and in those
 * that were ever in a scope. All calls are thread-safe and keep errno; none waits for the device.
 *
 * -ENOENT: it is none of ours, and the driver is to be asked. TG_EFORKED: the process is a forked
 * child. */
#ifndef TIDEGATE_PAGES_H
#define TIDEGATE_PAGES_H

#include <stdint.h>

#include <tidegate/process.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every page's number has it, and no handle of the driver. */
#define TG_PAGE_BIT (UINT64_C(1) << 63)

/* Addresses in the process's memory on this GPU. Errors: -ENOTSUP (no whole granules), those of
 * tg_process_memory, the device's. */
TG_API TG_MUST_USE int tg_pages_reserve(int device, uint64_t size_bytes, uint64_t *addr);
/* Exactly what was reserved, with no page in it. Errors: -ENOENT, -EINVAL, the device's. */
TG_API TG_MUST_USE int tg_pages_unreserve(uint64_t addr, uint64_t size_bytes);

/* A page of the tag of the thread's scope, or of the usual tag; *page 0: no tag has a say. flags:
 * enum tg_chunk_flags; TG_PAGE_OTHER: of a kind that no tag can have. Errors: those of
 * tg_process_alloc, -ENOTSUP (a tag has a say, and the kind is another, or no whole granules). */
#define TG_PAGE_OTHER (UINT32_C(1) << 31)
TG_API TG_MUST_USE int tg_page_create(const struct tg_process_request *request, uint32_t flags,
                                      uint64_t *page);
/* The page goes, if it is mapped with its mapping. Errors: -ENOENT. */
TG_API TG_MUST_USE int tg_page_release(uint64_t page);
/* Errors: -ENOTSUP (hold it, and ask the driver: no whole page, a second time, or where nothing of
 * ours is reserved), -EINVAL, -ENOENT, -ENOMEM, the device's. */
TG_API TG_MUST_USE int tg_page_map(uint64_t page, uint64_t addr, uint64_t size_bytes);
/* Errors: -ENOENT, -EINVAL (no whole pages), the device's. */
TG_API TG_MUST_USE int tg_pages_unmap(uint64_t addr, uint64_t size_bytes);
/* Other devices (bit i: ordinal i) may read and write the pages of a range, now and after each
 * wake. Errors: -ENOENT (also where others are among them), the device's. */
TG_API TG_MUST_USE int tg_pages_access(uint64_t addr, uint64_t size_bytes, uint64_t devices);
/* Who else has the page's memory is not known: it does not sleep any more. *native: the driver's
 * own handle, lent until the page is released. Errors: TG_EASLEEP, -EINVAL, -ENOENT. */
TG_API TG_MUST_USE int tg_page_hold(uint64_t page, uint64_t *native);
/* The same for all pages of a range. */
TG_API TG_MUST_USE int tg_pages_hold(uint64_t addr, uint64_t size_bytes);

/* Devices of the bit set may read and write all blocks on `device`, of memories of the process and
 * of those that are ever in a scope, those that are there and those to come, as peers of a program
 * may. Opens nothing. Errors: -EINVAL (no such number), the device's, for some block at least. */
TG_API TG_MUST_USE int tg_process_peers(int device, uint64_t devices);
/* Ends that for what is mapped from now on, also by a wake; what is mapped stays open to them until
 * then. Errors: -EINVAL. */
TG_API TG_MUST_USE int tg_process_peers_end(int device, uint64_t devices);

#ifdef __cplusplus
}
#endif

#endif
