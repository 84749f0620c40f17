/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a host device has and who holds it, shared by all processes that open it: the
 * part of a card's driver that counts.
 *
 * A process's own chunks are one number in its slot; chunks that may travel have an entry each, so
 * that memory which several hold counts once. What belongs to a dead process counts no more; that
 * it is dead is the kernel's word (see base/shmfile.h). Callers serialize the calls of one
 * capacity, but for memory and check. */
#ifndef TG_DEVICE_CAPACITY_H
#define TG_DEVICE_CAPACITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tg__capacity;
struct tg__shmfile;

/* Joins the device `name`, and makes it with total_bytes if nobody holds it. takes_any: when
 * somebody does, its total is taken as it is. Errors: -EINVAL (it has another total), TG_EFULL, the
 * shared file's. */
int tg__capacity_open(const char *name, uint64_t total_bytes, bool takes_any,
                      struct tg__capacity **capacity);
/* What this process held is free. In a forked child nothing but memory is given back. */
void tg__capacity_close(struct tg__capacity *capacity);

/* 0, TG_EFORKED or TG_EPOISONED. */
int tg__capacity_check(struct tg__capacity *capacity);
/* 16 bytes, the device's since its file was made. */
const uint8_t *tg__capacity_uuid(struct tg__capacity *capacity);
/* Without a lock. Errors: as check. */
int tg__capacity_memory(struct tg__capacity *capacity, uint64_t *free_bytes, uint64_t *total_bytes);

/* What this process holds of it; memory that others hold too counts in full. Without a lock.
 * Errors: as check. */
int tg__capacity_process(struct tg__capacity *capacity, uint64_t *own_bytes);

/* What each process that holds something does, but for this user of the file; without a lock.
 * Errors: as check. */
struct tg__capacity_share {
    uint64_t pid, held_bytes;
};
int tg__capacity_shares(struct tg__capacity *capacity, struct tg__capacity_share *shares,
                        size_t room, size_t *count);

/* Accounts memory that is about to exist. Errors: TG_EDEVICEMEMORY, TG_EHELD, as check. */
int tg__capacity_take(struct tg__capacity *capacity, uint64_t size_bytes);
/* Memory that was taken is gone. */
void tg__capacity_give(struct tg__capacity *capacity, uint64_t size_bytes);
/* The same for memory that may travel, known by its inode; who comes later takes a part in the
 * entry. Errors: as take, TG_EFULL, -EINVAL (it has another size). */
int tg__capacity_take_shared(struct tg__capacity *capacity, uint64_t inode, uint64_t size_bytes,
                             uint32_t *entry);
void tg__capacity_give_shared(struct tg__capacity *capacity, uint32_t entry);

/* What this process holds counts until the owner of that ticket is dead, too. */
void tg__capacity_set_heir(struct tg__capacity *capacity, uint32_t ticket);
/* A ticket in the same file for an heir, which is to keep a copy of its descriptor; closed by the
 * caller when it does. Errors: the shared file's. */
int tg__capacity_open_heir(const char *name, struct tg__shmfile **file);

#endif
