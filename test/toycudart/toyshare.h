/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that one process hands to another: words of toyhost.c. */
#ifndef TEST_TOYSHARE_H
#define TEST_TOYSHARE_H

void do_give(void);       /* allocates, and prints a handle of it */
void do_give_twice(void); /* says what is answered alone */
void do_give_small(void); /* less than a tag would take */
void do_wait_for_line(void);
void do_look(void); /* at what was given */
void do_drop(void);
void do_take(void); /* opens $TOYHOST_HANDLE twice, and closes once */
void do_fill(void); /* all of it with 2 */
void do_leave_it(void);
void do_ipc_errors(void);
void do_ipc_fork(void);

#endif
