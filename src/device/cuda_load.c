/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_load.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

typedef int (*tg__proc_address_fn)(const char *base, void **function, int version,
                                   unsigned long long flags, int *query_status);

struct wanted {
    const char *base, *symbol;
    int since; /* CUDA version, 12050 for 12.5 */
    int is_needed;
    size_t offset; /* in the table */
};

static const struct wanted wanted[] = {
#define TG__CUDA_CALL(base, symbol, since, need, ...) \
    {#base, #symbol, since, need, offsetof(struct tg__cuda_calls, base)},
#include "device/cuda_calls.def"
#undef TG__CUDA_CALL
};

/* Drivers since 12.0 answer for a version, and then for all that they have. Older ones have the
 * exact name. */
static void *find(void *library, tg__proc_address_fn proc_address, const struct wanted *call) {
    void *function = NULL;
    int query_status;

    if (proc_address != NULL && proc_address(call->base, &function, call->since, 0,
                                             &query_status) == 0 && function != NULL)
        return function;
    return proc_address != NULL ? NULL : dlsym(library, call->symbol);
}

static int fill(void *library, struct tg__cuda_calls *calls) {
    tg__proc_address_fn proc_address = NULL;
    void *found = dlsym(library, "cuGetProcAddress_v2");

    memcpy(&proc_address, &found, sizeof found);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        found = find(library, proc_address, &wanted[i]);
        if (found == NULL && wanted[i].is_needed)
            return tg__fail(-ENODEV, "the GPU's driver is too old: it lacks %s of CUDA %d.%d",
                            wanted[i].symbol, wanted[i].since / 1000, wanted[i].since / 10 % 100);
        memcpy((char *)calls + wanted[i].offset, &found, sizeof found);
    }
    return 0;
}

static int initialise(const struct tg__cuda_calls *calls) {
    const char *name = NULL;
    int result = calls->cuInit(0);

    if (result == 0)
        return 0;
    if (result == TG__CU_ERROR_NO_DEVICE)
        return tg__fail_native(-ENODEV, result, "the GPU's driver is here, but shows no GPU to "
                               "this process");
    if (calls->cuGetErrorName(result, &name) != 0 || name == NULL)
        name = "an unknown error";
    if (result == TG__CU_ERROR_NOT_INITIALIZED)
        return tg__fail_native(TG_EFORKED, result, "the GPU's driver does not work in a process "
                               "that was forked after its start: cuInit: %s (%d)", name, result);
    return tg__fail_native(-ENODEV, result, "the GPU's driver does not start: cuInit: %s (%d)",
                           name, result);
}

int tg__cuda_load(struct tg__cuda_calls *calls) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int rc;

    if (library == NULL) {
        const char *why = dlerror();

        return tg__fail(-ENODEV, "no GPU driver here: %s",
                        why != NULL ? why : "libcuda.so.1 cannot be loaded");
    }
    rc = fill(library, calls);
    return rc != 0 ? rc : initialise(calls);
}
