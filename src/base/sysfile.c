/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sysfile.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool tg__sysfile_read(const char *path, char text[TG__SYSFILE_BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = -1;

    if (fd >= 0) {
        length = read(fd, text, TG__SYSFILE_BYTES - 1);
        close(fd);
    }
    text[length < 0 ? 0 : length] = '\0';
    return length >= 0;
}

bool tg__sysfile_number(const char *text, const char *key, uint64_t *number) {
    size_t length = strlen(key);

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0)
            return sscanf(line + length, "%" SCNu64, number) == 1;
    }
    return false;
}
