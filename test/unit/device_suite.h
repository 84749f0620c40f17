/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of struct tg_device_ops as tests, for any kind of device. They see device memory
 * through copies only, and a test of several processes opens the device after its forks, so that a
 * card can be put under them.
 *
 * What they need: 64 MiB free on a device that nobody else uses. */
#ifndef TEST_DEVICE_SUITE_H
#define TEST_DEVICE_SUITE_H

#include <check.h>
#include <stdint.h>
#include <string.h>

#include <tidegate/device.h>
#include <tidegate/error.h>

struct device_suite {
    const char *name;
    int (*open)(struct tg_device **device);
    void (*set_up)(void), (*tear_down)(void); /* around each part, in the runner; NULL: nothing */
    TCase *own;                               /* more tests, of the kind alone; NULL: none */
    uint64_t slack_bytes; /* what processes cost beside their chunks; 0: figures are exact */
};

/* Runs all tests of the contract; main's status. */
int device_suite_run(const struct device_suite *suite);

/* The parts. */
TCase *device_calls(const struct device_suite *suite);     /* of one process */
TCase *device_processes(const struct device_suite *suite); /* of several */
TCase *device_random(const struct device_suite *suite);    /* against a model */

/* ---- for tests of one kind ------------------------------------------------------------------- */

#define MIB (UINT64_C(1) << 20)
#define GRANULE (2 * MIB)

/* Fails the test with the library's own sentence. */
#define ck_assert_ok(call)                                                            \
    do {                                                                              \
        int status_ = (call);                                                         \
        ck_assert_msg(status_ == 0, "%s: %d, %s", #call, status_, tg_last_error()->text); \
    } while (0)

/* The call answers `status`, and there is a sentence for it. */
#define ck_assert_fails(call, wanted)                                                  \
    do {                                                                               \
        int status_ = (call);                                                          \
        ck_assert_msg(status_ == (wanted), "%s: %d instead of %d", #call, status_, wanted); \
        ck_assert_int_eq(tg_last_error()->status, wanted);                             \
        ck_assert_uint_gt(strlen(tg_last_error()->text), 10);                          \
    } while (0)

struct tg_device *device_open(const char *uri);
extern uint64_t device_slack_bytes; /* of the suite that runs */
uint64_t device_free_bytes(struct tg_device *device);
/* That so much is free, as exactly as the device says it. */
void device_check_free(struct tg_device *device, uint64_t bytes);
/* Until it is that much: a driver needs a moment after a death. */
void device_wait_for_free(struct tg_device *device, uint64_t bytes);
/* Waits for all that was given. */
void device_settle(struct tg_device *device);
/* A chunk of that size, mapped in a new range of its own. */
uint64_t device_make(struct tg_device *device, uint64_t size_bytes, uint32_t flags,
                     uint64_t *chunk);
/* The opposite. */
void device_unmake(struct tg_device *device, uint64_t addr, uint64_t size_bytes, uint64_t chunk);
void device_write(struct tg_device *device, uint64_t addr, const void *bytes, uint64_t size_bytes);
void device_read(struct tg_device *device, uint64_t addr, void *bytes, uint64_t size_bytes);
/* Whether every byte there is this one. */
int device_is_all(struct tg_device *device, uint64_t addr, int byte, uint64_t size_bytes);
/* A descriptor over a socket. */
void device_send_descriptor(int socket, int fd);
int device_receive_descriptor(int socket);

/* 0: there is a driver. Else what the program is to end with: 77, skipped, after the reason. Asked
 * before anything is made, in a child: the driver is not for those who fork after it. */
int device_no_gpu(void);

#endif
