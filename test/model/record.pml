/* SPDX-License-Identifier: Apache-2.0 */
/* A record (src/base/shmrecord.c): its owner publishes and may die at any step, its heir publishes
 * after, a reader takes no lock. Two words stand for many.
 *
 * Promised: what a reader takes is whole, and was the newest at some moment of its reading; what
 * the heir finds is whole. Left out: the order in which a processor shows its stores to others (the
 * argument stands in the C file), and that 100 tries may all fail.
 *
 * run all:
 *
 * guard other_copy: the copy that readers take is not the one that is filled
 * guard version_last: the version follows the words
 * guard look_again: a reader looks at the version once more
 */
#define PUBLISHES 3

byte version;             /* copy version % 2 is whole */
byte first[2], second[2]; /* the two words of each copy */
bool is_dead, is_over;
byte published;           /* the value of the newest whole record */

inline publish(next) {
#ifdef NO_other_copy
#define FILLED (version % 2)
#else
#define FILLED ((version + 1) % 2)
#endif
#ifdef NO_version_last
    d_step { version++; published = next }
    first[version % 2] = next;
    second[version % 2] = next
#else
    first[FILLED] = next;
    second[FILLED] = next;
#ifdef NO_other_copy
    d_step { version = version + 2; published = next }
#else
    d_step { version++; published = next }
#endif
#endif
}

proctype owner() {
    byte value;

    {
        do
        :: value < PUBLISHES -> value++; publish(value)
        :: else -> break
        od;
        is_over = true
    } unless { is_dead }
}

/* Under the lock, when the owner is dead. */
proctype heir() {
    byte value;

    if
    :: is_dead ->
        d_step {
            assert(first[version % 2] == second[version % 2]);
            value = first[version % 2] + 10
        }
        publish(value)
    :: is_over
    fi
}

proctype reader() {
    byte seen, one, two, before, tries;

    do
    :: tries < 2 ->
        tries++;
        d_step { seen = version; before = published }
        one = first[seen % 2];
        two = second[seen % 2];
#ifndef NO_look_again
        if
        :: version != seen -> skip
        :: else ->
#endif
            assert(one == two);
            assert(one == before)
#ifndef NO_look_again
        fi
#endif
    :: else -> break
    od
}

proctype killer() {
    if
    :: d_step { !is_over -> is_dead = true }
    :: is_over
    fi
}

init {
    atomic {
        run owner();
        run heir();
        run reader();
        run killer()
    }
}
