/* SPDX-License-Identifier: Apache-2.0 */
/* The file's lock (src/base/shmlock.c) and who inherits it (src/base/shmticket.c): three processes
 * enter once each, any of them may die at any step, and comes again with a ticket of its own.
 *
 * Promised: one living process inside; nobody inside finds a body that a dead one left half done;
 * everybody gets in. Left out: the deadline (who waits for a living owner waits here for ever), the
 * spinning before a sleep, threads of one process, garbage in the word.
 *
 * run all: -DDEATHS=2
 *
 * guard free_swap: a free word is taken by compare-and-swap
 * guard heir_swap: a dead owner's word is taken from exactly that word
 * guard alive: only a dead owner is inherited from
 * guard inherit: a dead owner is inherited from at all
 * guard mend: the heir mends the body before anything else
 * guard swap_last: unlocking is the last step, after the body is whole
 * guard slice: who sleeps looks again by itself
 * guard new_ticket: a ticket is never used again
 */
#define PROCESSES 3
#define TICKETS (PROCESSES + DEATHS + 1)

byte word;                /* the owner's ticket, 0: free */
bool has_waiters;         /* the word's top bit: somebody sleeps on it */
byte next_ticket = 1;
bool is_dead[TICKETS];    /* what the kernel says of a ticket */
bool is_asleep[PROCESSES];
bool is_inside[PROCESSES];
bool is_half_done;        /* the body: between the first and the last store */

byte ticket_of[PROCESSES];
bool must_die[PROCESSES], is_over[PROCESSES];
byte deaths;

#define OTHER_INSIDE(i) ((i != 0 && is_inside[0]) || (i != 1 && is_inside[1]) || \
                         (i != 2 && is_inside[2]))
#ifdef NO_alive
#define IS_TAKEABLE (true)
#else
#ifdef NO_inherit
#define IS_TAKEABLE (word == 0)
#else
#define IS_TAKEABLE (word == 0 || is_dead[word])
#endif
#endif
/* Within a slice of 2 ms the sleeper looks, so whatever would let it in is seen. */
#ifdef NO_slice
#define SLICE_ENDS false
#else
#define SLICE_ENDS IS_TAKEABLE
#endif

inline draw_ticket(i) {
    atomic {
#ifdef NO_new_ticket
        if
        :: ticket_of[i] == 0 -> ticket_of[i] = next_ticket; next_ticket++
        :: else -> is_dead[ticket_of[i]] = false
        fi
#else
        ticket_of[i] = next_ticket;
        next_ticket++
#endif
    }
}

inline swap_free(i, got) {
#ifdef NO_free_swap
    got = (word == 0);
    if
    :: got -> d_step { word = ticket_of[i]; has_waiters = false }
    :: else
    fi
#else
    d_step {
        got = (word == 0);
        if
        :: got -> word = ticket_of[i]
        :: else
        fi
    }
#endif
}

/* What was seen is taken, if it is still there; a waiter keeps the waiters' bit. */
inline swap_seen(i, seen, saw_waiters, got) {
#ifdef NO_heir_swap
    d_step { got = true; word = ticket_of[i]; has_waiters = true }
#else
    d_step {
        got = (word == seen && has_waiters == saw_waiters);
        if
        :: got -> word = ticket_of[i]; has_waiters = true
        :: else
        fi
    }
#endif
}

inline sleep_on_word(i, seen, saw_waiters) {
    d_step { /* sets the bit by compare-and-swap, and sleeps only while the word is as seen */
        if
        :: seen != 0 && word == seen && has_waiters == saw_waiters ->
            has_waiters = true;
            is_asleep[i] = true
        :: else
        fi
    }
    (!is_asleep[i] || SLICE_ENDS);
    d_step { is_asleep[i] = false; seen = 0; saw_waiters = false }
}

inline wake_one() {
    if
    :: is_asleep[0] -> is_asleep[0] = false
    :: is_asleep[1] -> is_asleep[1] = false
    :: is_asleep[2] -> is_asleep[2] = false
    :: !is_asleep[0] && !is_asleep[1] && !is_asleep[2]
    fi
}

proctype process(byte i) {
    byte seen;
    bool got, has_inherited, saw_waiters;

life:
    {
        draw_ticket(i);
        swap_free(i, got);
        do
        :: got -> break
        :: else ->
            d_step { seen = word; saw_waiters = has_waiters; got = IS_TAKEABLE }
            if
            :: got ->
                swap_seen(i, seen, saw_waiters, got);
                d_step { has_inherited = (got && seen != 0); seen = 0; saw_waiters = false }
            :: else -> sleep_on_word(i, seen, saw_waiters)
            fi
        od;
        atomic { assert(!OTHER_INSIDE(i)); is_inside[i] = true }
#ifndef NO_mend
        if
        :: has_inherited -> is_half_done = false
        :: else
        fi;
#endif
        atomic { assert(!is_half_done); is_half_done = true };
#ifdef NO_swap_last
        d_step { is_inside[i] = false; saw_waiters = has_waiters; word = 0; has_waiters = false }
        is_half_done = false;
#else
        is_half_done = false;
        d_step { is_inside[i] = false; saw_waiters = has_waiters; word = 0; has_waiters = false }
#endif
        atomic {
            if
            :: saw_waiters -> wake_one()
            :: else
            fi;
            is_over[i] = true;
            got = false;
            has_inherited = false;
            saw_waiters = false
        }
    } unless {
        atomic {
            must_die[i] ->
            must_die[i] = false;
            got = false;
            has_inherited = false;
            saw_waiters = false;
            seen = 0
        }
        goto life
    }
}

inline kill(i) {
    d_step {
        deaths < DEATHS && ticket_of[i] != 0 && !is_over[i] && !must_die[i] ->
        deaths++;
        must_die[i] = true;
        is_dead[ticket_of[i]] = true;
        is_asleep[i] = false;
        is_inside[i] = false
    }
}

proctype killer() {
end:
    do
    :: kill(0)
    :: kill(1)
    :: kill(2)
    od
}

init {
    atomic {
        run process(0);
        run process(1);
        run process(2);
        run killer()
    }
}
