/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: a number that is never used again, and a lock of the kernel that says whether its owner
 * lives.
 *
 * The lock lies on a byte far behind the file's end and belongs to the open file description. It
 * goes when the description does: at close, exec, exit and every kind of death. Two things would
 * keep it longer. A forked child's copy of the descriptor: forkguard closes it. And a mapping, for
 * it holds the description that it was made from, in a forked child too: so the file is mapped
 * through one description, which is closed, and locked through another, which is never mapped. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/error.h"
#include "base/shmhead.h"

/* More are skipped only if the counter is garbage, and each belongs to a process that lives. */
enum { CLAIMS_MAX = 4096 };
#define TICKET_MAX UINT32_C(0x7fffffff)

static struct flock byte_of(uint32_t ticket) {
    return (struct flock){.l_type = F_WRLCK,
                          .l_whence = SEEK_SET,
                          .l_start = TG__SHM_TICKETS_AT + ticket,
                          .l_len = 1};
}

/* The counter's next number; 0: there is none left. */
static uint32_t draw(struct tg__shmhead *head) {
    uint32_t next = atomic_load_explicit(&head->next_ticket, memory_order_relaxed), number;

    do {
        number = next == 0 ? 1 : next;
        if (number > TICKET_MAX)
            return 0;
    } while (!atomic_compare_exchange_weak_explicit(&head->next_ticket, &next, number + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    return number;
}

int tg__shmfile_take_ticket(struct tg__shmfile *file) {
    int fd = file->guard.fds[TG__GUARD_TICKET], saved = errno;

    for (int i = 0; i < CLAIMS_MAX; i++) {
        uint32_t number = draw(file->head);
        struct flock byte = byte_of(number);
        int code;

        if (number == 0)
            break;
        if (fcntl(fd, F_OFD_SETLK, &byte) == 0) {
            file->ticket = number;
            return 0;
        }
        code = errno;
        errno = saved;
        if (code != EAGAIN && code != EACCES)
            return tg__fail(-code, "cannot lock a byte of %s/%s: %s", file->dir, file->name,
                            tg_error_text(-code));
    }
    return tg__fail(TG_EFULL, "no ticket is left in %s/%s: delete the file when nobody uses it",
                    file->dir, file->name);
}

/* Who cannot be asked about counts as alive: to call a living one dead would be the worse error. */
bool tg__shmfile_is_alive(struct tg__shmfile *file, uint32_t ticket) {
    struct flock byte = byte_of(ticket);
    int saved = errno;
    bool is_alive;

    if (ticket == 0 || ticket > TICKET_MAX)
        return false;
    /* The kernel does not report a description's own locks to it. */
    if (ticket == file->ticket || tg__forkguard_is_forked(&file->guard))
        return true;
    is_alive = fcntl(file->guard.fds[TG__GUARD_TICKET], F_OFD_GETLK, &byte) != 0 ||
               byte.l_type != F_UNLCK;
    errno = saved;
    return is_alive;
}
