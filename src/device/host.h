/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the host device, for the files that implement it: host.c (open, close, the table),
 * hostchunk.c (memory and handles) and hostrange.c (addresses and what is mapped there). All of
 * their functions are called with the mutex, in a process that is no forked child.
 *
 * A chunk is a memfd. It is kept alive by a mapping at its *home*, where nobody can touch it, not
 * by a descriptor: there may be more chunks than a process may have descriptors. From home it is
 * mapped elsewhere by mremap with an old size of 0, which doubles a shared mapping. Only chunks
 * that may be exported keep their descriptor, too. Mappings are left out of forked children, and
 * descriptors are closed there: a child keeps no memory of its parent's alive. */
#ifndef TG_DEVICE_HOST_H
#define TG_DEVICE_HOST_H

#include <pthread.h>

#include "base/forkguard.h"
#include "device/capacity.h"
#include "device/device.h"
#include "device/grid.h"
#include "device/handles.h"
#include "device/spans.h"
#include "device/straggler.h"
#include "device/work.h"

#define TG__HOST_GRANULE_BYTES (UINT64_C(2) << 20)
/* More than any process can map. */
#define TG__HOST_MOST_BYTES (UINT64_C(1) << 46)
#define TG__HOST_NO_ENTRY UINT32_MAX

/* Memory; it goes when neither a handle nor a mapping is left. */
struct tg__hostchunk {
    uint64_t size_bytes, inode;
    void *home;                 /* NULL: no handle is left, so nobody can map it anew */
    uint32_t handles, mappings; /* of this process */
    uint32_t entry;             /* in the capacity's table; NO_ENTRY: counted as our own */
    bool is_guarded;            /* created here as exportable: slot 0 of the guard is */
    struct tg__forkguard guard; /* its descriptor, until its creator's handle is released */
    struct tg__hostchunk *next, *previous;
};

struct tg__host {
    struct tg_device device; /* first */
    struct tg__capacity *capacity;
    struct tg__work *work;
    struct tg__straggler *straggler; /* NULL: none */
    char name[32];
    char chunk_name[48]; /* of the memfds: tells the device's from others' */
    pthread_mutex_t mutex; /* guards all below */
    struct tg__grid grid;
    struct tg__spans pins;
    struct tg__handles handles; /* of struct tg__hostchunk */
    struct tg__hostchunk *chunks;
};

int tg__hostchunk_create(struct tg__host *host, uint64_t size_bytes, uint32_t flags,
                         uint64_t *handle);
int tg__hostchunk_release(struct tg__host *host, uint64_t handle);
int tg__hostchunk_export(struct tg__host *host, uint64_t handle, int *fd);
int tg__hostchunk_import(struct tg__host *host, int fd, uint64_t size_bytes, uint64_t *handle);
/* NULL and a sentence if there is none. */
struct tg__hostchunk *tg__hostchunk_find(struct tg__host *host, uint64_t handle);
/* A mapping of it is gone. */
void tg__hostchunk_unmapped(struct tg__host *host, struct tg__hostchunk *chunk);
/* Gives all handles up; is_forked: only this process's memory. */
void tg__hostchunk_free_all(struct tg__host *host, bool is_forked);

int tg__hostrange_reserve(struct tg__host *host, uint64_t size_bytes, uint64_t *addr);
int tg__hostrange_unreserve(struct tg__host *host, uint64_t addr, uint64_t size_bytes);
int tg__hostrange_map(struct tg__host *host, uint64_t addr, struct tg__hostchunk *chunk);
int tg__hostrange_unmap(struct tg__host *host, uint64_t addr, uint64_t size_bytes);
/* Unmaps and gives back all; is_forked: as above. */
void tg__hostrange_free_all(struct tg__host *host, bool is_forked);

#endif
