/* SPDX-License-Identifier: Apache-2.0 */
#include "run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"

#define SEAMS "seams"
#define PYTHON "python"
#define PACKAGE "python/tidegate"

static const char *inside(const struct run_folder *folder, const char *name, char *path) {
    snprintf(path, RUN_INSIDE_BYTES, "%s/%s", folder->path, name);
    return path;
}

static bool folder_make_in(const char *parent, struct run_folder *folder) {
    int length = snprintf(folder->path, sizeof folder->path, "%s/tidegate-run-XXXXXX", parent);

    if (length >= (int)sizeof folder->path) {
        errno = ENAMETOOLONG;
        return false;
    }
    return mkdtemp(folder->path) != NULL;
}

bool run_folder_make(struct run_folder *folder) {
    const char *parents[] = {getenv("TMPDIR"), "/tmp", "/dev/shm"};
    char path[RUN_INSIDE_BYTES];
    bool is_made = false;
    int fd;

    for (size_t i = 0; i < sizeof parents / sizeof parents[0] && !is_made; i++)
        is_made = parents[i] != NULL && parents[i][0] == '/' && folder_make_in(parents[i], folder);
    if (!is_made) {
        say("no folder for this run could be made in /tmp or /dev/shm: %s; set TMPDIR to one that "
            "can be written", strerror(errno));
        folder->path[0] = '\0';
        return false;
    }
    fd = open(inside(folder, SEAMS, path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        say("%s: %s", path, strerror(errno));
        run_folder_remove(folder);
        folder->path[0] = '\0';
        return false;
    }
    close(fd);
    return true;
}

bool run_folder_link(const struct run_folder *folder, const char *package, char *python) {
    char path[RUN_INSIDE_BYTES];

    if (mkdir(inside(folder, PYTHON, python), 0700) == 0 &&
        symlink(package, inside(folder, PACKAGE, path)) == 0)
        return true;
    say("%s: %s", python, strerror(errno));
    return false;
}

/* "PID NAME" and perhaps more. What is not one is passed over: the line of a full disk. */
static void line_note(const char *line, bool is_active[PROGRAM_COUNT]) {
    size_t digits = strspn(line, "0123456789");
    const char *name = line + digits + 1;

    if (digits == 0 || line[digits] != ' ')
        return;
    for (size_t i = 0; i < PROGRAM_COUNT; i++) {
        const char *known = program_name((enum program)i);

        if (strcspn(name, " \n") == strlen(known) && strncmp(name, known, strlen(known)) == 0)
            is_active[i] = true;
    }
}

void run_folder_seams(const struct run_folder *folder, bool is_active[PROGRAM_COUNT]) {
    char path[RUN_INSIDE_BYTES], *line = NULL;
    FILE *file = fopen(inside(folder, SEAMS, path), "re");
    size_t room = 0;

    memset(is_active, 0, PROGRAM_COUNT * sizeof *is_active);
    if (file == NULL)
        return;
    while (getline(&line, &room, file) > 0)
        line_note(line, is_active);
    free(line);
    fclose(file);
}

void run_folder_remove(const struct run_folder *folder) {
    char path[RUN_INSIDE_BYTES];

    if (folder->path[0] == '\0')
        return;
    unlink(inside(folder, PACKAGE, path));
    rmdir(inside(folder, PYTHON, path));
    unlink(inside(folder, SEAMS, path));
    rmdir(folder->path);
}
