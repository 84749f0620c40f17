/* SPDX-License-Identifier: Apache-2.0 */
/* What a memory consists of, and what its files do for each other.
 *
 * One mutex, `lock`, guards every table. It is held for a look, never for a wait. Three things may
 * own a tag's content without it:
 *   an alloc, between tg__tag_enter and tg__tag_leave: the range and the chunk it is making;
 *   a sleep or a wake, while the tag's state is in motion (DRAINING … FILLING): its blocks, chunks
 *   and host memory. No alloc is inside then, frees only mark the block, limbo leaves it alone;
 *   nobody else.
 * Sleeps and wakes hold `turn`, taken before `lock`.
 *
 * Whatever fails on its way out is kept and tried again at each later call: a chunk in `leaving`, a
 * freed block in `limbo`, host memory in `graves`. So nothing on a way out needs memory: the
 * structs that were made on the way in are moved from list to list. */
#ifndef TG_MEMORY_STATE_H
#define TG_MEMORY_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <tidegate/error.h>
#include <tidegate/memory.h>

#include "device/handles.h"
#include "memory/hostmap.h"
#include "memory/hosttouch.h"
#include "memory/ranges.h"

/* How long an alloc or a wake waits for limbo to settle before it does without. */
enum { TG__SETTLE_MS = 100, TG__CLOSE_MS = 1000 };

/* What the device may still use is behind a shut gate until it has passed a fence. */
struct tg__gate {
    bool is_shut, is_fenced; /* shut without a fence: one is taken at the next look */
    struct tg_fence fence;
};

/* Host memory in which blocks of one tag lie, made by one sleep or prepared for it. It is touched,
 * pinned and copied in steps, so that these overlap; no copy reaches over the end of a step. */
struct tg__segment {
    struct tg__segment *next;
    struct tg_tag *tag;
    struct tg_tenant *tenant; /* who is charged; NULL: none */
    struct tg__hostmap map;
    size_t size_bytes;   /* whole pages */
    uint64_t held_bytes; /* of them with memory behind: what is charged */
    size_t copies;       /* blocks that lie here */
    struct tg__ranges gaps;
    bool is_touched; /* and charged so */
    bool is_unswept; /* pages inside gaps may still have memory */
    bool is_touching;
    struct tg__touch touch; /* while is_touching */
    struct tg__gate gate;   /* copies that did not end in time */
    size_t step_bytes, step_count;
    size_t steps_ready; /* the first step that this save or fill has not asked for */
    bool is_pinned[];   /* each step */
};

struct tg__block {
    struct tg__range range; /* first; whole granules */
    uint64_t size_bytes;    /* as asked */
    struct tg_tag *tag;
    struct tg__segment *segment; /* NULL: no host copy */
    unsigned char *copy;
    uint64_t checksum;
    bool is_freed; /* while the tag is in motion: is retired at the end of that */
    struct tg__ranges holes; /* that a trim has given back; whole granules inside size_bytes */
    /* Of a page's (page.h), else NULL and 0: */
    struct tg__estate *estate;
    struct tg__page *page; /* NULL: the program has unmapped it while the tag was in motion */
    uint32_t flags;        /* of its chunk */
    uint64_t devices;      /* that have access beside this one */
    /* That other processes may open (export.h), else 0 and NULL: */
    uint64_t generation;
    struct tg__lease *leases;
    struct tg__chunk *chunk; /* of one that is kept: in tag->kept, and in no other table */
    /* In limbo: */
    struct tg__block *next;
    uint64_t order; /* of frees: whoever waited for a fence after it has settled all before */
    struct tg__gate gate;
};

struct tg__chunk {
    struct tg__range range; /* first */
    struct tg_tag *tag;
    uint64_t handle; /* 0: none */
    uint64_t home_addr; /* of one that repack made: where it belongs */
    struct tg__estate *estate; /* in which it is mapped; NULL: where our own are */
    uint32_t flags;            /* with which it is created */
    bool is_exportable;        /* as it was created */
    uint64_t devices;          /* that have access beside this one, */
    uint64_t granted;          /* and to whom it was given, with peers */
    bool is_mapped;
    bool is_charged; /* the ledger counts it as occupied */
    /* Leaving: */
    bool frees_addr; /* the range goes too: back to the arena, or unreserved */
    struct tg__gate gate;
    struct tg__chunk *next;
};

struct tg_tag {
    struct tg_tag *next; /* in order of opening */
    struct tg_tag *next_chosen; /* of the sleep or wake that has the turn */
    struct tg_memory *memory;
    char name[TG_TAG_NAME_BYTES];
    struct tg_tag_params params;
    enum tg_tag_state state;
    enum tg_tag_state before; /* this motion */
    uint32_t allocs;          /* inside now */

    struct tg__plots blocks;
    /* Of an awake tag: mapped. A sleeping one has none, or, where a sleep failed and the device
     * refused to map again what was unmapped already, all of them: content is in them still, and
     * the next sleep or wake completes one or the other. */
    struct tg__plots chunks;
    struct tg__plots kept;    /* blocks that others have: no sleep touches them */
    uint64_t size_bytes;      /* of blocks, as asked */
    uint64_t chunk_bytes, limbo_bytes;
    uint64_t held_bytes; /* of the chunks: pages that never sleep */
    uint64_t hole_bytes; /* of the blocks: what a trim has given back */
    uint32_t leaving_mapped; /* chunks not unmapped yet: their addresses cannot be used */

    /* Packed: */
    struct tg__ranges spans;  /* reservations */
    struct tg__ranges vacant; /* addresses without memory */
    struct tg__ranges spare;  /* settled memory without a block */
    struct tg__ranges blank;  /* of that what no block has had: zero still */

    /* Host copies, or, while awake, places for them: */
    struct tg__segment *segments;
    struct tg__segment *fresh_segment; /* of this sleep */
    uint64_t host_bytes;
    bool is_saved; /* the copies are the content */
    bool is_dropped; /* by the sleep that has the turn: nothing is saved */

    /* A wake between try and end: */
    struct tg__plots fresh;
    uint64_t reserved_bytes; /* until all is created; */
    uint64_t tried_bytes;    /* then these are occupied */
};

/* Host memory that a wake gives back after its call has returned; guarded by turn. */
struct tg__handback {
    pthread_t thread;
    bool is_begun;
    struct tg__segment *segments; /* the thread's */
    uint64_t least_bytes;         /* for less no thread is begun */
};

struct tg_memory {
    struct tg_device *device;
    const struct tg_device_ops *ops;
    struct tg_tenant *tenant;
    struct tg_queue *queue; /* for copies and fills */
    uint64_t granule_bytes, total_bytes, least_chunk_bytes;
    size_t step_bytes; /* of host memory, whole pages */
    bool has_near;
    cpu_set_t near; /* whose memory is the nearest to the device */
    pid_t pid;
    uint32_t number; /* of the memories of this process, in order of opening */
    uint32_t open_wait_ms; /* for another process's memory */
    bool can_export;
    _Atomic uint64_t peers; /* devices that have access to all chunks outside estates */
    atomic_bool is_broken;
    atomic_bool is_alone; /* no ledger, or no longer */
    atomic_flag has_warned;

    pthread_mutex_t turn;
    bool is_tried; /* guarded by turn */
    struct tg_tag *chosen; /* between try and end; guarded by turn */
    struct tg__handback handback;

    /* Where torch's frees look for their blocks; guarded by tg__fork_hold (scope.c): */
    struct tg_memory *next_listed;
    bool is_listed, is_leaving;
    uint32_t visitors;

    pthread_mutex_t lock;
    pthread_cond_t left; /* an alloc has left its tag */
    struct tg_tag *tags;
    struct tg__block *limbo, **limbo_end;
    uint64_t frees; /* so far: the order of the next */
    struct tg__chunk *leaving;
    uint64_t given_bytes; /* back to the device, so far */
    struct tg__segment *graves;
    struct tg__plots estates;
    struct tg__handles pages;
};

/* ---- memory.c -------------------------------------------------------------------------------- */

/* 0, TG_EFORKED, TG_EBROKEN. */
int tg__memory_check(struct tg_memory *memory);
/* Passes a status on; a sticky one breaks the memory. */
int tg__memory_note(struct tg_memory *memory, int status);
/* The same at the end of a public function: success leaves the thread's last error as it was. */
int tg__memory_done(struct tg_memory *memory, int status, const struct tg_error *before);
/* Gives back what has settled, and tries again what failed to leave. With lock. */
void tg__memory_tidy(struct tg_memory *memory);
uint32_t tg__ms_left(uint64_t deadline_ns);

/* ---- alloc.c --------------------------------------------------------------------------------- */

/* tg_memory_free of a block that nothing given to the device uses any more: it does not wait. */
int tg__memory_free_idle(struct tg_memory *memory, void *block);

/* ---- tag.c ----------------------------------------------------------------------------------- */

bool tg__tag_is_moving(const struct tg_tag *tag);
/* The block in which addr lies, and its number in the tag's table; NULL: none. One that is kept has
 * a chunk, and no number. With lock. */
struct tg__block *tg__tag_block(struct tg_memory *memory, uint64_t addr, size_t *number);
/* Takes a freed block out of its tag: to limbo. With lock. */
void tg__block_retire(struct tg__block *block, size_t number);
/* What of a block there is to save: all that is no hole. */
static inline uint64_t tg__block_saved(const struct tg__block *block) {
    return block->size_bytes - block->holes.size_bytes;
}
/* A range of a block has no memory any more; room was made in its holes. With lock. */
void tg__block_hollow(struct tg__block *block, struct tg__range hole);
/* All blocks of the tag have all their memory again. With lock. */
void tg__tag_fill_holes(struct tg_tag *tag);
/* Asleep, and yet with its chunks. */
bool tg__tag_is_half(const struct tg_tag *tag);
/* Maps what of them is not mapped. The tag is in motion. */
int tg__tag_map(struct tg_tag *tag);
/* Begins an alloc: makes room in the tables. Errors: TG_EASLEEP, -ENOMEM. With lock. */
int tg__tag_enter(struct tg_tag *tag);
void tg__tag_leave(struct tg_tag *tag);
/* Takes the others out of the list of the chosen. With lock. */
void tg__tags_keep(struct tg_tag **chosen, bool (*is_kept)(const struct tg_tag *tag));
/* Sets the state of all chosen tags; takes the lock. */
void tg__tags_move(struct tg_memory *memory, struct tg_tag *chosen, enum tg_tag_state state);
/* Ends the motion of chosen tags: retires blocks that were freed meanwhile, tidies. With lock. */
void tg__tags_rest(struct tg_memory *memory, struct tg_tag *chosen);

/* ---- names.c --------------------------------------------------------------------------------- */

/* 0 or -EINVAL. */
int tg__name_check(const char *name);
/* Chains the named tags (NULL: all) by next_chosen, in order of opening. Errors: -EINVAL, -ENOENT.
 * With turn. */
int tg__names_choose(struct tg_memory *memory, const char *names, struct tg_tag **chosen);
/* Marks those of the chosen tags whose content is dropped (names NULL: none), and no others.
 * Errors: -EINVAL, -ENOENT. With turn. */
int tg__names_drop(struct tg_memory *memory, const char *names, struct tg_tag *chosen);

/* ---- alloc.c --------------------------------------------------------------------------------- */

/* tg_tag_alloc, with flags for the chunk of a general tag's block. */
int tg__tag_alloc(struct tg_tag *tag, uint64_t size_bytes, uint32_t flags, void **block);

/* ---- chunk.c --------------------------------------------------------------------------------- */

/* A flag of chunks: exportable if the device lets it. */
#define TG__CHUNK_OFFERED (UINT32_C(1) << 16)

struct tg__chunk *tg__chunk_new(struct tg_tag *tag, struct tg__range range);
/* Creates and maps. On failure it is without a handle, or, where the device refuses that too, has
 * one: it must leave. Charges nothing. */
int tg__chunk_create(struct tg__chunk *chunk);
int tg__chunk_map(struct tg__chunk *chunk);
int tg__chunk_back(struct tg__chunk *chunk);
int tg__chunk_unback(struct tg__chunk *chunk);
/* Maps what has a handle, which it keeps whatever happens. */
int tg__chunk_map_kept(struct tg__chunk *chunk);
/* To all devices that are to have it, as far as it is mapped. */
int tg__chunk_access(struct tg__chunk *chunk);
/* The same for all chunks of a tag, whatever one answers; the first failure. */
int tg__chunks_access(struct tg_tag *tag);
/* Reserves, creates, maps, commits: the tag's chunk_bytes are the caller's, who looks whether it is
 * charged, also after a failure: a handle that could not be released again stays so. */
int tg__chunk_make(struct tg__chunk *chunk);
/* The same, mapped nowhere. */
int tg__chunk_make_unmapped(struct tg__chunk *chunk);
/* Whether a status says that there is not so much memory. */
bool tg__is_short(int status);
/* Whether what lies in these estates (NULL: at addresses of the tag's own) lies in one reservation,
 * so that neighbours are one range to the device. A general tag's blocks have each their own. */
bool tg__is_one_reservation(const struct tg_tag *tag, const struct tg__estate *one,
                            const struct tg__estate *other);
/* Unmaps all of a tag's chunks, whole neighbours in one call. On failure some may be mapped. */
int tg__chunks_unmap(struct tg_tag *tag);
/* Gives back the addresses of a chunk that is not mapped there. Cannot fail where packed, and room
 * was made. With lock. */
int tg__chunk_free_addr(struct tg__chunk *chunk);
/* Memory that is on its way out of the range and mapped there still; NULL: none. With lock. */
struct tg__chunk *tg__chunk_leaving_in(const struct tg_memory *memory, struct tg__range range);
/* On its way out, as far as that goes now: the chunk is not the caller's any more. With lock. */
void tg__chunk_leave(struct tg__chunk *chunk);
void tg__chunks_retry(struct tg_memory *memory);

/* ---- shortage.c ------------------------------------------------------------------------------ */

/* Before a request that may be refused: what the next is asked with. Takes the lock. */
uint64_t tg__shortage_begin(struct tg_memory *memory);
/* It was refused: gives back what has settled, or does soon, and what the driver's pool keeps.
 * True: something has come free since `given_bytes`, and once more may do. Takes the lock, which it
 * gives up meanwhile; the thread's last error stays. */
bool tg__shortage_settle(struct tg_memory *memory, uint64_t given_bytes);
/* It was refused for good, with this status: peers are asked for what it lacked, for the next one.
 * Without lock; the thread's last error stays. */
void tg__shortage_ask(struct tg_memory *memory, uint64_t size_bytes, int status);

/* ---- arena.c --------------------------------------------------------------------------------- */

/* Spare memory, packed: of a tag that an alloc has entered, which takes one piece at most. With
 * lock. */
struct tg__piece {
    struct tg__range range; /* of size 0: none */
    bool is_blank;          /* no block has had any of it */
};

/* A piece of exactly `size_bytes`; false: there is none. */
bool tg__arena_take(struct tg_tag *tag, uint64_t size_bytes, struct tg__piece *piece);
/* The largest piece behind which so much is vacant that both have `size_bytes`: a new chunk there
 * need not have all of them. */
void tg__arena_take_tail(struct tg_tag *tag, uint64_t size_bytes, struct tg__piece *piece);
/* What was taken is not needed; the thread's last error stays. */
void tg__arena_untake(struct tg_tag *tag, const struct tg__piece *piece);
/* What a new chunk has beyond its block. */
void tg__arena_add(struct tg_tag *tag, struct tg__range rest);
/* Addresses for range->size_bytes, or fewer where the spans have not so many in a row, but for
 * need_bytes at least; packed: from the vacant ones. With lock. */
int tg__arena_find(struct tg_tag *tag, uint64_t need_bytes, struct tg__range *range);
/* Unreserves spans of which nothing is used. With lock. */
void tg__arena_shrink(struct tg_tag *tag);
/* A block whose last users have ended goes: its range, and chunks that are then wholly free.
 * Errors: it must wait. With lock. */
int tg__arena_settle(struct tg__block *block);
/* The chunks that a sleeping tag needs, into tag->fresh, without handles. Errors: -ENOMEM. */
int tg__arena_plan(struct tg_tag *tag);
/* The same for what an awake one has given back; makes room for them among its chunks. */
int tg__arena_plan_holes(struct tg_tag *tag);

/* ---- limbo.c --------------------------------------------------------------------------------- */

/* Shuts it behind what was given to the queue so far (NULL: any). Cannot fail. */
void tg__gate_shut(struct tg_memory *memory, struct tg__gate *gate, struct tg_queue *queue);
/* Looks, waits for nothing. */
bool tg__gate_is_open(struct tg_memory *memory, struct tg__gate *gate);

/* A block that has left the tables and has its fence: waits, or goes at once. With lock. */
void tg__limbo_add(struct tg__block *block);
/* Lets go what has settled. With lock. */
void tg__limbo_look(struct tg_memory *memory);
/* Waits for one fence behind all frees so far, if anything is on its way out, then looks. What a
 * stuck copy used can be tidied away then too. With lock, which it gives up meanwhile. */
void tg__limbo_settle(struct tg_memory *memory, uint32_t wait_ms);
/* All freed blocks up to `order` have settled. With lock. */
void tg__limbo_settled(struct tg_memory *memory, uint64_t order);

/* ---- segment.c ------------------------------------------------------------------------------- */

/* The size of a segment for those blocks of the tag that have none. */
uint64_t tg__segment_missing(const struct tg_tag *tag);
/* Host memory of that size; charged, not yet touched, not yet in the tag's list. Errors:
 * TG_EHOSTMEMORY, -ENOMEM. */
int tg__segment_new(struct tg_tag *tag, uint64_t size_bytes, struct tg__segment **segment);
/* Into the tag's list: for the blocks that have none, as far as it reaches; what is too much of it
 * is given back. False: no block needs it, and it stays the caller's. Cannot fail. With lock, or
 * while the tag is in motion. */
bool tg__segment_adopt(struct tg__segment *segment);
/* Has the kernel give its pages from now on, by several threads, until the end, which stops them.
 * segment may be NULL. */
void tg__segment_touch_begin(struct tg__segment *segment);
void tg__segment_touch_end(struct tg__segment *segment);
/* The first copy of a save or a fill is about to be given. */
void tg__segments_rewind(struct tg_tag *tag);
/* Waits until the step has its pages, and pins it if it is not. Asked in rising order. That pinning
 * fails is no error unless the device is broken: copies are then slower. Errors: -ENOMEM. */
int tg__segment_ready(struct tg__segment *segment, size_t step);
void tg__segment_touched(struct tg__segment *segment);
/* The host copy of one block goes; its pages too, where no other block lies. With lock. */
void tg__segment_release(struct tg__block *block);
/* All host copies that a segment, or the tag, has. With lock. */
void tg__segment_drop(struct tg__segment *segment);
void tg__segments_drop(struct tg_tag *tag);
/* The same in two steps, for giving back takes as long as the memory is large. First they leave the
 * tag's tables, to the front of a list. With lock. */
void tg__segments_detach(struct tg_tag *tag, struct tg__segment **detached);
/* Then the list is given back; what cannot be goes to the graves. Without lock. */
void tg__segments_bury(struct tg_memory *memory, struct tg__segment *detached);
/* Tries again what could not be given back. With lock. */
void tg__segments_retry(struct tg_memory *memory);

/* ---- handback.c ------------------------------------------------------------------------------ */

/* Gives a list back that has left its tags' tables: by a thread, where that pays and harms nobody,
 * else now. Returns the bytes that are given back later. With turn, without lock. */
uint64_t tg__handback_begin(struct tg_memory *memory, struct tg__segment *detached);
/* Returns when nothing is on its way back any more. With turn, or where nobody else is. */
void tg__handback_end(struct tg_memory *memory);

/* ---- copy.c ---------------------------------------------------------------------------------- */

enum tg__copy_way { TG__COPY_SAVE, TG__COPY_FILL };

/* How far the copies of one tag have been given to the memory's queue, in order of address. */
struct tg__copying {
    struct tg_tag *tag;
    enum tg__copy_way way;
    size_t number;       /* of the block that is next */
    uint64_t done_bytes; /* of that block */
};

void tg__copy_begin(struct tg__copying *copying, struct tg_tag *tag, enum tg__copy_way way);
/* Gives the copies of what lies below `end`, in host memory that is made ready for it.
 * *copied_bytes grows, also on a failure. */
int tg__copy_until(struct tg__copying *copying, uint64_t end, uint64_t *copied_bytes);
/* Waits for them, also after a failure of `status`: what was given is still under way. Returns the
 * first of the two failures, with its sentence. Where they do not end, gates are shut before the
 * segments and chunks of the chosen tags. */
int tg__copy_end(struct tg_memory *memory, struct tg_tag *chosen, uint64_t copied_bytes,
                 int status);
/* Zeroes a range and waits. */
int tg__copy_zero(struct tg_memory *memory, struct tg__range range);
void tg__copy_sum(struct tg_tag *tag);
/* Errors: TG_ECONTENT. */
int tg__copy_verify(struct tg_tag *tag);

/* ---- charge.c: the ledger, if there is one --------------------------------------------------- */

int tg__charge_check(struct tg_memory *memory);
int tg__charge_quiet(struct tg_memory *memory, uint32_t wait_ms);
int tg__charge_reserve(struct tg_tag *tag, uint64_t size_bytes, uint32_t wait_ms);
/* The reserved_bytes of all chosen tags, as one request. */
int tg__charge_reserve_all(struct tg_memory *memory, const struct tg_tag *chosen,
                           uint32_t wait_ms);
void tg__charge_commit(struct tg_tag *tag, uint64_t size_bytes, uint64_t woken_bytes);
void tg__charge_cancel(struct tg_tag *tag, uint64_t size_bytes);
void tg__charge_give(struct tg_tag *tag, uint64_t size_bytes, uint64_t asleep_bytes);
void tg__charge_forget(struct tg_tag *tag, uint64_t asleep_bytes);
/* Has the driver asked for readers. Never fails; leaves a sentence. */
void tg__charge_measure(struct tg_memory *memory);
int tg__charge_host(struct tg__segment *segment);
/* Whether so much more could be reserved now by whom the segment is charged to. */
bool tg__charge_has_host_room(const struct tg__segment *segment, uint64_t size_bytes);

/* ---- scope.c --------------------------------------------------------------------------------- */

/* No free of torch's looks into this memory any more; waits for those that do. */
void tg__memory_unlist(struct tg_memory *memory);

/* ---- sleep.c --------------------------------------------------------------------------------- */

/* From here on nothing is allocated in the tags, and what is freed waits for tg__tags_rest; on
 * failure all is as before. Errors: TG_EBUSY. With lock, which it gives up meanwhile. */
int tg__tags_still(struct tg_memory *memory, struct tg_tag *chosen, uint64_t deadline_ns);
/* Waits for all of the device's work: then limbo has settled too. */
int tg__tags_drain(struct tg_memory *memory, uint32_t wait_ms);

/* ---- wake.c ---------------------------------------------------------------------------------- */

/* Returns the bytes of host memory that are given back later. With turn. */
uint64_t tg__wake_end(struct tg_memory *memory, int publish);

#endif
