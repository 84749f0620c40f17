/* SPDX-License-Identifier: Apache-2.0 */
#include "budget.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The number in the line of a file that begins with `key` (an empty key: the first line); all bits
 * set where the file, the line or the number is missing: "max" of a control group is no number. */
static uint64_t number_in_file(const char *path, const char *key) {
    uint64_t number = UINT64_MAX;
    FILE *file = fopen(path, "re");
    char line[256];

    if (file == NULL)
        return number;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            if (sscanf(line + strlen(key), "%" SCNu64, &number) != 1)
                number = UINT64_MAX;
            break;
        }
    }
    fclose(file);
    return number;
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* What a control group leaves us; file pages that it could drop count as used, to be careful. */
static uint64_t group_left(const char *limit_path, const char *used_path) {
    uint64_t limit = number_in_file(limit_path, "");
    uint64_t used = number_in_file(used_path, "");

    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    /* Never nothing: the figures are rough, and small files must be read in any group. */
    return used < limit && limit - used > limit / 16 ? limit - used : limit / 16;
}

uint64_t budget_default_bytes(void) {
    uint64_t kib = number_in_file("/proc/meminfo", "MemAvailable:");
    uint64_t left = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;

    left = smaller(left, group_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"));
    left = smaller(left, group_left("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                    "/sys/fs/cgroup/memory/memory.usage_in_bytes"));
    if (left == UINT64_MAX) /* nobody says: what every machine with a card has */
        left = (uint64_t)8 << 30;
    return left / 2;
}

void budget_init(struct budget *budget, uint64_t limit_bytes) {
    memset(budget, 0, sizeof *budget);
    budget->limit_bytes = limit_bytes;
    pthread_mutex_init(&budget->lock, NULL); /* with default attributes neither can fail on Linux */
    pthread_cond_init(&budget->changed, NULL);
}

void budget_destroy(struct budget *budget) {
    assert(budget->inside == 0 && budget->held_bytes == 0);
    pthread_cond_destroy(&budget->changed);
    pthread_mutex_destroy(&budget->lock);
}

void budget_share_init(struct budget_share *share, struct budget *budget) {
    memset(share, 0, sizeof *share);
    share->budget = budget;
}

/* Under the lock. */
static uint64_t left(const struct budget *budget) {
    return budget->limit_bytes > budget->held_bytes ? budget->limit_bytes - budget->held_bytes : 0;
}

/* Under the lock. */
static bool others_inside(const struct budget_share *share) {
    return share->budget->inside > (share->is_inside ? 1u : 0u);
}

/* Under the lock. */
static void promise(struct budget_share *share, uint64_t bytes) {
    share->promised_bytes += bytes;
    share->budget->held_bytes += bytes;
}

void budget_enter(struct budget_share *share, uint64_t bytes) {
    struct budget *budget = share->budget;

    pthread_mutex_lock(&budget->lock);
    while (others_inside(share) && bytes > left(budget))
        pthread_cond_wait(&budget->changed, &budget->lock);
    promise(share, smaller(bytes, left(budget)));
    if (!share->is_inside)
        budget->inside++;
    share->is_inside = true;
    pthread_mutex_unlock(&budget->lock);
}

void budget_leave(struct budget_share *share) {
    struct budget *budget = share->budget;

    pthread_mutex_lock(&budget->lock);
    budget->held_bytes -= share->promised_bytes - share->used_bytes;
    share->promised_bytes = share->used_bytes;
    if (share->is_inside)
        budget->inside--;
    share->is_inside = false;
    pthread_cond_broadcast(&budget->changed);
    pthread_mutex_unlock(&budget->lock);
}

enum budget_result budget_take(struct budget_share *share, uint64_t least, uint64_t wanted,
                               uint64_t *taken) {
    struct budget *budget = share->budget;
    enum budget_result result = BUDGET_TAKEN;
    uint64_t spare, offer;

    pthread_mutex_lock(&budget->lock);
    spare = share->promised_bytes - share->used_bytes;
    offer = smaller(wanted, spare + left(budget));
    if (offer < least) {
        result = others_inside(share) ? BUDGET_LATER : BUDGET_NEVER;
    } else {
        if (offer > spare)
            promise(share, offer - spare);
        share->used_bytes += offer;
        *taken = offer;
    }
    pthread_mutex_unlock(&budget->lock);
    return result;
}

void budget_return(struct budget_share *share, uint64_t bytes) {
    assert(bytes <= share->used_bytes);
    share->used_bytes -= bytes;
}
