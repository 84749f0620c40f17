/* SPDX-License-Identifier: Apache-2.0 */
#include "ray_cluster.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "local" asks for a cluster of the program's own. */
static bool address_is_set(struct sentence *sign) {
    const char *address = getenv("RAY_ADDRESS");

    if (address == NULL || *address == '\0' || strcmp(address, "local") == 0)
        return false;
    sentence_set(sign, "RAY_ADDRESS is %s", address);
    return true;
}

/* What `ray start` writes, and ray.init() looks for. */
static bool file_is_there(struct sentence *sign) {
    const char *folders[] = {getenv("RAY_TMPDIR"), getenv("TMPDIR"), "/tmp"};
    const char *folder = NULL;
    char path[4096];
    struct stat info;

    for (size_t i = 0; folder == NULL && i < sizeof folders / sizeof folders[0]; i++)
        folder = folders[i];
    snprintf(path, sizeof path, "%s/ray/ray_current_cluster", folder);
    if (stat(path, &info) != 0 || info.st_size == 0)
        return false;
    sentence_set(sign, "%s is there", path);
    return true;
}

/* The process's name, where it is one of a cluster's own and belongs to this user. */
static bool process_is_ray(const char *pid, char *name, size_t room) {
    char path[300];
    struct stat info;
    FILE *file;
    bool is_ray;

    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    is_ray = fstat(fileno(file), &info) == 0 && info.st_uid == getuid() &&
             fgets(name, (int)room, file) != NULL;
    fclose(file);
    if (!is_ray)
        return false;
    name[strcspn(name, "\n")] = '\0';
    return strcmp(name, "raylet") == 0 || strcmp(name, "gcs_server") == 0;
}

static bool process_is_there(struct sentence *sign) {
    DIR *proc = opendir("/proc");
    bool is_found = false;
    char name[64];

    if (proc == NULL)
        return false;
    for (struct dirent *entry = readdir(proc); entry != NULL && !is_found; entry = readdir(proc)) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        is_found = process_is_ray(entry->d_name, name, sizeof name);
        if (is_found)
            sentence_set(sign, "process %s is a %s", entry->d_name, name);
    }
    closedir(proc);
    return is_found;
}

bool ray_cluster_seen(struct sentence *sign) {
    return address_is_set(sign) || file_is_there(sign) || process_is_there(sign);
}
