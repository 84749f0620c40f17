/* SPDX-License-Identifier: Apache-2.0 */
/* Which versions of the packages in packages.def a Python has.
 *
 * The Python itself is asked, since only it knows where its packages are; it reads their metadata
 * and imports none of them. Without --python it is the one of the environment that is active
 * ($VIRTUAL_ENV), else python3 of the PATH. */
#ifndef CLI_PACKAGES_H
#define CLI_PACKAGES_H

#include <stdbool.h>

#include "say.h"

enum package {
#define PACKAGE(name) PACKAGE_##name,
#include "packages.def"
#undef PACKAGE
    PACKAGE_COUNT
};

#define PACKAGES_TEXT_BYTES 96

struct packages {
    char python[4096];                                 /* its path, or the name it was asked by */
    char python_version[PACKAGES_TEXT_BYTES];          /* "": no Python answered */
    char versions[PACKAGE_COUNT][PACKAGES_TEXT_BYTES]; /* "": not there */
};

const char *package_name(enum package package);

/* given: what --python said, a command, a path or an environment's folder; NULL: nothing. Takes
 * 10 s at most. False: no Python, or none that answered; *why says so. */
bool packages_ask(const char *given, struct packages *packages, struct sentence *why);

#endif
