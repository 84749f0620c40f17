/* SPDX-License-Identifier: Apache-2.0 */
/* What others have left: a file of another build's layout, or one that was poisoned, is in the way
 * of everybody who comes later. Where nobody lives who has it open it is removed, and a new one
 * made.
 *
 * Several may find the same old file at once. Who removes it holds a lock of the kernel on its
 * first byte, and under that lock finds it old still, and the name still leading to it. Who is late
 * opens the name anew and finds the new file, or none: that is to be tried again, and nothing to
 * remove. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/shmhead.h"

/* 0, or -errno: -EAGAIN if another has it. */
static int lock_first_byte(int fd) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

    if (fcntl(fd, F_OFD_SETLK, &range) == 0)
        return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

/* No ticket is alive. */
static bool is_abandoned(int fd) {
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = TG__SHM_TICKETS_AT, .l_len = 0};

    return fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type == F_UNLCK;
}

static bool is_named(const struct tg__shmfile *file, const struct stat *info) {
    struct stat by_name;

    return fstatat(file->guard.fds[TG__GUARD_DIRECTORY], file->name, &by_name,
                   AT_SYMLINK_NOFOLLOW) == 0 &&
           by_name.st_dev == info->st_dev && by_name.st_ino == info->st_ino;
}

enum kind { NOT_OURS, OLD, AS_WANTED };

/* Of whatever version. What is no file of ours is not ours to remove. */
static enum kind kind_of(const struct tg__shmfile *file, int fd, const struct stat *info) {
    struct tg__shmhead head;

    if (!S_ISREG(info->st_mode) || info->st_uid != geteuid() ||
        pread(fd, &head, sizeof head, 0) != sizeof head ||
        head.magic >> 8 != TG__SHM_MAGIC >> 8)
        return NOT_OURS;
    if ((uint64_t)info->st_size != file->file_bytes || head.magic != TG__SHM_MAGIC ||
        head.format != file->format || head.file_bytes != file->file_bytes ||
        atomic_load_explicit(&head.is_poisoned, memory_order_relaxed) != 0)
        return OLD;
    return AS_WANTED;
}

/* With the file opened: what is to be answered instead of `status`. */
static int judge(struct tg__shmfile *file, int fd, bool is_reader, int status) {
    int rc = is_reader ? 0 : lock_first_byte(fd);
    struct stat info;
    enum kind kind;

    if (rc == -EAGAIN)
        return TG__SHM_TRY_AGAIN; /* another is about to remove it */
    if (rc != 0 || fstat(fd, &info) != 0)
        return status;
    kind = kind_of(file, fd, &info);
    if (kind == AS_WANTED || (kind == OLD && !is_named(file, &info)))
        return TG__SHM_TRY_AGAIN;
    if (kind == NOT_OURS || !is_abandoned(fd))
        return status;
    if (is_reader)
        return -ENOENT;
    return unlinkat(file->guard.fds[TG__GUARD_DIRECTORY], file->name, 0) == 0 ? TG__SHM_TRY_AGAIN
                                                                              : status;
}

int tg__shmfile_retire(struct tg__shmfile *file, bool is_reader, int status) {
    int access = is_reader ? O_RDONLY : O_RDWR, saved = errno;
    int rc = tg__forkguard_open(&file->guard, TG__GUARD_SPARE,
                                file->guard.fds[TG__GUARD_DIRECTORY], file->name,
                                access | O_NOFOLLOW | O_NONBLOCK);

    if (rc == -ENOENT)
        return TG__SHM_TRY_AGAIN;
    if (rc != 0)
        return status;
    rc = judge(file, file->guard.fds[TG__GUARD_SPARE], is_reader, status);
    tg__forkguard_close(&file->guard, TG__GUARD_SPARE);
    errno = saved;
    return rc;
}
