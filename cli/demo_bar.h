/* SPDX-License-Identifier: Apache-2.0 */
/* What is seen of the demo while it runs: one line that is painted again and again where stdout is
 * a terminal, else one line for each step. */
#ifndef CLI_DEMO_BAR_H
#define CLI_DEMO_BAR_H

#include "demo_run.h"

struct demo_bar {
    bool is_live;   /* stdout is a terminal that can be painted on */
    bool has_color; /* and NO_COLOR is not set */
    bool is_quiet;  /* --json: nothing is shown */
    uint64_t painted_ns;
    enum demo_who painted_who; /* as awake */
};

void demo_bar_open(struct demo_bar *bar, bool is_quiet);
/* For demo_run. */
void demo_bar_paint(void *bar, const struct demo_moment *moment);
bool demo_bar_step(void *bar, const struct demo_moment *moment);
/* The last line stays; the cursor is as before. */
void demo_bar_close(struct demo_bar *bar);

#endif
