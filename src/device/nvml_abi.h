/* SPDX-License-Identifier: Apache-2.0 */
/* What we use of NVML's binary interface; checked like cuda_abi.h. */
#ifndef TG_DEVICE_NVML_ABI_H
#define TG_DEVICE_NVML_ABI_H

struct tg__nvmldevice;

struct tg__nvmlmemory {
    unsigned long long total_bytes, free_bytes, used_bytes;
};

struct tg__nvmlprocess {
    unsigned pid;                  /* as the driver sees processes */
    unsigned long long used_bytes; /* all ones: not known */
    unsigned gpu_instance_id, compute_instance_id;
};

enum { TG__NVML_ERROR_INSUFFICIENT_SIZE = 7 };

struct tg__nvml_calls {
#define TG__NVML_CALL(symbol, ...) int (*symbol)(__VA_ARGS__);
#include "device/nvml_calls.def"
#undef TG__NVML_CALL
};

#endif
