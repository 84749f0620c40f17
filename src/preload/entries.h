/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the driver that a program asks the runtime for by name, and that the preload answers
 * with its own for: each entry of the table is a function tg__entry_NAME here. */
#ifndef TG_PRELOAD_ENTRIES_H
#define TG_PRELOAD_ENTRIES_H

#include <stdint.h>

#include "preload/hooks.h"

/* The driver's structs, as far as they are looked at; a test compares their sizes. */
struct tg__entry_place {
    int type, number;
};

struct tg__entry_prop {
    int type, handle_types;
    struct tg__entry_place place;
    void *unused;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

struct tg__entry_access {
    struct tg__entry_place place;
    int flags;
};

enum tg__entry {
#define TG__ENTRY(name, symbol, ...) TG__ENTRY_##name,
#include "preload/hooks.def"
    TG__ENTRIES
};

#define TG__ENTRY(name, symbol, ...)               \
    int tg__entry_##name(__VA_ARGS__);             \
    typedef int (*tg__entry_##name##_fn)(__VA_ARGS__);
#include "preload/hooks.def"

/* The driver's own function; never NULL for an entry that a program has got from us. */
tg__any_fn tg__entry_driver(enum tg__entry entry);
#define TG__DRIVER(name) ((tg__entry_##name##_fn)tg__entry_driver(TG__ENTRY_##name))

#endif
