/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that sleeps and wakes: tags own blocks, a tag sleeps and wakes as a whole.
 *
 * Sleep and wake are all or nothing: on any failure the state is as before, no byte is lost, and
 * the error says how much was missing and who holds it. Blocks keep their addresses through sleep;
 * a sleeping block's addresses fault. One tg_memory for each process and device; all functions are
 * thread-safe, sleeps and wakes of one memory run one after the other. */
#ifndef TIDEGATE_MEMORY_H
#define TIDEGATE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <tidegate/device.h>
#include <tidegate/ledger.h>
#include <tidegate/receipt.h>
#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tg_memory;
struct tg_tag;

enum tg_backup {
    TG_BACKUP_NONE, /* content is dropped by sleep; zero after wake (but see fill_none) */
    TG_BACKUP_HOST  /* content is saved to host memory, and is there after wake */
};

struct tg_tag_params {
    enum tg_backup backup;
    int packed;    /* promise: no block is exported or registered; small blocks share chunks */
    int fill_none; /* nothing is zeroed: an allocated or woken block may hold what this process
                    * left there */
    int keep_host; /* host copies outlive the wake: the next sleep is faster, memory stays taken */
    int checked;   /* a checksum of every saved block is verified by wake */
};

enum tg_tag_state {
    TG_TAG_AWAKE,
    TG_TAG_DRAINING,
    TG_TAG_SAVING,
    TG_TAG_ASLEEP,
    TG_TAG_MAPPING,
    TG_TAG_FILLING,
    TG_TAG_BROKEN /* after a sticky device error: nothing is saved or lent, only free works */
};

struct tg_tag_info {
    enum tg_tag_state state;
    uint64_t block_count;
    uint64_t size_bytes;   /* as asked for by the callers of alloc */
    uint64_t device_bytes; /* chunks */
    uint64_t host_bytes;   /* host copies */
    uint64_t limbo_bytes;  /* freed, whose last users may still run */
    uint64_t trimmed_bytes; /* of the blocks: a trim has given them back, no refill has taken */
};

/* device is lent until close. tenant NULL: a process alone, without a ledger; else lent likewise.
 * Errors: -ENOMEM, the device's. */
TG_API TG_MUST_USE int tg_memory_open(struct tg_device *device, struct tg_tenant *tenant,
                                      struct tg_memory **memory);
/* Frees every block and tag that is left. NULL is allowed. Waits up to 1 s for the device's work:
 * device memory that is still used then stays until the device is closed, host copies until the
 * process ends, and both stay charged until the tenant leaves. So close the device before the
 * tenant leaves. */
TG_API void tg_memory_close(struct tg_memory *memory);

/* The tag of this name; opened before with other params: -EEXIST. name: letters, digits, '_', '-',
 * '.', up to 31 bytes. params NULL: all zero. Lives until tg_memory_close. */
TG_API TG_MUST_USE int tg_tag_open(struct tg_memory *memory, const char *name,
                                   const struct tg_tag_params *params, struct tg_tag **tag);
/* A memory's tags in order of opening; NULL beyond the last, for NULL, and in a forked child. */
TG_API struct tg_tag *tg_memory_tag(struct tg_memory *memory, uint32_t index);
/* Lives as long as the tag. */
TG_API const char *tg_tag_name(const struct tg_tag *tag);
/* For NULL and in a forked child all zero. */
TG_API void tg_tag_info(struct tg_tag *tag, struct tg_tag_info *info);

/* A block on a granule's boundary, zeroed unless the tag is fill_none. Never waits for other
 * tenants: where it is refused, they are asked as by tg_tenant_ask, for a later attempt. Errors:
 * -EINVAL (0 bytes, or more than the device has), -ENOMEM, TG_EASLEEP, TG_ENOFIT
 * (other tenants hold it), TG_ENEVERFITS, TG_EDEVICEMEMORY, TG_EFULL (the ledger has no place for
 * another tag), TG_EHELD and TG_EMOTION (the ledger cannot be used now: try again), TG_EBUSY
 * (zeroing has not ended in time), TG_EBROKEN, TG_EFORKED, the device's. */
TG_API TG_MUST_USE int tg_tag_alloc(struct tg_tag *tag, uint64_t size_bytes, void **block);
/* Frees a block in every state of its tag. The memory is used again only after all device work that
 * was given before this call has ended: on `queue`, or if NULL on every queue. Errors: -EINVAL for
 * what is no block of this memory (nothing is freed). */
TG_API TG_MUST_USE int tg_memory_free(struct tg_memory *memory, void *block,
                                      struct tg_queue *queue);

/* Puts tags to sleep: waits for the device's work (at most wait_ms), saves, unmaps, gives the
 * chunks back to the driver. tags: names with commas between, NULL: all. What sleeps already is
 * left alone. From the call until it returns, nobody gives the device work that touches blocks of
 * these tags. receipt may be NULL. Errors: -ENOENT (no such tag), -EINVAL (an empty name),
 * -EALREADY (a wake waits for its end), -ENOMEM, TG_EBUSY (work, or an alloc in these tags, has not
 * ended in time), TG_ESTARTING (a peer was starting up all the time), TG_EHOSTMEMORY, TG_EFULL and
 * TG_EHELD (the ledger's), TG_EBROKEN, TG_EFORKED, the device's. */
TG_API TG_MUST_USE int tg_memory_sleep(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                                       struct tg_receipt *receipt);
/* The same, where the content of some of these tags is not wanted this time: those that `drop`
 * names (NULL: none) wake without it, whatever their backup says, as one of TG_BACKUP_NONE does.
 * What sleeps already keeps what it has, and a sleep that fails has dropped nothing. Errors: as
 * tg_memory_sleep, and -EINVAL for a name in `drop` that is not among `tags`. */
TG_API TG_MUST_USE int tg_memory_sleep_drop(struct tg_memory *memory, const char *tags,
                                            const char *drop, uint32_t wait_ms,
                                            struct tg_receipt *receipt);
/* Makes the host memory that the next sleep of these tags (NULL: all) copies into, touches it and
 * pins it, so that a first sleep is as fast as a later one. Tags that sleep or have no host backup
 * are passed over, and blocks that have such memory; it stays until the wake after that sleep (with
 * keep_host for good), and is counted in host_bytes. Blocks that are freed give theirs back, later
 * ones get it at the sleep. Allocs, frees and the device's work go on meanwhile; sleeps and wakes
 * wait. receipt may be NULL; its items are the bytes made. Errors, which change nothing: -ENOENT,
 * -EINVAL, -EALREADY (as sleep), -ENOMEM, TG_EHOSTMEMORY, TG_EFULL and TG_EHELD (the ledger's),
 * TG_EBROKEN, TG_EFORKED. */
TG_API TG_MUST_USE int tg_memory_prepare(struct tg_memory *memory, const char *tags,
                                         struct tg_receipt *receipt);
/* Wakes tags (NULL: exactly what sleeps): reserves in the ledger, waiting up to wait_ms, maps,
 * copies. Host copies that are not kept may go back to the system after the call, by a thread: they
 * are counted until they have, and the next sleep, prepare and close wait for that. Errors:
 * -ENOENT, -EINVAL, -EALREADY and TG_ESTARTING (as sleep), -ENOMEM, TG_ENOFIT, TG_ENEVERFITS,
 * TG_ECYCLE (tg_tenant_shortfall has the numbers), TG_EDEVICEMEMORY (a foreign program has it, all
 * through the wait), TG_EBUSY (the copies have not ended in time, or the device still uses what an
 * earlier wake mapped), TG_EFULL (too many tags at once, or the ledger's tables), TG_EHELD and
 * TG_EMOTION (the ledger cannot be used now), TG_ECONTENT (a checked block is not what was saved),
 * TG_EBROKEN, TG_EFORKED, the device's. */
TG_API TG_MUST_USE int tg_memory_wake(struct tg_memory *memory, const char *tags, uint32_t wait_ms,
                                      struct tg_receipt *receipt);
/* The same in two halves, so that several processes can wake as one: try does all that can fail and
 * leaves the tags filled but not published; end publishes them (1) or puts them back to sleep as
 * they were (0). Between the two, no other sleep or wake of this memory begins: they answer
 * -EALREADY. end without a try before it is a no-op. */
TG_API TG_MUST_USE int tg_memory_wake_try(struct tg_memory *memory, const char *tags,
                                          uint32_t wait_ms, struct tg_receipt *receipt);
TG_API void tg_memory_wake_end(struct tg_memory *memory, int publish);

/* Gives back what awake packed tags (NULL: all) have of chunks without using it: pieces that were
 * freed inside large ones. What is live there is moved to smaller chunks at the same addresses,
 * with its content, where that is worth it: at most four times the bytes are moved that are gained.
 * Takes as much free memory for a moment as is live in a chunk; where that is not to be had, the
 * chunk stays, and the receipt says so. Each chunk is moved whole or not at all.
 *
 * A quiet section: from the call until it returns nobody gives the device any work. It waits (at
 * most wait_ms) for what was given before; allocs in these tags answer TG_EASLEEP meanwhile.
 *
 * The receipt: gained_bytes what was given back, copied_bytes what was moved. Errors: -ENOENT,
 * -EINVAL, -EALREADY, TG_EBUSY, TG_ESTARTING (as sleep), -ENOMEM, TG_EBROKEN, TG_EFORKED, the
 * device's: chunks that were moved before stay so, the rest is as it was; where the device then
 * refuses to map a chunk again, its tag is asleep, and tg_memory_wake tries it once more. */
TG_API TG_MUST_USE int tg_memory_repack(struct tg_memory *memory, const char *tags,
                                        uint32_t wait_ms, struct tg_receipt *receipt);

/* Addresses of a device, inside one block. */
struct tg_range {
    uint64_t addr, size_bytes;
};

/* Gives back ranges of blocks whose content nobody wants, for who knows what is free in a block:
 * the whole granules in them go to the driver, fault when they are touched, and stay the block's.
 * What else is in their chunks is moved, by the same rules as in tg_memory_repack, and in a quiet
 * section like it. ranges: in order of address, each inside a block; with none the call only tells
 * whether a capture is open. Those in packed tags, in tags that are not awake, and in pages that
 * the program maps itself are left alone: "stays: cannot be trimmed". A trimmed block can be freed,
 * and be trimmed further; a sleep saves what is left of it, and the wake brings it back whole.
 *
 * The receipt: gained_bytes what was given back, copied_bytes what was moved. Errors: -EINVAL (out
 * of order, or not inside a block: nothing has changed), those of tg_memory_repack. */
TG_API TG_MUST_USE int tg_memory_trim(struct tg_memory *memory, const struct tg_range *ranges,
                                      size_t count, uint32_t wait_ms, struct tg_receipt *receipt);
/* Brings back all that was trimmed, zeroed, all or nothing: reserves in the ledger, waiting up to
 * wait_ms, and maps. Nothing is moved, and no work waited for; allocs in these tags answer
 * TG_EASLEEP meanwhile. The receipt: gained_bytes what was taken. Errors: TG_EASLEEP (of a trimmed
 * tag that is not awake: its wake brings it back), and as tg_memory_wake. */
TG_API TG_MUST_USE int tg_memory_refill(struct tg_memory *memory, uint32_t wait_ms,
                                        struct tg_receipt *receipt);

/* The block in which an address lies, and its tag. Any of the outputs may be NULL. Errors: -EINVAL
 * (it lies in none). */
TG_API TG_MUST_USE int tg_memory_find(struct tg_memory *memory, const void *addr,
                                      struct tg_tag **tag, void **block, uint64_t *size_bytes);

/* The content of a sleeping block of a tag with host backup: size_bytes of readable memory, lent
 * until the tag wakes or the block is freed. Errors: -EINVAL (no block), -ENODATA (awake, without
 * backup, dropped, or trimmed). */
TG_API TG_MUST_USE int tg_memory_hostcopy(struct tg_memory *memory, const void *block,
                                          const void **copy, uint64_t *size_bytes);

#ifdef __cplusplus
}
#endif

#endif
