/* SPDX-License-Identifier: Apache-2.0 */
#include "status_bar.h"

#include <string.h>

enum { CELLS_MOST = 128 };

static const struct {
    char sign;
    enum canvas_style style;
    const char *text;
} parts[STATUS_PARTS] = {
    {'#', CANVAS_GREEN, "awake"},  {'=', CANVAS_CYAN, "returnable"}, {'>', CANVAS_YELLOW, "coming"},
    {'x', CANVAS_RED, "orphaned"}, {'+', CANVAS_BLUE, "unattributed"},
};

/* The cell at which a part ends: by the sum so far, so that rounding does not add up. */
static unsigned end_of(double sum_bytes, uint64_t total_bytes, unsigned cells) {
    double end = total_bytes == 0 ? 0 : sum_bytes / (double)total_bytes * cells + 0.5;

    return end > cells ? cells : (unsigned)end;
}

void status_bar_put(struct canvas *canvas, const struct status_bar *bar, unsigned cells) {
    unsigned from = 0, most = cells < CELLS_MOST ? cells : CELLS_MOST;
    char signs[CELLS_MOST + 1];
    double sum_bytes = 0;

    canvas_put(canvas, CANVAS_PLAIN, "[");
    for (int i = 0; i < STATUS_PARTS; i++) {
        unsigned end;

        sum_bytes += (double)bar->part_bytes[i];
        end = end_of(sum_bytes, bar->total_bytes, most);
        memset(signs, parts[i].sign, end - from);
        canvas_put(canvas, parts[i].style, "%.*s", (int)(end - from), signs);
        from = end;
    }
    memset(signs, '.', most - from);
    canvas_put(canvas, CANVAS_PLAIN, "%.*s]", (int)(most - from), signs);
}

void status_bar_legend_put(struct canvas *canvas) {
    for (int i = 0; i < STATUS_PARTS; i++) {
        canvas_put(canvas, parts[i].style, "%c", parts[i].sign);
        canvas_put(canvas, CANVAS_PLAIN, " %s  ", parts[i].text);
    }
}
