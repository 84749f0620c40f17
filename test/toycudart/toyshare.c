/* SPDX-License-Identifier: Apache-2.0 */
/* One process gives a handle of its memory and another takes it: words of toyhost.c. The test
 * carries the handle, and tells each when to go on through its stdin. */
#include "toyshare.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "toycudart.h"

#define SIZE ((size_t)4 << 20)
#define SMALL ((size_t)4096)

static unsigned char *given, *taken;

static void tell(const char *what, int result) {
    int peeked = cudaPeekAtLastError(), taken_error = cudaGetLastError();

    printf("%s: %d, last error %d %d %d, errno %d\n", what, result, peeked, taken_error,
           cudaGetLastError(), errno);
}

static void print_handle(const char *what, int result, const toyipc_handle *handle) {
    printf("%s %d ", what, result);
    for (size_t i = 0; i < sizeof handle->reserved; i++)
        printf("%02x", (unsigned char)handle->reserved[i]);
    printf("\n");
}

static toyipc_handle read_handle(void) {
    const char *said = getenv("TOYHOST_HANDLE");
    toyipc_handle handle = {{0}};

    for (size_t i = 0; said != NULL && i < sizeof handle.reserved; i++) {
        unsigned byte = 0;

        (void)!sscanf(said + 2 * i, "%2x", &byte);
        handle.reserved[i] = (char)byte;
    }
    return handle;
}

static void give(size_t size_bytes) {
    toyipc_handle handle = {{0}};
    int result = cudaMalloc((void **)&given, size_bytes);

    if (result == 0)
        memset(given, 1, size_bytes);
    result = cudaIpcGetMemHandle(&handle, given);
    print_handle("handle", result, &handle);
}

void do_give(void) {
    give(SIZE);
}

void do_give_twice(void) {
    toyipc_handle handle = {{0}};

    (void)!cudaMalloc((void **)&given, SIZE);
    for (int i = 0; i < 2; i++)
        tell("handle", cudaIpcGetMemHandle(&handle, given));
}

void do_give_small(void) {
    give(SMALL);
}

void do_wait_for_line(void) {
    char line[16];

    (void)!fgets(line, sizeof line, stdin);
}

void do_look(void) {
    printf("byte %d\n", given[SIZE / 2]);
}

void do_drop(void) {
    tell("freed", cudaFree(given));
}

void do_take(void) {
    void *again = NULL;
    int results[2];

    results[0] = cudaIpcOpenMemHandle((void **)&taken, read_handle(), TOY_LAZY_PEERS);
    tell("open", results[0]);
    if (results[0] != 0)
        return;
    results[1] = cudaIpcOpenMemHandle(&again, read_handle(), TOY_LAZY_PEERS);
    printf("again %d, %s, byte %d\n", results[1], again == taken ? "the same" : "another",
           taken[SMALL / 2]);
    tell("close", cudaIpcCloseMemHandle(again));
}

void do_fill(void) {
    memset(taken, 2, SIZE);
    printf("filled\n");
    fflush(stdout);
}

void do_leave_it(void) {
    tell("close", cudaIpcCloseMemHandle(taken));
    tell("close again", cudaIpcCloseMemHandle(taken));
}

/* All that is refused, the same from either. */
void do_ipc_errors(void) {
    toyipc_handle handle = {{0}}, inside = {{0}}, wrong;
    void *opened = NULL;
    int on_the_stack = 0, result;

    errno = 55;
    tell("alloc", cudaMalloc((void **)&given, SIZE));
    tell("of the host", cudaIpcGetMemHandle(&handle, &on_the_stack));
    tell("of NULL", cudaIpcGetMemHandle(&handle, NULL));
    tell("into NULL", cudaIpcGetMemHandle(NULL, given));
    tell("of ours", cudaIpcGetMemHandle(&handle, given));
    result = cudaIpcGetMemHandle(&inside, given + SIZE - 1);
    tell("of its inside", result);
    printf("that is %s\n", memcmp(&handle, &inside, sizeof handle) == 0 ? "the same" : "another");
    tell("our own", cudaIpcOpenMemHandle(&opened, handle, TOY_LAZY_PEERS));
    tell("to NULL", cudaIpcOpenMemHandle(NULL, handle, TOY_LAZY_PEERS));
    tell("other flags", cudaIpcOpenMemHandle(&opened, handle, 6));
    wrong = handle;
    wrong.reserved[0] ^= 1;
    tell("no handle", cudaIpcOpenMemHandle(&opened, wrong, TOY_LAZY_PEERS));
    tell("close of ours", cudaIpcCloseMemHandle(given));
    tell("close of NULL", cudaIpcCloseMemHandle(NULL));
    printf("%s\n", opened == NULL ? "untouched" : "touched");
    tell("free", cudaFree(given));
    tell("of what was freed", cudaIpcGetMemHandle(&handle, given));
}

/* A forked child is nobody: what it asks fails. */
void do_ipc_fork(void) {
    toyipc_handle handle = read_handle(), own = {{0}};
    int status = 0;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        void *opened = NULL;
        int results[3];

        results[0] = cudaIpcGetMemHandle(&own, given);
        results[1] = cudaIpcOpenMemHandle(&opened, handle, TOY_LAZY_PEERS);
        results[2] = cudaIpcCloseMemHandle(taken);
        _exit(results[0] != 0 && results[1] != 0 && results[2] != 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", status);
}
