/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void place_write(char *place, size_t room) {
    const char *dir = secure_getenv("TIDEGATE_DIR");

    if (dir != NULL && *dir != '\0')
        snprintf(place, room, "%s", dir);
    else
        snprintf(place, room, "/dev/shm/tidegate-%u", (unsigned)geteuid());
}
