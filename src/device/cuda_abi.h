/* SPDX-License-Identifier: Apache-2.0 */
/* What we use of the CUDA driver's binary interface, in our own words: nothing of NVIDIA's is
 * needed to build. Handles are pointers that nobody looks into, enumerations are int. A test
 * compiles this beside the driver's own headers and compares every size, number and parameter. */
#ifndef TG_DEVICE_CUDA_ABI_H
#define TG_DEVICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

struct tg__cuctx;
struct tg__custream;
struct tg__cuevent;
struct tg__cupool;

struct tg__cuuuid {
    unsigned char bytes[16];
};

struct tg__culocation {
    int type;
    int id; /* of a device: its ordinal */
};

struct tg__cuprop {
    int type;
    int requested_handle_types;
    struct tg__culocation location;
    void *win32_handle_metadata;
    struct {
        unsigned char compression_type;
        unsigned char gpu_direct_rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } alloc_flags;
};

struct tg__cuaccess {
    struct tg__culocation location;
    int flags;
};

enum tg__cu_number {
#define TG__CU_NUMBER(prefix, name, value) TG__CU_##name = value,
#include "device/cuda_numbers.def"
#undef TG__CU_NUMBER
};

/* The calls by their bases: what the newest driver answers to a base may be another call. */
struct tg__cuda_calls {
#define TG__CUDA_CALL(base, symbol, since, need, ...) int (*base)(__VA_ARGS__);
#include "device/cuda_calls.def"
#undef TG__CUDA_CALL
};

#endif
