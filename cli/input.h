/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of one file, pipe or standard input, as the reader wants them: mapped where that can be
 * done, read where not, unpacked where they are compressed.
 *
 * A mapped file can be cut short while it is read: the program that wrote it may be writing it
 * again. Touching what is gone raises SIGBUS; a handler, installed by the first input_open, then
 * puts zeros there and marks the input, so that one such file among many costs only itself. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "buffer.h"
#include "decompress.h"
#include "say.h"

/* Stands for standard input where a path is expected. */
#define INPUT_STDIN "-"

struct input {
    const unsigned char *bytes; /* for the reader, after input_unpack */
    size_t size_bytes;
    enum packing packing;

    const unsigned char *mapped; /* the file itself; NULL: read into `raw` */
    size_t mapped_bytes;
    size_t gone_bytes; /* let go already */
    volatile sig_atomic_t has_shrunk; /* set by the handler: what was read is not to be believed */
    struct buffer raw, unpacked;
};

/* What sentences call a path: itself, or "standard input". */
const char *input_name(const char *path);

/* Opens and maps, or reads to the end. False: *why says it, nothing is to be closed. The thread
 * that opened it reads it, one input at a time. */
bool input_open(struct input *input, const char *path, struct budget_share *share,
                struct sentence *why);

/* Fills in bytes and size_bytes. May be called again after UNPACK_LATER. */
enum unpack_result input_unpack(struct input *input, struct sentence *why);

/* For the reader's passed: what lies before `until` may leave memory, and comes back from the file
 * where it is read again. Nothing for what is not mapped. */
void input_let_go(void *input, size_t until);

void input_close(struct input *input);

#endif
