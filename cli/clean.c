/* SPDX-License-Identifier: Apache-2.0 */
#include "clean.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

/* Length of the UTF-8 sequence at a non-empty text and its code point; 0: not UTF-8 (overlong forms
 * and surrogates are not). The terminator is no continuation byte, so nothing past it is read. */
static size_t decode(const unsigned char *text, uint32_t *point) {
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80            ? 1
                    : (text[0] & 0xe0) == 0xc0 ? 2
                    : (text[0] & 0xf0) == 0xe0 ? 3
                    : (text[0] & 0xf8) == 0xf0 ? 4
                                               : 0;
    uint32_t value;

    if (length == 0)
        return 0;
    value = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (text[i] & 0x3fu);
    }
    if (value < smallest[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *point = value;
    return length;
}

static bool is_harmful(uint32_t point) {
    return point < 0x20 || (point >= 0x7f && point <= 0x9f) || /* C0, DEL, C1: cursor and colours */
           point == 0x200e || point == 0x200f ||               /* marks of direction */
           (point >= 0x2028 && point <= 0x202e) ||             /* line ends, overrides */
           (point >= 0x2066 && point <= 0x2069);               /* isolates */
}

/* The next character of a text as it may be shown; moves *text past it. */
static const char *next_shown(const char **text, size_t *length) {
    const char *at = *text;
    uint32_t point = 0;
    size_t used = decode((const unsigned char *)at, &point);

    *text = at + (used == 0 ? 1 : used);
    if (used == 0 || is_harmful(point)) {
        *length = sizeof replacement - 1;
        return replacement;
    }
    *length = used;
    return at;
}

char *clean_copy(const char *text, size_t most) {
    static const char rest[] = "...";
    /* A character has four bytes at most, or becomes a replacement: at worst every byte does. */
    size_t characters = strnlen(text, most);
    char *copy = malloc(characters * 4 + sizeof rest);
    char *end = copy;

    if (copy == NULL)
        return NULL;
    for (size_t count = 0; *text != '\0'; count++) {
        size_t length = sizeof rest - 1;
        const char *shown = count == most ? rest : next_shown(&text, &length);

        memcpy(end, shown, length);
        if (count == most)
            text = "";
        end += length;
    }
    *end = '\0';
    return copy;
}

void clean_print(FILE *out, const char *text, size_t most) {
    for (size_t count = 0; *text != '\0'; count++) {
        size_t length;
        const char *shown;

        if (count == most) {
            fputs("...", out);
            return;
        }
        shown = next_shown(&text, &length);
        fwrite(shown, 1, length, out);
    }
}
