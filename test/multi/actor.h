/* SPDX-License-Identifier: Apache-2.0 */
/* Actors: real processes, each one tenant with memory on a host device, that do what a test orders.
 *
 * An actor is forked before the test opens anything and opens device, ledger and memory itself.
 * Orders and answers are messages over a socket pair; a test may order without waiting for the
 * answer, and may stop and kill actors at any moment. */
#ifndef TEST_MULTI_ACTOR_H
#define TEST_MULTI_ACTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <tidegate/error.h>
#include <tidegate/ledger.h>
#include <tidegate/memory.h>

#define MIB (UINT64_C(1) << 20)

enum { ACTOR_BLOCKS = 64, ACTORS_MAX = 16 };

enum order_kind {
    ORDER_ALLOC,  /* size_bytes in tag; the answer's value is the block's number */
    ORDER_FREE,   /* the block `number` */
    ORDER_VERIFY, /* every block of tag, if it is awake; value: bytes lost */
    ORDER_PREPARE, /* tag, or all where it is "", for its first sleep */
    ORDER_SLEEP,  /* tag, or all where it is "" */
    ORDER_WAKE,   /* the same, waiting up to wait_ms */
    ORDER_REPACK, /* the same, now */
    ORDER_WAKE_TRY,
    ORDER_WAKE_END, /* number: publish or not */
    ORDER_RESERVE,  /* in the ledger alone: size_bytes for tag, up to wait_ms */
    ORDER_CANCEL,
    ORDER_FORK, /* forks a child that tries calls and stays; value: its pid */
    ORDER_EXIT, /* exits, and closes nothing before; there is no answer */
    ORDER_EXEC, /* becomes another program that stays; there is no answer */
    ORDER_SIGNAL_AT_STORE, /* `signal` to itself at shared store `number` from now on */
    ORDER_SIGNAL_AT_CALL,  /* the same at device call `number` from now on */
    ORDER_STORES,          /* value: shared stores since the last ORDER_SIGNAL_AT_STORE */
    ORDER_CALLS,           /* value: device calls since the last ORDER_SIGNAL_AT_CALL */
    ORDER_LEAVE        /* closes everything in order and exits */
};

struct order {
    enum order_kind kind;
    char tag[TG_TAG_NAME_BYTES], drop[TG_TAG_NAME_BYTES];
    uint64_t size_bytes, number;
    uint32_t wait_ms;
    bool is_after; /* the signal comes when the store or call is done, else instead of it */
    int signal;
};

struct answer {
    int status;
    uint64_t value;
    uint64_t took_ns;
    uint64_t wait_ns; /* of it for other tenants; wakes only */
    char text[240];
};

struct actor {
    pid_t pid;
    int socket;
    char name[TG_TENANT_NAME_BYTES];
};

struct actor_params {
    const char *name;
    const char *uri;
    const char *dir; /* of the ledger and the device's file */
    uint64_t seed;   /* of its content */
    bool has_faults; /* the device is wrapped, for ORDER_SIGNAL_AT_CALL */
    bool is_pid_one; /* alone in a pid namespace of its own; needs privilege */
    uint32_t clock_ahead_s; /* in a time namespace of its own if not 0; needs privilege, too */
};

/* Tags of every actor: weights and optimizer (host backup), kv_cache (none), kept (host, kept). */

/* Starts an actor and waits until it has joined. False: its namespace was refused. */
bool actor_start(struct actor *actor, const struct actor_params *params);
/* Orders and waits for the answer; an actor that died gives status -ESRCH. */
struct answer actor_do(struct actor *actor, struct order order);
void actor_order(struct actor *actor, struct order order);
/* The answer to the oldest order; waits up to timeout_ms, then fails the test. */
struct answer actor_answer(struct actor *actor, uint32_t timeout_ms);
/* Which of the actors has an answer ready; waits up to timeout_ms, then fails the test. */
int actor_first(struct actor *actors, int count, uint32_t timeout_ms);
/* actor_do that must succeed; returns the value. */
uint64_t actor_must(struct actor *actor, struct order order);
void actor_signal(struct actor *actor, int signal);
/* SIGKILL, and gone. */
void actor_kill(struct actor *actor);
/* Waits for an end that the test has arranged: by which signal; 0: it has exited with 0; -1: with
 * another status. */
int actor_gone(struct actor *actor, uint32_t timeout_ms);
/* An order in short; all else is zero. */
struct order order_make(enum order_kind kind, const char *tag, uint64_t size_bytes,
                        uint32_t wait_ms);
/* ORDER_LEAVE and a clean exit, or the test fails. */
void actor_leave(struct actor *actor);

#endif
