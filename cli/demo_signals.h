/* SPDX-License-Identifier: Apache-2.0 */
/* What asks the demo to end: Ctrl-C, Ctrl-\, a hang-up, kill. From the moment at which there is
 * something to be removed these only say so, and the supervisor ends in order. */
#ifndef CLI_DEMO_SIGNALS_H
#define CLI_DEMO_SIGNALS_H

#include <stdbool.h>

void demo_signals_open(void);
/* In a child: what reaches the whole group is the supervisor's alone to decide. */
void demo_signals_ignore(void);
/* One has come. */
bool demo_signals_stop(void);

#endif
