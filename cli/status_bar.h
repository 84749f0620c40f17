/* SPDX-License-Identifier: Apache-2.0 */
/* A device's memory as a bar of cells. */
#ifndef CLI_STATUS_BAR_H
#define CLI_STATUS_BAR_H

#include <stdint.h>

#include "status_canvas.h"

enum status_part {
    STATUS_AWAKE,
    STATUS_RETURNABLE,
    STATUS_COMING,
    STATUS_ORPHANED,
    STATUS_UNATTRIBUTED,
    STATUS_PARTS
};

struct status_bar {
    uint64_t total_bytes;
    uint64_t part_bytes[STATUS_PARTS];
};

void status_bar_put(struct canvas *canvas, const struct status_bar *bar, unsigned cells);
/* What its signs mean. */
void status_bar_legend_put(struct canvas *canvas);

#endif
