/* SPDX-License-Identifier: Apache-2.0 */
/* Whether work of this process is being captured, where somebody counts: a driver does not tell. */
#ifndef TG_DEVICE_CAPTURES_H
#define TG_DEVICE_CAPTURES_H

#include <stdbool.h>

/* `open` counts the captures that are under way, and lives as long as the process; NULL: nobody
 * counts. */
void tg__captures_watch(const int *open);
bool tg__captures_are_open(void);

#endif
