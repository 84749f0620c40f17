/* SPDX-License-Identifier: Apache-2.0 */
/* What a program or a shared object has of the CUDA runtime, as its file tells. The file may be
 * anything. */
#ifndef CLI_OBJECT_FILE_H
#define CLI_OBJECT_FILE_H

#include <stdbool.h>

#include "say.h"

/* Has a runtime linked into itself. False, too, for what is the runtime, which the file's name
 * tells. */
struct object_facts {
    bool has_own_runtime;
};

/* By the file's name; every version, also one that a wheel has renamed. */
bool object_is_runtime(const char *path);

/* False: it cannot be read, or is no whole ELF file of this machine's kind; *why says it. */
bool object_look(const char *path, struct object_facts *facts, struct sentence *why);

#endif
