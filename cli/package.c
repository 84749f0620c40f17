/* SPDX-License-Identifier: Apache-2.0 */
#include "package.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"

/* From the folder of the command; the first is a source tree's, built in a folder of it, the last
 * what `pip install --target` makes. */
static const char *const patterns[] = {
    "../../python/tidegate",
    "../lib/python3*/site-packages/tidegate",
    "../lib/python3*/dist-packages/tidegate",
    "../lib64/python3*/site-packages/tidegate",
    "../tidegate",
};

/* The same for the library: a build's, a wheel's, an installation's. */
static const char *const library_patterns[] = {
    "../src/libtidegate.so",
    "../lib/python3*/site-packages/.tidegate.mesonpy.libs/libtidegate.so*",
    "../lib/python3*/dist-packages/.tidegate.mesonpy.libs/libtidegate.so*",
    "../lib64/python3*/site-packages/.tidegate.mesonpy.libs/libtidegate.so*",
    "../.tidegate.mesonpy.libs/libtidegate.so*",
    "../lib/libtidegate.so.0",
    "../lib64/libtidegate.so.0",
    "../lib/*/libtidegate.so.0",
};

#define BUILT_LIBRARY "/../src/libtidegate.so"

/* A pattern's own characters in the command's path stand for themselves. */
static bool quoted_append(char *pattern, size_t room, const char *path) {
    size_t at = 0;

    for (; *path != '\0' && at + 2 < room; path++) {
        if (strchr("*?[\\", *path) != NULL)
            pattern[at++] = '\\';
        pattern[at++] = *path;
    }
    pattern[at] = '\0';
    return *path == '\0';
}

static bool command_folder(char *folder) {
    ssize_t length = readlink("/proc/self/exe", folder, PACKAGE_BYTES - 1);

    if (length <= 0)
        return false;
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0'; /* the kernel's link is an absolute path */
    return true;
}

/* The newest Python's, where there are several. */
static bool pattern_find(const char *pattern, char *folder) {
    char path[PATH_MAX];
    bool is_found = false;
    glob_t found;

    if (glob(pattern, 0, NULL, &found) != 0)
        return false;
    for (size_t i = found.gl_pathc; i > 0 && !is_found; i--) {
        snprintf(path, sizeof path, "%s/__init__.py", found.gl_pathv[i - 1]);
        is_found = access(path, R_OK) == 0 && realpath(found.gl_pathv[i - 1], path) != NULL;
    }
    globfree(&found);
    if (is_found)
        snprintf(folder, PACKAGE_BYTES, "%s", path);
    return is_found;
}

/* The first of the patterns that is found, from the command's folder on. */
static bool beside_command(const char *const *wanted, size_t count,
                           bool (*find)(const char *pattern, char *folder), char *folder) {
    char command[PACKAGE_BYTES], quoted[PACKAGE_BYTES], pattern[2 * PACKAGE_BYTES];
    bool is_found = false;

    if (!command_folder(command) || !quoted_append(quoted, sizeof quoted, command))
        return false;
    for (size_t i = 0; i < count && !is_found; i++) {
        snprintf(pattern, sizeof pattern, "%s/%s", quoted, wanted[i]);
        is_found = find(pattern, folder);
    }
    return is_found;
}

bool package_find(char *folder) {
    return beside_command(patterns, sizeof patterns / sizeof patterns[0], pattern_find, folder);
}

bool package_library(char *library) {
    char command[PACKAGE_BYTES], path[PACKAGE_BYTES + sizeof BUILT_LIBRARY], *found;

    if (!command_folder(command))
        return false;
    snprintf(path, sizeof path, "%s%s", command, BUILT_LIBRARY);
    found = realpath(path, NULL);
    if (found == NULL)
        return false;
    snprintf(library, PACKAGE_BYTES, "%s", found);
    free(found);
    return true;
}

/* The folder of the first library that matches. */
static bool library_match(const char *pattern, char *folder) {
    bool is_found = false;
    glob_t found;
    char *path;

    if (glob(pattern, 0, NULL, &found) != 0)
        return false;
    path = realpath(found.gl_pathv[0], NULL);
    if (path != NULL) {
        *strrchr(path, '/') = '\0';
        is_found = snprintf(folder, PACKAGE_BYTES, "%s", path) < PACKAGE_BYTES;
    }
    free(path);
    globfree(&found);
    return is_found;
}

bool package_library_folder(char *folder) {
    const char *given = getenv("TIDEGATE_LIBRARY");
    char pattern[2 * PACKAGE_BYTES];

    if (given != NULL && *given != '\0')
        return quoted_append(pattern, sizeof pattern, given) && library_match(pattern, folder);
    return beside_command(library_patterns, sizeof library_patterns / sizeof library_patterns[0],
                          library_match, folder);
}

bool package_path_can_be_listed(const char *path) {
    const char *bad = strpbrk(path, ": ");

    if (bad == NULL)
        return true;
    say("%s cannot be handed on to the command, with a %s in its path; install Tidegate elsewhere",
        path, *bad == ':' ? "colon" : "space");
    return false;
}

static bool list_has(const char *list, char separator, const char *item) {
    const char separators[] = {separator, '\0'};
    size_t length = strlen(item);

    while (true) {
        size_t end;

        list += strspn(list, " ");
        end = strcspn(list, separators);
        if (end >= length && strncmp(list, item, length) == 0 &&
            strspn(list + length, " ") == end - length)
            return true;
        if (list[end] == '\0')
            return false;
        list += end + 1;
    }
}

bool environment_append(const char *variable, char separator, const char *item) {
    const char *list = getenv(variable);
    bool is_set;
    char *longer;

    if (list == NULL || *list == '\0')
        return setenv(variable, item, 1) == 0;
    if (list_has(list, separator, item))
        return true;
    if (asprintf(&longer, "%s%c%s", list, separator, item) < 0)
        return false;
    is_set = setenv(variable, longer, 1) == 0;
    free(longer);
    return is_set;
}
