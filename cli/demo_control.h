/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's supervisor: starts the two sides, gives orders and collects replies, kills where it is
 * told to, and starts anew what has died. It opens no device itself: its children are forked from a
 * process that holds nothing, and their deaths are noticed by the end of their sockets. */
#ifndef CLI_DEMO_CONTROL_H
#define CLI_DEMO_CONTROL_H

#include <sys/types.h>

#include "demo_side.h"

struct demo_child {
    pid_t pid;
    int fd;
    bool is_new;  /* has not been ordered to begin: holds nothing of the device */
    bool is_busy; /* an order is not yet answered */
    bool is_doomed; /* has been killed, and has not yet ended */
    uint64_t stopped_ns; /* busy, and seen standing still for so long */
    bool has_died;  /* since the last order; it is new again */
    struct demo_reply reply; /* to the last order, if it has not died */
};

/* When which side is to be killed; who DEMO_SIDES: nobody. */
struct demo_kill {
    enum demo_who who;
    uint64_t at_ns; /* CLOCK_MONOTONIC; earlier if all have answered before */
};

struct demo_control {
    const struct demo_setup *setup;
    struct demo_gauge *gauge;
    struct demo_child children[DEMO_SIDES];
    uint64_t kills, unasked_kills;
    uint64_t looked_ns;  /* for sides that stand still */
    struct sentence why; /* of DEMO_FAILED */
    void (*passes)(void *argument); /* called ten times a second while waiting */
    void *argument;
};

enum demo_outcome {
    DEMO_DONE,    /* all have answered, or died and were started anew */
    DEMO_STOPPED, /* Ctrl-C */
    DEMO_FAILED   /* `why` says it */
};

/* Starts both sides. */
enum demo_outcome demo_control_open(struct demo_control *control, const struct demo_setup *setup);
/* Ends both sides and waits for them; one that does not end within 2 s is killed. */
void demo_control_close(struct demo_control *control);

/* Gives an order; demo_control_await collects the reply. */
void demo_control_order(struct demo_control *control, enum demo_who who, enum demo_what what,
                        uint32_t step);
/* Until every busy side has answered or died; fails when one stands still for long. */
enum demo_outcome demo_control_await(struct demo_control *control, const struct demo_kill *kill);

#endif
