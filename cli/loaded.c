/* SPDX-License-Identifier: Apache-2.0 */
/* Of a command it is the loader itself that tells, as with LD_DEBUG=files: nothing is then missed
 * that a short-lived child loads, or that is gone again at the end. */
#include "loaded.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stop_signal.h"
#include "user_command.h"
#include "verb.h"

#define FILE_STEM "loads"

static bool add(struct texts *loaded, const char *path) {
    for (size_t i = 0; i < loaded->count; i++) {
        if (strcmp(loaded->items[i], path) == 0)
            return true;
    }
    return texts_add(loaded, "%s", path);
}

/* Gives each line without its end to `take`. */
static bool for_lines(FILE *file, bool (*take)(struct texts *loaded, char *line),
                      struct texts *loaded) {
    char *line = NULL;
    bool is_good = true;
    size_t room = 0;

    while (is_good && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        is_good = take(loaded, line);
    }
    free(line);
    return is_good;
}

/* ---- a process ------------------------------------------------------------------------------- */

/* What is code of a file. */
static bool take_map(struct texts *loaded, char *line) {
    char *path = strchr(line, '/'), *rights = strchr(line, ' ');

    if (path == NULL || rights == NULL || rights[3] != 'x')
        return true;
    return add(loaded, path);
}

bool loaded_of_process(unsigned long long pid, struct texts *loaded, struct sentence *why) {
    char path[64];
    bool is_good;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%llu/maps", pid);
    file = fopen(path, "re");
    if (file == NULL) {
        sentence_set(why, errno == ENOENT ? "there is no process %llu"
                                          : "process %llu is not ours to look at", pid);
        return false;
    }
    is_good = for_lines(file, take_map, loaded);
    if (!is_good)
        sentence_set(why, "%s", strerror(ENOMEM));
    else if (ferror(file) != 0 || loaded->count == 0)
        sentence_set(why, "process %llu is not ours to look at, or has ended", pid);
    is_good = is_good && ferror(file) == 0 && loaded->count > 0;
    fclose(file);
    return is_good;
}

/* ---- a command ------------------------------------------------------------------------------- */

static bool is_program(const char *path) {
    struct stat status;

    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

/* The program is told as it was called, which may be found by PATH: an empty part of it is the
 * current folder. */
static bool add_program(struct texts *loaded, const char *name) {
    const char *part = getenv("PATH");
    char whole[PATH_MAX], found[PATH_MAX];

    if (strchr(name, '/') != NULL)
        return realpath(name, whole) == NULL || add(loaded, whole);
    while (part != NULL) {
        int length = (int)strcspn(part, ":");

        snprintf(whole, sizeof whole, "%.*s%s%s", length, part, length == 0 ? "" : "/", name);
        if (is_program(whole) && realpath(whole, found) != NULL)
            return add(loaded, found);
        part = part[length] == ':' ? part + length + 1 : NULL;
    }
    return true;
}

static bool take_load(struct texts *loaded, char *line) {
    static const char init[] = "\tcalling init: ", program[] = "\tinitialize program: ";
    const char *tab = strchr(line, '\t');

    if (tab != NULL && strncmp(tab, init, sizeof init - 1) == 0 && tab[sizeof init - 1] == '/')
        return add(loaded, tab + sizeof init - 1);
    if (tab != NULL && strncmp(tab, program, sizeof program - 1) == 0)
        return add_program(loaded, tab + sizeof program - 1);
    return true;
}

static bool take_files(const char *folder, struct texts *loaded) {
    DIR *files = opendir(folder);
    bool is_good = files != NULL;

    for (struct dirent *entry; is_good && (entry = readdir(files)) != NULL;) {
        int fd = strncmp(entry->d_name, FILE_STEM ".", strlen(FILE_STEM ".")) != 0
                     ? -1
                     : openat(dirfd(files), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        FILE *file = fd < 0 ? NULL : fdopen(fd, "r");

        if (file != NULL) {
            is_good = for_lines(file, take_load, loaded);
            fclose(file);
        }
    }
    if (files != NULL)
        closedir(files);
    return is_good;
}

/* What stops the verb is handed on, once: it may not have reached the command. Looks now and then,
 * since a signal may come just before a wait for the end would begin. */
static int wait_for(pid_t pid) {
    const struct timespec while_it_runs = {.tv_nsec = 20L * 1000 * 1000};
    bool is_told = false;
    int end = 0;

    while (waitpid(pid, &end, WNOHANG) == 0) {
        if (stop_signal_came() && !is_told)
            is_told = kill(pid, SIGTERM) == 0;
        nanosleep(&while_it_runs, NULL);
    }
    return user_command_status(end);
}

static int run(char *const *argv, const char *output, int *status) {
    const struct user_command_params params = {.argv = argv, .is_to_stderr = true};
    pid_t pid = -1;
    int error;

    if (setenv("LD_DEBUG", "files", 1) != 0 || setenv("LD_DEBUG_OUTPUT", output, 1) != 0)
        return ENOMEM;
    error = user_command_start(&params, &pid);
    unsetenv("LD_DEBUG");
    unsetenv("LD_DEBUG_OUTPUT");
    if (error != 0)
        return error;
    *status = wait_for(pid);
    return 0;
}

bool loaded_of_command(char *const *argv, const char *folder, struct texts *loaded, int *status,
                       struct sentence *why) {
    char output[PATH_MAX];
    int error;

    snprintf(output, sizeof output, "%s/" FILE_STEM, folder);
    error = run(argv, output, status);
    if (error != 0) {
        sentence_set(why, "%s: %s", argv[0], strerror(error));
        *status = user_command_status_unstarted(error);
        return false;
    }
    if (take_files(folder, loaded))
        return true;
    sentence_set(why, "what the loader told of %s cannot be read: %s", argv[0], strerror(errno));
    *status = EXIT_WRONG;
    return false;
}
