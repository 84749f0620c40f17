/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until memory comes free (src/ledger/wait.c; reserve.c, reserve_waiting; account.c,
 * tg__device_wake): two waiters, and a giver that gives two units one after the other and may die.
 *
 * Promised: nobody sleeps while there is for him. Without deaths that holds by the sign and the
 * change word alone; where a giver may die between its publish and its wake, by looking every
 * 10 ms. Left out: the order of arrival (unit tests admit_test and wait_test), the deadline.
 *
 * run signs: -DNO_poll
 * run deaths: -DDEATHS
 *
 * guard sign_first: the sign goes up before the look          (signs)
 * guard change_first: the change is noted before the sign     (signs)
 * guard publish_first: a giver publishes, then looks for the sign (signs)
 * guard down_first: a giver takes the sign down, then counts the change up (signs)
 * guard while_same: who sleeps does so only while the change is as noted (signs)
 * guard poll: a waiter looks again by itself                  (deaths)
 */
byte units;        /* that nobody has */
bool has_waiters;  /* the sign */
byte change;
bool is_asleep[2];
bool is_dead;

#ifdef NO_poll
#define POLL_ENDS false
#else
#define POLL_ENDS (units > 0)
#endif

inline wake_all() {
    if
    :: has_waiters ->
#ifdef NO_down_first
        change++;
        d_step { is_asleep[0] = false; is_asleep[1] = false }
        has_waiters = false
#else
        has_waiters = false;
        change++;
        d_step { is_asleep[0] = false; is_asleep[1] = false }
#endif
    :: else
    fi
}

proctype giver() {
    byte gives;
    bool saw;

    {
        do
        :: gives < 2 ->
            gives++;
#ifdef NO_publish_first
            saw = has_waiters;
            units++;
            if
            :: saw -> wake_all()
            :: else
            fi
#else
            units++;
            wake_all()
#endif
        :: else -> break
        od
    } unless { is_dead }
}

proctype waiter(byte i) {
    byte seen;
    bool may_sleep, got;

    do
    :: true ->
#ifdef NO_change_first
        if
        :: may_sleep -> has_waiters = true
        :: else
        fi;
        seen = change;
#else
        seen = change;
#ifndef NO_sign_first
        if
        :: may_sleep -> has_waiters = true
        :: else
        fi;
#endif
#endif
        d_step { /* the look, under the file's lock */
            got = (units > 0);
            if
            :: got -> units--
            :: else
            fi
        }
        if
        :: got -> break
        :: else
        fi;
#ifdef NO_sign_first
        if
        :: may_sleep -> has_waiters = true
        :: else
        fi;
#endif
        if
        :: may_sleep ->
#ifdef NO_while_same
            is_asleep[i] = true;
#else
            d_step {
                if
                :: change == seen -> is_asleep[i] = true
                :: else
                fi
            }
#endif
            if
            :: !is_asleep[i]
            :: POLL_ENDS -> is_asleep[i] = false
#ifdef DEATHS
            :: is_dead && units == 0 -> goto over /* its deadline: nobody is left to give */
#endif
            fi
        :: else -> may_sleep = true
        fi
    od;
#ifdef DEATHS
over:
#endif
    skip
}

proctype killer() {
#ifdef DEATHS
    is_dead = true
#else
    skip
#endif
}

init {
    atomic {
        run giver();
        run waiter(0);
        run waiter(1);
        run killer()
    }
}
