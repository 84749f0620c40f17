/* SPDX-License-Identifier: Apache-2.0 */
/* What others have left: a file of another build's layout, or one that was poisoned, is in the way
 * of everybody who comes later. Where nobody lives who has it open it is removed, and a new one
 * made.
 *
 * Who removes it holds a lock of the kernel on the old file's first byte and finds the name still
 * leading to that file. So two who come at once do not remove each other's new one: the second
 * finds another file under the name. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/shmhead.h"

/* Whether the lock that was asked for is free of others, or is now ours. */
static bool lock(int fd, int command, off_t start, off_t length) {
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

    return fcntl(fd, command, &range) == 0 && (command == F_OFD_SETLK || range.l_type == F_UNLCK);
}

static bool is_abandoned(int fd) {
    return lock(fd, F_OFD_GETLK, TG__SHM_TICKETS_AT, 0);
}

static bool is_named(const struct tg__shmfile *file, const struct stat *info) {
    struct stat by_name;

    return fstatat(file->guard.fds[TG__GUARD_DIRECTORY], file->name, &by_name,
                   AT_SYMLINK_NOFOLLOW) == 0 &&
           by_name.st_dev == info->st_dev && by_name.st_ino == info->st_ino;
}

/* Of whatever version. What is no file of ours is not ours to remove. */
static bool is_ours(int fd, const struct stat *info) {
    uint64_t magic;

    return S_ISREG(info->st_mode) && info->st_uid == geteuid() &&
           pread(fd, &magic, sizeof magic, 0) == sizeof magic &&
           magic >> 8 == TG__SHM_MAGIC >> 8;
}

bool tg__shmfile_retire(struct tg__shmfile *file, bool is_reader) {
    int directory = file->guard.fds[TG__GUARD_DIRECTORY], saved = errno, fd;
    struct stat info;
    bool is_gone = false;

    if (tg__forkguard_open(&file->guard, TG__GUARD_SPARE, directory, file->name,
                           (is_reader ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK) != 0)
        return false;
    fd = file->guard.fds[TG__GUARD_SPARE];
    if (fstat(fd, &info) == 0 && is_ours(fd, &info) &&
        (is_reader || lock(fd, F_OFD_SETLK, 0, 1)) && is_abandoned(fd))
        is_gone = is_reader || !is_named(file, &info) ||
                  unlinkat(directory, file->name, 0) == 0;
    tg__forkguard_close(&file->guard, TG__GUARD_SPARE);
    errno = saved;
    return is_gone;
}
