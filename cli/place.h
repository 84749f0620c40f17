/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files are that this user's programs share; see tidegate/ledger.h. */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include <stddef.h>

#define PLACE_BYTES 1024

/* The directory: $TIDEGATE_DIR, else /dev/shm/tidegate-UID. Too long a path is cut. */
void place_write(char *place, size_t room);

#endif
