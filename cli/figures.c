/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const unit_names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

enum { UNIT_COUNT = sizeof unit_names / sizeof unit_names[0] };

/* What stands behind the number: K, Ki, KiB (1024) or KB (1000), and so on up to E. */
static bool unit_read(const char *text, double *factor) {
    static const char letters[] = "kmgtpe";
    const char *letter;
    double base = 1024;

    *factor = 1;
    if (*text == '\0' || strcasecmp(text, "b") == 0)
        return true;
    letter = strchr(letters, tolower((unsigned char)*text));
    if (letter == NULL)
        return false;
    if (strcasecmp(text + 1, "b") == 0)
        base = 1000;
    else if (text[1] != '\0' && strcasecmp(text + 1, "i") != 0 && strcasecmp(text + 1, "ib") != 0)
        return false;
    for (const char *at = letters; at <= letter; at++)
        *factor *= base;
    return true;
}

bool size_read(const char *text, uint64_t *bytes) {
    double value, factor;
    char *end;

    /* strtod would also take signs, blanks, hexadecimal, inf and nan. */
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false;
    if (text[0] == '0' && tolower((unsigned char)text[1]) == 'x')
        return false;
    value = strtod(text, &end);
    if (end == text)
        return false;
    while (*end == ' ')
        end++;
    if (!unit_read(end, &factor) || !(value * factor < 0x1p63))
        return false;
    *bytes = (uint64_t)(value * factor);
    return true;
}

/* The unit in which a size reads well: 1023.5 MiB and more round to 1.0 GiB. */
static size_t unit_of(double bytes) {
    size_t unit = 0;

    while (bytes >= 1023.5 && unit < UNIT_COUNT - 1) {
        bytes /= 1024;
        unit++;
    }
    return unit;
}

/* One decimal below 100, unless it says nothing: 2.0, 14, 70.5, 141. */
static void number_write(double value, size_t unit, char *text, size_t size) {
    size_t length;

    for (size_t i = 0; i < unit; i++)
        value /= 1024;
    if (unit == 0 || value >= 99.95) {
        snprintf(text, size, "%.0f", value);
        return;
    }
    snprintf(text, size, "%.1f", value);
    length = strlen(text);
    if (length >= 4 && strcmp(text + length - 2, ".0") == 0)
        text[length - 2] = '\0';
}

struct figure size_figure(double bytes) {
    size_t unit = unit_of(bytes);
    struct figure figure;
    char number[FIGURE_BYTES - 8];

    number_write(bytes, unit, number, sizeof number);
    snprintf(figure.text, sizeof figure.text, "%s %s", number, unit_names[unit]);
    return figure;
}

void size_apart_figures(double low, double high, struct figure *low_figure,
                        struct figure *high_figure) {
    size_t unit = unit_of(high);

    *low_figure = size_figure(low);
    *high_figure = size_figure(high);
    for (size_t i = 0; i < unit; i++) {
        low /= 1024;
        high /= 1024;
    }
    for (int digits = 1; digits < 10 && strcmp(low_figure->text, high_figure->text) == 0;
         digits++) {
        snprintf(low_figure->text, sizeof low_figure->text, "%.*f %s", digits, low,
                 unit_names[unit]);
        snprintf(high_figure->text, sizeof high_figure->text, "%.*f %s", digits, high,
                 unit_names[unit]);
    }
}

struct figure size_range_figure(double low, double high) {
    size_t unit = unit_of(high);
    struct figure figure;
    char first[FIGURE_BYTES / 2 - 1], last[FIGURE_BYTES / 2 - 1];

    number_write(low, unit, first, sizeof first);
    number_write(high, unit, last, sizeof last);
    if (strcmp(first, last) == 0)
        snprintf(figure.text, sizeof figure.text, "%s", last);
    else
        snprintf(figure.text, sizeof figure.text, "%s-%s", first, last);
    return figure;
}

struct figure count_figure(uint64_t count) {
    static const char *const names[] = {"", " k", " M", " G"};
    double value = (double)count;
    struct figure figure;
    size_t unit = 0;

    while (value >= 999.5 && unit < 3) {
        value /= 1000;
        unit++;
    }
    snprintf(figure.text, sizeof figure.text, unit == 0 || value >= 99.95 ? "%.0f%s" : "%.1f%s",
             value, names[unit]);
    return figure;
}

struct figure grouped_figure(uint64_t count) {
    char digits[FIGURE_BYTES];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    struct figure figure;
    size_t at = 0;

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            figure.text[at++] = ',';
        figure.text[at++] = digits[i];
    }
    figure.text[at] = '\0';
    return figure;
}

struct figure plural_figure(uint64_t count, const char *noun) {
    struct figure figure;

    snprintf(figure.text, sizeof figure.text, "%llu %s%s", (unsigned long long)count, noun,
             count == 1 ? "" : "s");
    return figure;
}

bool number_read(const char *text, size_t length, int64_t *number) {
    int64_t value = 0;

    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, text[i] - '0', &value))
            return false;
    }
    *number = value;
    return true;
}
