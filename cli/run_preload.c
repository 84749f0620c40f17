/* SPDX-License-Identifier: Apache-2.0 */
#include "run_preload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tidegate/ledger.h>

#include "package.h"
#include "say.h"

#define NAME "libtidegate-preload.so"

bool run_preload_check(const char *tag) {
    static const char signs[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    size_t length = strlen(tag);

    if (length > 0 && length <= TG_TAG_NAME_BYTES - 1 && strspn(tag, signs) == length)
        return true;
    say("--default-tag: '%.40s' is no name of a tag: up to %d letters, digits, '_', '-', '.'", tag,
        TG_TAG_NAME_BYTES - 1);
    return false;
}

/* It opens the library beside it, which has to be the one that the command's Python opens. */
static bool find(char *path) {
    char folder[PACKAGE_BYTES];
    int length;

    if (!package_library_folder(folder))
        return false;
    length = snprintf(path, PACKAGE_BYTES, "%s/" NAME, folder);
    return length < PACKAGE_BYTES && access(path, R_OK) == 0;
}

bool run_preload_path(char *path) {
    if (find(path))
        return true;
    say("the preload, " NAME ", does not lie beside the library of this command; install "
        "Tidegate again, or set TIDEGATE_LIBRARY to a libtidegate.so that has it beside it");
    return false;
}

bool run_preload_hand_on(const char *default_tag, bool keep_host) {
    char path[PACKAGE_BYTES];

    if (!run_preload_path(path) || !package_path_can_be_listed(path))
        return false;
    if (environment_append("LD_PRELOAD", ':', path) &&
        (default_tag == NULL || setenv("TIDEGATE_DEFAULT_TAG", default_tag, 1) == 0) &&
        (!keep_host || setenv("TIDEGATE_DEFAULT_KEEP_HOST", "1", 1) == 0))
        return true;
    say_no_memory();
    return false;
}
