/* SPDX-License-Identifier: Apache-2.0 */
/* A device: one GPU, or the host device that stands for one, behind one table of calls.
 *
 * The table is the narrow waist: everything above speaks to a device only through it, and whatever
 * a card can do between processes the host device does on real bytes. A device is opened once in a
 * process and may be used from all its threads. What was made on it is released before it is
 * closed; a process that dies releases everything.
 *
 * Pre-conditions hold for every entry: the device is open; addresses and sizes of device memory
 * are multiples of granule_bytes and not 0; a chunk is one that create or import_fd gave and
 * release did not take. An entry that finds a pre-condition broken answers -EINVAL and does
 * nothing. That the device itself and the places for answers are not NULL is not looked at: as with
 * a driver, the caller sees to it. Entries that fail change nothing unless they say so. Common
 * errors: TG_EDEVICE (the driver's code in tg_last_error()->native), TG_EBROKEN (sticky: every
 * later call answers it), TG_EFORKED. */
#ifndef TIDEGATE_DEVICE_H
#define TIDEGATE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tg_device;
struct tg_queue; /* an order in which a device does its work; NULL is the device's own */

/* A point in the device's work, by value; nothing to free. All zero: a point long past. */
struct tg_fence {
    uint64_t word[2];
};

enum tg_device_can {
    TG_DEVICE_EXPORT = 1 << 0, /* chunks can be made exportable */
    TG_DEVICE_RDMA = 1 << 1,   /* chunks can be made for registration by network cards */
    TG_DEVICE_DIRECT = 1 << 2  /* the host itself may read and write what is mapped */
};

struct tg_device_info {
    uint8_t uuid[16];       /* the same in every process that shares the device */
    char name[64];          /* for people; terminated */
    uint64_t granule_bytes; /* smallest chunk, and the unit of all sizes and addresses */
    uint32_t can;           /* enum tg_device_can */
};

enum tg_chunk_flags {
    TG_CHUNK_EXPORTABLE = 1 << 0, /* export_fd will be called */
    TG_CHUNK_RDMA = 1 << 1
};

struct tg_device_ops {
    int (*info)(struct tg_device *device, struct tg_device_info *info);

    /* What the driver says of the whole device, all processes together. Cheap (µs), never waits
     * for the device's work. */
    int (*memory)(struct tg_device *device, uint64_t *free_bytes, uint64_t *total_bytes);
    /* What the driver charges to this process there: chunks it holds (those that others hold too
     * count in full), and on a card its context and libraries. µs on the host device, up to some ms
     * on a card. Errors: -ENOTSUP when the driver does not tell, as where process ids are not the
     * driver's own. */
    int (*process)(struct tg_device *device, uint64_t *own_bytes);

    /* A range of addresses with nothing behind it: touching it faults. */
    int (*reserve)(struct tg_device *device, uint64_t size_bytes, uint64_t *addr);
    /* Exactly a reserved range, with nothing mapped in it. */
    int (*unreserve)(struct tg_device *device, uint64_t addr, uint64_t size_bytes);

    /* A new chunk of zeroed memory, mapped nowhere; *chunk is never 0. flags: enum tg_chunk_flags.
     * Errors: TG_EDEVICEMEMORY when the device has not that much free; TG_EHELD (host: a process
     * that is stopped holds the capacity's lock). */
    int (*create)(struct tg_device *device, uint64_t size_bytes, uint32_t flags, uint64_t *chunk);
    /* Gives the handle up. The memory is free when no process holds a handle or a mapping of it. */
    int (*release)(struct tg_device *device, uint64_t chunk);

    /* Maps a whole chunk at addr, inside a reserved range, where nothing is mapped, for reading and
     * writing by this device and by those of the bit set `devices` (bit i: ordinal i; 0: this one
     * alone). The chunk may be mapped more than once. */
    int (*map)(struct tg_device *device, uint64_t addr, uint64_t chunk, uint64_t devices);
    /* Unmaps whole neighbouring mappings: addr and size_bytes are the range that they fill. Does
     * not wait for the device's work: what still writes there faults. */
    int (*unmap)(struct tg_device *device, uint64_t addr, uint64_t size_bytes);
    /* Lets the devices of the bit set read and write whole neighbouring mappings, beside those that
     * do already: what was given is not taken away. */
    int (*access)(struct tg_device *device, uint64_t addr, uint64_t size_bytes, uint64_t devices);

    /* Copies between device and host memory or within the device, in the order of `queue`. Any size
     * but 0, any alignment. Returns before it is done; both sides stay as they are until it is. A
     * full queue makes the caller wait. Errors: TG_EBUSY (host: it is full and hangs), -EAGAIN. */
    int (*copy)(struct tg_device *device, void *to, const void *from, uint64_t size_bytes,
                struct tg_queue *queue);
    /* Sets size_bytes at addr (any alignment) to `byte`, in the order of `queue`. */
    int (*fill)(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes,
                struct tg_queue *queue);

    /* The point behind all work that was given to `queue` before this call; NULL: to any queue of
     * this process and device. Errors: TG_ECAPTURE while a capture forbids it. */
    int (*fence)(struct tg_device *device, struct tg_queue *queue, struct tg_fence *fence);
    /* Waits until the device has passed the point. 0 ms: only looks. Errors: TG_EBUSY when it has
     * not in time. */
    int (*wait)(struct tg_device *device, const struct tg_fence *fence, uint32_t timeout_ms);

    /* Makes host memory fit for copies at the link's speed (on = 1), or undoes it (on = 0).
     * Exactly the same range both times. */
    int (*pin)(struct tg_device *device, void *host, uint64_t size_bytes, int on);

    /* A descriptor for a chunk that this process created as exportable; the caller closes it. */
    int (*export_fd)(struct tg_device *device, uint64_t chunk, int *fd);
    /* A chunk of this process for another's memory, size_bytes as created. fd stays the caller's.
     * */
    int (*import_fd)(struct tg_device *device, int fd, uint64_t size_bytes, uint64_t *chunk);

    /* A queue of the caller's own; closing waits for nothing and drops nothing that was given. */
    int (*queue_open)(struct tg_device *device, struct tg_queue **queue);
    int (*queue_close)(struct tg_device *device, struct tg_queue *queue);

    /* Gives back what the driver's own pool of this process (cudaMallocAsync's) keeps, and nobody
     * has; waits for nothing. *gained_bytes: how much that was; 0 where there is no pool. Errors:
     * TG_ECAPTURE while a capture forbids it. */
    int (*unpool)(struct tg_device *device, uint64_t *gained_bytes);
};

/* Opens a device:
 *   cuda:N
 *       GPU N of those that the driver shows to this process. Its primary context is made at the
 *       first call that needs one: not by opening, info, memory and process.
 *   host:capacity=SIZE[,name=NAME][,lag=MS][,hang=1][,straggler=MS]
 *       memory of this machine that stands for a card; shared by all processes of the user that
 *       name it alike (default name: "host"); its capacity is the first opener's, and opening it
 *       with another one is an error. SIZE: 512MiB, 4GiB, …, a multiple of 2 MiB, at most 1 TiB.
 *       lag: every operation takes so much longer. hang: none ever completes. straggler: when this
 *       process dies, a helper holds its memory and writes to it for so long.
 *   fault:nth=N[,op=NAME][,mode=once|every|after][,status=CODE]/URI
 *       the N-th call (of the named entry, or of any), every call, or all from the N-th on fail.
 *   auto
 *       the first GPU that no foreign program computes on and that is 80 % free, else
 *       host:capacity= a quarter of the machine's available memory, at most 1 GiB; a line on stderr
 *       says why, once.
 * Errors: -EINVAL with a sentence that says what is wrong in the URI and what would be right,
 * -ENODEV, -ENOMEM, the ledger directory's (see tidegate/ledger.h). Closed with tg_device_close. */
TG_API TG_MUST_USE int tg_device_open(const char *uri, struct tg_device **device);
/* What `auto` would open now, as a URI; opens nothing that outlives the call, and makes no host
 * device. Errors: -EINVAL, -ENODEV, -ENOSPC (less than 256 bytes, and they do not suffice). */
TG_API TG_MUST_USE int tg_device_choose(char *uri, size_t uri_bytes);
/* The table; never NULL, no entry NULL. Lent until close. */
TG_API const struct tg_device_ops *tg_device_ops(const struct tg_device *device);
/* The URI that opens the same device in another process; for auto the one chosen. Lent until
 * close. */
TG_API const char *tg_device_uri(const struct tg_device *device);
/* Gives up what the process still holds on the device; waits for the work given, at most 1 s. */
TG_API void tg_device_close(struct tg_device *device);

#ifdef __cplusplus
}
#endif

#endif
