/* SPDX-License-Identifier: Apache-2.0 */
/* The shared file "host-NAME". Crash points: every change that counts is one store. Taking memory
 * is one store to the own slot, and the same when it is given; an entry is filled while no living
 * slot has its bit, and then counts by one store of the bit; a slot is cleared while its ticket is
 * dead or 0, and then belongs to its new owner by one store of the ticket. So who inherits the lock
 * finds nothing to mend.
 *
 * Taking looks and stores under the file's lock; giving needs none and cannot fail: nobody else
 * writes to a living process's slot. */
#include "device/capacity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/map.h"
#include "base/saturate.h"
#include "base/shmfile.h"

enum { SLOTS = 64, ENTRIES = 8192, WORDS = ENTRIES / 64, NO_SLOT = SLOTS };

struct slot {
    _Atomic uint32_t ticket;       /* 0: nobody's */
    _Atomic uint32_t heir;         /* see tg__capacity_set_heir */
    _Atomic uint64_t pid;          /* for sentences alone */
    _Atomic uint64_t own_bytes;    /* chunks that never travel */
    _Atomic uint64_t holds[WORDS]; /* a bit for each entry */
};

struct entry {
    _Atomic uint64_t inode, size_bytes;
};

struct body {
    uint8_t uuid[16];
    _Atomic uint64_t total_bytes;
    struct slot slots[SLOTS];
    struct entry entries[ENTRIES];
};

struct tg__capacity {
    struct tg__shmfile *file;
    struct body *body;
    struct slot *slot; /* this process's */
};

/* All words of the file are read so: whoever sees a ticket or a bit sees what was stored before. */
static uint64_t load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

static bool is_living(const struct tg__capacity *capacity, const struct slot *slot) {
    uint32_t ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire), heir;

    if (ticket == 0)
        return false;
    if (tg__shmfile_is_alive(capacity->file, ticket))
        return true;
    heir = atomic_load_explicit(&slot->heir, memory_order_acquire);
    return heir != 0 && tg__shmfile_is_alive(capacity->file, heir);
}

/* The slots of the living, each asked once. */
struct living {
    const struct slot *slots[SLOTS];
    size_t count;
};

static void find_living(const struct tg__capacity *capacity, struct living *living) {
    living->count = 0;
    for (size_t i = 0; i < SLOTS; i++) {
        if (is_living(capacity, &capacity->body->slots[i]))
            living->slots[living->count++] = &capacity->body->slots[i];
    }
}

/* Which of 64 entries somebody living holds. */
static uint64_t held_word(const struct living *living, size_t word) {
    uint64_t held = 0;

    for (size_t i = 0; i < living->count; i++)
        held |= load(&living->slots[i]->holds[word]);
    return held;
}

static uint64_t used_bytes(const struct tg__capacity *capacity, const struct living *living) {
    uint64_t used = 0;

    for (size_t i = 0; i < living->count; i++)
        used = tg__sum(used, load(&living->slots[i]->own_bytes));
    for (size_t word = 0; word < WORDS; word++) {
        for (uint64_t held = held_word(living, word); held != 0; held &= held - 1) {
            size_t entry = word * 64 + (size_t)__builtin_ctzll(held);
            used = tg__sum(used, load(&capacity->body->entries[entry].size_bytes));
        }
    }
    return used;
}

/* ---- joining --------------------------------------------------------------------------------- */

static void name_of(const void *body, uint32_t ticket, char *text, size_t text_bytes) {
    const struct slot *slots = ((const struct body *)body)->slots;

    for (size_t i = 0; i < SLOTS; i++) {
        if (atomic_load_explicit(&slots[i].ticket, memory_order_relaxed) == ticket) {
            snprintf(text, text_bytes, "process %" PRIu64, load(&slots[i].pid));
            return;
        }
    }
    snprintf(text, text_bytes, "a process that has just come or gone");
}

/* A device is known by this for as long as its file lives. The second way is for kernels that
 * refuse the first: still different for every file. */
static void fill(void *body, const void *argument) {
    struct body *fresh = body;

    (void)argument;
    if (getrandom(fresh->uuid, sizeof fresh->uuid, 0) != (ssize_t)sizeof fresh->uuid) {
        uint64_t words[2] = {tg__hash_u64(tg__clock_ns()), tg__hash_pair((uint64_t)getpid(), 1)};
        memcpy(fresh->uuid, words, sizeof words);
    }
}

static int open_file(const char *name, struct tg__shmfile **file) {
    const uint64_t numbers[] = {1, sizeof(struct body), SLOTS, ENTRIES, sizeof(struct slot),
                                offsetof(struct body, slots), offsetof(struct body, entries)};
    char file_name[64];
    struct tg__shmfile_params params = {
        .name = file_name,
        .format = tg__shmfile_format(numbers, sizeof numbers / sizeof *numbers),
        .body_bytes = sizeof(struct body),
        .fill = fill,
        .name_of = name_of,
    };

    snprintf(file_name, sizeof file_name, "host-%s", name);
    return tg__shmfile_open(&params, file);
}

static void clear(struct slot *slot) {
    tg__shm_store(&slot->own_bytes, 0);
    for (size_t word = 0; word < WORDS; word++) {
        if (load(&slot->holds[word]) != 0)
            tg__shm_store(&slot->holds[word], 0);
    }
    tg__shm_store32(&slot->heir, 0);
}

/* Under the lock. */
static int join(struct tg__capacity *capacity, const char *name, uint64_t total_bytes,
                bool takes_any) {
    struct body *body = capacity->body;
    uint64_t total = load(&body->total_bytes);
    size_t living = 0, place = NO_SLOT;

    for (size_t i = 0; i < SLOTS; i++) {
        if (is_living(capacity, &body->slots[i]))
            living++;
        else if (place == NO_SLOT)
            place = i;
    }
    if (living > 0 && total != total_bytes && !takes_any)
        return tg__fail(-EINVAL,
                        "host device \"%s\" has %" PRIu64 " MiB as long as a process holds it, not "
                        "%" PRIu64 ": give it the same capacity, or another name",
                        name, total >> 20, total_bytes >> 20);
    if (place == NO_SLOT)
        return tg__fail(TG_EFULL, "host device \"%s\" is held by %d processes already", name,
                        SLOTS);
    if (living == 0 && total != total_bytes)
        tg__shm_store(&body->total_bytes, total_bytes);
    capacity->slot = &body->slots[place];
    clear(capacity->slot);
    tg__shm_store(&capacity->slot->pid, (uint64_t)getpid());
    tg__shm_store32(&capacity->slot->ticket, tg__shmfile_ticket(capacity->file));
    return 0;
}

int tg__capacity_open(const char *name, uint64_t total_bytes, bool takes_any,
                      struct tg__capacity **capacity) {
    struct tg__capacity *made = calloc(1, sizeof *made);
    bool has_inherited;
    int rc;

    if (made == NULL)
        return tg__fail_memory();
    rc = open_file(name, &made->file);
    if (rc != 0)
        goto release;
    made->body = tg__shmfile_body(made->file);
    rc = tg__shmfile_lock(made->file, &has_inherited);
    if (rc != 0)
        goto close;
    rc = join(made, name, total_bytes, takes_any);
    tg__shmfile_unlock(made->file);
    if (rc != 0)
        goto close;
    *capacity = made;
    return 0;
close:
    tg__shmfile_close(made->file);
release:
    free(made);
    return rc;
}

void tg__capacity_close(struct tg__capacity *capacity) {
    if (capacity == NULL)
        return;
    if (tg__shmfile_check(capacity->file, false) != TG_EFORKED)
        tg__shm_store32(&capacity->slot->ticket, 0);
    tg__shmfile_close(capacity->file);
    free(capacity);
}

/* ---- asking ---------------------------------------------------------------------------------- */

int tg__capacity_check(struct tg__capacity *capacity) {
    return tg__shmfile_check(capacity->file, false);
}

const uint8_t *tg__capacity_uuid(struct tg__capacity *capacity) {
    return capacity->body->uuid;
}

int tg__capacity_memory(struct tg__capacity *capacity, uint64_t *free_bytes,
                        uint64_t *total_bytes) {
    int rc = tg__capacity_check(capacity);
    struct living living;
    uint64_t total;

    if (rc != 0)
        return rc;
    total = load(&capacity->body->total_bytes);
    find_living(capacity, &living);
    *free_bytes = tg__less(total, used_bytes(capacity, &living));
    *total_bytes = total;
    return 0;
}

static uint64_t slot_bytes(const struct tg__capacity *capacity, const struct slot *slot) {
    const struct living alone = {.slots = {slot}, .count = 1};

    return used_bytes(capacity, &alone);
}

int tg__capacity_process(struct tg__capacity *capacity, uint64_t *own_bytes) {
    int rc = tg__capacity_check(capacity);

    if (rc == 0)
        *own_bytes = slot_bytes(capacity, capacity->slot);
    return rc;
}

int tg__capacity_shares(struct tg__capacity *capacity, struct tg__capacity_share *shares,
                        size_t room, size_t *count) {
    int rc = tg__capacity_check(capacity);
    struct living living;

    if (rc != 0)
        return rc;
    *count = 0;
    find_living(capacity, &living);
    for (size_t i = 0; i < living.count && *count < room; i++) {
        uint64_t held_bytes = slot_bytes(capacity, living.slots[i]);

        if (held_bytes > 0 && living.slots[i] != capacity->slot)
            shares[(*count)++] =
                (struct tg__capacity_share){load(&living.slots[i]->pid), held_bytes};
    }
    return 0;
}

/* ---- taking and giving ----------------------------------------------------------------------- */

static int check_room(const struct tg__capacity *capacity, const struct living *living,
                      uint64_t size_bytes) {
    uint64_t total = load(&capacity->body->total_bytes);
    uint64_t left = tg__less(total, used_bytes(capacity, living));

    if (size_bytes <= left)
        return 0;
    return tg__fail(TG_EDEVICEMEMORY,
                    "the device has %" PRIu64 " MiB free of %" PRIu64 ", %" PRIu64 " are asked for",
                    left >> 20, total >> 20, size_bytes >> 20);
}

int tg__capacity_take(struct tg__capacity *capacity, uint64_t size_bytes) {
    struct living living;
    bool has_inherited;
    int rc = tg__shmfile_lock(capacity->file, &has_inherited);

    if (rc != 0)
        return rc;
    find_living(capacity, &living);
    rc = check_room(capacity, &living, size_bytes);
    if (rc == 0)
        tg__shm_store(&capacity->slot->own_bytes, load(&capacity->slot->own_bytes) + size_bytes);
    tg__shmfile_unlock(capacity->file);
    return rc;
}

void tg__capacity_give(struct tg__capacity *capacity, uint64_t size_bytes) {
    tg__shm_store(&capacity->slot->own_bytes, load(&capacity->slot->own_bytes) - size_bytes);
}

/* The entry of this memory that somebody living holds, else one that nobody does; or ENTRIES. */
static uint32_t find_entry(const struct tg__capacity *capacity, const struct living *living,
                           uint64_t inode, bool *is_held) {
    uint32_t vacant = ENTRIES;

    for (uint32_t i = 0; i < ENTRIES; i++) {
        bool held = (held_word(living, i / 64) >> i % 64 & 1) != 0;

        if (held && load(&capacity->body->entries[i].inode) == inode) {
            *is_held = true;
            return i;
        }
        if (!held && vacant == ENTRIES)
            vacant = i;
    }
    *is_held = false;
    return vacant;
}

/* Under the lock. */
static int choose_entry(struct tg__capacity *capacity, uint64_t inode, uint64_t size_bytes,
                        uint32_t *chosen) {
    struct living living;
    bool is_held;
    int rc;

    find_living(capacity, &living);
    *chosen = find_entry(capacity, &living, inode, &is_held);
    if (*chosen == ENTRIES)
        return tg__fail(TG_EFULL, "%d chunks that may travel exist on the device already", ENTRIES);
    if (is_held && load(&capacity->body->entries[*chosen].size_bytes) == size_bytes)
        return 0;
    if (is_held)
        return tg__fail(-EINVAL, "the chunk has another size than %" PRIu64 " bytes", size_bytes);
    rc = check_room(capacity, &living, size_bytes);
    if (rc != 0)
        return rc;
    tg__shm_store(&capacity->body->entries[*chosen].inode, inode);
    tg__shm_store(&capacity->body->entries[*chosen].size_bytes, size_bytes);
    return 0;
}

static void set_bit(struct tg__capacity *capacity, uint32_t entry, bool is_on) {
    _Atomic uint64_t *word = &capacity->slot->holds[entry / 64];
    uint64_t bit = UINT64_C(1) << entry % 64;

    tg__shm_store(word, is_on ? load(word) | bit : load(word) & ~bit);
}

int tg__capacity_take_shared(struct tg__capacity *capacity, uint64_t inode, uint64_t size_bytes,
                             uint32_t *entry) {
    uint32_t chosen;
    bool has_inherited;
    int rc = tg__shmfile_lock(capacity->file, &has_inherited);

    if (rc != 0)
        return rc;
    rc = choose_entry(capacity, inode, size_bytes, &chosen);
    if (rc == 0)
        set_bit(capacity, chosen, true);
    tg__shmfile_unlock(capacity->file);
    if (rc == 0)
        *entry = chosen;
    return rc;
}

void tg__capacity_give_shared(struct tg__capacity *capacity, uint32_t entry) {
    set_bit(capacity, entry, false);
}

int tg__capacity_open_heir(const char *name, struct tg__shmfile **file) {
    return open_file(name, file);
}

void tg__capacity_set_heir(struct tg__capacity *capacity, uint32_t ticket) {
    tg__shm_store32(&capacity->slot->heir, ticket);
}
