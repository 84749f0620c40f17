/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files are that this user's programs share; see tidegate/ledger.h. */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include <stddef.h>

#define PLACE_BYTES 4096 /* as long as a path can be */

/* The directory: $TIDEGATE_DIR, else /dev/shm/tidegate-UID. What is no path for its length
 * is cut. */
void place_write(char *place, size_t room);

#endif
