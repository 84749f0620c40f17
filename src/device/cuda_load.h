/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the CUDA driver of this machine at run time: nothing is linked. */
#ifndef TG_DEVICE_CUDA_LOAD_H
#define TG_DEVICE_CUDA_LOAD_H

#include "device/cuda_abi.h"

/* Fills the table from libcuda.so.1 and initialises the driver. No context is made. What is loaded
 * stays loaded: the driver has threads of its own. Errors: -ENODEV with the reason, TG_EFORKED. */
int tg__cuda_load(struct tg__cuda_calls *calls);

#endif
