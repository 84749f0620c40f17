/* SPDX-License-Identifier: Apache-2.0 */
/* How a shared file comes to be: whole, or not at all. It is filled while it has no name and then
 * linked; of several that do so at once the first wins and the others open what it made. All its
 * bytes are allocated before, so that a full file system is an error here and no signal later. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/filelimit.h"
#include "base/shmhead.h"

enum { NAME_TRIES = 8 };

static int refuse(const struct tg__shmfile *file, int code) {
    if (code == ENOSPC)
        return tg__fail(-ENOSPC,
                        "no space for the %zu bytes of %s in %s: make room there, or name another "
                        "directory in TIDEGATE_DIR",
                        file->file_bytes, file->name, file->dir);
    if (code == EFBIG)
        return tg__fail(-EFBIG,
                        "%s in %s has %zu bytes, and this process may not make such a file: raise "
                        "its limit (ulimit -f)",
                        file->name, file->dir, file->file_bytes);
    return tg__fail(-code, "cannot make %s in %s: %s", file->name, file->dir, tg_error_text(-code));
}

int tg__shmfile_allocate(int fd, size_t file_bytes) {
    int code;

    do {
        code = posix_fallocate(fd, 0, (off_t)file_bytes);
    } while (code == EINTR);
    return code;
}

/* Gives the new file its bytes. Its pages stay when the mapping goes. 0 or -errno. */
static int fill(const struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    int fd = file->guard.fds[TG__GUARD_SPARE], code;
    struct tg__shmhead *head;

    if (!tg__filelimit_allows(file->file_bytes))
        return -EFBIG;
    /* The umask may have taken bits of the mode that others of this user need. */
    if (fchmod(fd, 0600) != 0)
        return -errno;
    code = tg__shmfile_allocate(fd, file->file_bytes);
    if (code != 0)
        return -code;
    head = mmap(NULL, file->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED)
        return -errno;
    head->magic = TG__SHM_MAGIC;
    head->format = file->format;
    head->file_bytes = file->file_bytes;
    atomic_store_explicit(&head->next_ticket, 1, memory_order_relaxed);
    if (params->fill != NULL)
        params->fill(head->body, params->argument);
    munmap(head, file->file_bytes);
    return 0;
}

/* The file has no name until it is linked: nothing is left behind if this process dies. */
static int create_nameless(struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    int directory = file->guard.fds[TG__GUARD_DIRECTORY];
    char link_path[32];
    int rc = tg__forkguard_open(&file->guard, TG__GUARD_SPARE, directory, ".", O_TMPFILE | O_RDWR);

    if (rc != 0)
        return rc;
    rc = fill(file, params);
    if (rc == 0) {
        snprintf(link_path, sizeof link_path, "/proc/self/fd/%d",
                 file->guard.fds[TG__GUARD_SPARE]);
        if (linkat(AT_FDCWD, link_path, directory, file->name, AT_SYMLINK_FOLLOW) != 0)
            rc = -errno;
    }
    tg__forkguard_close(&file->guard, TG__GUARD_SPARE);
    return rc;
}

/* Where a file cannot be without a name, or /proc is not there. If this process dies in here, a
 * file of the other name stays: of no use, and in nobody's way. */
static int create_renamed(struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    int directory = file->guard.fds[TG__GUARD_DIRECTORY], rc = -EEXIST;
    char other[64];

    for (int i = 0; i < NAME_TRIES && rc == -EEXIST; i++) {
        snprintf(other, sizeof other, ".new-%d-%" PRIx64, (int)getpid(), tg__clock_ns());
        rc = tg__forkguard_open(&file->guard, TG__GUARD_SPARE, directory, other,
                                O_CREAT | O_EXCL | O_RDWR);
    }
    if (rc != 0)
        return rc == -EEXIST ? -EAGAIN : rc;
    rc = fill(file, params);
    if (rc == 0 && linkat(directory, other, directory, file->name, 0) != 0)
        rc = -errno;
    unlinkat(directory, other, 0);
    tg__forkguard_close(&file->guard, TG__GUARD_SPARE);
    return rc;
}

int tg__shmfile_create(struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    int rc = create_nameless(file, params);

    if (rc == -EOPNOTSUPP || rc == -EISDIR || rc == -EINVAL || rc == -ENOENT)
        rc = create_renamed(file, params);
    return rc == 0 || rc == -EEXIST ? 0 : refuse(file, -rc);
}
