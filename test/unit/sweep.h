/* SPDX-License-Identifier: Apache-2.0 */
/* What the fault sweep runs: scenarios on a memory whose every block, byte and account is known.
 *
 * A scenario is prepared, then acts once. Whatever call fails meanwhile, afterwards the books are
 * right, the content is what it was, and the act can be done again. */
#ifndef TEST_SWEEP_H
#define TEST_SWEEP_H

#include "memory_world.h"

enum { BED_TAGS = 4, BED_PIECES = 24 };

struct piece {
    unsigned char *block;
    uint64_t size_bytes, seed; /* seed 0: zero */
    int tag;
    uint64_t cut_at, cut_bytes; /* in it: without content, and where it is trimmed without memory */
};

/* A memory with four tags: a general and a packed one of each backup, as the scenario wants. */
struct bed {
    struct world world;
    struct tg_tag *tags[BED_TAGS];
    struct tg_tag_params params[BED_TAGS];
    bool is_dropped[BED_TAGS]; /* sleeps without its content */
    bool is_prepared;          /* awake, and has host memory */
    struct piece pieces[BED_PIECES];
    int count;
    struct tg_queue *queue; /* of the test's own */
    uint64_t seeds;
    uint64_t estate; /* where the program maps pages; 0: nowhere */
    uint64_t pages;  /* so many are mapped there, without a hole, */
    uint64_t last;   /* and this is the last one's number */
};

struct scenario {
    const char *name;
    const char *options; /* of the host device */
    void (*prepare)(struct bed *bed);
    int (*act)(struct bed *bed); /* changes the bed's pieces only when it returns 0 */
    bool is_moving;              /* limbo is not empty before it: less may be taken afterwards */
};

extern const struct scenario scenarios[];
extern const size_t scenario_count;

void bed_open(struct bed *bed, const struct scenario *scenario);
void bed_close(struct bed *bed);
/* Waits for the device, and lets the memory find what has settled. */
void bed_settle(struct bed *bed);
/* Every piece is what it should be, read where it is now. */
void bed_check_content(struct bed *bed);
/* Device, ledger and tags agree on every byte. */
void bed_check_books(struct bed *bed);

/* ---- failing system calls -------------------------------------------------------------------- */

enum system_call {
    SYSTEM_MMAP,
    SYSTEM_MUNMAP,
    SYSTEM_MREMAP,
    SYSTEM_MPROTECT,
    SYSTEM_MADVISE,
    SYSTEM_MEMFD,
    SYSTEM_FTRUNCATE,
    SYSTEM_FCNTL,
    SYSTEM_CALLOC,
    SYSTEM_REALLOC,
    SYSTEM_THREAD,
    SYSTEM_COUNT
};

extern const char *const system_names[SYSTEM_COUNT];

/* The nth call of one kind from now on fails; with `after` every later one too. nth 0: none. */
void system_arm(enum system_call call, uint64_t nth, bool after);
/* How many were made to fail since. */
uint64_t system_failed(void);
/* How many there were of the armed kind. */
uint64_t system_calls(void);
/* Mappings of private memory that the library has and nobody else. */
size_t system_segments(void);

#endif
