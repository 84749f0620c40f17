/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts (src/ledger/reserve.c, account.c, admit.c's two views, settle.c): three tenants ask for
 * a unit each of a device of three, one of which a foreign program has. Any may die at any step;
 * what the dead had comes free at any time later, and counts as theirs for a while at most. What
 * moves a tenant's figures is made from transitions.def.
 *
 * Promised: no unit is had twice (who was granted can create); a unit that is there is in the books
 * of its owner while he lives; nobody waits for a dead one, and in the end all can be had again.
 * Left out: the lock's inside and half a record (lock.pml, record.pml), order of arrival, cycles
 * and starts (test/unit/admit_test.c), declared bytes (they are in the driver's view alone),
 * several threads of a tenant, tags. A look settles one of
 * the dead, or none, where the library settles all, and knows when to. Tenants are alike, so that
 * two of the three may die: which two makes no difference.
 *
 * run all: -DDEATHS=2
 *
 * guard lock: who reserves decides under the file's lock
 * guard reserve_first: memory is created after it is reserved
 * guard reserved: what others have reserved is not available
 * guard drivers_view: the driver is asked, not only the tenants' figures added up
 * guard created: what was committed since the driver was asked is taken off
 * guard created_first: a commit counts up the sum, then publishes
 * guard created_last: a decision reads the rows, then the sum
 * guard sum_first: the sum is noted before the driver is asked
 * guard one_publish: a commit moves its bytes in one publish
 * guard release_first: memory is released before its bytes are given
 * guard orphans: the bytes of the dead count
 * guard noted: a figure from before a death was noted is asked for anew
 * guard free_slot: the slot of a dead one whose bytes came back becomes free
 */
#define TENANTS 3
#define TOTAL 3
#define FOREIGN 1
#define NOBODY 255

#define LESS(a, b) ((a) > (b) -> (a) - (b) : 0)
#define LEAST(a, b) ((a) < (b) -> (a) : (b))

/* The rows. */
bool has_joined[TENANTS] = true;
byte occupied[TENANTS], reserved[TENANTS], asleep[TENANTS];
bool is_orphan[TENANTS], is_past[TENANTS]; /* the row of a dead one; its time is over */
byte before[TENANTS]; /* what was unattributed when the death was noted */

/* The device, as the ledger sees it and as it is. */
byte created, noted, unattributed;
byte memory[TENANTS];
#define USED (FOREIGN + memory[0] + memory[1] + memory[2])

byte lock = NOBODY;
bool is_dead[TENANTS], is_over[TENANTS];
byte deaths;
#define ALL_OVER ((is_dead[0] || is_over[0]) && (is_dead[1] || is_over[1]) && \
                  (is_dead[2] || is_over[2]))

#include "figures.def"

#define IN_BOOKS(i) (memory[i] <= occupied[i] + reserved[i])

inline take_lock(i) {
#ifdef NO_lock
    skip
#else
    atomic { (lock == NOBODY || is_dead[lock]) -> lock = i }
#endif
}

inline unlock() {
#ifndef NO_lock
    lock = NOBODY
#else
    skip
#endif
}

/* ---- a look ---------------------------------------------------------------------------------- */

inline ask_driver() {
#ifdef NO_sum_first
    free = TOTAL - USED;
    d_step { created_before = created; noted_before = noted }
#else
    d_step { created_before = created; noted_before = noted };
    free = TOTAL - USED
#endif
}

/* What of an orphan counts, where `beyond` is in use and not the living's. */
#define COUNTS(k, beyond)                                                                        \
    (is_past[k] -> 0 : LEAST(occupied[k] + reserved[k], LESS(beyond, before[k])))

inline note_death(k) {
    if
    :: occupied[k] + reserved[k] == 0 -> has_joined[k] = false; asleep[k] = 0
    :: else ->
#ifdef NO_orphans
        has_joined[k] = false;
        end_by_leave(k);
#else
        noted++;
        is_orphan[k] = true;
        before[k] = unattributed;
        end_by_death(k)
#endif
    fi
}

#define LIVES(k) (has_joined[k] && !is_orphan[k])
#define LIVING_OCCUPIED                                                                          \
    ((LIVES(0) -> occupied[0] : 0) + (LIVES(1) -> occupied[1] : 0) + (LIVES(2) -> occupied[2] : 0))

inline settle(k) {
    d_step {
        if
        :: has_joined[k] && is_dead[k] && !is_orphan[k] -> note_death(k)
        :: has_joined[k] && is_dead[k] && is_orphan[k] ->
            beyond = LESS(TOTAL - free + created - created_before, LIVING_OCCUPIED);
            if
            :: COUNTS(k, beyond) == 0 ->
#ifndef NO_free_slot
                has_joined[k] = false;
                is_orphan[k] = false;
                end_by_leave(k)
#endif
            :: else
            fi
        :: else
        fi;
        beyond = 0
    }
}

inline add_row(k) {
    d_step {
        if
        :: LIVES(k) ->
            sum_occupied = sum_occupied + occupied[k];
            sum_reserved = sum_reserved + reserved[k]
        :: else
        fi
    }
}

inline add_orphan(k) {
    if
    :: has_joined[k] && is_orphan[k] -> orphaned = orphaned + COUNTS(k, beyond)
    :: else
    fi
}

#ifdef NO_reserved
#define RESERVED 0
#else
#define RESERVED sum_reserved
#endif
#ifdef NO_created
#define CREATED 0
#else
#define CREATED since_asked
#endif
#ifdef NO_drivers_view
#define AVAILABLE LESS(TOTAL, sum_occupied + RESERVED + orphaned)
#else
#define AVAILABLE LEAST(LESS(TOTAL, sum_occupied + RESERVED + orphaned),                    \
                        LESS(free, RESERVED + CREATED))
#endif

inline decide(i) {
    d_step {
        sum_occupied = sum_occupied + occupied[i];
        sum_reserved = sum_reserved + reserved[i];
#ifndef NO_created_last
        since_asked = created - created_before;
#endif
        beyond = LESS(TOTAL - free + since_asked, sum_occupied);
        add_orphan(0);
        add_orphan(1);
        add_orphan(2);
        orphaned = LEAST(orphaned, beyond);
        unattributed = LESS(TOTAL - free, sum_occupied + orphaned);
#ifdef NO_noted
        is_old = false;
#else
        is_old = (noted != noted_before);
#endif
        is_granted = (!is_old && AVAILABLE >= 1);
        sum_occupied = 0;
        sum_reserved = 0;
        orphaned = 0;
        beyond = 0;
        since_asked = 0;
        created_before = 0;
        noted_before = 0;
        free = 0
    }
}

/* The own row is what the tenant says itself. */
inline look(i) {
#ifdef NO_created_last
    since_asked = created - created_before;
#endif
    add_row((i + 1) % TENANTS);
    add_row((i + 2) % TENANTS);
    decide(i)
}

#define FIGURES                                                                                  \
    byte free, created_before, noted_before;                                                     \
    byte sum_occupied, sum_reserved, orphaned, beyond, since_asked;                              \
    bool is_granted, is_old

/* ---- a tenant -------------------------------------------------------------------------------- */

inline create(i) {
    d_step { assert(USED < TOTAL); memory[i] = 1; assert(IN_BOOKS(i)) }
}

inline release(i) {
    memory[i] = 0
}

inline publish_end(is_committed, i) {
    d_step {
        if
        :: is_committed -> move_give(i)
        :: else -> move_cancel(i)
        fi;
        assert(IN_BOOKS(i))
    }
}

inline give_back(is_committed, i) {
#ifdef NO_release_first
    publish_end(is_committed, i);
    release(i)
#else
    release(i);
    publish_end(is_committed, i)
#endif
}

inline commit(i) {
#ifdef NO_one_publish
    created++;
    d_step { reserved[i] = reserved[i] - 1; assert(IN_BOOKS(i)) };
    occupied[i] = occupied[i] + 1
#else
#ifdef NO_created_first
    d_step { move_commit(i); assert(IN_BOOKS(i)) };
    created++
#else
    created++;
    d_step { move_commit(i); assert(IN_BOOKS(i)) }
#endif
#endif
}

proctype tenant(byte i) {
    FIGURES;

    {
#ifndef NO_reserve_first
        do
        :: true ->
            ask_driver();
            take_lock(i);
            if
            :: settle(0)
            :: settle(1)
            :: settle(2)
            :: skip
            fi;
            look(i);
            if
            :: is_granted -> move_reserve(i)
            :: else
            fi;
            unlock();
            if
            :: is_granted -> break
            :: !is_granted /* it waits, or is asked for anew */
            :: !is_granted -> goto leave
            fi
        od;
#endif
        if
        :: d_step { move_cancel(i) }
        :: create(i);
           if
           :: give_back(false, i)
           :: commit(i); give_back(true, i)
           fi
        fi;
leave:
        atomic { has_joined[i] = false; end_by_leave(i); is_over[i] = true }
    } unless { is_dead[i] }
}

inline kill(i) {
    d_step { deaths < DEATHS && !is_dead[i] && !is_over[i] -> deaths++; is_dead[i] = true }
}

/* The driver gives back what a dead process had, at last; its time runs out. */
inline come_free(i) {
    d_step { is_dead[i] && memory[i] > 0 -> memory[i] = 0 }
}
inline run_out(i) {
    d_step { is_orphan[i] && !is_past[i] -> is_past[i] = true }
}

proctype world() {
end:
    do
    :: kill(0)
    :: kill(1)
    :: come_free(0)
    :: come_free(1)
    :: run_out(0)
    :: run_out(1)
    od
}

/* When nothing moves any more: all is over, and another look finds all that is to be had. */
proctype heir() {
    FIGURES;

    timeout;
    assert(ALL_OVER);
    ask_driver();
    settle(0);
    settle(1);
    settle(2);
    timeout; /* the orphans' time has run out */
    ask_driver();
    settle(0);
    settle(1);
    settle(2);
    d_step {
        assert(!has_joined[0] && !has_joined[1] && !has_joined[2]);
        assert(occupied[0] + occupied[1] + occupied[2] == 0);
        assert(reserved[0] + reserved[1] + reserved[2] == 0);
        assert(USED == FOREIGN)
    }
}

init {
    atomic {
        run tenant(0);
        run tenant(1);
        run tenant(2);
        run world();
        run heir()
    }
}
