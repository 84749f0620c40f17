/* SPDX-License-Identifier: Apache-2.0 */
#include "device/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "device/host.h"

/* What a sentence quotes of a text, at most. */
enum { QUOTED = 48 };


/* A piece of the URI, not terminated. */
struct piece {
    const char *text;
    size_t size;
};

static int quoted(struct piece piece) {
    return (int)(piece.size < QUOTED ? piece.size : QUOTED);
}

/* All digits at the piece's start; *rest is what follows. false: none, or more than fits. */
static bool read_number(struct piece piece, uint64_t *number, struct piece *rest) {
    uint64_t value = 0;
    size_t i = 0;

    for (; i < piece.size && piece.text[i] >= '0' && piece.text[i] <= '9'; i++) {
        uint64_t digit = (uint64_t)(piece.text[i] - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *number = value;
    *rest = (struct piece){piece.text + i, piece.size - i};
    return i > 0;
}

static int bad(const struct tg__option *option, struct piece value, const char *why) {
    return tg__fail(-EINVAL, "%s=%.*s: %s, as in %s=%s", option->key, quoted(value), value.text,
                    why, option->key, option->example);
}

/* How far a unit shifts; 0: it is none. */
static unsigned unit_shift(struct piece unit) {
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (unit.size == 3 && memcmp(units[i].name, unit.text, 3) == 0)
            return units[i].shift;
    }
    return 0;
}

static bool is_digit(struct piece piece) {
    return piece.size > 0 && piece.text[0] >= '0' && piece.text[0] <= '9';
}

static int read_size(struct tg__option *option, struct piece value) {
    uint64_t number;
    struct piece unit;
    unsigned shift;
    char why[64];

    snprintf(why, sizeof why, "at most %" PRIu64 " TiB is possible", option->max >> 40);
    if (!is_digit(value))
        return bad(option, value, "a size is digits and a unit");
    if (!read_number(value, &number, &unit))
        return bad(option, value, why);
    shift = unit_shift(unit);
    if (shift == 0)
        return bad(option, value,
                   unit.size == 0 ? "the unit is missing: KiB, MiB, GiB or TiB"
                                  : "after the digits comes KiB, MiB, GiB or TiB and nothing more");
    if (number > option->max >> shift)
        return bad(option, value, why);
    if (number == 0)
        return bad(option, value, "it must be more than 0");
    option->number = number << shift;
    if (option->number % TG__HOST_GRANULE_BYTES != 0)
        return bad(option, value, "a size is a multiple of 2 MiB");
    return 0;
}

static int read_count(struct tg__option *option, struct piece value) {
    uint64_t number = 0;
    struct piece rest;
    char why[96];
    bool is_number = read_number(value, &number, &rest) && rest.size == 0;

    if (is_number && number >= option->min && number <= option->max) {
        option->number = number;
        return 0;
    }
    snprintf(why, sizeof why, "a whole number from %" PRIu64 " to %" PRIu64 " is expected",
             option->min, option->max);
    return bad(option, value, why);
}

static bool is_word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '-' || c == '.';
}

static int read_word(struct tg__option *option, struct piece value) {
    bool is_word = value.size > 0 && value.size < sizeof option->word;

    for (size_t i = 0; i < value.size && is_word; i++)
        is_word = is_word_char(value.text[i]);
    if (!is_word)
        return bad(option, value, "1 to 31 letters, digits, '_', '-' or '.' are expected");
    memcpy(option->word, value.text, value.size);
    option->word[value.size] = '\0';
    return 0;
}

static int unknown(const char *kind, struct piece key, const struct tg__option *options,
                   size_t count) {
    char known[160] = "";

    for (size_t i = 0; i < count; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i == 0 ? "" : ", ", options[i].key);
    }
    return tg__fail(-EINVAL, "%s has no option \"%.*s\", but %s", kind, quoted(key), key.text,
                    known);
}

static int read_option(const char *kind, struct piece text, struct tg__option *options,
                       size_t count) {
    const char *equals = memchr(text.text, '=', text.size);
    struct piece key = {text.text, equals == NULL ? text.size : (size_t)(equals - text.text)};
    struct tg__option *option = NULL;
    struct piece value;

    if (text.size == 0)
        return tg__fail(-EINVAL, "%s: an option is empty: write key=value, with one comma between "
                        "two options", kind);
    for (size_t i = 0; i < count && option == NULL; i++) {
        if (strlen(options[i].key) == key.size && memcmp(options[i].key, key.text, key.size) == 0)
            option = &options[i];
    }
    if (option == NULL)
        return unknown(kind, key, options, count);
    if (equals == NULL)
        return tg__fail(-EINVAL, "%s: %s needs a value, as in %s=%s", kind, option->key,
                        option->key, option->example);
    if (option->is_given)
        return tg__fail(-EINVAL, "%s: %s is given twice: once is enough", kind, option->key);
    option->is_given = true;
    value = (struct piece){equals + 1, text.size - key.size - 1};
    if (option->kind == TG__OPTION_SIZE)
        return read_size(option, value);
    return option->kind == TG__OPTION_NUMBER ? read_count(option, value) : read_word(option, value);
}

int tg__options_parse(const char *kind, const char *text, size_t text_bytes,
                      struct tg__option *options, size_t count) {
    const char *end = text + text_bytes;
    int rc = 0;

    while (rc == 0 && text_bytes > 0) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma == NULL ? end : comma;

        rc = read_option(kind, (struct piece){text, (size_t)(stop - text)}, options, count);
        if (comma == NULL)
            break;
        text = comma + 1;
    }
    return rc;
}
