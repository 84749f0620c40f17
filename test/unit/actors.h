/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that hand memory to each other, each with a memory of its own on one device, told by
 * the test what to do. The test's own process opens no device: its children come at any time. */
#ifndef TEST_ACTORS_H
#define TEST_ACTORS_H

#include "children.h"
#include "memory/token.h"
#include "memory_world.h"

enum act {
    ACT_ALLOC,     /* place, number: bytes; in the tag "t" */
    ACT_ALLOC_IN,  /* the same in the tag named by text: "packed", or any; not offered to others */
    ACT_FREE,      /* place */
    ACT_TOKEN,     /* place, number: so many bytes into it */
    ACT_OPEN,      /* place, token */
    ACT_CROWD,     /* token: opened by ACTOR_CROWD threads at once; number: milliseconds for all */
    ACT_CLOSE,     /* place */
    ACT_CLOSE_IDLE, /* place */
    ACT_WRITE,     /* place, number: seed */
    ACT_CHECK,     /* place, number: seed; 0 or -1 */
    ACT_SLEEP,     /* text: what stays; number: bytes gained */
    ACT_WAKE,      /* */
    ACT_FREE_BYTES, /* number: of the device */
    ACT_TAG,       /* number: device_bytes of "t" */
    ACT_LAG,       /* place, number: fills it with that byte, and closes it at once */
    ACT_TRIM,      /* place: its first granule; number: bytes gained */
    ACT_BYTE,      /* place; number: its last byte */
    ACT_CHILD,     /* number: the pid of a forked child, which lives on */
    ACT_HASTE,     /* number: milliseconds that an open waits */
    ACT_FAULT,     /* place: enum tg__op, number: nth; 0: none; text "after": all from there on */
    ACT_SYSTEM,    /* the same of a system call of the test's own: see actor_system */
    ACT_FAILED,    /* number: how many calls were made to fail since */
    ACT_DESCRIPTORS, /* number: open ones */
    ACT_UNREAD,    /* number: of those how many have something to be read */
    ACT_PATIENCE,  /* number: milliseconds until the agent warns */
    ACT_MUTE,      /* nobody reads its stderr any more, and there is no room in it */
    ACT_END,       /* closes everything; status 0 if nothing is left over */
    ACT_OTHERS     /* see actor_other */
};

enum { ACTOR_PLACES = 24, ACTOR_CROWD = 6, ACTOR_SIZE = 2 * GRANULE };

struct order {
    enum act act;
    int place;
    uint64_t number;
    struct tg__token token;
    char text[32];
};

/* An order without, and with, a token. */
static inline struct order to(enum act act, int place, uint64_t number) {
    return (struct order){.act = act, .place = place, .number = number};
}

static inline struct order to_open(int place, struct tg__token token) {
    return (struct order){.act = ACT_OPEN, .place = place, .token = token};
}

struct answer {
    int status;
    uint64_t number;
    struct tg__token token;
    char text[256];
};

struct actor {
    struct child child;
    char err[64]; /* where its stderr goes */
};

/* What a test adds: an act from ACT_OTHERS on; `place` as in the order. */
extern int (*actor_other)(struct tg_memory *memory, void *place, const struct order *order,
                          struct answer *answer);

/* Whether a system call of that kind and number is to fail; set by a test with such calls. */
extern void (*actor_system)(int call, uint64_t nth, bool after);
extern uint64_t (*actor_system_failed)(void);

/* options: of the device, the same for all in one directory. */
struct actor actor_start(const char *options);
struct answer actor_do(struct actor *actor, struct order order);
/* What answers 0, or the test fails. */
struct answer actor_must(struct actor *actor, struct order order);
/* As long as the status is not wanted, or the number, at most a minute. */
void actor_wait_for_free(struct actor *actor, uint64_t bytes);
void actor_end(struct actor *actor);
void actor_kill(struct actor *actor);

/* Who is not one of ours: a connection to the token's agent. */
int actor_connect(const struct tg__token *token);
/* The other side ends it; closes it. */
void actor_expect_end(int fd);

#endif
