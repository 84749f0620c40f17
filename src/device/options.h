/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a device's URI: "key=value,key=value", against a table of the keys that the kind
 * knows. Every fault is one sentence that says what is wrong and what would be right. */
#ifndef TG_DEVICE_OPTIONS_H
#define TG_DEVICE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TG__OPTION_WORD_BYTES = 32 }; /* with the ending 0 */

enum tg__option_kind {
    TG__OPTION_SIZE,   /* bytes with a unit, a multiple of 2 MiB, not 0, at most `max` */
    TG__OPTION_NUMBER, /* min … max */
    TG__OPTION_WORD    /* letters, digits, '_', '-', '.' */
};

struct tg__option {
    const char *key;
    enum tg__option_kind kind;
    uint64_t min, max;
    const char *example; /* for the sentences */
    bool is_given;       /* written by parse, as the next two */
    uint64_t number;
    char word[TG__OPTION_WORD_BYTES];
};

/* Reads `text_bytes` of `text` into the table. Errors: -EINVAL. */
int tg__options_parse(const char *kind, const char *text, size_t text_bytes,
                      struct tg__option *options, size_t count);

#endif
