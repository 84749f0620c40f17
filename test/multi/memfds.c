/* SPDX-License-Identifier: Apache-2.0 */
#include "memfds.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { SEEN_MAX = 8192 };

static ino_t seen[SEEN_MAX];
static int seen_count;

static bool is_new(ino_t inode) {
    for (int i = 0; i < seen_count; i++) {
        if (seen[i] == inode)
            return false;
    }
    if (seen_count < SEEN_MAX)
        seen[seen_count++] = inode;
    return true;
}

/* A line of /proc/PID/maps that maps a chunk; /proc/PID/map_files leads to the file itself. */
static uint64_t mapping_bytes(pid_t pid, const char *line) {
    unsigned long long from, to;
    char path[128];
    struct stat status;

    if (strstr(line, "/memfd:tidegate") == NULL || sscanf(line, "%llx-%llx", &from, &to) != 2)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/map_files/%llx-%llx", (int)pid, from, to);
    if (stat(path, &status) != 0 || !is_new(status.st_ino))
        return 0;
    return (uint64_t)status.st_blocks * 512;
}

uint64_t memfds_bytes(const pid_t *pids, int count) {
    uint64_t sum = 0;
    char line[512];

    seen_count = 0;
    for (int i = 0; i < count; i++) {
        snprintf(line, sizeof line, "/proc/%d/maps", (int)pids[i]);
        FILE *maps = fopen(line, "re");
        if (maps == NULL)
            continue;
        while (fgets(line, sizeof line, maps) != NULL)
            sum += mapping_bytes(pids[i], line);
        fclose(maps);
    }
    return sum;
}
