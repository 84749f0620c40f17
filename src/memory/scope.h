/* SPDX-License-Identifier: Apache-2.0 */
/* The scopes of a thread, and frees by address alone, for the rest of the library. */
#ifndef TG_MEMORY_SCOPE_H
#define TG_MEMORY_SCOPE_H

struct tg_memory;
struct tg_process_request;
struct tg_tag;

/* Of the thread's innermost scope; NULL: it is in none. */
struct tg_tag *tg__scope_tag(void);
/* Whose memory a request of code that knows no tags is to have (process.c); *tag NULL: none has a
 * say. Errors: those of tg_process_memory and tg_tag_open. */
int tg__process_choose(const struct tg_process_request *request, struct tg_tag **tag);
/* The peers that a program has given its GPU are the memory's, too (ownpages.c). */
void tg__peers_inherit(struct tg_memory *memory);
/* From now on until the memory closes tg__scope_free looks for blocks in it. */
void tg__scope_list(struct tg_memory *memory);
/* The GPU's number, of the block that begins there. Errors: as tg__scope_free's. Keeps errno. */
int tg__scope_find(const void *block, int *device);
/* Asks each of those memories until one does not answer -ENOENT; -ENOENT: all do. */
int tg__scope_ask(int (*ask)(struct tg_memory *memory, void *question), void *question);
/* Frees the block that begins there. Errors: -EINVAL (none does), TG_EFORKED (in a child that
 * inherited memories: it may be one of theirs). Keeps errno. */
int tg__scope_free(void *block);
/* The same of one that nothing given to its device uses any more. */
int tg__scope_free_idle(void *block);

#endif
