/* SPDX-License-Identifier: Apache-2.0 */
/* Receipts: what an operation did, by item and by phase. Filled by the caller's own struct, in
 * success and in failure; nothing to free. */
#ifndef TIDEGATE_RECEIPT_H
#define TIDEGATE_RECEIPT_H

#include <stdint.h>

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TG_RECEIPT_ITEMS = 24 };

/* One line: a tag that slept or woke, or what stayed and why ("stays: not released"; of a wake
 * also host memory: "stays: host copies, going back"). */
struct tg_item {
    char name[40];
    uint64_t size_bytes;
};

struct tg_receipt {
    int status;            /* what the operation returned */
    uint32_t item_count;   /* the last item holds the rest when there are more than fit */
    uint64_t asked_bytes;  /* what the operation was to move */
    uint64_t gained_bytes; /* what it gave to the device, or took from it */
    uint64_t driver_bytes; /* by how much the driver's free memory changed meanwhile:
                            * up or down, and by what others did as well; never negative */
    uint64_t copied_bytes; /* content saved or restored */
    uint64_t wait_ns;      /* for other tenants */
    uint64_t drain_ns;     /* for the device's work so far */
    uint64_t copy_ns;      /* for content, host memory included; a wake's: when all is mapped */
    uint64_t map_ns;       /* for create, map, unmap, release; a wake copies meanwhile */
    uint64_t all_ns;
    struct tg_item items[TG_RECEIPT_ITEMS];
};

#ifdef __cplusplus
}
#endif

#endif
