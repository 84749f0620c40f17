/* SPDX-License-Identifier: Apache-2.0 */
/* What a card does after a process is killed: its kernels write on for a while, and its memory
 * stays taken. On the host device a process of our own does that.
 *
 * It is started with the device, gets a copy of every chunk's descriptor, and otherwise waits. When
 * its parent closes the device it ends at once; when the parent is gone without a word, it writes
 * into all chunks for the time given and ends then. It keeps nothing else of its parent open, takes
 * no signal, and is nobody's child: the program's wait never sees it. */
#ifndef TG_DEVICE_STRAGGLER_H
#define TG_DEVICE_STRAGGLER_H

#include <stdbool.h>
#include <stdint.h>

struct tg__straggler;

/* It keeps a copy of ticket_fd open as long as it lives. Errors: -errno. */
int tg__straggler_start(uint32_t write_ms, int ticket_fd, struct tg__straggler **straggler);
/* Ends it and waits until it is gone, at most 1 s. In a forked child only memory is given back. */
void tg__straggler_end(struct tg__straggler *straggler, bool is_forked);

/* It holds the chunk from now on. One that was killed holds nothing: no error. */
int tg__straggler_hold(struct tg__straggler *straggler, uint64_t inode, int fd,
                       uint64_t size_bytes);
/* It holds the chunk no more, when this returns. */
void tg__straggler_drop(struct tg__straggler *straggler, uint64_t inode);

#endif
