/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "say.h"
#include "verb.h"

enum {
    NAME_BYTES_MAX = 32,  /* longer words are not compared: no name is that long */
    HELP_COLUMN = 24,     /* where the help texts begin */
    OPTIONS_MAX = 32      /* rows of one table */
};

const char *option_parse_flag(const char *value, void *field) {
    (void)value;
    *(bool *)field = true;
    return NULL;
}

const char *option_parse_size(const char *value, void *field) {
    return size_read(value, field) ? NULL : "a size such as 80GiB or 1e9";
}

const char *option_parse_count(const char *value, void *field) {
    int64_t number;

    if (!number_read(value, strlen(value), &number) || number < 1)
        return "a number from 1 on";
    *(size_t *)field = (size_t)number;
    return NULL;
}

const char *option_parse_number(const char *value, void *field) {
    int64_t number;

    if (!number_read(value, strlen(value), &number))
        return "a whole number";
    *(uint64_t *)field = (uint64_t)number;
    return NULL;
}

const char *option_parse_text(const char *value, void *field) {
    if (*value == '\0')
        return "a text that is not empty";
    *(const char **)field = value;
    return NULL;
}

/* options_read has made room for as many items as there are words. */
const char *option_parse_append(const char *value, void *field) {
    struct option_texts *texts = field;

    if (*value == '\0')
        return "a text that is not empty";
    texts->items[texts->count++] = value;
    return NULL;
}

static size_t least(size_t a, size_t b, size_t c) {
    size_t smaller = a < b ? a : b;

    return smaller < c ? smaller : c;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn one word into another. */
static size_t edit_distance(const char *a, const char *b) {
    size_t rows[NAME_BYTES_MAX + 1][NAME_BYTES_MAX + 1];
    size_t a_length = strlen(a), b_length = strlen(b);

    if (a_length > NAME_BYTES_MAX || b_length > NAME_BYTES_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= a_length; i++)
        rows[i][0] = i;
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);

            rows[i][j] = least(rows[i - 1][j] + 1, rows[i][j - 1] + 1, replaced);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                rows[i][j] = least(rows[i][j], rows[i - 2][j - 2] + 1, SIZE_MAX);
        }
    }
    return rows[a_length][b_length];
}

const char *option_nearest(const char *given, const char *const *names, size_t count) {
    const char *nearest = NULL;
    size_t nearest_distance = strlen(given) < 6 ? 1 : strlen(given) / 3; /* more: another word */

    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(given, names[i]);

        /* The beginning of a name is as near as a name can be. */
        if (*given != '\0' && strncmp(given, names[i], strlen(given)) == 0)
            distance = 0;
        if (distance < nearest_distance || (distance == nearest_distance && nearest == NULL)) {
            nearest = names[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}

static void help_print(const struct option_table *table) {
    printf("usage: tidegate %s [OPTION...] %s\n\n%s\n", table->verb, table->arguments,
           table->summary);
    for (size_t i = 0; i < table->count; i++) {
        const struct option_row *row = &table->rows[i];
        int width = printf("  --%s%s%s", row->name, row->argument == NULL ? "" : " ",
                           row->argument == NULL ? "" : row->argument);

        printf("%*s%s", width < HELP_COLUMN - 1 ? HELP_COLUMN - width : 2, "", row->help);
        if (row->preset != NULL)
            printf(" (default %s)", row->preset);
        putchar('\n');
    }
    printf("  %-*s%s\n\n%s", HELP_COLUMN - 2, "--help", "this text", table->more);
}

static void say_unknown(const struct option_table *table, const char *name) {
    const char *names[OPTIONS_MAX + 1] = {"help"};
    const char *nearest;

    for (size_t i = 0; i < table->count && i < OPTIONS_MAX; i++)
        names[i + 1] = table->rows[i].name;
    nearest = option_nearest(name, names, table->count + 1);
    if (nearest == NULL)
        say("%s has no option --%s; tidegate %s --help lists them", table->verb, name,
            table->verb);
    else
        say("%s has no option --%s; maybe: --%s?", table->verb, name, nearest);
}

static const struct option_row *row_find(const struct option_table *table, const char *name,
                                         size_t length) {
    for (size_t i = 0; i < table->count; i++) {
        if (strncmp(table->rows[i].name, name, length) == 0 &&
            table->rows[i].name[length] == '\0')
            return &table->rows[i];
    }
    return NULL;
}

/* Reads --NAME, --NAME=VALUE or --NAME VALUE at argv[*at], and moves *at to its last word. */
static bool option_read(const struct option_table *table, int argc, char **argv, int *at,
                        void *values) {
    char *name = argv[*at] + 2;
    char *equals = strchr(name, '=');
    size_t length = equals == NULL ? strlen(name) : (size_t)(equals - name);
    const struct option_row *row = row_find(table, name, length);
    const char *value = equals == NULL ? NULL : equals + 1;
    const char *wanted;

    if (row == NULL) {
        name[length] = '\0';
        say_unknown(table, name);
        return false;
    }
    if (row->argument == NULL && value != NULL) {
        say("--%s takes no value", row->name);
        return false;
    }
    if (row->argument != NULL && value == NULL) {
        if (*at + 1 >= argc) {
            say("--%s needs its %s", row->name, row->argument);
            return false;
        }
        value = argv[++*at];
    }
    wanted = row->parse(value, (char *)values + row->offset);
    if (wanted != NULL)
        say("--%s wants %s, not '%s'", row->name, wanted, value);
    return wanted == NULL;
}

/* Fields of repeatable options get room for as many texts as there are words; others their preset.
 */
static bool fields_begin(const struct option_table *table, int argc, void *values) {
    for (size_t i = 0; i < table->count; i++) {
        const struct option_row *row = &table->rows[i];
        void *field = (char *)values + row->offset;

        if (row->parse == option_parse_append) {
            struct option_texts *texts = field;

            texts->items = calloc((size_t)argc, sizeof *texts->items);
            if (texts->items == NULL)
                return false;
        } else if (row->preset != NULL) {
            row->parse(row->preset, field);
        }
    }
    return true;
}

enum option_result { OPTIONS_GO_ON, OPTIONS_HELP_PRINTED, OPTIONS_WRONG };

static enum option_result options_read(const struct option_table *table, int argc, char **argv,
                                       void *values, struct option_texts *paths) {
    bool only_paths = false;

    paths->count = 0;
    paths->items = calloc((size_t)argc, sizeof *paths->items);
    if (paths->items == NULL || !fields_begin(table, argc, values)) {
        say_no_memory();
        return OPTIONS_WRONG;
    }
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];

        if (only_paths || word[0] != '-' || word[1] == '\0') {
            paths->items[paths->count++] = word;
            only_paths |= table->ends_at_word;
        } else if (strcmp(word, "--") == 0) {
            only_paths = true;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            help_print(table);
            return OPTIONS_HELP_PRINTED;
        } else if (word[1] != '-') {
            say("%s has no option %s: options begin with --", table->verb, word);
            return OPTIONS_WRONG;
        } else if (!option_read(table, argc, argv, &i, values)) {
            return OPTIONS_WRONG;
        }
    }
    return OPTIONS_GO_ON;
}

static void options_free(const struct option_table *table, void *values,
                         struct option_texts *paths) {
    for (size_t i = 0; i < table->count; i++) {
        if (table->rows[i].parse == option_parse_append) {
            struct option_texts *texts = (void *)((char *)values + table->rows[i].offset);

            free(texts->items);
            texts->items = NULL;
        }
    }
    free(paths->items);
    paths->items = NULL;
}

int options_run(const struct option_table *table, int argc, char **argv, void *values,
                option_run_fn run) {
    struct option_texts paths;
    int status = EXIT_WRONG;

    switch (options_read(table, argc, argv, values, &paths)) {
    case OPTIONS_GO_ON:
        status = run(values, &paths);
        break;
    case OPTIONS_HELP_PRINTED:
        status = EXIT_ANSWERED;
        break;
    case OPTIONS_WRONG:
        break;
    }
    options_free(table, values, &paths);
    return status;
}
