/* SPDX-License-Identifier: Apache-2.0 */
#include "own_device.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "place.h"

bool own_device_lacks_name(const char *uri) {
    bool is_host = strncmp(uri, "host:", 5) == 0 || strstr(uri, "/host:") != NULL;

    return is_host && strstr(uri, "name=") == NULL;
}

/* A pid alone is not unique where several containers share the place. */
void own_device_name(const char *verb, char name[static OWN_DEVICE_BYTES]) {
    uint16_t luck = 0;

    (void)!getrandom(&luck, sizeof luck, GRND_NONBLOCK);
    snprintf(name, OWN_DEVICE_BYTES, "%s-%d-%04x", verb, (int)getpid(), (unsigned)luck);
}

void own_device_remove(const char *name) {
    char dir[PLACE_BYTES], file[OWN_DEVICE_BYTES + sizeof "host-"];
    int fd;

    if (name[0] == '\0')
        return;
    place_write(dir, sizeof dir);
    snprintf(file, sizeof file, "host-%s", name);
    fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC); /* with the name it may be too long a path */
    if (fd < 0)
        return;
    unlinkat(fd, file, 0);
    close(fd);
}
