/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/error.h"
#include "device/cuda_device.h"

/* After these the context answers nothing else any more. */
static const int sticky[] = {
    TG__CU_ERROR_DEINITIALIZED,        TG__CU_ERROR_INVALID_CONTEXT,
    TG__CU_ERROR_ECC_UNCORRECTABLE,    TG__CU_ERROR_NVLINK_UNCORRECTABLE,
    TG__CU_ERROR_ILLEGAL_ADDRESS,      TG__CU_ERROR_LAUNCH_TIMEOUT,
    TG__CU_ERROR_CONTEXT_IS_DESTROYED, TG__CU_ERROR_ASSERT,
    TG__CU_ERROR_HARDWARE_STACK_ERROR, TG__CU_ERROR_ILLEGAL_INSTRUCTION,
    TG__CU_ERROR_MISALIGNED_ADDRESS,   TG__CU_ERROR_INVALID_ADDRESS_SPACE,
    TG__CU_ERROR_INVALID_PC,           TG__CU_ERROR_LAUNCH_FAILED,
};

static const int of_capture[] = {
    TG__CU_ERROR_STREAM_CAPTURE_UNSUPPORTED, TG__CU_ERROR_STREAM_CAPTURE_INVALIDATED,
    TG__CU_ERROR_STREAM_CAPTURE_IMPLICIT, TG__CU_ERROR_CAPTURED_EVENT};

static bool is_among(int result, const int *results, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (results[i] == result)
            return true;
    }
    return false;
}

const char *tg__cuda_name(const struct tg__cuda *cuda, int result) {
    const char *name = NULL;

    if (cuda->calls.cuGetErrorName(result, &name) != 0 || name == NULL)
        return "an unknown error";
    return name;
}

int tg__cuda_status(struct tg__cuda *cuda, int result, const char *what) {
    const char *name;

    if (result == 0)
        return 0;
    name = tg__cuda_name(cuda, result);
    if (is_among(result, sticky, sizeof sticky / sizeof *sticky)) {
        atomic_store(&cuda->broken, result);
        return tg__fail_native(TG_EBROKEN, result, "%s: %s (%d): the GPU's context has failed for "
                               "good", what, name, result);
    }
    if (is_among(result, of_capture, sizeof of_capture / sizeof *of_capture))
        return tg__fail_native(TG_ECAPTURE, result, "%s: %s (%d): work of this process is being "
                               "captured", what, name, result);
    return tg__fail_native(TG_EDEVICE, result, "%s: %s (%d)", what, name, result);
}

int tg__cuda_check(struct tg__cuda *cuda) {
    int broken;

    if (tg__forkguard_is_forked(&cuda->guard))
        return tg__fail(TG_EFORKED, "a forked child cannot use the GPU of its parent: open the "
                        "device in the child, before anything in the parent has used a GPU");
    broken = atomic_load_explicit(&cuda->broken, memory_order_relaxed);
    if (broken == 0)
        return 0;
    return tg__fail_native(TG_EBROKEN, broken, "the GPU's context has failed for good: %s (%d)",
                           tg__cuda_name(cuda, broken), broken);
}

static int retain(struct tg__cuda *cuda) {
    struct tg__cuctx *context = NULL;
    int rc = 0;

    pthread_mutex_lock(&cuda->mutex);
    if (atomic_load(&cuda->context) == NULL) {
        rc = tg__cuda_status(cuda, cuda->calls.cuDevicePrimaryCtxRetain(&context, cuda->number),
                             "cuDevicePrimaryCtxRetain");
        if (rc == 0)
            atomic_store(&cuda->context, context);
    }
    pthread_mutex_unlock(&cuda->mutex);
    return rc;
}

int tg__cuda_enter(struct tg__cuda *cuda, struct tg__cudacall *call) {
    int saved_errno = errno, rc = tg__cuda_check(cuda);

    if (rc == 0 && atomic_load_explicit(&cuda->context, memory_order_acquire) == NULL)
        rc = retain(cuda);
    if (rc == 0)
        rc = tg__cuda_status(cuda, cuda->calls.cuCtxPushCurrent(atomic_load(&cuda->context)),
                             "cuCtxPushCurrent");
    if (rc == 0) {
        *call = (struct tg__cudacall){cuda, saved_errno, TG__CU_STREAM_CAPTURE_MODE_RELAXED};
        /* Else a capture in the global mode would be ended by our looking at an event. */
        cuda->calls.cuThreadExchangeStreamCaptureMode(&call->saved_mode);
    }
    errno = saved_errno;
    return rc;
}

int tg__cuda_leave(struct tg__cudacall *call, int rc) {
    const struct tg__cuda_calls *calls = &call->cuda->calls;
    struct tg__cuctx *ours;

    calls->cuThreadExchangeStreamCaptureMode(&call->saved_mode);
    calls->cuCtxPopCurrent(&ours);
    errno = call->saved_errno;
    return rc;
}
