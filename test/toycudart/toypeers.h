/* SPDX-License-Identifier: Apache-2.0 */
/* Peers' access to a device's memory: words of toyhost.c. */
#ifndef TEST_TOYPEERS_H
#define TEST_TOYPEERS_H

void do_peers(void); /* gives it and takes it back: the same with and without us */
void do_reach(void); /* under Tidegate: who reaches which block, also after a sleep and a wake */
void do_reach_late(void); /* the same for scopes that begin after it was given */

#endif
