/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_bar.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "figures.h"
#include "monotonic.h"

enum { CELLS = 20, LINE_BYTES = 256, COLUMNS_PRESET = 80 };

/* Not more often than ten times a second. */
#define PAINT_NS UINT64_C(100000000)

#define CURSOR_HIDE "\033[?25l"
#define CURSOR_SHOW "\033[?25h"
#define LINE_BEGIN "\r\033[K"
#define COLOR_END "\033[0m"

static const char *const colors[DEMO_SIDES] = {"\033[36m", "\033[33m"}; /* cyan, yellow */

void demo_bar_open(struct demo_bar *bar, bool is_quiet) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");

    memset(bar, 0, sizeof *bar);
    bar->is_quiet = is_quiet;
    bar->is_live = !is_quiet && isatty(STDOUT_FILENO) && term != NULL && *term != '\0' &&
                   strcmp(term, "dumb") != 0;
    bar->has_color = bar->is_live && (no_color == NULL || *no_color == '\0');
    if (bar->is_live)
        fputs(CURSOR_HIDE, stdout);
}

static size_t columns(void) {
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return COLUMNS_PRESET;
    return size.ws_col;
}

static uint64_t held_bytes(const struct demo_moment *moment, enum demo_who who) {
    return atomic_load_explicit(&moment->gauge->held_bytes[who], memory_order_relaxed);
}

/* Adds a part if there is room for all of it. */
__attribute__((format(printf, 3, 4))) static void part_add(char *text, size_t room,
                                                           const char *format, ...) {
    size_t length = strlen(text);
    char part[LINE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(part, sizeof part, format, args);
    va_end(args);
    if (length + strlen(part) < room)
        memcpy(text + length, part, strlen(part) + 1);
}

/* "rollout awake 698 MiB  hand-over 310 ms  2.3 GiB/s", as much of it as there is room for. */
static void state_write(const struct demo_moment *moment, char *text, size_t room) {
    uint64_t awake = held_bytes(moment, moment->awake);

    *text = '\0';
    part_add(text, room, "%s awake %s", demo_who_name(moment->awake),
             size_figure((double)awake).text);
    if (moment->hand_over_ns == 0)
        return;
    part_add(text, room, "  hand-over %.0f ms", (double)moment->hand_over_ns / 1e6);
    if (moment->woken_bytes > 0)
        part_add(text, room, "  %.1f GiB/s",
                 demo_report_rate(moment->woken_bytes, moment->hand_over_ns));
    if (moment->step == moment->setup->options.steps && moment->awake == DEMO_ROLLOUT)
        part_add(text, room, " (%s into fresh memory here: %.1f)",
                 demo_setup_copy_name(moment->setup), moment->copy_rate);
}

static int step_width(const struct demo_moment *moment) {
    return snprintf(NULL, 0, "%zu", moment->setup->options.steps);
}

/* The cells are the device: how much of it is held now. */
static size_t cells_filled(const struct demo_moment *moment) {
    uint64_t held = held_bytes(moment, DEMO_TRAINER) + held_bytes(moment, DEMO_ROLLOUT);
    uint64_t filled = held * CELLS / moment->setup->capacity_bytes;

    return filled > CELLS ? CELLS : (size_t)filled;
}

static void paint(const struct demo_bar *bar, const struct demo_moment *moment) {
    static const char full[] = "####################", empty[] = "--------------------";
    const char *color = bar->has_color ? colors[moment->awake] : "";
    size_t room = columns(), used, filled = cells_filled(moment);
    char head[64], state[LINE_BYTES] = "";

    snprintf(head, sizeof head, "step %*zu/%zu  ", step_width(moment), moment->step,
             moment->setup->options.steps);
    used = strlen(head) + CELLS + strlen("[]  ");
    if (room <= used) {
        printf(LINE_BEGIN "%.*s", (int)room - 1, head);
    } else {
        state_write(moment, state, room - used < sizeof state ? room - used : sizeof state);
        printf(LINE_BEGIN "%s[%s%.*s%s%.*s]  %s", head, color, (int)filled, full,
               bar->has_color ? COLOR_END : "", (int)(CELLS - filled), empty, state);
    }
    fflush(stdout);
}

void demo_bar_paint(void *argument, const struct demo_moment *moment) {
    struct demo_bar *bar = argument;
    uint64_t now = monotonic_ns();

    if (!bar->is_live || (now - bar->painted_ns < PAINT_NS && bar->painted_who == moment->awake))
        return;
    bar->painted_ns = now;
    bar->painted_who = moment->awake;
    paint(bar, moment);
}

bool demo_bar_step(void *argument, const struct demo_moment *moment) {
    const struct demo_bar *bar = argument;
    char state[LINE_BYTES];

    if (bar->is_live) {
        paint(bar, moment);
    } else if (!bar->is_quiet) {
        state_write(moment, state, sizeof state);
        printf("step %*zu/%zu  %s\n", step_width(moment), moment->step,
               moment->setup->options.steps, state);
        fflush(stdout);
    }
    return ferror(stdout) == 0;
}

void demo_bar_close(struct demo_bar *bar) {
    if (bar->is_live)
        fputs("\n" CURSOR_SHOW, stdout);
}
