/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tidegate/device.h>
#include <tidegate/error.h>

#include "must.h"

static char stage_dir[] = "/dev/shm/tidegate-test-XXXXXX";

const char *stage_open(void) {
    memcpy(strrchr(stage_dir, '-'), "-XXXXXX", 8);
    must(mkdtemp(stage_dir) != NULL, "%s", strerror(errno));
    must(setenv("TIDEGATE_DIR", stage_dir, 1) == 0, "%s", strerror(errno));
    return stage_dir;
}

void stage_close(void) {
    DIR *dir = opendir(stage_dir);
    struct dirent *entry;

    must(dir != NULL, "%s", strerror(errno));
    while ((entry = readdir(dir)) != NULL)
        (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    must(rmdir(stage_dir) == 0, "%s", strerror(errno));
}

const struct tg_node_view *stage_view(void) {
    static struct tg_node_view view;
    struct tg_ledger *ledger = NULL;

    must(tg_ledger_open_reader(NULL, &ledger) == 0, "%s", tg_last_error()->text);
    must(tg_ledger_read(ledger, &view) == 0, "%s", tg_last_error()->text);
    tg_ledger_close(ledger);
    return &view;
}

uint64_t stage_taken(const char *tenant) {
    const struct tg_node_view *view = stage_view();
    uint64_t sum = 0;

    for (uint32_t i = 0; i < view->tenant_count; i++) {
        const struct tg_tenant_view *t = &view->tenants[i];
        if (t->is_dead || (tenant != NULL && strcmp(t->name, tenant) != 0))
            continue;
        for (uint32_t k = 0; k < t->tag_count; k++)
            sum += t->tags[k].occupied_bytes + t->tags[k].reserved_bytes;
    }
    return sum;
}

uint32_t stage_files(void) {
    DIR *dir = opendir(stage_dir);
    const struct dirent *entry;
    uint32_t count = 0;

    must(dir != NULL, "%s", strerror(errno));
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

void stage_wait_forgotten(void) {
    uint64_t end_ns = stage_now_ns() + UINT64_C(3000000000);

    while (stage_view()->tenant_count > 0) {
        must(stage_now_ns() < end_ns, "%s is still told", stage_view()->tenants[0].name);
        stage_rest_ms(10);
    }
}

/* The child's answer comes through memory that both see. */
uint64_t stage_used(const char *uri) {
    uint64_t *used = mmap(NULL, sizeof *used, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    uint64_t answer;
    int status = 0;
    pid_t pid;

    must(used != MAP_FAILED, "%s", strerror(errno));
    *used = UINT64_MAX;
    pid = fork();
    must(pid >= 0, "%s", strerror(errno));
    if (pid == 0) {
        struct tg_device *device = NULL;
        uint64_t free_bytes = 0, total_bytes = 0;
        if (tg_device_open(uri, &device) == 0 &&
            tg_device_ops(device)->memory(device, &free_bytes, &total_bytes) == 0)
            *used = total_bytes - free_bytes;
        _exit(0);
    }
    must(waitpid(pid, &status, 0) == pid, "%s", strerror(errno));
    answer = *used;
    munmap(used, sizeof *used);
    must(answer != UINT64_MAX, "the device %s could not be asked", uri);
    return answer;
}

uint64_t stage_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void stage_rest_ms(uint32_t ms) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}
