/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_driver.h"

#include <stdio.h>
#include <string.h>

/* The kernel's part of the driver tells its version here, also in containers: the first word with a
 * dot in it that begins with a digit. */
bool kernel_driver_read(char version[static KERNEL_DRIVER_BYTES]) {
    FILE *file = fopen("/proc/driver/nvidia/version", "re");
    char line[512] = "", *rest = line, *word;

    version[0] = '\0';
    if (file == NULL)
        return false;
    if (fgets(line, sizeof line, file) == NULL)
        line[0] = '\0';
    fclose(file);
    for (word = strsep(&rest, " \t\n"); word != NULL; word = strsep(&rest, " \t\n")) {
        if (*word >= '0' && *word <= '9' && strchr(word, '.') != NULL && version[0] == '\0')
            snprintf(version, KERNEL_DRIVER_BYTES, "%s", word);
    }
    return true;
}
