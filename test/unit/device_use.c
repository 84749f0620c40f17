/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of devices do again and again. */
#include "device_suite.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "device/cuda_load.h"

enum { LONG_MS = 20000, SOON_MS = 5000, SKIPPED = 77 };

uint64_t device_free_bytes(struct tg_device *device) {
    uint64_t free_bytes, total_bytes;

    ck_assert_ok(tg_device_ops(device)->memory(device, &free_bytes, &total_bytes));
    ck_assert_uint_le(free_bytes, total_bytes);
    return free_bytes;
}

uint64_t device_slack_bytes;

void device_check_free(struct tg_device *device, uint64_t bytes) {
    uint64_t free_bytes = device_free_bytes(device);

    ck_assert_uint_ge(free_bytes + device_slack_bytes, bytes);
    ck_assert_uint_le(free_bytes, bytes + device_slack_bytes);
}

struct tg_device *device_open(const char *uri) {
    struct tg_device *device;

    ck_assert_ok(tg_device_open(uri, &device));
    return device;
}

void device_wait_for_free(struct tg_device *device, uint64_t bytes) {
    for (int i = 0; i < SOON_MS && device_free_bytes(device) < bytes; i++)
        poll(NULL, 0, 1);
    device_check_free(device, bytes);
}

void device_settle(struct tg_device *device) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    struct tg_fence fence;

    ck_assert_ok(ops->fence(device, NULL, &fence));
    ck_assert_ok(ops->wait(device, &fence, LONG_MS));
}

uint64_t device_make(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                     uint64_t *chunk) {
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t addr;

    ck_assert_ok(ops->reserve(device, size_bytes, &addr));
    ck_assert_ok(ops->create(device, size_bytes, flags, chunk));
    ck_assert_ok(ops->map(device, addr, *chunk, 0));
    return addr;
}

void device_unmake(struct tg_device *device, uint64_t addr, uint64_t size_bytes, uint64_t chunk) {
    const struct tg_device_ops *ops = tg_device_ops(device);

    ck_assert_ok(ops->unmap(device, addr, size_bytes));
    ck_assert_ok(ops->release(device, chunk));
    ck_assert_ok(ops->unreserve(device, addr, size_bytes));
}

void device_write(struct tg_device *device, uint64_t addr, const void *bytes, uint64_t size_bytes) {
    ck_assert_ok(tg_device_ops(device)->copy(device, (void *)(uintptr_t)addr, bytes, size_bytes,
                                             NULL));
    device_settle(device);
}

void device_read(struct tg_device *device, uint64_t addr, void *bytes, uint64_t size_bytes) {
    ck_assert_ok(tg_device_ops(device)->copy(device, bytes, (const void *)(uintptr_t)addr,
                                             size_bytes, NULL));
    device_settle(device);
}

int device_is_all(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes) {
    unsigned char *copy = malloc(size_bytes);
    int is_all = 1;

    ck_assert_ptr_nonnull(copy);
    device_read(device, addr, copy, size_bytes);
    for (uint64_t i = 0; i < size_bytes && is_all; i++)
        is_all = copy[i] == (unsigned char)byte;
    free(copy);
    return is_all;
}

void device_send_descriptor(int socket, int fd) {
    char space[CMSG_SPACE(sizeof fd)] = {0}, byte = 1;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    ck_assert_int_eq(sendmsg(socket, &message, 0), 1);
}

int device_receive_descriptor(int socket) {
    char space[CMSG_SPACE(sizeof(int))], byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    int fd;

    ck_assert_int_eq(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static int driver_load(void) {
    struct tg__cuda_calls found;

    if (tg__cuda_load(&found) == 0)
        return 0;
    printf("skipped: %s\n", tg_last_error()->text);
    fflush(stdout);
    return SKIPPED;
}

int device_no_gpu(void) {
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(driver_load());
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
