/* SPDX-License-Identifier: Apache-2.0 */
/* The scopes of a thread, and frees by address alone, for the rest of the library. */
#ifndef TG_MEMORY_SCOPE_H
#define TG_MEMORY_SCOPE_H

struct tg_memory;
struct tg_tag;

/* Of the thread's innermost scope; NULL: it is in none. */
struct tg_tag *tg__scope_tag(void);
/* From now on until the memory closes tg__scope_free looks for blocks in it. */
void tg__scope_list(struct tg_memory *memory);
/* The GPU's number, of the block that begins there. Errors: as tg__scope_free's. Keeps errno. */
int tg__scope_find(const void *block, int *device);
/* Frees the block that begins there. Errors: -EINVAL (none does), TG_EFORKED (in a child that
 * inherited memories: it may be one of theirs). Keeps errno. */
int tg__scope_free(void *block);

#endif
