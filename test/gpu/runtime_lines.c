/* SPDX-License-Identifier: Apache-2.0 */
/* How the CUDA runtime answers what is wrong, in 40 lines, which a program must find the same with
 * the preload and without. Linked to a libcudart; sizes go by the card, so that the lines are the
 * same on all. runtime_lines.txt has them as an H200 says them (driver 580, runtime 13.0). */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define UNTOUCHED ((void *)(uintptr_t)0x77)
enum { ATTACH_GLOBAL = 1 };

int cudaMalloc(void **addr, size_t size_bytes);
int cudaFree(void *addr);
int cudaMallocManaged(void **addr, size_t size_bytes, unsigned flags);
int cudaMallocHost(void **addr, size_t size_bytes);
int cudaFreeHost(void *addr);
int cudaMallocAsync(void **addr, size_t size_bytes, void *stream);
int cudaFreeAsync(void *addr, void *stream);
int cudaMallocPitch(void **addr, size_t *pitch, size_t width, size_t height);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaDeviceSynchronize(void);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);

static size_t card, quarter; /* bytes */
static int line;

/* ---- one call, one line ---------------------------------------------------------------------- */

static void tell(const char *what, int result) {
    int peeked = cudaPeekAtLastError(), taken = cudaGetLastError(), after = cudaGetLastError();

    printf("%2d %s: %d, last error %d %d %d\n", ++line, what, result, peeked, taken, after);
}

static void tell_made(const char *what, int result, const void *addr) {
    const char *place = addr == UNTOUCHED ? "untouched" : addr == NULL ? "NULL" : "memory";
    int peeked = cudaPeekAtLastError(), taken = cudaGetLastError(), after = cudaGetLastError();

    printf("%2d %s: %d, %s, last error %d %d %d\n", ++line, what, result, place, peeked, taken,
           after);
}

static char *try_alloc(const char *what, size_t size_bytes) {
    void *addr = UNTOUCHED;
    int result = cudaMalloc(&addr, size_bytes);

    tell_made(what, result, addr);
    return addr;
}

static void try_free(const char *what, void *addr) {
    tell(what, cudaFree(addr));
}

/* ---- sizes and pointers: 20 lines ------------------------------------------------------------ */

static void sizes(void) {
    char *small, *first, *second;

    try_alloc("cudaMalloc of 0 bytes", 0);
    tell("cudaMalloc into NULL", cudaMalloc(NULL, 4 * MIB));
    small = try_alloc("cudaMalloc of 1 byte", 1);
    try_free("cudaFree of it", small);
    first = try_alloc("cudaMalloc of a quarter of the card", quarter);
    try_alloc("cudaMalloc of as much as the card has", card);
    try_alloc("cudaMalloc of twice as much", 2 * card);
    try_alloc("cudaMalloc of more than there are addresses", SIZE_MAX);
    second = try_alloc("cudaMalloc of another quarter", quarter);
    try_free("cudaFree of this quarter", second);
    try_free("cudaFree of the first", first);
}

static void pointers(void) {
    int on_the_stack = 0;
    void *of_malloc = malloc(4 * MIB);
    char *block = try_alloc("cudaMalloc of 2 MiB", 2 * MIB);

    try_free("cudaFree of what lies in it", block + 512);
    try_free("cudaFree of its last byte", block + 2 * MIB - 1);
    try_free("cudaFree of it", block);
    try_free("cudaFree of it again", block);
    try_free("cudaFree of NULL", NULL);
    try_free("cudaFree of a variable", &on_the_stack);
    try_free("cudaFree of what malloc gave", of_malloc);
    tell("cudaDeviceSynchronize after all that", cudaDeviceSynchronize());
    free(of_malloc);
}

/* ---- which error is the last: 7 lines -------------------------------------------------------- */

static int fill(void) {
    void *addr = UNTOUCHED;

    return cudaMalloc(&addr, card);
}

static void *fill_elsewhere(void *result) {
    *(int *)result = fill();
    return NULL;
}

static void order(void) {
    int on_the_stack = 0, full, wrong;
    void *held = NULL, *addr = NULL;
    pthread_t thread;

    (void)cudaMalloc(&held, quarter);
    full = fill();
    wrong = fill();
    tell("full twice", full == wrong ? full : -1);
    full = fill();
    tell(full == 2 ? "full, then a wrong free" : "not full", cudaFree(&on_the_stack));
    wrong = cudaFree(&on_the_stack);
    tell(wrong == 1 ? "a wrong free, then full" : "no wrong free", fill());
    full = fill();
    tell(full == 2 ? "full, then a good cudaMalloc" : "not full", cudaMalloc(&addr, 2 * MIB));
    full = fill();
    tell(full == 2 ? "full, then a good cudaFree" : "not full", cudaFree(addr));
    full = fill();
    tell(full == 2 ? "full, then cudaDeviceSynchronize" : "not full", cudaDeviceSynchronize());
    pthread_create(&thread, NULL, fill_elsewhere, &full);
    pthread_join(thread, NULL);
    tell("full in another thread", full);
    (void)cudaFree(held);
}

/* ---- memory of other kinds: 13 lines --------------------------------------------------------- */

static void managed(void) {
    void *addr = UNTOUCHED;
    int result;

    tell("cudaMallocManaged of 0 bytes", cudaMallocManaged(&addr, 0, ATTACH_GLOBAL));
    result = cudaMallocManaged(&addr, 4 * MIB, ATTACH_GLOBAL);
    tell_made("cudaMallocManaged", result, addr);
    try_free("cudaFree of it", addr);
    try_free("cudaFree of it again", addr);
}

static void of_host(void) {
    void *host = UNTOUCHED, *device = NULL;
    int result = cudaMallocHost(&host, 4 * MIB);

    tell_made("cudaMallocHost", result, host);
    try_free("cudaFree of it", host);
    tell("cudaFreeHost of it", cudaFreeHost(host));
    result = cudaMalloc(&device, 4 * MIB);
    tell(result == 0 ? "cudaFreeHost of what cudaMalloc gave" : "no memory", cudaFreeHost(device));
    (void)cudaFree(device);
}

static void by_stream(void) {
    void *addr = UNTOUCHED, *device = NULL;
    int result = cudaMallocAsync(&addr, 4 * MIB, NULL);

    tell_made("cudaMallocAsync", result, addr);
    (void)cudaDeviceSynchronize();
    try_free("cudaFree of it", addr);
    result = cudaMalloc(&device, 4 * MIB);
    tell(result == 0 ? "cudaFreeAsync of what cudaMalloc gave" : "no memory",
         cudaFreeAsync(device, NULL));
}

static void in_rows(void) {
    void *addr = UNTOUCHED;
    size_t pitch = 0;
    int result = cudaMallocPitch(&addr, &pitch, 1000, 5000);

    tell_made(pitch >= 1000 ? "cudaMallocPitch" : "cudaMallocPitch without a pitch", result, addr);
    try_free("cudaFree of it", addr);
}

int main(void) {
    size_t unused;
    int result = cudaMemGetInfo(&unused, &card);

    if (result != 0) {
        fprintf(stderr, "runtime_lines: no card can be used: %d\n", result);
        return 77;
    }
    quarter = card / 4 / (2 * MIB) * (2 * MIB);
    sizes();
    pointers();
    order();
    managed();
    of_host();
    by_stream();
    in_rows();
    return 0;
}
