/* SPDX-License-Identifier: Apache-2.0 */
/* A mapping for host copies: anonymous, on huge pages where there are some, not copied by fork. */
#ifndef TG_MEMORY_HOSTMAP_H
#define TG_MEMORY_HOSTMAP_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

struct tg__hostmap {
    void *mapping;
    size_t mapping_bytes;
    unsigned char *bytes; /* on a huge page's boundary where that pays, inside the mapping */
};

/* size_bytes as whole pages. */
size_t tg__hostmap_pages(size_t size_bytes);
/* Maps it; touches nothing. Errors: -ENOMEM and what else the system says. */
int tg__hostmap_make(struct tg__hostmap *map, size_t size_bytes);
/* Has the kernel give the pages of its first size_bytes now, by so many threads (0: as many as pay)
 * that end with the call. near: as tg__touch_begin has it. Errors: -ENOMEM and what else the kernel
 * says. */
int tg__hostmap_touch(struct tg__hostmap *map, size_t size_bytes, uint32_t threads,
                      const cpu_set_t *near);
/* 0, or -errno: then it is still there. */
int tg__hostmap_free(struct tg__hostmap *map);

#endif
