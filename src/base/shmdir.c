/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, makes and judges the directory. The path is walked to open it; what is judged is the
 * opened directory, and all that follows goes through its descriptor. */
#include "base/shmdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

int tg__shmdir_path(const char *dir, char **path) {
    const char *where = dir != NULL ? dir : secure_getenv("TIDEGATE_DIR");
    char usual[64], *text;

    if (where == NULL || (dir == NULL && where[0] == '\0')) {
        snprintf(usual, sizeof usual, "/dev/shm/tidegate-%u", (unsigned)geteuid());
        where = usual;
    }
    if (where[0] != '/')
        return tg__fail(-EINVAL, "the directory \"%s\" is not an absolute path: %s begins with /",
                        where, dir == NULL ? "TIDEGATE_DIR" : "one");
    text = strdup(where);
    if (text == NULL)
        return tg__fail_memory();
    /* "link/" would be followed in spite of O_NOFOLLOW. */
    for (size_t end = strlen(text); end > 1 && text[end - 1] == '/'; end--)
        text[end - 1] = '\0';
    *path = text;
    return 0;
}

static int judge(const char *path, int fd) {
    struct stat info;

    if (fstat(fd, &info) != 0)
        return tg__fail(-errno, "%s: %s", path, tg_error_text(-errno));
    if (info.st_uid != geteuid())
        return tg__fail(-EPERM, "%s belongs to user %u and this is user %u: it must be this user's",
                        path, (unsigned)info.st_uid, (unsigned)geteuid());
    if ((info.st_mode & 0777) != 0700)
        return tg__fail(-EPERM, "%s has mode %04o: it must be 0700, for this user alone", path,
                        (unsigned)(info.st_mode & 0777));
    return 0;
}

static int refuse(const char *path, int code) {
    struct stat info;

    if (code == ENOENT)
        return tg__fail(-ENOENT, "there is no directory %s", path);
    if (code != ENOTDIR && code != ELOOP)
        return tg__fail(-code, "%s: %s", path, tg_error_text(-code));
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
        return tg__fail(-EPERM, "%s is a symbolic link: it must be a directory itself", path);
    return tg__fail(-EPERM, "%s is no directory: it must be one, of mode 0700", path);
}

int tg__shmdir_open(const char *path, bool may_make, struct tg__forkguard *guard, int slot) {
    int saved = errno, rc;
    bool is_made = may_make && mkdirat(AT_FDCWD, path, 0700) == 0;

    if (may_make && !is_made && errno != EEXIST) {
        rc = tg__fail(-errno,
                      "cannot make the directory %s: %s; TIDEGATE_DIR may name another", path,
                      tg_error_text(-errno));
        goto done;
    }
    /* The umask may have taken bits of the mode, even those that opening needs, and may not be
     * touched: it is the process's. If this fails, the judgement tells. */
    if (is_made)
        (void)!fchmodat(AT_FDCWD, path, 0700, AT_SYMLINK_NOFOLLOW);
    rc = tg__forkguard_open(guard, slot, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (rc != 0) {
        rc = refuse(path, -rc);
        goto done;
    }
    rc = judge(path, guard->fds[slot]);
    if (rc != 0)
        tg__forkguard_close(guard, slot);
done:
    errno = saved;
    return rc;
}
