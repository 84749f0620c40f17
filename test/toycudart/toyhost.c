/* SPDX-License-Identifier: Apache-2.0 */
/* A program that uses the runtime and has never heard of Tidegate, but for what `scope` does. Each
 * word of its command line is a thing that it does; every line that it prints is the same with the
 * preload and without, unless the thing is there to tell them apart. Built as a program, and as a
 * module that a program opens with RTLD_LOCAL. */
#include "toyhost.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/process.h>
#include <tidegate/scope.h>

#include "toycudart.h"
#include "toyexpand.h"
#include "toypeers.h"
#include "toyshare.h"

#define MIB ((size_t)1 << 20)

enum { THREADS = 8, ROUNDS = 200 };

#define UNTOUCHED ((void *)(uintptr_t)0x77)

/* ---- the same with and without --------------------------------------------------------------- */

static void tell(const char *what, int result, void *addr) {
    const char *place = addr == UNTOUCHED ? "untouched" : addr == NULL ? "NULL" : "memory";
    int peeked = cudaPeekAtLastError(), taken = cudaGetLastError(), after = cudaGetLastError();

    printf("%s: %d %s, last error %d %d %d, errno %d\n", what, result, place, peeked, taken, after,
           errno);
}

static void *try_alloc(const char *what, size_t size_bytes) {
    void *addr = UNTOUCHED;
    int result = cudaMalloc(&addr, size_bytes);

    tell(what, result, addr);
    return addr;
}

static void try_free(const char *what, void *addr) {
    tell(what, cudaFree(addr), UNTOUCHED);
}

/* For a card of 64 MiB. */
static void do_errors(void) {
    int on_the_stack = 0;
    char *large, *other;

    errno = 55;
    try_alloc("size 0", 0);
    tell("NULL for the address", cudaMalloc(NULL, 4 * MIB), UNTOUCHED);
    large = try_alloc("40 MiB", 40 * MIB);
    try_alloc("40 more", 40 * MIB);
    try_alloc("more than the card has", 65 * MIB);
    try_alloc("more than there are addresses", SIZE_MAX);
    other = try_alloc("10 more", 10 * MIB);
    try_free("inside", large + 512);
    try_free("memory of the host", &on_the_stack);
    try_free("NULL", NULL);
    try_free("10", other);
    try_free("10 again", other);
    try_free("40", large);
    try_free("40 again", large);
}

/* The later of two failures is the last error, whosever they are. */
static void do_order(void) {
    void *large = NULL, *addr = UNTOUCHED;
    int on_the_stack = 0, result = cudaMalloc(&large, 40 * MIB);

    printf("40 MiB: %d\n", result);
    result = cudaMalloc(&addr, 40 * MIB);
    printf("full %d, then ", result);
    tell("a wrong free", cudaFree(&on_the_stack), addr);
    result = cudaFree(&on_the_stack);
    printf("a wrong free %d, then ", result);
    tell("full", cudaMalloc(&addr, 40 * MIB), addr);
    result = cudaMalloc(&addr, 40 * MIB);
    printf("full %d, peeked %d, ", result, cudaPeekAtLastError());
    result = cudaFree(large);
    printf("a good free %d, then ", result);
    tell("nothing", 0, addr);
}

static void do_context(void) {
    int (*get_current)(void **context) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL, *addr = NULL;
    void *found = driver == NULL ? NULL : dlsym(driver, "cuCtxGetCurrent");
    int result = cudaMalloc(&addr, 4 * MIB), asked;

    memcpy(&get_current, &found, sizeof found);
    asked = get_current(&context);
    printf("alloc %d, current context %d %s\n", result, asked, context != NULL ? "there" : "none");
}

static void *free_it(void *addr) {
    int result = cudaFree(addr);

    printf("free in another thread: %d, last error %d\n", result, cudaGetLastError());
    return NULL;
}

static void do_devices(void) {
    void *first = NULL, *second = NULL;
    pthread_t thread;
    int results[3];

    results[0] = cudaMalloc(&first, 40 * MIB);
    results[1] = cudaSetDevice(1);
    results[2] = cudaMalloc(&second, 40 * MIB);
    printf("device 0: %d, set 1: %d, device 1: %d\n", results[0], results[1], results[2]);
    results[0] = cudaFree(first);
    printf("free of the other device's: %d\n", results[0]);
    pthread_create(&thread, NULL, free_it, second);
    pthread_join(thread, NULL);
}

static void do_fork(void) {
    void *addr = NULL, *second = UNTOUCHED;
    int result = cudaMalloc(&addr, 4 * MIB), status = 0;
    pid_t child;

    printf("parent: %d\n", result);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        result = cudaMalloc(&second, 4 * MIB);
        tell("child", result, second);
        tell("child's free of the parent's", cudaFree(addr), UNTOUCHED);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("child ended: %d\n", status);
    try_free("parent", addr);
}

static void *work(void *failures) {
    for (int round = 0; round < ROUNDS; round++) {
        void *addr = NULL, *other = NULL;
        bool is_good = cudaMalloc(&addr, 2 * MIB) == 0 && cudaMalloc(&other, MIB) == 0 &&
                       addr != other && cudaFree(addr) == 0 && cudaFree(other) == 0 &&
                       cudaGetLastError() == 0;

        if (!is_good)
            __atomic_add_fetch((int *)failures, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void do_threads(void) {
    pthread_t threads[THREADS];
    int failures = 0;

    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &failures);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("threads: %d failures\n", failures);
}

/* That what is freed comes back: no capture is taken for open. */
static void room(const char *after) {
    int results[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        void *addr = NULL;

        results[i] = cudaMalloc(&addr, 40 * MIB);
        cudaFree(addr);
    }
    cudaGetLastError();
    printf("after %s room for %d %d\n", after, results[0], results[1]);
}

/* The capture is whole at its end, whatever was allocated and freed in it, and although somebody
 * failed to end it before. */
static void capture(const char *what, int result, void *stream, int (*end)(void *, void **)) {
    void *before = NULL, *inside = NULL, *graph = NULL;
    int results[4];

    results[0] = end(stream, NULL);
    results[1] = cudaMalloc(&before, 8 * MIB);
    results[2] = cudaFree(before);
    results[3] = cudaMalloc(&inside, 8 * MIB);
    printf("%s: begun %d, not ended %d, inside %d %d %d, ", what, result, results[0], results[1],
           results[2], results[3]);
    result = end(stream, &graph);
    printf("ended %d, freed %d\n", result, cudaFree(inside));
    room(what);
}

static void do_capture(void) {
    void *stream = NULL, *graph;
    int result;

    printf("stream: %d\n", cudaStreamCreateWithFlags(&stream, TOY_NON_BLOCKING));
    capture("one", cudaStreamBeginCapture(stream, TOY_RELAXED), stream, cudaStreamEndCapture);
    capture("own", cudaStreamBeginCapture_ptsz(NULL, TOY_RELAXED), NULL,
            cudaStreamEndCapture_ptsz);
    capture("to", cudaStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0, TOY_RELAXED), stream,
            cudaStreamEndCapture);
    capture("to own",
            cudaStreamBeginCaptureToGraph_ptsz(NULL, NULL, NULL, NULL, 0, TOY_RELAXED), NULL,
            cudaStreamEndCapture_ptsz);
    result = cudaStreamBeginCapture(stream, TOY_RELAXED);
    printf("begun %d, synchronised %d, ", result, cudaDeviceSynchronize());
    result = cudaStreamEndCapture(stream, &graph);
    tell("ended", result, UNTOUCHED);
    room("a lost one");
    tell("ended again", cudaStreamEndCapture(stream, &graph), UNTOUCHED);
    tell("begun nowhere", cudaStreamBeginCapture(NULL, TOY_RELAXED), UNTOUCHED);
    room("none");
    result = cudaStreamBeginCapture(stream, TOY_RELAXED);
    printf("begun %d, destroyed %d\n", result, cudaStreamDestroy(stream));
    room("a destroyed one");
}

/* Work on `device` has ended when a block of that device is freed, by a thread of device 0. */
static void wait_by_free(int device) {
    enum { FILLS = 16, SIZE = 32 * MIB };
    void *stream = NULL, *other = NULL, *addr = NULL;
    int results[FILLS + 3], failures = 0;
    volatile unsigned char *bytes;

    cudaSetDevice(device);
    results[FILLS] = cudaMalloc(&addr, SIZE);
    results[FILLS + 1] = cudaMalloc(&other, MIB);
    results[FILLS + 2] = cudaStreamCreateWithFlags(&stream, TOY_NON_BLOCKING);
    bytes = addr;
    for (int i = 0; i < FILLS; i++)
        results[i] = cudaMemsetAsync(addr, i + 1, SIZE, stream);
    cudaSetDevice(0);
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        failures += results[i] != 0;
    printf("device %d, %d failures, freed %d", device, failures, cudaFree(other));
    printf(", work has %s\n", bytes[SIZE - 1] == FILLS ? "ended" : "not ended");
    printf("last error %d, freed %d\n", cudaGetLastError(), cudaFree(addr));
}

static void do_wait(void) {
    int device = -1;

    wait_by_free(0);
    wait_by_free(1);
    cudaGetDevice(&device);
    printf("device %d is the thread's\n", device);
}

/* Blocks of a device that fails meanwhile. */
static void do_lost(void) {
    void *addr = NULL, *other = NULL;
    int results[2], result = 0;

    results[0] = cudaMalloc(&addr, 4 * MIB);
    results[1] = cudaMalloc(&other, 4 * MIB);
    printf("before: %d %d\n", results[0], results[1]);
    for (int i = 0; i < 1000 && result == 0; i++)
        result = cudaDeviceSynchronize();
    tell("the device", result, UNTOUCHED);
    try_free("one", addr);
    try_free("other", other);
}

static void do_version(void) {
    int version = 0, result = cudaRuntimeGetVersion(&version);

    printf("version %d %d\n", result, version);
}

/* ---- what tells them apart ------------------------------------------------------------------- */

static void do_calls(void) {
    int allocs, frees;

    toyCalls(&allocs, &frees);
    printf("the runtime saw %d allocs, %d frees\n", allocs, frees);
}

static void do_once(void) {
    void *small = NULL, *large = NULL;
    int results[4];

    results[0] = cudaMalloc(&small, MIB - 1);
    results[1] = cudaMalloc(&large, MIB);
    results[2] = cudaFree(small);
    results[3] = cudaFree(large);
    printf("once: %d %d %d %d\n", results[0], results[1], results[2], results[3]);
}

static void do_maps(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    bool has_library = false;
    char line[4096];

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        has_library |= strstr(line, "/libtidegate.so") != NULL;
    if (maps != NULL)
        fclose(maps);
    printf("libtidegate.so is %s\n", has_library ? "mapped" : "not mapped");
}

/* Fills the card and leaves the error where it is. */
static void do_full(void) {
    void *addr;
    int result = cudaMalloc(&addr, 40 * MIB);

    printf("full: %d, then %d\n", result, cudaMalloc(&addr, 40 * MIB));
}

/* ---- a card of 64 MiB that is full ----------------------------------------------------------- */

/* What the driver's own pool keeps is all that is missing. */
static void do_pooled(void) {
    void *addr = NULL;
    int result = cudaMallocAsync(&addr, 40 * MIB, NULL);

    printf("pooled: %d, kept: %d\n", result, cudaFreeAsync(addr, NULL));
    cudaFree(try_alloc("40 MiB", 40 * MIB));
}

/* What was freed is still written to. */
static void do_resting(void) {
    enum { FILLS = 4 };
    void *stream = NULL, *addr = NULL;
    int failures = cudaStreamCreateWithFlags(&stream, TOY_NON_BLOCKING) +
                   cudaMalloc(&addr, 40 * MIB);

    for (int i = 0; i < FILLS; i++)
        failures += cudaMemsetAsync(addr, i, 40 * MIB, stream);
    printf("resting: %d, freed %d\n", failures, cudaFreeAsync(addr, stream));
    cudaFree(try_alloc("40 MiB", 40 * MIB));
}

/* Neither what rests nor what the pool keeps is touched, and the capture is whole. */
static void do_captured(void) {
    void *stream = NULL, *graph = NULL, *pooled = NULL, *rests = NULL;
    int failures = cudaStreamCreateWithFlags(&stream, TOY_NON_BLOCKING) +
                   cudaMallocAsync(&pooled, 20 * MIB, NULL) + cudaFreeAsync(pooled, NULL) +
                   cudaStreamBeginCapture(stream, TOY_GLOBAL) + cudaMalloc(&rests, 40 * MIB) +
                   cudaFree(rests);

    printf("captured: %d\n", failures);
    try_alloc("10 MiB", 10 * MIB);
    printf("ended: %d\n", cudaStreamEndCapture(stream, &graph));
    cudaFree(try_alloc("60 MiB", 60 * MIB));
}

static void do_want(void) {
    cudaFree(try_alloc("30 MiB", 30 * MIB));
}

static void do_want_often(void) {
    void *addr;
    int refused = 0;

    for (int i = 0; i < 20; i++)
        refused += cudaMalloc(&addr, 60 * MIB) != 0;
    printf("refused: %d, last error %d, errno %d\n", refused, cudaGetLastError(), errno);
}

static void do_last(void) {
    printf("last error %d\n", cudaGetLastError());
}

/* Puts a library where none was. */
static void do_repair(void) {
    printf("repaired: %d\n", symlink(getenv("TOYHOST_LIBRARY"), getenv("TOYHOST_PLACE")));
}

/* The module's own runtime is not this one's. */
static void do_module(void) {
    void *module = dlopen(getenv("TOYHOST_MODULE"), RTLD_NOW | RTLD_LOCAL);
    void *found = module == NULL ? NULL : dlsym(module, "host_do");
    int (*act)(const char *what) = NULL;

    memcpy(&act, &found, sizeof found);
    printf("module: %d\n", act == NULL ? -1 : act("last"));
}

static void do_leave(void) {
    printf("moved: %d\n", chdir("/"));
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);

    if (found == NULL) {
        fprintf(stderr, "toyhost: no %s\n", name);
        exit(1);
    }
    return found;
}

/* As Python would: opens the library, and a scope around the program's own code. */
static void in_scope(void (*act)(void)) {
    void *library = dlopen(getenv("TOYHOST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    struct tg_tag_params params = {.packed = getenv("TOYHOST_PACKED") != NULL};
    __typeof__(&tg_process_memory) process_memory;
    __typeof__(&tg_scope_push) push;
    __typeof__(&tg_scope_pop) pop;
    __typeof__(&tg_tag_open) open;
    struct tg_memory *memory = NULL;
    struct tg_tag *tag = NULL;
    int results[3];

    if (library == NULL) {
        fprintf(stderr, "toyhost: %s\n", dlerror());
        exit(1);
    }
    *(void **)&process_memory = find(library, "tg_process_memory");
    *(void **)&push = find(library, "tg_scope_push");
    *(void **)&pop = find(library, "tg_scope_pop");
    *(void **)&open = find(library, "tg_tag_open");
    results[0] = process_memory(0, &memory);
    results[1] = open(memory, "scoped", &params, &tag);
    results[2] = push(tag);
    printf("scope: %d %d %d\n", results[0], results[1], results[2]);
    act();
    printf("out of it: %d\n", pop());
}

static void do_scope(void) {
    in_scope(do_once);
}

static void do_scope_give(void) {
    in_scope(do_give_twice);
}

int host_do(const char *what) {
    static const struct {
        const char *name;
        void (*act)(void);
    } things[] = {
        {"errors", do_errors}, {"order", do_order}, {"context", do_context},
        {"devices", do_devices}, {"fork", do_fork}, {"threads", do_threads},
        {"capture", do_capture}, {"version", do_version}, {"calls", do_calls},
        {"once", do_once}, {"maps", do_maps}, {"full", do_full}, {"last", do_last},
        {"leave", do_leave}, {"scope", do_scope}, {"module", do_module},
        {"repair", do_repair}, {"wait", do_wait}, {"lost", do_lost},
        {"expand", do_expand}, {"share", do_share}, {"peers", do_peers},
        {"asleep", do_asleep}, {"reach", do_reach}, {"reach_late", do_reach_late},
        {"give", do_give}, {"givesmall", do_give_small},
        {"line", do_wait_for_line}, {"look", do_look}, {"drop", do_drop}, {"take", do_take},
        {"fill", do_fill}, {"leaveit", do_leave_it}, {"ipcerrors", do_ipc_errors},
        {"ipcfork", do_ipc_fork}, {"scopegive", do_scope_give},
        {"pooled", do_pooled}, {"resting", do_resting}, {"captured", do_captured},
        {"want", do_want}, {"wantoften", do_want_often},
    };

    for (size_t i = 0; i < sizeof things / sizeof *things; i++) {
        if (strcmp(things[i].name, what) == 0) {
            things[i].act();
            return fflush(stdout);
        }
    }
    fprintf(stderr, "toyhost: what is %s?\n", what);
    return -1;
}
