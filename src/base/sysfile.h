/* SPDX-License-Identifier: Apache-2.0 */
/* The system's small files of figures: /proc/meminfo, a cgroup's limits. */
#ifndef TG_BASE_SYSFILE_H
#define TG_BASE_SYSFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TG__SYSFILE_BYTES = 8192 };

/* A file's text, terminated; a longer one is cut. False: it cannot be read, and the text is "". May
 * change errno. */
bool tg__sysfile_read(const char *path, char text[TG__SYSFILE_BYTES]);

/* The number behind a key that begins a line; key "": the one that begins the text. False: there is
 * none ("max" is no number). */
bool tg__sysfile_number(const char *text, const char *key, uint64_t *number);

#endif
