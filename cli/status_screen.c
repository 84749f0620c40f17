/* SPDX-License-Identifier: Apache-2.0 */
#include "status_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "stop_signal.h"

#define SCREEN_ENTER "\033[?1049h\033[?25l\033[2J"
#define SCREEN_LEAVE "\033[?25h\033[?1049l"

enum { PERIOD_MS = 1000, ESCAPE_MS = 50, COLUMNS_PRESET = 80, ROWS_PRESET = 24 };

static volatile sig_atomic_t has_changed, shall_stop, has_continued;

static void on_change(int number) {
    if (number == SIGTSTP)
        shall_stop = 1;
    else if (number == SIGCONT)
        has_continued = 1;
    else
        has_changed = 1;
}

static void handle(int number) {
    struct sigaction action = {.sa_handler = on_change, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

bool status_screen_is_there(void) {
    const char *term = getenv("TERM");

    return isatty(STDOUT_FILENO) != 0 && term != NULL && *term != '\0' && strcmp(term, "dumb") != 0;
}

static void enter(const struct status_screen *screen) {
    struct termios raw = screen->before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs(SCREEN_ENTER, stdout);
    fflush(stdout);
}

/* Not through stdio: what is left in its buffer may be what could not be written. */
static void leave(const struct status_screen *screen) {
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
    if (write(STDOUT_FILENO, SCREEN_LEAVE, sizeof SCREEN_LEAVE - 1) < 0)
        return; /* the terminal is gone */
}

void status_screen_open(struct status_screen *screen) {
    screen->has_keys = isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &screen->before) == 0;
    stop_signal_catch();
    handle(SIGWINCH);
    handle(SIGTSTP);
    handle(SIGCONT);
    enter(screen);
}

void status_screen_close(struct status_screen *screen) {
    fflush(stdout);
    leave(screen);
}

void status_screen_size(unsigned *columns, unsigned *rows) {
    struct winsize size;

    *columns = COLUMNS_PRESET;
    *rows = ROWS_PRESET;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return;
    if (size.ws_col > 0)
        *columns = size.ws_col;
    if (size.ws_row > 0)
        *rows = size.ws_row;
}

/* Stops as without us, with the terminal as it was. */
static void stop(const struct status_screen *screen) {
    shall_stop = 0;
    leave(screen);
    signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);
    handle(SIGTSTP);
    has_continued = 0;
    enter(screen);
}

/* What an escape sequence begins with is a key alone when nothing follows. */
static size_t rest_read(char *keys, size_t room) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    ssize_t got;

    if (poll(&input, 1, ESCAPE_MS) <= 0)
        return 0;
    got = read(STDIN_FILENO, keys, room);
    return got < 0 ? 0 : (size_t)got;
}

static enum screen_event key_read(void) {
    char keys[3] = "";
    ssize_t got = read(STDIN_FILENO, keys, 1);

    if (got != 1)
        return got < 0 && errno == EINTR ? SCREEN_PAINT : SCREEN_QUIT;
    if (keys[0] == '\033' && rest_read(keys + 1, 1) == 1 && (keys[1] == '[' || keys[1] == 'O'))
        rest_read(keys + 2, 1);
    else if (keys[0] == '\033')
        return SCREEN_BACK;
    switch (keys[0] == '\033' ? keys[2] : keys[0]) {
    case 'q': return SCREEN_QUIT;
    case 's': return SCREEN_SORT;
    case 'A':
    case 'k': return SCREEN_UP;
    case 'B':
    case 'j': return SCREEN_DOWN;
    case 'C':
    case '\r':
    case '\n': return SCREEN_OPEN;
    case 'D':
    case '\177': return SCREEN_BACK;
    default: return SCREEN_PAINT;
    }
}

enum screen_event status_screen_wait(struct status_screen *screen) {
    struct pollfd input = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    int ready = has_changed || shall_stop || has_continued ? 0 : poll(&input, 1, PERIOD_MS);

    if (stop_signal_came())
        return SCREEN_QUIT;
    if (shall_stop)
        stop(screen);
    else if (has_continued)
        enter(screen); /* who stopped it has used the terminal */
    has_continued = has_changed = 0;
    return ready > 0 ? key_read() : SCREEN_PAINT;
}
