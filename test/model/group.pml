/* SPDX-License-Identifier: Apache-2.0 */
/* The group commit (doc/design/group.md): members of one or two groups, each on a device of one
 * unit, any of which may die at any step, fail, be late or be stopped. Phase one is gathering, one
 * grant for all, then each creates and fills; one store decides. What moves a tenant's figures is
 * made from transitions.def.
 *
 * Promised: never is one member of a group awake by it and another asleep, nor does a reader see
 * that; a group in which one failed or died before it was ready is not committed; no unit is had
 * twice, and what is there is in its owner's books while he lives; who sleeps has its host copy;
 * every living member ends without a deadline, but for who never came or was stopped.
 * Left out: the lock's inside, half a record, figures of the driver's (account.pml): a dead one's
 * bytes count here until its memory is free. Order of arrival among groups: it is the ledger's.
 *
 * Scenes: RANKS, three ranks of one group on three devices; SHARE, a group of two and one of one
 * with a device of both; SLOT_OF_BOTH, and a slot of both; CROSS, two groups of two on the same two
 * devices; HAND, a trainer falls asleep while two ranks wake, one of them on its device; AGAIN, two
 * ranks, of which one dies and comes again under its name, try twice.
 *
 * run ranks: -DRANKS -DDEATHS=2
 * run late: -DRANKS -DLATE
 * run seen: -DRANKS -DREADER
 * run stopped: -DRANKS -DSTOPS
 * run share: -DSHARE -DLATE -DDEATHS=1
 * run slot: -DSLOT_OF_BOTH -DLATE -DREADER
 * run cross: -DCROSS
 * run hand: -DHAND -DDEATHS=2
 * run again: -DAGAIN -DDEATHS=2
 *
 * guard all_ready: the group is committed when all are ready (ranks)
 * guard commit_swap: by compare-and-swap from open            (late)
 * guard abort_swap: so it is given up                         (ranks)
 * guard ask_word: who gives up does what the word says then   (ranks)
 * guard see_death: who waits looks for members that died      (ranks)
 * guard settle_aborts: who settles a member gives its group up first (hand)
 * guard deadline: who waits gives the group up at its deadline (stopped)
 * guard whole_grant: all that the members want is granted by one store (cross)
 * guard lock: under the file's lock                           (share)
 * guard grant_counts: what is granted counts from that store on (share)
 * guard aborted_counts: and until its member has let go, also when the group was given up (share)
 * guard fold_first: who creates has the grant in its own row  (ranks)
 * guard host_kept: host copies stay until the store           (ranks)
 * guard unmap_after: a sleep unmaps after the store           (hand)
 * guard named_slot: a slot is taken when no row names it      (slot)
 * guard generation: a reader heeds the generation             (slot)
 * guard reader_word: a reader asks the word, not the row alone (seen)
 * guard one_publish: a member's figures and its leaving are one publish (seen)
 */
#define NOBODY 255
#ifdef AGAIN
#define TRIES 2
#else
#define TRIES 1
#endif
#ifdef CROSS
#define MAY_FAIL false
#else
#define MAY_FAIL true
#endif
#define TOTAL 1
#ifndef DEATHS
#define DEATHS 0
#endif

#if defined(RANKS)
#define MEMBERS 3
#define GROUP_OF(i) 0
#define SLOT_OF(g) 0
#define SIZE_OF(g) 3
#define DEVICE_OF(i) (i)
#define SLEEPS(i) false
#elif defined(SHARE) || defined(SLOT_OF_BOTH)
#define MEMBERS 3
#define GROUP_OF(i) ((i) == 2 -> 1 : 0)
#ifdef SHARE
#define SLOT_OF(g) (g)
#else
#define SLOT_OF(g) 0
#endif
#define SIZE_OF(g) ((g) == 0 -> 2 : 1)
#define DEVICE_OF(i) ((i) == 0 -> 0 : 1)
#define SLEEPS(i) false
#define GIVES_BACK
#elif defined(CROSS)
#define MEMBERS 4
#define GROUP_OF(i) ((i) / 2)
#define SLOT_OF(g) (g)
#define SIZE_OF(g) 2
#define DEVICE_OF(i) ((i) % 2)
#define SLEEPS(i) false
#define GIVES_BACK
#elif defined(HAND)
#define MEMBERS 3
#define GROUP_OF(i) ((i) == 0 -> 0 : 1)
#define SLOT_OF(g) (g)
#define SIZE_OF(g) ((g) == 0 -> 1 : 2)
#define DEVICE_OF(i) ((i) == 2 -> 1 : 0)
#define SLEEPS(i) ((i) == 0)
#elif defined(AGAIN)
#define MEMBERS 2
#define GROUP_OF(i) 0
#define SLOT_OF(g) 0
#define SIZE_OF(g) 2
#define DEVICE_OF(i) (i)
#define SLEEPS(i) false
#endif

/* A group's slot: one word of its generation and phase; whose it is. */
#define DROPPED 0   /* given up before the grant: nobody has anything. A free slot is so, too */
#define GATHERING 1 /* members come, and say what they want */
#define OPEN 2      /* what they want is granted */
#define COMMITTED 3
#define ABORTED 4   /* given up after the grant: each has it until it lets go */
byte phase[2], generation[2], group_in[2];

/* The rows. */
byte named[MEMBERS]; /* the generation; 0: it is in no group */
bool is_ready[MEMBERS];
byte wanted[MEMBERS], reserved[MEMBERS], occupied[MEMBERS], asleep[MEMBERS];

byte memory[MEMBERS];
bool has_host[MEMBERS];
bool is_dead[2 * MEMBERS], is_over[MEMBERS], is_stopped[MEMBERS], is_late;
byte lock = NOBODY, deaths, failures; /* a member that comes again is i + MEMBERS to the lock */

/* For the promises alone. */
#define GENERATIONS 16
bool was_spoiled[GENERATIONS]; /* a member failed or died before it was ready */
bool was_taken[GENERATIONS], was_refused[GENERATIONS];
bool has_committed[2]; /* the group, once */

#define HAS_GROUPS
#include "figures.def"

#define SLOT(i) SLOT_OF(GROUP_OF(i))
#define GENERATION(i) (named[i] + 8 * SLOT(i))
#define PHASE(i) phase[SLOT(i)]
#define IN_BOOKS(i) (memory[i] <= occupied[i] + reserved[i])
#if MEMBERS == 2
#define SUM(of) (of(0) + of(1))
#elif MEMBERS == 3
#define SUM(of) (of(0) + of(1) + of(2))
#else
#define SUM(of) (of(0) + of(1) + of(2) + of(3))
#endif

inline take_lock(i) {
#ifdef NO_lock
    skip
#else
    atomic { (lock == NOBODY || is_dead[lock]) -> lock = i }
#endif
}

inline unlock() {
#ifdef NO_lock
    skip
#else
    lock = NOBODY
#endif
}

/* ---- the word -------------------------------------------------------------------------------- */

inline give_up(s, g) {
    d_step {
        if
        :: generation[s] == g && phase[s] == GATHERING -> phase[s] = DROPPED
#ifdef NO_abort_swap
        :: generation[s] == g && phase[s] != GATHERING -> phase[s] = ABORTED
#else
        :: generation[s] == g && phase[s] == OPEN -> phase[s] = ABORTED
#endif
        :: else
        fi
    }
}

/* ---- the dead -------------------------------------------------------------------------------- */

/* There is something to settle: its group, or that its memory has come free. */
#define IS_SETTLEABLE(k)                                                                         \
    (is_dead[k] && (named[k] != 0 || (memory[k] == 0 && occupied[k] + reserved[k] > 0)))

inline settle(k) {
#ifndef NO_settle_aborts
    if
    :: is_dead[k] && named[k] != 0 -> give_up(SLOT(k), named[k])
    :: else
    fi;
#endif
    d_step {
        if
        :: is_dead[k] ->
            named[k] = 0;
            is_ready[k] = false;
            wanted[k] = 0; /* it has created nothing before it folded */
            end_by_death(k);
            if
            :: memory[k] == 0 -> end_by_leave(k)
            :: else
            fi
        :: else
        fi
    }
}

/* ---- the grant ------------------------------------------------------------------------------- */

#define IS_OF_IT(k) (GROUP_OF(k) == GROUP_OF(i) && named[k] != 0 && named[k] == generation[SLOT(i)])
#define IS_IN_SLOT(k) (SLOT(k) == SLOT(i) && named[k] != 0)
#define IS_LOST(k) (IS_OF_IT(k) && is_dead[k])
#define IS_COMPLETE(i) (SUM(IS_OF_IT) == SIZE_OF(GROUP_OF(i)))

#ifdef NO_named_slot
#define IS_FREE(i) (PHASE(i) != GATHERING && PHASE(i) != OPEN)
#else
/* Also one that nobody names while it gathers: who opened it died before its own row said so. */
#define IS_FREE(i) (PHASE(i) != OPEN && SUM(IS_IN_SLOT) == 0)
#endif
#define IS_MISSING(i)                                                                            \
    (PHASE(i) == GATHERING && group_in[SLOT(i)] == GROUP_OF(i) && !IS_COMPLETE(i))
#define CAN_COME(i) (IS_FREE(i) || IS_MISSING(i))

/* A slot that has become free since the first step is left for another look. */
inline gather(i) {
    d_step {
        if
        :: IS_FREE(i) ->
            generation[SLOT(i)]++;
            group_in[SLOT(i)] = GROUP_OF(i);
            phase[SLOT(i)] = GATHERING
        :: else
        fi
    };
    atomic {
        if
        :: IS_MISSING(i) ->
            named[i] = generation[SLOT(i)];
            if
            :: !SLEEPS(i) -> move_come(i)
            :: else
            fi
        :: else
        fi
    }
}

/* What is taken of a device: of what a group's members want, as much as its word says. */
#ifdef NO_grant_counts
#define IS_GRANTED(k) false
#else
#ifdef NO_aborted_counts
#define IS_GRANTED(k) (PHASE(k) == OPEN || PHASE(k) == COMMITTED)
#else
#define IS_GRANTED(k) (PHASE(k) == OPEN || PHASE(k) == COMMITTED || PHASE(k) == ABORTED)
#endif
#endif
#define IS_ASKED(k) (IS_OF_IT(k) && PHASE(k) == GATHERING)
#define HAS(k)                                                                                   \
    (occupied[k] + reserved[k] +                                                                 \
     (((named[k] != 0 && IS_GRANTED(k)) || IS_ASKED(k)) -> wanted[k] : 0))
#define HAS_ON_0(k) (DEVICE_OF(k) == 0 -> HAS(k) : 0)
#define HAS_ON_1(k) (DEVICE_OF(k) == 1 -> HAS(k) : 0)
#define HAS_ON_2(k) (DEVICE_OF(k) == 2 -> HAS(k) : 0)
#ifdef NO_whole_grant
#define ALL_FIT true
#else
#define ALL_FIT (SUM(HAS_ON_0) <= TOTAL && SUM(HAS_ON_1) <= TOTAL && SUM(HAS_ON_2) <= TOTAL)
#endif
#define CAN_GRANT(i) (PHASE(i) == GATHERING && IS_COMPLETE(i) && ALL_FIT)

/* Rows only fall while others hold no lock, so that the decision may be late, never wrong. */
inline grant(i) {
    d_step { fits = CAN_GRANT(i) };
    d_step {
        if
        :: fits && PHASE(i) == GATHERING -> PHASE(i) = OPEN
        :: else
        fi;
        fits = false
    }
}

/* ---- a member -------------------------------------------------------------------------------- */

#ifdef NO_see_death
#define SEES_DEATH false
#else
#define SEES_DEATH (SUM(IS_LOST) > 0)
#endif
#ifdef NO_deadline
#define IS_LATE false
#else
#define IS_LATE is_late
#endif
#define CAN_SETTLE (SUM(IS_SETTLEABLE) > 0)

inline settle_one() {
    if
    :: IS_SETTLEABLE(0) -> settle(0)
    :: IS_SETTLEABLE(1) -> settle(1)
#if MEMBERS > 2
    :: IS_SETTLEABLE(2) -> settle(2)
#endif
    :: else
    fi
}

inline fail(i) {
    d_step { failures = 1; was_spoiled[GENERATION(i)] = true };
    give_up(SLOT(i), named[i])
}

#define IS_BESIDE(k) (DEVICE_OF(k) == DEVICE_OF(i) && k != i)
#define TAKEN_BESIDE(k) (IS_BESIDE(k) -> occupied[k] + reserved[k] : 0)
#define MEMORY_BESIDE(k) (IS_BESIDE(k) -> memory[k] : 0)

inline fold_alone(i) {
    atomic { SUM(TAKEN_BESIDE) == 0 -> move_fold(i) }
}

inline fold_grant(i) {
#ifdef NO_whole_grant
    fold_alone(i)
#else
    d_step { move_fold(i) }
#endif
}

inline create(i) {
    d_step { assert(SUM(MEMORY_BESIDE) < TOTAL); memory[i] = 1; assert(IN_BOOKS(i)) }
}

/* All that can fail. */
inline phase_one(i) {
    if
    :: SLEEPS(i) ->
        has_host[i] = true;
#ifdef NO_unmap_after
        memory[i] = 0
#endif
    :: !SLEEPS(i) ->
#ifdef NO_fold_first
        create(i);
        fold_grant(i);
#else
        fold_grant(i);
        create(i);
#endif
        d_step { move_commit(i); assert(IN_BOOKS(i)) };
#ifdef NO_host_kept
        has_host[i] = false
#endif
    fi
}

#ifdef NO_all_ready
#define ARE_READY (is_ready[i])
#else
#define IS_READY(k) (IS_OF_IT(k) && is_ready[k])
#define ARE_READY (SUM(IS_READY) == SIZE_OF(GROUP_OF(i)))
#endif

inline commit(i) {
#ifdef NO_commit_swap
    skip;
    d_step {
        if
        :: true ->
#else
    d_step {
        if
        :: PHASE(i) == OPEN && generation[SLOT(i)] == named[i] ->
#endif
            assert(!was_spoiled[GENERATION(i)]);
            PHASE(i) = COMMITTED;
            has_committed[GROUP_OF(i)] = true
        :: else
        fi
    }
}

inline leave_group(i) {
    named[i] = 0;
    is_ready[i] = false;
    wanted[i] = 0
}

/* The figures and the group leave the row at once. */
inline take_part(i) {
    d_step { was_taken[GENERATION(i)] = true; assert(!was_refused[GENERATION(i)]) };
    if
    :: SLEEPS(i) ->
        memory[i] = 0;
        d_step { move_take_part_asleep(i); leave_group(i) }
    :: else ->
#ifdef NO_one_publish
        leave_group(i);
        move_take_part_awake(i);
#else
        d_step { move_take_part_awake(i); leave_group(i) };
#endif
        d_step { assert(memory[i] == 1); has_host[i] = false };
#ifdef GIVES_BACK
        has_host[i] = true;
        memory[i] = 0;
        d_step { move_give_asleep(i) }
#endif
    fi
}

inline as_before(i) {
    d_step { was_refused[GENERATION(i)] = true; assert(!was_taken[GENERATION(i)]) };
    if
    :: SLEEPS(i) -> d_step { assert(memory[i] == 1); has_host[i] = false; leave_group(i) }
    :: else ->
        assert(has_host[i]);
        memory[i] = 0;
        d_step {
            if
            :: occupied[i] == 1 -> move_undo_created(i)
            :: reserved[i] == 1 -> move_undo_reserved(i)
            :: else
            fi;
            leave_group(i)
        }
    fi
}

proctype member(byte i) {
    bool fits, has_given_up;
    byte tries;

begin:
    {
        do
        :: named[i] != 0 -> break
        :: named[i] == 0 && (CAN_COME(i) || CAN_SETTLE) ->
            take_lock(i);
            settle_one();
            gather(i);
            unlock()
        :: named[i] == 0 && IS_LATE -> goto over
        od;
        do
        :: PHASE(i) != GATHERING -> break
        :: CAN_GRANT(i) || (PHASE(i) == GATHERING && CAN_SETTLE) ->
            take_lock(i);
            settle_one();
            grant(i);
            unlock()
        :: PHASE(i) == GATHERING && (SEES_DEATH || IS_LATE) -> give_up(SLOT(i), named[i])
        od;
        if
        :: PHASE(i) == OPEN -> phase_one(i)
        :: PHASE(i) == OPEN && MAY_FAIL -> fail(i); goto outcome
        :: PHASE(i) != OPEN -> goto outcome
        fi;
        if
        :: true -> is_ready[i] = true
        :: MAY_FAIL -> fail(i); goto outcome
        fi;
        do
        :: PHASE(i) != OPEN -> break
        :: PHASE(i) == OPEN && ARE_READY -> commit(i)
        :: PHASE(i) == OPEN && (SEES_DEATH || IS_LATE) ->
            give_up(SLOT(i), named[i]);
            has_given_up = true
#ifdef NO_ask_word
            ; break
#endif
        od;
outcome:
        assert(generation[SLOT(i)] == named[i]);
        if
#ifdef NO_ask_word
        :: PHASE(i) == COMMITTED && !has_given_up -> take_part(i)
        :: PHASE(i) != COMMITTED || has_given_up -> as_before(i)
#else
        :: PHASE(i) == COMMITTED -> take_part(i)
        :: PHASE(i) != COMMITTED -> as_before(i); tries++
#endif
        fi;
        if
        :: TRIES > 1 && tries == 1 && asleep[i] == 1 -> goto begin
        :: else
        fi;
over:
        is_over[i] = true
    } unless {
        atomic { is_dead[i] || is_stopped[i] };
        if
        :: is_stopped[i] -> goto ended
#ifdef AGAIN
        :: is_dead[i] && memory[i] == 0 -> /* it comes again, and settles itself if nobody has */
            take_lock(i + MEMBERS);
            settle(i);
            d_step {
                asleep[i] = 1;
                has_host[i] = true;
                is_dead[i] = false;
                tries = 1;
                fits = false
            };
            unlock();
            goto begin
#else
        :: is_dead[i]
#endif
        fi
    }
ended:
    skip
}

/* ---- the rest -------------------------------------------------------------------------------- */

inline kill(i) {
    d_step {
        deaths < DEATHS && !is_dead[i] && !is_over[i] && !is_stopped[i] ->
        deaths++;
        is_dead[i] = true;
        if
        :: named[i] != 0 && !is_ready[i] -> was_spoiled[GENERATION(i)] = true
        :: else
        fi
    }
}

inline come_free(i) {
    d_step { is_dead[i] && memory[i] > 0 -> memory[i] = 0 }
}

/* Not inside the lock: the others wait for it then, as lock.pml has it. */
inline stop(i) {
    d_step {
        !is_over[i] && !is_stopped[i] && lock == NOBODY ->
        is_stopped[i] = true
    }
}

proctype world() {
end:
    do
    :: kill(0) /* where all are alike it is the one that dies or stops, */
#if DEATHS > 1
    :: kill(1) /* or the other */
#endif
#if !defined(RANKS) && MEMBERS == 3
    :: kill(1)
    :: kill(2)
#endif
    :: come_free(0)
    :: come_free(1)
#if MEMBERS > 2
    :: come_free(2)
#endif
#ifdef STOPS
    :: stop(0)
#endif
#ifdef LATE
    :: d_step { !is_late -> is_late = true }
#endif
    od
}

/* Whether the member is awake, for one who looks from outside. */
inline see(k, is_awake) {
    do
    :: true ->
        d_step { name = named[k]; is_awake = (asleep[k] == 0) };
#ifdef NO_reader_word
        break
#else
        if
        :: name == 0 -> break
        :: else
        fi;
        d_step {
#ifdef NO_generation
            is_same = true;
#else
            is_same = (generation[SLOT(k)] == name);
#endif
            is_awake = (PHASE(k) == COMMITTED)
        };
        if
        :: is_same -> break
        :: else
        fi
#endif
    od
}

#ifdef READER
proctype reader() {
    byte name;
    bool is_same, is_first, is_second;

    see(0, is_first);
#ifdef RANKS
    see(1, is_second);
    assert(!is_first || is_second || is_dead[1])
#else
    assert(!is_first || has_committed[0])
#endif
}
#endif

#define IS_DONE(k) (is_dead[k] || is_over[k] || is_stopped[k])
#define ARE_OVER (SUM(IS_DONE) == MEMBERS)

/* When nothing moves any more without a deadline. */
proctype judge() {
    timeout;
    if
    :: ARE_OVER
    :: else -> /* somebody waits: for one who is stopped, or who never came or gave nothing */
        assert(is_stopped[0] ||
               (phase[0] != OPEN && phase[1] != OPEN && deaths + failures > 0));
        is_late = true;
        timeout;
        assert(ARE_OVER)
    fi
}

init {
    atomic {
        byte k;

        for (k : 0 .. MEMBERS - 1) {
            if
            :: SLEEPS(k) -> occupied[k] = 1; memory[k] = 1
            :: else -> asleep[k] = 1; has_host[k] = true
            fi;
            run member(k)
        }
#ifdef READER
        run reader();
#endif
        run world();
        run judge()
    }
}
