/* SPDX-License-Identifier: Apache-2.0 */
/* From dictionaries and lists to the tables of a snapshot.
 *
 * The opcode machine reports each dictionary and list as its items come; here it becomes a record
 * of a table as soon as its keys tell what it is: an event, a block, a segment, a frame, an
 * annotation. What then travels on through the machine is only its number. A dictionary that comes
 * piecemeal is kept as pairs, and told when it is put somewhere. What no key tells (the allocator's
 * settings) stays a plain dictionary and is forgotten with the builder.
 *
 * Errors of all functions: TG_EFORMAT with the reason, TG_ELIMIT, -ENOMEM. */
#ifndef TG_SNAPSHOT_MODEL_H
#define TG_SNAPSHOT_MODEL_H

#include "snapshot/tables.h"
#include "snapshot/value.h"

/* Lives while one file is read; all its memory counts against the snapshot's budget. */
struct tg__builder {
    struct tg_snapshot *snapshot;
    struct tg__vec objects; /* uint32_t: enum kind in the low 4 bits, its number above */
    struct tg__vec lists;   /* struct tg__list */
    struct tg__vec dicts;   /* struct tg__range in items: pairs not yet told */
    struct tg__vec items;   /* uint64_t values of plain lists and dictionaries */
    struct tg__vec wides;   /* int64_t, the low 64 bits */
    struct tg__vec histories; /* struct tg__history, of the blocks of torch 2.0 */
    struct tg__vec scratch; /* uint32_t: the frames of the stack at hand */
    uint64_t segments, traces, annotations; /* the top dictionary's values */
    size_t regrown_left;   /* frames that may be taken again because their stack grew */
    uint32_t blocks_taken; /* blocks below this number belong to a segment */
};

int tg__builder_init(struct tg__builder *builder, struct tg_snapshot *snapshot);
void tg__builder_free(struct tg__builder *builder);

/* A new empty dictionary or list, as a value. */
int tg__builder_dict(struct tg__builder *builder, uint64_t *value);
int tg__builder_list(struct tg__builder *builder, uint64_t *value);
/* Keeps an integer aside, for where it does not fit. */
int tg__builder_wide(struct tg__builder *builder, int64_t n, uint64_t *value);

/* dict[key] = value for `count` pairs; list.extend(values) for `count` values. */
int tg__builder_set(struct tg__builder *builder, uint64_t dict, const uint64_t *pairs,
                    size_t count);
int tg__builder_append(struct tg__builder *builder, uint64_t list, const uint64_t *values,
                       size_t count);
/* list, new and empty, becomes a stack of these frames (numbers of the frames' table). */
int tg__builder_stack(struct tg__builder *builder, uint64_t list, const uint32_t *frames,
                      size_t count);
/* The same with a stack that tg__builder_stack has made. */
void tg__builder_known_stack(struct tg__builder *builder, uint64_t list, uint32_t stack);

/* The whole was `root`: checks it and links traces and annotations. */
int tg__builder_finish(struct tg__builder *builder, uint64_t root);

#endif
