/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that is none: libcuda.so.1 and libnvidia-ml.so.1 over the host device, so that whatever
 * speaks to a GPU's driver runs on real bytes without a GPU. It is built from the host device's own
 * objects and shows nothing but the driver's names; beside a library that has a host device of its
 * own they are strangers.
 *
 * It fails like a machine without a GPU unless TIDEGATE_STANDIN asks for it:
 *   capacity=SIZE[,name=NAME][,lag=MS][,hang=1][,straggler=MS]   as of host:
 *   devices=N     GPUs, each of that capacity (1)
 *   context=MIB   what a primary context costs (2)
 *   driver=N      the version it says, 12040 for 12.4: newer calls are not there (13000)
 *   init=N        what cuInit answers
 *   sticky=N      from the N-th call within a context on the context has failed (700)
 *   pids=hidden   NVML counts processes by other ids than the program sees; its own is another's
 *
 * Not emulated: kernels, the null stream's waiting for others, graphs (a captured stream's work is
 * dropped), what the runtime library wants of a driver. */
#ifndef TEST_STANDIN_H
#define TEST_STANDIN_H

#include <pthread.h>

#include "device/cuda_abi.h"
#include "device/device.h"

#define STANDIN_API __attribute__((visibility("default")))

#define TG__CUDA_CALL(base, symbol, since, need, ...) STANDIN_API int symbol(__VA_ARGS__);
#include "device/cuda_calls.def"
#include "standin_calls.def"
#undef TG__CUDA_CALL

/* What the name alone finds in every driver: the form of before CUDA 3.2, with 32-bit sizes. */
STANDIN_API int cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes);

/* Device N is at 7469:0N:00.0, where no machine has one. */
enum { STANDIN_DEVICES = 8, STANDIN_PCI_DOMAIN = 0x7469 };

struct standin_options {
    uint64_t capacity_bytes;
    char name[24]; /* of the host devices; each has its number behind it */
    uint32_t lag_ms, straggler_ms;
    int hangs, devices, driver, init, hides_pids;
    uint64_t context_bytes, sticky;
};

/* What the environment asks for; -1: nothing, or not what is understood. */
int standin_read(struct standin_options *options);
void standin_name(const struct standin_options *options, int device, char name[32]);

/* ---- libcuda's inside ------------------------------------------------------------------------ */

struct tg__cuctx {
    int device;
    unsigned retained;
    uint64_t chunk; /* what it costs */
};

/* Begins a call that needs no context; 0 or the result to answer. */
int standin_begin(void);
/* Begins one within the current context, on its device. */
int standin_enter(struct tg_device **device);
struct tg_device *standin_device(int device);
int standin_device_count(void);
const struct standin_options *standin_options(void);
/* A status of the device as a result. */
int standin_result(int status);
/* A call that waits for all, or looks, ends captures that are under way. 0 or the result. */
int standin_mind_captures(int is_of_all);
/* Waits for a fence as long as it takes. */
int standin_wait(struct tg_device *device, const struct tg_fence *fence);
/* What is mapped there, and who may use it beside the device. */
void standin_access_begin(uint64_t addr, uint64_t size_bytes);
void standin_access_end(uint64_t addr, uint64_t size_bytes);
void standin_access_give(uint64_t addr, uint64_t size_bytes, uint64_t devices);
/* Gives back all of an allocation that begins there. A result. */
int standin_free(struct tg_device *device, uint64_t addr);
/* Keeps in its pool what that gave, once no work uses it. A result; NOT_FOUND: it gave no such. */
int standin_pool_keep(uint64_t addr);
/* The queue of a stream; NULL: the device's own. */
struct tg_queue *standin_queue(struct tg__custream *stream);

#endif
