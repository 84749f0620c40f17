/* SPDX-License-Identifier: Apache-2.0 */
/* The opcode machine: reads pickles of protocol 2 to 5 and never constructs an object.
 *
 * It keeps a stack of values (value.h), marks and a memo, and reports dictionaries and lists to a
 * builder (model.h). It does not recurse; everything that it keeps counts against the snapshot's
 * budget; the input is only read within its bounds. */
#ifndef TG_SNAPSHOT_UNPICKLE_H
#define TG_SNAPSHOT_UNPICKLE_H

#include "snapshot/model.h"

/* The bytes of a pickle, and whom to tell how far they are read (NULL: nobody). */
struct tg__pickle {
    const uint8_t *data;
    size_t size_bytes;
    tg_passed_fn passed;
    void *argument;
};

/* Reads one pickle. On failure *at_byte is the offset of the opcode at fault. Errors:
 * TG_ETRUNCATED, TG_EUNSAFE, and the builder's. */
int tg__unpickle(struct tg__builder *builder, const struct tg__pickle *pickle, size_t *at_byte);

#endif
