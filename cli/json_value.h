/* SPDX-License-Identifier: Apache-2.0 */
/* Building JSON objects: every adding function returns 0, or not 0 where memory was short; what was
 * made so far is then thrown away by json_whole. */
#ifndef CLI_JSON_VALUE_H
#define CLI_JSON_VALUE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

/* Jansson's setters take the value over, and answer NULL (no memory) with -1. */
static inline int json_put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value);
}

/* A value that is finished, or thrown away because a part of it is missing. */
json_t *json_whole(json_t *value, int failed);

json_t *json_count(uint64_t count);

/* -1 stands for "not known" in the library. */
json_t *json_known(int64_t number);

/* Made harmless, and cut after `most` characters. */
json_t *json_text(const char *text, size_t most);

/* The same; null where there is none. */
json_t *json_text_if_any(const char *text, size_t most);

/* Prints the object on a line, and lets it go. `failed`: it is not whole. False: no memory; that
 * stdout could not be written is said by main. */
bool json_print(json_t *object, int failed);

/* Writes it on a line of a file, and lets it go. False: not written, errno says why. */
bool json_print_to(FILE *out, json_t *object);

#endif
