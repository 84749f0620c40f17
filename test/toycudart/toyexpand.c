/* SPDX-License-Identifier: Apache-2.0 */
/* A segment that grows: an eighth more addresses than the card has, and pages of 2 MiB that are
 * created one by one, mapped one by one, given access at once, and unmapped and released one by
 * one, through functions of the driver that the runtime gives by name. */
#include "toyexpand.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/process.h>

#include "toycudart.h"

#define PAGE ((size_t)2 << 20)
enum { PLACES = 36, DESCRIPTOR = 1 }; /* of a card of 32 pages */

struct prop {
    int type, handle_types, place_type, device;
    void *unused;
    unsigned char flags[8];
};

struct access {
    int place_type, device, flags;
};

static struct {
    int (*reserve)(unsigned long long *, size_t, size_t, unsigned long long, unsigned long long);
    int (*unreserve)(unsigned long long, size_t);
    int (*create)(unsigned long long *, size_t, const struct prop *, unsigned long long);
    int (*release)(unsigned long long);
    int (*map)(unsigned long long, size_t, size_t, unsigned long long, unsigned long long);
    int (*unmap)(unsigned long long, size_t);
    int (*access)(unsigned long long, size_t, const struct access *, size_t);
    int (*export)(void *, unsigned long long, int, unsigned long long);
    int (*import)(unsigned long long *, void *, int);
} driver;

static struct {
    unsigned long long addr, pages[PLACES]; /* 0: nothing is mapped there */
} segment;

static void load(void) {
    const struct {
        const char *name;
        void *call;
    } wanted[] = {
        {"cuMemAddressReserve", &driver.reserve}, {"cuMemAddressFree", &driver.unreserve},
        {"cuMemCreate", &driver.create}, {"cuMemRelease", &driver.release},
        {"cuMemMap", &driver.map}, {"cuMemUnmap", &driver.unmap},
        {"cuMemSetAccess", &driver.access},
        {"cuMemExportToShareableHandle", &driver.export},
        {"cuMemImportFromShareableHandle", &driver.import},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = NULL;
        int status = -1;
        int result = i % 2 == 0 ? cudaGetDriverEntryPointByVersion(wanted[i].name, &found, 12000,
                                                                   0, &status)
                                : cudaGetDriverEntryPoint(wanted[i].name, &found, 0, &status);

        if (result != 0 || status != 0 || found == NULL) {
            fprintf(stderr, "toyexpand: no %s: %d\n", wanted[i].name, result);
            exit(1);
        }
        memcpy(wanted[i].call, &found, sizeof found);
    }
}

static unsigned long long at(int place) {
    return segment.addr + (unsigned long long)place * PAGE;
}

static unsigned char *bytes(int place) {
    return (unsigned char *)(uintptr_t)at(place);
}

/* The first result that is not 0; out of memory releases what was created before. */
static int map_places(int first, int count) {
    const struct prop prop = {.type = 1, .handle_types = DESCRIPTOR, .place_type = 1};
    const struct access access = {1, 0, 3};
    int result = 0;

    for (int i = first; i < first + count && result == 0; i++) {
        result = driver.create(&segment.pages[i], PAGE, &prop, 0);
        for (int j = first; j < i && result != 0; j++) {
            driver.release(segment.pages[j]);
            segment.pages[j] = 0;
        }
    }
    for (int i = first; i < first + count && result == 0; i++)
        result = driver.map(at(i), PAGE, 0, segment.pages[i], 0);
    if (result == 0)
        result = driver.access(at(first), (size_t)count * PAGE, &access, 1);
    for (int i = first; i < first + count && result == 0; i++)
        memset(bytes(i), 100 + i, PAGE);
    return result;
}

static int unmap_places(int first, int count) {
    int result = 0;

    for (int i = first; i < first + count && result == 0; i++) {
        result = driver.unmap(at(i), PAGE);
        if (result == 0)
            result = driver.release(segment.pages[i]);
        segment.pages[i] = 0;
    }
    return result;
}

/* How many places that are mapped have not what was written there. */
static int wrong_places(void) {
    int wrong = 0;

    for (int i = 0; i < PLACES; i++) {
        if (segment.pages[i] != 0)
            wrong += bytes(i)[0] != 100 + i || memcmp(bytes(i), bytes(i) + 1, PAGE - 1) != 0;
    }
    return wrong;
}

static int begin(void) {
    int result;

    load();
    result = cudaSetDevice(0); /* makes the context, too */
    return result != 0 ? result : driver.reserve(&segment.addr, PLACES * PAGE, 0, 0, 0);
}

static int end(void) {
    int result = 0;

    for (int i = 0; i < PLACES && result == 0; i++)
        result = segment.pages[i] != 0 ? unmap_places(i, 1) : 0;
    return result != 0 ? result : driver.unreserve(segment.addr, PLACES * PAGE);
}

/* Each in its turn: the order of a call's arguments is nobody's. */
static void say(const char *what, int result) {
    printf("%s %d, wrong %d, last error %d\n", what, result, wrong_places(), cudaGetLastError());
}

/* As torch does where there is too little: it empties its cache, and tries again. */
void do_expand(void) {
    void *native = NULL;

    say("begun", begin());
    say("mapped", map_places(0, 20));
    say("native", cudaMalloc(&native, 4 * PAGE));
    say("too much", map_places(20, 10));
    say("emptied", unmap_places(3, 5));
    say("again", map_places(20, 10));
    say("refilled", map_places(3, 3));
    say("full", map_places(30, 1));
    say("freed early", driver.unreserve(segment.addr, PLACES * PAGE));
    say("unmapped", unmap_places(0, 1));
    say("unmapped twice", driver.unmap(at(0), PAGE));
    say("native", cudaFree(native));
    say("behind", map_places(33, 3));
    say("ended", end());
}

/* ---- what others have, too ------------------------------------------------------------------- */

static void send_fd(int socket, int fd) {
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    (void)!sendmsg(socket, &message, 0);
}

static int receive_fd(int socket) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof room};
    int fd = -1;

    if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Maps what it is given, looks at it, and writes into it. */
static int see(int socket) {
    const struct access access = {1, 0, 3};
    unsigned long long handle = 0;
    int result = begin(), fd = receive_fd(socket);

    if (result == 0)
        result = driver.import(&handle, (void *)(intptr_t)fd, DESCRIPTOR);
    if (result == 0)
        result = driver.map(at(0), PAGE, 0, handle, 0);
    if (result == 0)
        result = driver.access(at(0), PAGE, &access, 1);
    if (result == 0 && bytes(0)[5] != 101)
        result = -1;
    if (result == 0)
        bytes(0)[5] = 7;
    if (result == 0)
        result = driver.unmap(at(0), PAGE);
    return result != 0 ? result : driver.release(handle);
}

static void share(void) {
    int sockets[2], fd = -1, status = 0, result;
    pid_t child;

    (void)!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    child = fork(); /* while there is no context: a forked one is none */
    if (child == 0)
        _exit(see(sockets[1]) == 0 ? 0 : 1);
    result = begin();
    printf("begun %d, ", result);
    printf("mapped %d, ", map_places(0, 3));
    result = driver.export(&fd, segment.pages[1], DESCRIPTOR, 0);
    send_fd(sockets[0], fd);
    waitpid(child, &status, 0);
    printf("exported %d, the child %d, it wrote %d\n", result, status, bytes(1)[5]);
    bytes(1)[5] = 101;
}

void do_share(void) {
    share();
    printf("ended %d\n", end());
}

/* ---- under Tidegate -------------------------------------------------------------------------- */

static struct {
    __typeof__(&tg_process_memory) memory;
    __typeof__(&tg_memory_sleep) sleep;
    __typeof__(&tg_memory_wake) wake;
} library;

static struct tg_memory *open_library(void) {
    void *object = dlopen(getenv("TOYHOST_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    struct tg_memory *memory = NULL;

    *(void **)&library.memory = dlsym(object, "tg_process_memory");
    *(void **)&library.sleep = dlsym(object, "tg_memory_sleep");
    *(void **)&library.wake = dlsym(object, "tg_memory_wake");
    (void)!library.memory(0, &memory);
    return memory;
}

/* Native and mapped memory in one tag; one page has been shared. */
void do_asleep(void) {
    struct tg_memory *memory;
    struct tg_receipt receipt;
    void *native = NULL;

    share();
    memory = open_library();
    say("mapped", map_places(3, 15));
    say("native", cudaMalloc(&native, 4 * PAGE));
    memset(native, 9, 4 * PAGE);
    printf("sleep %d, ", library.sleep(memory, NULL, 5000, &receipt));
    printf("gained %d MiB", (int)(receipt.gained_bytes >> 20));
    for (unsigned i = 0; i < receipt.item_count; i++)
        printf(", %s %d", receipt.items[i].name, (int)(receipt.items[i].size_bytes >> 20));
    printf("\nshared page %d, ", bytes(1)[5]);
    printf("create %d, ", map_places(20, 1));
    printf("unmap %d, ", unmap_places(4, 2));
    printf("wake %d\n", library.wake(memory, NULL, 5000, NULL));
    printf("native %d\n", memcmp(native, (char *)native + 1, 4 * PAGE - 1));
    say("mapped", map_places(4, 2));
    say("ended", end());
}
