/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's names: of its results, and of its calls by version. */
#include <string.h>

#include "standin.h"

static const struct {
    int result;
    const char *name;
} results[] = {
#define TG__CU_NUMBER(prefix, name, value) {value, #prefix "_" #name},
#include "device/cuda_numbers.def"
#undef TG__CU_NUMBER
};

int cuGetErrorName(int result, const char **name) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].result == result && strncmp(results[i].name, "CUDA_ERROR_", 11) == 0) {
            *name = results[i].name;
            return 0;
        }
    }
    *name = NULL;
    return TG__CU_ERROR_INVALID_VALUE;
}

int cuGetErrorString(int result, const char **text) {
    return cuGetErrorName(result, text);
}

typedef void (*function_fn)(void); /* what every function may be cast to */

static const struct {
    const char *base;
    int since;
    function_fn function;
} calls[] = {
#define TG__CUDA_CALL(base, symbol, since, need, ...) {#base, since, (function_fn)symbol},
#include "device/cuda_calls.def"
#include "standin_calls.def"
#undef TG__CUDA_CALL
};

/* A call that came later than the version asked for, or than the driver, is not there. */
int cuGetProcAddress_v2(const char *base, void **function, int version, unsigned long long flags,
                        int *query_status) {
    int driver = 0;

    (void)flags;
    *function = NULL;
    cuDriverGetVersion(&driver);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].base, base) != 0)
            continue;
        if (calls[i].since <= version && (driver == 0 || calls[i].since <= driver))
            memcpy(function, &calls[i].function, sizeof *function);
        if (query_status != NULL)
            *query_status = *function != NULL ? 0 : 2; /* the version is not sufficient */
        return 0;
    }
    if (query_status != NULL)
        *query_status = 1; /* no such symbol */
    return TG__CU_ERROR_NOT_FOUND;
}
