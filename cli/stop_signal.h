/* SPDX-License-Identifier: Apache-2.0 */
/* What asks a verb to end: Ctrl-C, Ctrl-\, a hang-up, kill. From the moment at which there is
 * something to be removed these only say so, and the verb ends in order. */
#ifndef CLI_STOP_SIGNAL_H
#define CLI_STOP_SIGNAL_H

#include <stdbool.h>

void stop_signal_catch(void);
/* The same, where an end out of order loses nothing: a second one ends the process at once. */
void stop_signal_catch_first(void);
/* In a child: what reaches the whole group is its parent's alone to decide. */
void stop_signal_ignore(void);
/* One has come. */
bool stop_signal_came(void);

#endif
