/* SPDX-License-Identifier: Apache-2.0 */
/* The crash-safe file that processes share: the ledger stands on it, and so does the capacity of
 * the host device. doc/design/ledger.md, part 1, has the reasons.
 *
 * A file appears whole. Every open draws a ticket, a number that is never used again, and an OFD
 * lock on it that the kernel drops when the process ends in any way: that alone says who lives. The
 * file's lock holds its owner's ticket; who inherits it from a dead one is told so, to mend. What
 * one process publishes for all is a record, and one store is the whole change.
 *
 * It promises: no wait of more than 100 ms; no signal from garbage in the file; a process may die
 * at any instruction. It removes a file only where another build or a poison has left it and nobody
 * who lives has it open, never waits for a process that does not run, never trusts a size or index
 * in the file. */
#ifndef TG_BASE_SHMFILE_H
#define TG_BASE_SHMFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TG__SHMFILE_MAX_BYTES = 1 << 20, TG__LOCK_WAIT_MS = 100, TG__READ_TRIES = 100 };

struct tg__shmfile;

struct tg__shmfile_params {
    const char *dir;   /* NULL: $TIDEGATE_DIR, else /dev/shm/tidegate-UID */
    const char *name;  /* of the file in it */
    uint64_t format;   /* of the body: see tg__shmfile_format */
    size_t body_bytes; /* with the head at most TG__SHMFILE_MAX_BYTES */
    bool is_reader;    /* opens for reading, makes neither directory nor file, takes no ticket */
    /* Fills the zeroed body of a new file; NULL: zero is right. */
    void (*fill)(void *body, const void *argument);
    const void *argument;
    /* Who a ticket is, for sentences; writes a terminated text. NULL: "process with ticket N". */
    void (*name_of)(const void *body, uint32_t ticket, char *text, size_t text_bytes);
};

/* One word from the sizes and offsets that a body is made of, so that two builds that would read it
 * differently refuse each other. */
uint64_t tg__shmfile_format(const uint64_t *numbers, size_t count);

/* Opens the file, and makes it if there is none. Errors: -EPERM (the directory is not this user's
 * alone, or a link), TG_ELAYOUT, -ENOENT (a reader, and there is none), -ENOSPC and other -errno.
 * */
int tg__shmfile_open(const struct tg__shmfile_params *params, struct tg__shmfile **file);
void tg__shmfile_close(struct tg__shmfile *file);

void *tg__shmfile_body(struct tg__shmfile *file);
/* This open's own; never 0. A reader's is 0. */
uint32_t tg__shmfile_ticket(const struct tg__shmfile *file);
/* The descriptor that holds the ticket's lock: the ticket lives as long as any process has a copy.
 * -1 in a forked child. */
int tg__shmfile_ticket_fd(const struct tg__shmfile *file);
/* What the kernel says. */
bool tg__shmfile_is_alive(struct tg__shmfile *file, uint32_t ticket);
/* 0, TG_EFORKED, TG_EPOISONED; with `look`, TG_EREPLACED too: then the name is looked up (µs). */
int tg__shmfile_check(struct tg__shmfile *file, bool look);
/* From now on every check and lock of every process answers TG_EPOISONED; the sentence says why.
 * So does this call itself, to be passed on. A reader's only says so and writes nothing. */
int tg__shmfile_poison(struct tg__shmfile *file, const char *why);

/* Locks out all other threads and processes. *has_inherited: the last owner died inside; mend, and
 * only then unlock. Errors: TG_EHELD (the owner lives but does not run: its name is in the
 * sentence) after TG__LOCK_WAIT_MS, and those of check without look. */
int tg__shmfile_lock(struct tg__shmfile *file, bool *has_inherited);
/* The same with a wait of one's own, of TG__LOCK_WAIT_MS at most. */
int tg__shmfile_lock_within(struct tg__shmfile *file, uint64_t wait_ns, bool *has_inherited);
void tg__shmfile_unlock(struct tg__shmfile *file);

/* Every store that changes what other processes see goes through these: the tests kill the process
 * before and after each of them. Release order; add is one step for all, and so is swap, which
 * leaves the word alone and says what it is where that is not *seen. */
void tg__shm_store(_Atomic uint64_t *word, uint64_t value);
void tg__shm_store32(_Atomic uint32_t *word, uint32_t value);
void tg__shm_add(_Atomic uint64_t *word, uint64_t more);
void tg__shm_add32(_Atomic uint32_t *word, uint32_t more);
bool tg__shm_swap(_Atomic uint64_t *word, uint64_t *seen, uint64_t value);

/* Waits while *word is `seen`, at most timeout_ns; may return early. Async wake with tg__shm_wake,
 * which wakes all waiters of every process. */
void tg__shm_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void tg__shm_wake(_Atomic uint32_t *word);
void tg__shm_wake_one(_Atomic uint32_t *word);

/* A record of `size_bytes` (a multiple of 8) lies behind its version: copy 0, then copy 1. One
 * writer at a time: its owner, or whoever holds the file's lock when the owner is dead. */
struct tg__record {
    _Atomic uint64_t version;
};
void tg__record_publish(struct tg__record *record, const void *next, size_t size_bytes);
/* A whole record of one moment. Errors: TG_EMOTION after TG__READ_TRIES tries. */
int tg__record_read(const struct tg__record *record, void *copy, size_t size_bytes);

#endif
