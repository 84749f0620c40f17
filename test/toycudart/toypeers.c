/* SPDX-License-Identifier: Apache-2.0 */
/* Device 1 is given access to the memory of device 0, and the other way round; who reaches what the
 * driver tells. */
#include "toypeers.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/device.h>
#include <tidegate/process.h>
#include <tidegate/scope.h>

#include "toycudart.h"

#define MIB ((size_t)1 << 20)

static int enable(int device, int peer) {
    int result = cudaSetDevice(device);

    return result != 0 ? result : cudaDeviceEnablePeerAccess(peer, 0);
}

static int disable(int device, int peer) {
    int result = cudaSetDevice(device);

    return result != 0 ? result : cudaDeviceDisablePeerAccess(peer);
}

static void *alloc_on(int device, size_t size_bytes) {
    void *addr = NULL;

    if (cudaSetDevice(device) != 0 || cudaMalloc(&addr, size_bytes) != 0)
        printf("no memory on device %d\n", device);
    return addr;
}

/* ---- the same with and without --------------------------------------------------------------- */

static void tell(const char *what, int result) {
    printf("%s %d, last error %d\n", what, result, cudaGetLastError());
}

void do_peers(void) {
    void *addr = alloc_on(0, 4 * MIB);

    tell("given", enable(1, 0));
    tell("given again", enable(1, 0));
    tell("to itself", enable(1, 1));
    tell("no such device", enable(1, 7));
    tell("freed", cudaFree(addr));
    tell("taken", disable(1, 0));
    tell("taken again", disable(1, 0));
    tell("never given", disable(0, 1));
    tell("given after that", enable(1, 0));
    cudaSetDevice(0);
}

/* ---- under Tidegate -------------------------------------------------------------------------- */

static struct {
    __typeof__(&tg_device_open) device_open;
    __typeof__(&tg_memory_open) memory_open;
    __typeof__(&tg_memory_sleep) sleep;
    __typeof__(&tg_memory_wake) wake;
    __typeof__(&tg_process_memory) memory;
    __typeof__(&tg_scope_push) push;
    __typeof__(&tg_scope_pop) pop;
    __typeof__(&tg_tag_open) tag_open;
    __typeof__(&tg_tag_alloc) tag_alloc;
} library;

static void open_library(void) {
    void *object = dlopen(getenv("TOYHOST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *call;
    } wanted[] = {
        {"tg_device_open", &library.device_open}, {"tg_memory_open", &library.memory_open},
        {"tg_memory_sleep", &library.sleep}, {"tg_memory_wake", &library.wake},
        {"tg_process_memory", &library.memory}, {"tg_scope_push", &library.push},
        {"tg_scope_pop", &library.pop}, {"tg_tag_open", &library.tag_open},
        {"tg_tag_alloc", &library.tag_alloc},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(object, wanted[i].name);

        memcpy(wanted[i].call, &found, sizeof found);
    }
}

/* "yes" or "no", as the driver has it. */
static const char *reaches(int device, const void *addr) {
    const struct {
        int type, id;
    } location = {1, device};
    int (*get_access)(unsigned long long *, const void *, unsigned long long) = NULL;
    unsigned long long flags = 0;
    void *found = NULL;
    int result = cudaGetDriverEntryPointByVersion("cuMemGetAccess", &found, 12000, 0, NULL);

    if (result != 0 || found == NULL)
        return "who knows";
    memcpy(&get_access, &found, sizeof found);
    result = get_access(&flags, &location, (uintptr_t)addr);
    return result != 0 ? "not mapped" : flags == 3 ? "yes" : "no";
}

static int sleep_of(int device) {
    struct tg_memory *memory = NULL;
    int status = library.memory(device, &memory);

    return status != 0 ? status : library.sleep(memory, NULL, 5000, NULL);
}

static int wake_of(int device) {
    struct tg_memory *memory = NULL;
    int status = library.memory(device, &memory);

    return status != 0 ? status : library.wake(memory, NULL, 5000, NULL);
}

void do_reach(void) {
    void *first = alloc_on(0, 4 * MIB), *second, *other = alloc_on(1, 4 * MIB), *after;
    int results[3];

    open_library();
    printf("before: own %s, peer %s, the peer's %s\n", reaches(0, first), reaches(1, first),
           reaches(0, other));
    results[0] = enable(1, 0);
    second = alloc_on(0, 4 * MIB);
    printf("given %d: first %s, second %s, the peer's %s\n", results[0], reaches(1, first),
           reaches(1, second), reaches(0, other));
    results[0] = sleep_of(0);
    results[1] = wake_of(0);
    printf("slept %d %d: first %s, second %s\n", results[0], results[1], reaches(1, first),
           reaches(1, second));
    results[0] = sleep_of(1);
    results[1] = enable(0, 1);
    results[2] = wake_of(1);
    printf("given asleep %d %d, woken %d: the peer's %s\n", results[0], results[1], results[2],
           reaches(0, other));
    results[0] = disable(1, 0);
    after = alloc_on(0, 4 * MIB);
    printf("taken %d: first %s, what came after %s, the peer's %s\n", results[0],
           reaches(1, first), reaches(1, after), reaches(0, other));
    results[0] = sleep_of(0);
    results[1] = wake_of(0);
    printf("slept %d %d: first %s, own %s\n", results[0], results[1], reaches(1, first),
           reaches(0, first));
}

/* A tag of a memory, in a scope of this thread. False: it was refused. */
static int enter(struct tg_memory *memory, const char *name) {
    const struct tg_tag_params params = {.backup = TG_BACKUP_HOST};
    struct tg_tag *tag = NULL;
    int status = library.tag_open(memory, name, &params, &tag);

    return status != 0 ? status : library.push(tag);
}

void do_reach_late(void) {
    struct tg_device *device = NULL;
    struct tg_memory *memory = NULL;
    struct tg_tag *tag = NULL;
    void *before = NULL;
    int results[3];

    printf("given %d\n", enable(1, 0));
    cudaSetDevice(0);
    open_library();
    results[0] = library.memory(0, &memory);
    results[1] = enter(memory, "late");
    printf("of the process %d %d: %s\n", results[0], results[1], reaches(1, alloc_on(0, 4 * MIB)));
    results[2] = library.pop();
    results[0] = library.device_open("cuda:0", &device);
    results[1] = library.memory_open(device, NULL, &memory);
    results[2] |= library.tag_open(memory, "older", &(struct tg_tag_params){.packed = 0}, &tag);
    results[2] |= library.tag_alloc(tag, 4 * MIB, &before);
    printf("its own %d %d %d: %s, ", results[0], results[1], results[2], reaches(1, before));
    results[0] = enter(memory, "newer");
    printf("in a scope %d: %s, the older one's %s\n", results[0], reaches(1, alloc_on(0, 4 * MIB)),
           reaches(1, before));
    (void)!library.pop();
}
