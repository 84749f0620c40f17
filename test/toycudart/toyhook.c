/* SPDX-License-Identifier: Apache-2.0 */
/* Another preload, such as peers have: sees cudaMalloc, and says so. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "toycudart.h"

int cudaMalloc(void **addr, size_t size_bytes) {
    int (*next)(void **, size_t) = NULL;
    void *found = dlsym(RTLD_NEXT, "cudaMalloc");

    printf("hook: %zu bytes\n", size_bytes);
    fflush(stdout);
    memcpy(&next, &found, sizeof found);
    return next == NULL ? TOY_NOT_INITIALIZED : next(addr, size_bytes);
}
