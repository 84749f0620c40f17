/* SPDX-License-Identifier: Apache-2.0 */
#include "replaced_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"

/* Renaming would put a file where a device or a pipe was. */
static bool is_replaceable(const char *path) {
    struct stat info;

    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return true;
    say("%s is there and is no file", path);
    return false;
}

/* "DIR/.NAME.XXXXXX": hidden, and without the ending that collectors look for. */
static char *name_beside(const char *path) {
    const char *slash = strrchr(path, '/');
    int folder_length = slash == NULL ? 0 : (int)(slash + 1 - path);
    char *name;

    return asprintf(&name, "%.*s.%s.XXXXXX", folder_length, path, path + folder_length) < 0 ? NULL
                                                                                          : name;
}

/* As any new file: a collector is often another user. */
static bool mode_set(int fd) {
    mode_t mask = umask(0);

    umask(mask);
    return fchmod(fd, 0666 & ~mask) == 0;
}

static void names_free(struct replaced_file *file) {
    free(file->made);
    free(file->path);
}

bool replaced_file_open(struct replaced_file *file, const char *path) {
    int fd;

    if (!is_replaceable(path))
        return false;
    file->path = realpath(path, NULL);
    if (file->path == NULL)
        file->path = strdup(path);
    file->made = file->path == NULL ? NULL : name_beside(file->path);
    if (file->made == NULL) {
        say_no_memory();
        names_free(file);
        return false;
    }
    fd = mkostemp(file->made, O_CLOEXEC);
    if (fd < 0) {
        say("%s cannot be written: %s", path, strerror(errno));
        names_free(file);
        return false;
    }
    file->out = mode_set(fd) ? fdopen(fd, "w") : NULL;
    if (file->out != NULL)
        return true;
    say("%s cannot be written: %s", path, strerror(errno));
    close(fd);
    unlink(file->made);
    names_free(file);
    return false;
}

bool replaced_file_close(struct replaced_file *file) {
    bool is_written = ferror(file->out) == 0;

    is_written &= fclose(file->out) == 0;
    is_written = is_written && rename(file->made, file->path) == 0;
    if (!is_written) {
        say("%s cannot be written: %s", file->path, strerror(errno));
        unlink(file->made);
    }
    names_free(file);
    return is_written;
}
