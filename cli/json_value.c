/* SPDX-License-Identifier: Apache-2.0 */
#include "json_value.h"

#include <stdlib.h>

#include "clean.h"

/* Significant digits of rates: enough for bytes in a petabyte, without the noise of a double. */
#define REAL_DIGITS 15

json_t *json_whole(json_t *value, int failed) {
    if (failed == 0)
        return value;
    json_decref(value);
    return NULL;
}

json_t *json_count(uint64_t count) {
    return json_integer(count > INT64_MAX ? INT64_MAX : (json_int_t)count);
}

json_t *json_known(int64_t number) {
    return number < 0 ? json_null() : json_integer(number);
}

json_t *json_text(const char *text, size_t most) {
    char *shown = clean_copy(text, most);
    json_t *value = shown == NULL ? NULL : json_string(shown);

    free(shown);
    return value;
}

json_t *json_text_if_any(const char *text, size_t most) {
    return *text == '\0' ? json_null() : json_text(text, most);
}

bool json_print_to(FILE *out, json_t *object) {
    bool is_printed =
        json_dumpf(object, out, JSON_REAL_PRECISION(REAL_DIGITS)) == 0 && fputc('\n', out) != EOF;

    json_decref(object);
    return is_printed;
}

bool json_print(json_t *object, int failed) {
    if (failed != 0) {
        json_decref(object);
        return false;
    }
    return json_print_to(stdout, object) || ferror(stdout);
}
