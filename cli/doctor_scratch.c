/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor_scratch.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void doctor_scratch_make(struct doctor *doctor) {
    const char *slash = strrchr(doctor->place, '/');
    bool is_inside = access(doctor->place, W_OK | X_OK) == 0;
    int parent = is_inside || slash == NULL ? (int)strlen(doctor->place)
                                            : (int)(slash - doctor->place);

    snprintf(doctor->scratch, sizeof doctor->scratch, "%.*s/tidegate-doctor-XXXXXX", parent,
             doctor->place);
    if (mkdtemp(doctor->scratch) != NULL)
        return;
    sentence_set(&doctor->scratch_why, "%.*s: %s", parent, doctor->place, strerror(errno));
    doctor->scratch[0] = '\0';
}

void doctor_scratch_remove(const struct doctor *doctor) {
    DIR *folder = doctor->scratch[0] == '\0' ? NULL : opendir(doctor->scratch);

    if (folder == NULL)
        return;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    rmdir(doctor->scratch);
}
