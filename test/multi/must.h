/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the process with a sentence where a condition does not hold: a failure under Check, which
 * sees the abort, and in programs without it. */
#ifndef TEST_MULTI_MUST_H
#define TEST_MULTI_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(condition, ...)                                              \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                 \
            fputc('\n', stderr);                                          \
            abort();                                                      \
        }                                                                 \
    } while (0)

#endif
