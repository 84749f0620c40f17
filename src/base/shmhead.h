/* SPDX-License-Identifier: Apache-2.0 */
/* What the shared file is made of, for the few files of this room that implement it: shmfile.c
 * (open, close, check, poison), shmcreate.c (how one comes to be), shmretire.c (how an
 * old one goes), shmticket.c (who lives), shmlock.c (the lock) and shmrecord.c (what is published).
 * Others know shmfile.h only. */
#ifndef TG_BASE_SHMHEAD_H
#define TG_BASE_SHMHEAD_H

#include <stdalign.h>
#include <sys/types.h>

#include "base/forkguard.h"
#include "base/shmfile.h"
#include "base/turn.h"

/* "tidegate" and the version of the head's own layout. */
#define TG__SHM_MAGIC UINT64_C(0x7469646567617401)

enum { TG__SHM_WHY_WORDS = 16 };

/* The file's first bytes; the body follows at once. Everything in it may be garbage at any time:
 * no field is an index, a size or a pointer that is used unchecked. */
struct tg__shmhead {
    uint64_t magic, format, file_bytes; /* never change */
    _Atomic uint32_t next_ticket;       /* grows by compare-and-swap */
    _Atomic uint32_t is_poisoned;       /* not 0: for good */
    _Atomic uint64_t why[TG__SHM_WHY_WORDS]; /* a text, written before is_poisoned */
    /* The owner's ticket, 0 when free; the top bit: somebody sleeps on this word. A line of its
     * own: it is what processes fight for. */
    alignas(64) _Atomic uint32_t lock;
    alignas(64) unsigned char body[];
};

enum { TG__GUARD_DIRECTORY, TG__GUARD_TICKET, TG__GUARD_SPARE };

struct tg__shmfile {
    struct tg__forkguard guard;
    struct tg__shmhead *head; /* the mapping */
    size_t file_bytes;
    uint32_t ticket; /* 0: a reader's */
    dev_t device;    /* of the file that is mapped, */
    ino_t inode;     /* to tell it from one that took its name */
    char *dir, *name;
    uint64_t format;
    void (*name_of)(const void *body, uint32_t ticket, char *text, size_t text_bytes);
    struct tg__turn threads; /* taken before the file's lock: one ticket, many threads */
};

/* All the file's bytes, allocated: 0 or an errno. A signal that comes meanwhile is no error. */
int tg__shmfile_allocate(int fd, size_t file_bytes);

/* Makes the file, whole or not at all. 0 also if another was faster: then it is there too. */
int tg__shmfile_create(struct tg__shmfile *file, const struct tg__shmfile_params *params);

/* Tickets are bytes from here on: far behind every file's end. */
#define TG__SHM_TICKETS_AT ((off_t)1 << 40)

/* The name leads elsewhere by now, or nowhere. */
enum { TG__SHM_TRY_AGAIN = 1 };

/* After an open that failed with `status`, since the file is old or poisoned: removes it if nobody
 * who lives has it open, and answers TG__SHM_TRY_AGAIN, also if another was faster. Else `status`.
 * A reader removes nothing: -ENOENT where it would be removed. */
int tg__shmfile_retire(struct tg__shmfile *file, bool is_reader, int status);

/* Takes a number, and the kernel's lock that says that its owner lives. */
int tg__shmfile_take_ticket(struct tg__shmfile *file);

/* Who a ticket is. */
void tg__shmfile_name(struct tg__shmfile *file, uint32_t ticket, char *text, size_t text_bytes);

#endif
