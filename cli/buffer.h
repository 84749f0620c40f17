/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that are not in a file: read from a pipe, or unpacked. One anonymous mapping that grows in
 * place or by moving its pages, never by copying; what it grows by is taken from a budget. */
#ifndef CLI_BUFFER_H
#define CLI_BUFFER_H

#include <stddef.h>

#include "budget.h"

struct buffer {
    unsigned char *bytes; /* NULL: nothing yet */
    size_t size_bytes;    /* filled */
    size_t room_bytes;    /* mapped */
    struct budget_share *share;
};

enum buffer_result {
    BUFFER_GROWN,
    BUFFER_LATER,    /* see BUDGET_LATER */
    BUFFER_AT_LIMIT, /* see BUDGET_NEVER */
    BUFFER_NO_MEMORY /* the system refused */
};

void buffer_init(struct buffer *buffer, struct budget_share *share);

/* Makes more room behind the bytes; they may move. */
enum buffer_result buffer_grow(struct buffer *buffer);

/* Gives unused room back. */
void buffer_trim(struct buffer *buffer);

/* Unmaps; the buffer is as after buffer_init. */
void buffer_free(struct buffer *buffer);

#endif
