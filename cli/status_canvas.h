/* SPDX-License-Identifier: Apache-2.0 */
/* Lines cut to a terminal's width, of which a window is printed and the others are only counted. */
#ifndef CLI_STATUS_CANVAS_H
#define CLI_STATUS_CANVAS_H

#include <stdbool.h>
#include <stdio.h>

#define CANVAS_HOME "\033[H"

enum canvas_style {
    CANVAS_PLAIN,
    CANVAS_BOLD,
    CANVAS_REVERSE,
    CANVAS_RED,
    CANVAS_GREEN,
    CANVAS_YELLOW,
    CANVAS_BLUE,
    CANVAS_CYAN
};

struct canvas {
    FILE *out; /* NULL: lines are counted alone */
    unsigned columns, column;
    unsigned line, from, to; /* lines from `from` and before `to` are printed */
    unsigned mark;           /* the line that shall be seen */
    bool has_mark;
    bool has_color; /* styles are printed */
    bool is_last;   /* nothing follows its last line */
};

/* Printable ASCII; what does not fit into the line is cut off. */
__attribute__((format(printf, 3, 4))) void canvas_put(struct canvas *canvas,
                                                      enum canvas_style style, const char *format,
                                                      ...);
void canvas_end(struct canvas *canvas);
void canvas_mark(struct canvas *canvas);

#endif
