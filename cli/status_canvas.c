/* SPDX-License-Identifier: Apache-2.0 */
#include "status_canvas.h"

#include <stdarg.h>
#include <string.h>

#define LINE_REST_CLEAR "\033[K"

enum { PIECE_BYTES = 512 };

static bool is_shown(const struct canvas *canvas) {
    return canvas->out != NULL && canvas->line >= canvas->from && canvas->line < canvas->to;
}

void canvas_put(struct canvas *canvas, enum canvas_style style, const char *format, ...) {
    static const char *const codes[] = {"",         "\033[1m",  "\033[7m",  "\033[31m",
                                        "\033[32m", "\033[33m", "\033[34m", "\033[36m"};
    bool is_styled = canvas->has_color && style != CANVAS_PLAIN;
    char piece[PIECE_BYTES];
    size_t length, room = canvas->columns - canvas->column;
    va_list args;

    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    length = strlen(piece);
    if (length > room)
        length = room;
    canvas->column += (unsigned)length;
    if (is_shown(canvas) && length > 0)
        fprintf(canvas->out, "%s%.*s%s", is_styled ? codes[style] : "", (int)length, piece,
                is_styled ? "\033[0m" : "");
}

/* A full line has no rest: the cursor still stands on its last character. */
void canvas_end(struct canvas *canvas) {
    if (is_shown(canvas) && canvas->column < canvas->columns)
        fputs(LINE_REST_CLEAR, canvas->out);
    if (is_shown(canvas) && !(canvas->is_last && canvas->line + 1 == canvas->to))
        fputs("\r\n", canvas->out);
    canvas->column = 0;
    canvas->line++;
}

void canvas_mark(struct canvas *canvas) {
    canvas->has_mark = true;
    canvas->mark = canvas->line;
}
