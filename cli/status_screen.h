/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal of `tidegate status --live`: its other screen, keys without Enter, and the way back
 * to what it was, also when a signal ends or stops the command. */
#ifndef CLI_STATUS_SCREEN_H
#define CLI_STATUS_SCREEN_H

#include <stdbool.h>
#include <termios.h>

struct status_screen {
    struct termios before;
    bool has_keys; /* stdin is a terminal, whose modes were `before` */
};

/* What has come; in the order in which it is told when there are several. */
enum screen_event {
    SCREEN_QUIT, /* q, a signal that asks for an end, or the terminal is gone */
    SCREEN_UP,
    SCREEN_DOWN,
    SCREEN_OPEN,
    SCREEN_BACK,
    SCREEN_SORT,
    SCREEN_PAINT /* a second has passed, the size has changed, or the command goes on */
};

/* Whether stdout can be painted on. */
bool status_screen_is_there(void);
void status_screen_open(struct status_screen *screen);
void status_screen_close(struct status_screen *screen);
void status_screen_size(unsigned *columns, unsigned *rows);
/* Waits for it up to a second. */
enum screen_event status_screen_wait(struct status_screen *screen);

#endif
