/* SPDX-License-Identifier: Apache-2.0 */
/* The names of programs that Tidegate has seams in, as users type them. */
#ifndef CLI_PROGRAMS_H
#define CLI_PROGRAMS_H

#include <stdbool.h>
#include <stddef.h>

enum program {
#define PROGRAM(name, options, plugins, is_lenient) PROGRAM_##name,
#include "programs.def"
#undef PROGRAM
    PROGRAM_COUNT
};

const char *program_name(enum program program);

/* False: there is none of that name, of `length` bytes, which is said with what it may be meant
 * for. */
bool program_find(const char *name, size_t length, enum program *program);

#endif
