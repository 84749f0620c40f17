/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host device and the handles to it.
 *
 * Order: memory is accounted before it exists and until it is gone, so that there is never more of
 * it than the capacity. A memfd without a size is no memory yet. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/filelimit.h"
#include "device/host.h"

enum { DESCRIPTOR = 0 };

/* No importer can make a chunk's pages vanish under the others. */
#define CHUNK_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int fail_system(const char *what) {
    return tg__fail(-errno, "cannot %s: %s", what, tg_error_text(-errno));
}

struct tg__hostchunk *tg__hostchunk_find(struct tg__host *host, uint64_t handle) {
    const struct tg__handle *found = tg__handles_find(&host->handles, handle);

    return found == NULL ? NULL : found->what;
}

static uint64_t add_handle(struct tg__host *host, struct tg__hostchunk *chunk, bool is_created) {
    chunk->handles++;
    return tg__handles_add(&host->handles, chunk, is_created);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void link_chunk(struct tg__host *host, struct tg__hostchunk *chunk) {
    chunk->next = host->chunks;
    if (chunk->next != NULL)
        chunk->next->previous = chunk;
    host->chunks = chunk;
}

static void unlink_chunk(struct tg__host *host, struct tg__hostchunk *chunk) {
    if (chunk->next != NULL)
        chunk->next->previous = chunk->previous;
    if (chunk->previous != NULL)
        chunk->previous->next = chunk->next;
    else
        host->chunks = chunk->next;
}

static int take(struct tg__host *host, struct tg__hostchunk *chunk, bool travels) {
    if (travels)
        return tg__capacity_take_shared(host->capacity, chunk->inode, chunk->size_bytes,
                                        &chunk->entry);
    chunk->entry = TG__HOST_NO_ENTRY;
    return tg__capacity_take(host->capacity, chunk->size_bytes);
}

static void give(struct tg__host *host, const struct tg__hostchunk *chunk) {
    if (chunk->entry != TG__HOST_NO_ENTRY)
        tg__capacity_give_shared(host->capacity, chunk->entry);
    else
        tg__capacity_give(host->capacity, chunk->size_bytes);
}

/* Maps the memory where nobody touches it. What is doubled from here has the same advice. */
static int settle(struct tg__hostchunk *chunk, int fd) {
    void *home = mmap(NULL, chunk->size_bytes, PROT_NONE, MAP_SHARED, fd, 0);

    if (home == MAP_FAILED)
        return fail_system("map a chunk");
    if (madvise(home, chunk->size_bytes, MADV_DONTFORK) != 0) {
        int rc = fail_system("keep a chunk out of forked children");
        munmap(home, chunk->size_bytes);
        return rc;
    }
    /* Where shared memory may have huge pages if asked; it matters to speed alone. */
    madvise(home, chunk->size_bytes, MADV_HUGEPAGE);
    chunk->home = home;
    return 0;
}

static void leave_home(struct tg__hostchunk *chunk) {
    munmap(chunk->home, chunk->size_bytes);
    chunk->home = NULL;
}

/* The process that writes on after our death has it, too. */
static int settle_and_share(struct tg__host *host, struct tg__hostchunk *chunk, int fd) {
    int rc = settle(chunk, fd);

    if (rc != 0 || host->straggler == NULL)
        return rc;
    rc = tg__straggler_hold(host->straggler, chunk->inode, fd, chunk->size_bytes);
    if (rc != 0)
        leave_home(chunk);
    return rc;
}

/* Gives the descriptor its size, once the memory is accounted. */
static int size_and_settle(struct tg__host *host, struct tg__hostchunk *chunk, int fd,
                           bool travels) {
    if (!tg__filelimit_allows(chunk->size_bytes))
        return tg__fail(-EFBIG,
                        "a chunk of %" PRIu64 " bytes is a file, and this process may not make one "
                        "so large: raise its limit (ulimit -f)",
                        chunk->size_bytes);
    if (ftruncate(fd, (off_t)chunk->size_bytes) != 0)
        return fail_system("size a chunk");
    if (travels && fcntl(fd, F_ADD_SEALS, CHUNK_SEALS) != 0)
        return fail_system("seal a chunk");
    return settle_and_share(host, chunk, fd);
}

/* While no fork can happen. The descriptor goes into the guard, or is closed. */
static int make_memory(struct tg__host *host, struct tg__hostchunk *chunk, bool travels) {
    int fd = memfd_create(host->chunk_name, MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;
    struct stat info;

    if (fd < 0)
        return fail_system("make a chunk");
    rc = fstat(fd, &info) == 0 ? 0 : fail_system("look at a chunk");
    if (rc != 0)
        goto close;
    chunk->inode = info.st_ino;
    rc = take(host, chunk, travels);
    if (rc != 0)
        goto close;
    rc = size_and_settle(host, chunk, fd, travels);
    if (rc != 0)
        goto give;
    if (travels)
        chunk->guard.fds[DESCRIPTOR] = fd;
    else
        close(fd);
    return 0;
give:
    close(fd);
    give(host, chunk);
    return rc;
close:
    close(fd);
    return rc;
}

static struct tg__hostchunk *new_chunk(uint64_t size_bytes) {
    struct tg__hostchunk *chunk = calloc(1, sizeof *chunk);

    if (chunk == NULL) {
        tg__fail_memory();
        return NULL;
    }
    chunk->size_bytes = size_bytes;
    return chunk;
}

static void free_chunk(struct tg__hostchunk *chunk) {
    if (chunk->is_guarded)
        tg__forkguard_remove(&chunk->guard);
    free(chunk);
}

/* Nobody in this process can reach it any more. */
static void forget(struct tg__host *host, struct tg__hostchunk *chunk) {
    if (host->straggler != NULL)
        tg__straggler_drop(host->straggler, chunk->inode);
    give(host, chunk);
    unlink_chunk(host, chunk);
    free_chunk(chunk);
}

/* ---- the entries ----------------------------------------------------------------------------- */

int tg__hostchunk_create(struct tg__host *host, uint64_t size_bytes, uint32_t flags,
                         uint64_t *handle) {
    bool travels = (flags & TG_CHUNK_EXPORTABLE) != 0;
    struct tg__hostchunk *chunk;
    int rc = tg__handles_room(&host->handles);

    if (rc != 0)
        return rc;
    chunk = new_chunk(size_bytes);
    if (chunk == NULL)
        return -ENOMEM;
    if (travels)
        rc = tg__forkguard_add(&chunk->guard);
    chunk->is_guarded = travels && rc == 0;
    if (rc == 0) {
        tg__fork_hold();
        rc = make_memory(host, chunk, travels);
        tg__fork_release();
    }
    if (rc != 0) {
        free_chunk(chunk);
        return rc;
    }
    link_chunk(host, chunk);
    *handle = add_handle(host, chunk, travels);
    return 0;
}

int tg__hostchunk_release(struct tg__host *host, uint64_t number) {
    struct tg__handle *handle = tg__handles_find(&host->handles, number);
    struct tg__hostchunk *chunk;

    if (handle == NULL)
        return -EINVAL;
    chunk = handle->what;
    if (handle->is_created)
        tg__forkguard_close(&chunk->guard, DESCRIPTOR);
    tg__handles_remove(&host->handles, number);
    if (--chunk->handles == 0)
        leave_home(chunk);
    if (chunk->handles == 0 && chunk->mappings == 0)
        forget(host, chunk);
    return 0;
}

void tg__hostchunk_unmapped(struct tg__host *host, struct tg__hostchunk *chunk) {
    if (--chunk->mappings == 0 && chunk->handles == 0)
        forget(host, chunk);
}

int tg__hostchunk_export(struct tg__host *host, uint64_t number, int *fd) {
    const struct tg__handle *handle = tg__handles_find(&host->handles, number);
    const struct tg__hostchunk *chunk;
    int copy;

    if (handle == NULL)
        return -EINVAL;
    if (!handle->is_created)
        return tg__fail(-EINVAL, "only a chunk that this process created as exportable can be "
                        "exported");
    chunk = handle->what;
    copy = fcntl(chunk->guard.fds[DESCRIPTOR], F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return fail_system("export a chunk");
    *fd = copy;
    return 0;
}

/* The kernel says by which name a memfd was made, and that name is the device's own. */
static int judge_import(const struct tg__host *host, int fd, uint64_t size_bytes, uint64_t *inode) {
    char path[32], link[96], name[96];
    struct stat info;
    ssize_t length;
    int seals;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(name, sizeof name, "/memfd:%s (deleted)", host->chunk_name);
    length = readlink(path, link, sizeof link - 1);
    link[length < 0 ? 0 : length] = '\0';
    seals = fcntl(fd, F_GET_SEALS);
    if (strcmp(link, name) != 0 || seals < 0 || (seals & CHUNK_SEALS) != CHUNK_SEALS ||
        fstat(fd, &info) != 0)
        return tg__fail(-EINVAL, "descriptor %d is no chunk of this device", fd);
    if ((uint64_t)info.st_size != size_bytes)
        return tg__fail(-EINVAL, "the chunk has %" PRId64 " bytes, not %" PRIu64,
                        (int64_t)info.st_size, size_bytes);
    *inode = info.st_ino;
    return 0;
}

/* Only inodes of chunks with an entry are compared: no other can come in by a descriptor. */
static struct tg__hostchunk *find_inode(const struct tg__host *host, uint64_t inode) {
    for (struct tg__hostchunk *chunk = host->chunks; chunk != NULL; chunk = chunk->next) {
        if (chunk->inode == inode && chunk->entry != TG__HOST_NO_ENTRY)
            return chunk;
    }
    return NULL;
}

/* Only mappings of it are left here, and the straggler, if any, has it. */
static int settle_again(struct tg__hostchunk *chunk, int fd) {
    int rc;

    tg__fork_hold();
    rc = settle(chunk, fd);
    tg__fork_release();
    return rc;
}

static int import_new(struct tg__host *host, int fd, uint64_t inode, struct tg__hostchunk *chunk) {
    int rc;

    chunk->inode = inode;
    rc = take(host, chunk, true);
    if (rc != 0)
        return rc;
    tg__fork_hold();
    rc = settle_and_share(host, chunk, fd);
    tg__fork_release();
    if (rc != 0)
        give(host, chunk);
    else
        link_chunk(host, chunk);
    return rc;
}

int tg__hostchunk_import(struct tg__host *host, int fd, uint64_t size_bytes, uint64_t *handle) {
    struct tg__hostchunk *chunk;
    uint64_t inode;
    int rc = judge_import(host, fd, size_bytes, &inode);

    if (rc == 0)
        rc = tg__handles_room(&host->handles);
    if (rc != 0)
        return rc;
    chunk = find_inode(host, inode);
    if (chunk != NULL) {
        rc = chunk->home == NULL ? settle_again(chunk, fd) : 0;
    } else {
        chunk = new_chunk(size_bytes);
        rc = chunk == NULL ? -ENOMEM : import_new(host, fd, inode, chunk);
        if (rc != 0)
            free(chunk);
    }
    if (rc == 0)
        *handle = add_handle(host, chunk, false);
    return rc;
}

/* In a forked child the mappings are not there, and the guards have closed the descriptors. */
void tg__hostchunk_free_all(struct tg__host *host, bool is_forked) {
    while (host->chunks != NULL) {
        struct tg__hostchunk *chunk = host->chunks;

        if (chunk->home != NULL && !is_forked)
            leave_home(chunk);
        unlink_chunk(host, chunk);
        free_chunk(chunk);
    }
    tg__handles_free(&host->handles);
}
