/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a verb: one table says how each is read, what it is without being given, and what
 * --help prints. Values land in a plain struct of the verb's own. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed texts, in the order given: a repeatable option's values, or the paths. */
struct option_texts {
    const char **items; /* NULL follows the last */
    size_t count;
};

/* Reads a value into its field. Returns NULL, or what would have been right ("a number"). */
typedef const char *(*option_parse_fn)(const char *value, void *field);

struct option_row {
    const char *name;     /* without its dashes */
    const char *argument; /* what --help calls the value; NULL: a flag, parsed with value NULL */
    const char *preset;   /* the value where none is given; NULL: the field stays zero */
    const char *help;
    option_parse_fn parse;
    size_t offset; /* of the field */
};

struct option_table {
    const char *verb;
    const char *arguments; /* behind the options in the usage line */
    const char *summary;   /* a few lines: what it answers, from what */
    const char *more;      /* below the options: exit statuses and the like */
    bool ends_at_word;     /* the first word that is no option, and all behind it, is a command */
    const struct option_row *rows;
    size_t count;
};

const char *option_parse_flag(const char *value, void *field);   /* bool */
const char *option_parse_size(const char *value, void *field);   /* uint64_t */
const char *option_parse_count(const char *value, void *field);  /* size_t, at least 1 */
const char *option_parse_number(const char *value, void *field); /* uint64_t */
const char *option_parse_text(const char *value, void *field);   /* const char * */
const char *option_parse_append(const char *value, void *field); /* struct option_texts */

/* What a verb does with its options read; returns the exit status. */
typedef int (*option_run_fn)(void *values, const struct option_texts *paths);

/* Reads argv[1...] into *values (zeroed by the caller, the struct that the table's offsets are of)
 * and the rest into paths, and runs the verb with them; options may stand anywhere before "--".
 * Returns the exit status, also for --help and for what is wrong, which is said. What the values
 * borrow lasts as long as the run. */
int options_run(const struct option_table *table, int argc, char **argv, void *values,
                option_run_fn run);

/* The name that a mistyped one was probably meant to be; NULL: none is near. */
const char *option_nearest(const char *given, const char *const *names, size_t count);

#endif
