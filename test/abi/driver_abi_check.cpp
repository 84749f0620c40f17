/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of the driver's interface beside NVIDIA's: it compiles, or they differ. Each
 * call is compared with the type that NVIDIA keeps for it in that version: number of parameters, the
 * size of each, and what is a pointer. The name that the header's macros make of a call is the symbol
 * that we take (a bare name may be an older form).
 *
 * Compiled by test/py/test_driver_abi.py; CHECK_NVML: the other library. */
#include <cstddef>
#include <type_traits>

#ifdef CHECK_NVML
#include <nvml.h>

#include "device/nvml_abi.h"
#else
#include <cuda.h>
#include <cudaTypedefs.h>

/* With the header's macros in force the fields have the names of the symbols; only types count. */
#include "device/cuda_abi.h"
#endif

namespace {

template <class Ours, class Theirs>
constexpr bool same_kind() {
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
}

template <class... Ours, class... Theirs>
constexpr bool same(int (*)(Ours...), int (*)(Theirs...)) {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs))
        return false;
    else
        return (same_kind<Ours, Theirs>() && ...);
}

/* Results are enumerations there and int here. */
template <class Result, class... Theirs>
constexpr auto as_int(Result (*)(Theirs...)) -> int (*)(Theirs...) {
    static_assert(sizeof(Result) == sizeof(int));
    return nullptr;
}

constexpr bool equal(const char *a, const char *b) {
    while (*a != '\0' && *a == *b)
        a++, b++;
    return *a == *b;
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define SAME_FIELD(ours, field, theirs, their_field)                                     \
    static_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&              \
                      sizeof(ours::field) == sizeof(theirs::their_field),                \
                  #ours "." #field)
#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours)

#ifdef CHECK_NVML

#define TG__NVML_CALL(symbol, ...)                                                          \
    static_assert(same((int (*)(__VA_ARGS__)) nullptr, as_int((decltype(&::symbol)) nullptr)), \
                  #symbol);
#include "device/nvml_calls.def"
#undef TG__NVML_CALL

static_assert(equal(TEXT(nvmlInit), "nvmlInit_v2"));
static_assert(equal(TEXT(nvmlDeviceGetComputeRunningProcesses),
                    "nvmlDeviceGetComputeRunningProcesses_v3"));
static_assert(TG__NVML_ERROR_INSUFFICIENT_SIZE == (int)NVML_ERROR_INSUFFICIENT_SIZE);
static_assert(NVML_SUCCESS == 0);
SAME_SIZE(tg__nvmlmemory, nvmlMemory_t);
SAME_FIELD(tg__nvmlmemory, total_bytes, nvmlMemory_t, total);
SAME_FIELD(tg__nvmlmemory, free_bytes, nvmlMemory_t, free);
SAME_FIELD(tg__nvmlmemory, used_bytes, nvmlMemory_t, used);
SAME_SIZE(tg__nvmlprocess, nvmlProcessInfo_t);
SAME_FIELD(tg__nvmlprocess, pid, nvmlProcessInfo_t, pid);
SAME_FIELD(tg__nvmlprocess, used_bytes, nvmlProcessInfo_t, usedGpuMemory);
SAME_FIELD(tg__nvmlprocess, gpu_instance_id, nvmlProcessInfo_t, gpuInstanceId);
SAME_FIELD(tg__nvmlprocess, compute_instance_id, nvmlProcessInfo_t, computeInstanceId);

#else

/* PFN_<base>_v<since> is what NVIDIA keeps of a call as it was from that version on. */
#define TG__CUDA_CALL(base, symbol, since, need, ...)                                        \
    static_assert(same((int (*)(__VA_ARGS__)) nullptr, as_int((PFN_##base##_v##since) nullptr)), \
                  #base);
#include "device/cuda_calls.def"
#include "standin/standin_calls.def"
#undef TG__CUDA_CALL

#define TG__CUDA_CALL(base, symbol, since, need, ...) \
    static_assert(equal(TEXT(base), #symbol), #base " is no " #symbol);
#include "device/cuda_calls.def"
#include "standin/standin_calls.def"
#undef TG__CUDA_CALL

#define TG__CU_NUMBER(prefix, name, value) static_assert(value == (int)prefix##_##name, #name);
#include "device/cuda_numbers.def"
#undef TG__CU_NUMBER

SAME_SIZE(tg__cuuuid, CUuuid);
SAME_SIZE(tg__culocation, CUmemLocation);
SAME_FIELD(tg__culocation, type, CUmemLocation, type);
SAME_FIELD(tg__culocation, id, CUmemLocation, id);
SAME_SIZE(tg__cuprop, CUmemAllocationProp);
SAME_FIELD(tg__cuprop, type, CUmemAllocationProp, type);
SAME_FIELD(tg__cuprop, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(tg__cuprop, location, CUmemAllocationProp, location);
SAME_FIELD(tg__cuprop, win32_handle_metadata, CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(tg__cuprop, alloc_flags, CUmemAllocationProp, allocFlags);
SAME_FIELD(tg__cuprop, alloc_flags.compression_type, CUmemAllocationProp,
           allocFlags.compressionType);
SAME_FIELD(tg__cuprop, alloc_flags.gpu_direct_rdma_capable, CUmemAllocationProp,
           allocFlags.gpuDirectRDMACapable);
SAME_FIELD(tg__cuprop, alloc_flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(tg__cuaccess, CUmemAccessDesc);
SAME_FIELD(tg__cuaccess, location, CUmemAccessDesc, location);
SAME_FIELD(tg__cuaccess, flags, CUmemAccessDesc, flags);

#endif

} // namespace
