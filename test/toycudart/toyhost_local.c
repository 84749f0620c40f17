/* SPDX-License-Identifier: Apache-2.0 */
/* The same from modules that are opened with RTLD_LOCAL, as Python opens its own, and their
 * runtimes with them: hostlocal MODULE:THING… */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int do_in(char *path, const char *what) {
    int (*act)(const char *what) = NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *found = module == NULL ? NULL : dlsym(module, "host_do");

    if (found == NULL) {
        fprintf(stderr, "hostlocal: %s\n", dlerror());
        return -1;
    }
    memcpy(&act, &found, sizeof found);
    return act(what);
}

int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        char *colon = strrchr(words[i], ':');

        if (colon == NULL)
            return 2;
        *colon = '\0';
        if (do_in(words[i], colon + 1) != 0)
            return 2;
    }
    return 0;
}
