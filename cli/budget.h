/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the files being read may take together.
 *
 * A file that unpacks to more than the machine has must not take the machine, and many files read
 * at once must not take it together. Each thread that reads a file enters with what the file will
 * probably need, and waits while that is not to be had; whoever is alone inside may go on up to the
 * limit. A file that turns out larger than expected while others are inside leaves and enters again
 * with a larger claim, which in the end means alone: so no two wait for each other, and what can be
 * read does not depend on who was faster. One lock guards all fields. */
#ifndef CLI_BUDGET_H
#define CLI_BUDGET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct budget {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t limit_bytes;
    uint64_t held_bytes; /* promised to all shares */
    unsigned inside;     /* shares that have entered */
};

/* What one file holds. Used by one thread at a time. */
struct budget_share {
    struct budget *budget;
    uint64_t promised_bytes;
    uint64_t used_bytes;
    bool is_inside;
};

enum budget_result {
    BUDGET_TAKEN,
    BUDGET_LATER, /* others hold it: leave, enter with a larger claim, begin again */
    BUDGET_NEVER  /* more than the limit allows a file */
};

/* Half of the memory that the machine, and the control group we run in, have left. */
uint64_t budget_default_bytes(void);

void budget_init(struct budget *budget, uint64_t limit_bytes);
void budget_destroy(struct budget *budget);

/* A share that has not entered may take, too: pipes are read before any thread starts. */
void budget_share_init(struct budget_share *share, struct budget *budget);

/* Waits until `bytes` more are to be had, or nobody else is inside. */
void budget_enter(struct budget_share *share, uint64_t bytes);
/* Gives back what the share was promised and does not use. It may enter again. */
void budget_leave(struct budget_share *share);

/* Takes what is to be had between `least` and `wanted`; *taken on success. */
enum budget_result budget_take(struct budget_share *share, uint64_t least, uint64_t wanted,
                               uint64_t *taken);
/* What was taken is used no more; it stays promised until the share leaves. */
void budget_return(struct budget_share *share, uint64_t bytes);

#endif
