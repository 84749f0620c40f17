/* SPDX-License-Identifier: Apache-2.0 */
#include "collect.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "input.h"
#include "layout.h"

struct identity {
    dev_t device;
    ino_t inode;
};

/* A folder being walked: what is still to be entered, and what was found. */
struct walk {
    struct collected *collected;
    struct texts *notes;
    struct texts folders, files; /* paths */
};

enum seen { SEEN_NEW, SEEN_BEFORE, SEEN_NO_MEMORY };

static int compare_identities(const void *left, const void *right) {
    const struct identity *a = left, *b = right;

    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return (a->inode > b->inode) - (a->inode < b->inode);
}

/* Links may lead to what we have, or in a circle: each file and folder is taken once. */
static enum seen see(struct collected *collected, const struct stat *about) {
    struct identity *identity = malloc(sizeof *identity);
    struct identity **place;

    if (identity == NULL)
        return SEEN_NO_MEMORY;
    *identity = (struct identity){about->st_dev, about->st_ino};
    place = tsearch(identity, &collected->seen, compare_identities);
    if (place != NULL && *place == identity)
        return SEEN_NEW;
    free(identity);
    return place == NULL ? SEEN_NO_MEMORY : SEEN_BEFORE;
}

static bool file_add(struct collected *collected, const char *path, bool is_stream) {
    struct collected_file *file;

    if (collected->count == collected->room) {
        size_t room = collected->room == 0 ? 64 : collected->room * 2;
        struct collected_file *files = realloc(collected->files, room * sizeof *files);

        if (files == NULL)
            return false;
        collected->files = files;
        collected->room = room;
    }
    file = &collected->files[collected->count];
    file->path = strdup(path);
    file->is_stream = is_stream;
    if (file->path == NULL)
        return false;
    collected->count++;
    return true;
}

/* One name in a folder. */
static bool entry_take(struct walk *walk, int folder_fd, const char *folder, const char *name) {
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    struct stat about;

    if (fstatat(folder_fd, name, &about, 0) != 0) {
        if (!layout_counts(name))
            return true;
        return texts_say(walk->notes, "%s%s%s: %s", folder, slash, name, strerror(errno));
    }
    if (S_ISDIR(about.st_mode))
        return texts_add(&walk->folders, "%s%s%s", folder, slash, name);
    if (!S_ISREG(about.st_mode) || !layout_counts(name))
        return true;
    return texts_add(&walk->files, "%s%s%s", folder, slash, name);
}

/* All names in a folder that is open. */
static bool entries_take(struct walk *walk, DIR *folder, const char *path) {
    struct dirent *entry;
    bool goes_on = true;

    while (goes_on && (errno = 0, entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] != '.')
            goes_on = entry_take(walk, dirfd(folder), path, entry->d_name);
    }
    if (goes_on && errno != 0)
        return texts_say(walk->notes, "%s: %s", path, strerror(errno));
    return goes_on;
}

static bool folder_take(struct walk *walk, const char *path) {
    DIR *folder = opendir(path);
    struct stat about;
    bool goes_on = true;

    if (folder == NULL)
        return texts_say(walk->notes, "%s: %s", path, strerror(errno));
    if (fstat(dirfd(folder), &about) != 0) {
        goes_on = texts_say(walk->notes, "%s: %s", path, strerror(errno));
    } else {
        enum seen seen = see(walk->collected, &about);

        if (seen == SEEN_NEW)
            goes_on = entries_take(walk, folder, path);
        else
            goes_on = seen == SEEN_BEFORE;
    }
    closedir(folder);
    return goes_on;
}

static int compare_paths(const void *left, const void *right) {
    return strverscmp(*(char *const *)left, *(char *const *)right);
}

/* The files found, in order; a file that is there under two names is taken under the first. */
static bool files_add(struct walk *walk) {
    struct texts *files = &walk->files;

    if (files->count > 0)
        qsort(files->items, files->count, sizeof *files->items, compare_paths);
    for (size_t i = 0; i < files->count; i++) {
        struct stat about;
        enum seen seen = SEEN_NEW; /* one that has gone meanwhile: reading it will say so */

        if (stat(files->items[i], &about) == 0)
            seen = see(walk->collected, &about);
        if (seen == SEEN_NO_MEMORY ||
            (seen == SEEN_NEW && !file_add(walk->collected, files->items[i], false)))
            return false;
    }
    return true;
}

static bool folder_walk(struct collected *collected, const char *path, struct texts *notes) {
    struct walk walk = {.collected = collected, .notes = notes};
    size_t said = notes->count;
    bool goes_on = texts_add(&walk.folders, "%s", path);

    while (goes_on && walk.folders.count > 0) {
        char *next = walk.folders.items[--walk.folders.count];

        goes_on = folder_take(&walk, next);
        free(next);
    }
    if (goes_on && walk.files.count == 0 && notes->count == said)
        goes_on = texts_say(notes, "%s: no file in it is named .pickle or .pkl, with or without "
                                   ".gz, .xz, .zst", path);
    goes_on = goes_on && files_add(&walk);
    texts_free(&walk.folders);
    texts_free(&walk.files);
    return goes_on;
}

bool collect_path(struct collected *collected, const char *path, struct texts *notes) {
    bool is_stdin = strcmp(path, INPUT_STDIN) == 0;
    struct stat about;

    if ((is_stdin ? fstat(STDIN_FILENO, &about) : stat(path, &about)) != 0)
        return texts_say(notes, "%s: %s", input_name(path), strerror(errno));
    if (S_ISDIR(about.st_mode) && !is_stdin)
        return folder_walk(collected, path, notes);
    switch (see(collected, &about)) {
    case SEEN_NEW:
        return file_add(collected, path, !S_ISREG(about.st_mode));
    case SEEN_BEFORE:
        return true;
    default:
        return false;
    }
}

void collected_free(struct collected *collected) {
    for (size_t i = 0; i < collected->count; i++)
        free(collected->files[i].path);
    free(collected->files);
    tdestroy(collected->seen, free);
    *collected = (struct collected){0};
}
