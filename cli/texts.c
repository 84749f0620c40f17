/* SPDX-License-Identifier: Apache-2.0 */
#include "texts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "say.h"

__attribute__((format(printf, 2, 0)))
static bool add(struct texts *texts, const char *format, va_list args) {
    char *text;

    if (texts->count == texts->room) {
        size_t room = texts->room == 0 ? 16 : texts->room * 2;
        char **items = realloc(texts->items, room * sizeof *items);

        if (items == NULL)
            return false;
        texts->items = items;
        texts->room = room;
    }
    if (vasprintf(&text, format, args) < 0)
        return false;
    texts->items[texts->count++] = text;
    return true;
}

bool texts_add(struct texts *texts, const char *format, ...) {
    va_list args;
    bool added;

    va_start(args, format);
    added = add(texts, format, args);
    va_end(args);
    return added;
}

bool texts_say(struct texts *texts, const char *format, ...) {
    va_list args;
    bool added;

    va_start(args, format);
    added = add(texts, format, args);
    va_end(args);
    if (added)
        say("%s", texts->items[texts->count - 1]);
    return added;
}

void texts_free(struct texts *texts) {
    for (size_t i = 0; i < texts->count; i++)
        free(texts->items[i]);
    free(texts->items);
    *texts = (struct texts){0};
}
