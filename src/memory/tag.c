/* SPDX-License-Identifier: Apache-2.0 */
/* Tags: opening them, what they say of themselves, and the states between awake and asleep. */
#include "memory/page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "memory/checksum.h"
#include "memory/export.h"

/* ---- opening --------------------------------------------------------------------------------- */

static bool same_params(const struct tg_tag_params *a, const struct tg_tag_params *b) {
    return a->backup == b->backup && !a->packed == !b->packed && !a->fill_none == !b->fill_none &&
           !a->keep_host == !b->keep_host && !a->checked == !b->checked;
}

static int open_new(struct tg_memory *memory, const char *name, const struct tg_tag_params *params,
                    struct tg_tag **tag) {
    struct tg_tag **at = &memory->tags;
    struct tg_tag *opened = calloc(1, sizeof *opened);

    if (opened == NULL)
        return tg__fail_memory();
    opened->memory = memory;
    opened->params = *params;
    strcpy(opened->name, name); /* its length was checked */
    while (*at != NULL)
        at = &(*at)->next;
    *at = opened;
    *tag = opened;
    return 0;
}

static int open_locked(struct tg_memory *memory, const char *name,
                       const struct tg_tag_params *params, struct tg_tag **tag) {
    for (struct tg_tag *known = memory->tags; known != NULL; known = known->next) {
        if (strcmp(known->name, name) != 0)
            continue;
        if (!same_params(&known->params, params))
            return tg__fail(-EEXIST, "tag '%s' is open with other parameters", name);
        *tag = known;
        return 0;
    }
    return open_new(memory, name, params, tag);
}

int tg_tag_open(struct tg_memory *memory, const char *name, const struct tg_tag_params *params,
                struct tg_tag **tag) {
    static const struct tg_tag_params plain;
    int rc = tg__memory_check(memory);

    if (rc == 0)
        rc = tg__name_check(name);
    if (rc == 0 && tag == NULL)
        rc = tg__fail(-EINVAL, "tag '%s' is opened into a pointer, not into NULL", name);
    if (rc == 0 && params != NULL && params->backup != TG_BACKUP_NONE &&
        params->backup != TG_BACKUP_HOST)
        rc = tg__fail(-EINVAL, "tag '%s': there is no backup %d: it is none (0) or host (1)", name,
                      (int)params->backup);
    if (rc == 0 && params != NULL && params->checked && !TG__HAS_CHECKSUMS)
        rc = tg__fail(-ENOTSUP, "tag '%s' cannot be checked: this build was made without xxhash.h",
                      name);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&memory->lock);
    rc = open_locked(memory, name, params != NULL ? params : &plain, tag);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

struct tg_tag *tg_memory_tag(struct tg_memory *memory, uint32_t index) {
    struct tg_tag *tag;

    /* In a child that was forked while the lock was held nobody gives it back: here as below. */
    if (memory == NULL || getpid() != memory->pid)
        return NULL;
    pthread_mutex_lock(&memory->lock);
    tag = memory->tags;
    for (; tag != NULL && index > 0; index--)
        tag = tag->next;
    pthread_mutex_unlock(&memory->lock);
    return tag;
}

const char *tg_tag_name(const struct tg_tag *tag) {
    return tag->name;
}

void tg_tag_info(struct tg_tag *tag, struct tg_tag_info *info) {
    struct tg_memory *memory = tag == NULL ? NULL : tag->memory;

    if (info == NULL)
        return;
    memset(info, 0, sizeof *info);
    if (memory == NULL || getpid() != memory->pid)
        return;
    pthread_mutex_lock(&memory->lock);
    *info = (struct tg_tag_info){
        .state = atomic_load(&memory->is_broken) ? TG_TAG_BROKEN : tag->state,
        .block_count = tag->blocks.count + tg__exports_live(tag),
        .size_bytes = tag->size_bytes,
        .device_bytes = tag->chunk_bytes,
        .host_bytes = tag->host_bytes,
        .limbo_bytes = tag->limbo_bytes,
        .trimmed_bytes = tag->hole_bytes,
    };
    pthread_mutex_unlock(&memory->lock);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

struct tg__block *tg__tag_block(struct tg_memory *memory, uint64_t addr, size_t *number) {
    struct tg__block *block = NULL;

    for (struct tg_tag *tag = memory->tags; tag != NULL && block == NULL; tag = tag->next) {
        block = tg__plots_find(&tag->blocks, addr, number);
        if (block == NULL)
            block = tg__plots_find(&tag->kept, addr, NULL);
    }
    return block;
}

static void forget_holes(struct tg__block *block) {
    block->tag->hole_bytes -= block->holes.size_bytes;
    tg__ranges_free(&block->holes);
}

void tg__block_retire(struct tg__block *block, size_t number) {
    struct tg_tag *tag = block->tag;

    if (block->estate != NULL) {
        tg__page_retire(block, number);
        return;
    }
    tg__plots_drop(&tag->blocks, number);
    tag->size_bytes -= block->size_bytes;
    if (tag->state == TG_TAG_ASLEEP && tag->chunks.count == 0) {
        /* It was unmapped after all of the device's work: nobody can use it any more. */
        block->gate.is_shut = false;
        tg__charge_forget(tag, block->range.size_bytes);
    }
    tg__segment_release(block);
    forget_holes(block);
    tg__limbo_add(block);
}

/* Its place in host memory was as large as what it had: the next sleep finds another. */
void tg__block_hollow(struct tg__block *block, struct tg__range hole) {
    tg__segment_release(block);
    (void)!tg__ranges_add(&block->holes, hole, NULL); /* room was made */
    block->tag->hole_bytes += hole.size_bytes;
}

void tg__tag_fill_holes(struct tg_tag *tag) {
    for (size_t i = 0; i < tag->blocks.count && tag->hole_bytes > 0; i++) {
        struct tg__block *block = tag->blocks.items[i];

        if (block->holes.count == 0)
            continue;
        tg__segment_release(block);
        forget_holes(block);
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

bool tg__tag_is_moving(const struct tg_tag *tag) {
    return tag->state != TG_TAG_AWAKE && tag->state != TG_TAG_ASLEEP;
}

bool tg__tag_is_half(const struct tg_tag *tag) {
    return tag->state == TG_TAG_ASLEEP && tag->chunks.count > 0;
}

int tg__tag_map(struct tg_tag *tag) {
    for (size_t i = 0; i < tag->chunks.count; i++) {
        struct tg__chunk *chunk = tag->chunks.items[i];
        int rc = 0;

        if (!chunk->is_mapped)
            rc = tg__chunk_map_kept(chunk);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int tg__tag_enter(struct tg_tag *tag) {
    size_t allocs = tag->allocs + 1;
    int rc = 0;

    if (tag->state == TG_TAG_ASLEEP)
        return tg__fail(TG_EASLEEP, "tag '%s' is asleep: wake it before you allocate", tag->name);
    if (tag->state == TG_TAG_DRAINING || tag->state == TG_TAG_SAVING)
        return tg__fail(TG_EASLEEP, "tag '%s' is going to sleep", tag->name);
    if (tag->state != TG_TAG_AWAKE)
        return tg__fail(TG_EASLEEP, "tag '%s' is not awake yet", tag->name);
    if (rc == 0)
        rc = tg__plots_room(&tag->blocks, allocs);
    if (rc == 0)
        rc = tg__plots_room(&tag->chunks, allocs);
    if (rc == 0)
        rc = tg__ranges_room(&tag->spare, 2 * allocs);
    if (rc == 0)
        rc = tg__ranges_room(&tag->blank, allocs);
    if (rc == 0)
        rc = tg__ranges_room(&tag->vacant, 2 * allocs);
    if (rc == 0)
        tag->allocs++;
    return rc;
}

void tg__tag_leave(struct tg_tag *tag) {
    tag->allocs--;
    pthread_cond_broadcast(&tag->memory->left);
}

void tg__tags_keep(struct tg_tag **chosen, bool (*is_kept)(const struct tg_tag *tag)) {
    while (*chosen != NULL) {
        if (is_kept(*chosen))
            chosen = &(*chosen)->next_chosen;
        else
            *chosen = (*chosen)->next_chosen;
    }
}

void tg__tags_move(struct tg_memory *memory, struct tg_tag *chosen, enum tg_tag_state state) {
    pthread_mutex_lock(&memory->lock);
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen)
        tag->state = state;
    pthread_mutex_unlock(&memory->lock);
}

/* What other devices were let into meanwhile its chunk is to know. */
static void note_devices(const struct tg__block *block) {
    struct tg__chunk *chunk = tg__plots_find(&block->tag->chunks, block->range.addr, NULL);

    if (chunk != NULL)
        chunk->devices |= block->devices;
}

/* That a device refuses is its user's to find, at the first use: the call that asked has
 * returned. */
static void let_devices_in(struct tg_tag *tag) {
    const struct tg_error before = *tg_last_error();

    (void)!tg__chunks_access(tag);
    tg__fail_as(&before);
}

void tg__tags_rest(struct tg_memory *memory, struct tg_tag *chosen) {
    for (struct tg_tag *tag = chosen; tag != NULL; tag = tag->next_chosen) {
        for (size_t i = tag->blocks.count; i-- > 0;) {
            struct tg__block *block = tag->blocks.items[i];

            if (block->is_freed)
                tg__block_retire(block, i);
            else if (block->devices != 0)
                note_devices(block);
        }
        let_devices_in(tag);
    }
    tg__memory_tidy(memory);
}
