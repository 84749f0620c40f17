/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the program maps itself, as torch's allocator does: words of toyhost.c. */
#ifndef TEST_TOYEXPAND_H
#define TEST_TOYEXPAND_H

void do_expand(void); /* maps, fills the card, frees and retries: the same with and without us */
void do_share(void);  /* hands memory to a child by its descriptor */
void do_asleep(void); /* the same under Tidegate, through a sleep and a wake */

#endif
