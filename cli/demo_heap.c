/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a segment are linked in the order of their addresses, free ones in one list of their
 * kind besides. The best fit is searched along that list: a program has some hundred of them. */
#include "demo_heap.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_BYTES = 64,
    SMALL_PART = 16,      /* a small block is at most this part of a granule */
    SEGMENT_GRANULES = 4, /* for blocks that are not small, at least */
    REST_PART = 8         /* a larger rest than this part of a granule is cut off */
};

struct demo_piece {
    unsigned char *at;
    uint64_t size_bytes;
    uint32_t before, after;         /* in its segment; 0: none */
    uint32_t free_prev, free_next;  /* of its kind; free_next also links unused entries */
    uint8_t kind;                   /* index of demo_heap.free */
    bool is_free;
};

enum { KIND_SMALL, KIND_LARGE };

void demo_heap_init(struct demo_heap *heap, const struct demo_source *source) {
    memset(heap, 0, sizeof *heap);
    heap->source = *source;
    heap->piece_count = 1;
}

void demo_heap_destroy(struct demo_heap *heap) {
    free(heap->pieces);
    heap->pieces = NULL;
}

/* Makes sure that two entries of the table are to be had: a segment's, and a rest's. */
static bool table_has_room(struct demo_heap *heap) {
    uint32_t room = heap->piece_room == 0 ? 1024 : heap->piece_room * 2;
    struct demo_piece *moved;

    if (heap->piece_count + 2 <= heap->piece_room)
        return true;
    moved = realloc(heap->pieces, room * sizeof *moved);
    if (moved == NULL)
        return false;
    heap->pieces = moved;
    heap->piece_room = room;
    return true;
}

static uint32_t entry_take(struct demo_heap *heap) {
    uint32_t index = heap->unused;

    if (index != 0)
        heap->unused = heap->pieces[index].free_next;
    else
        index = heap->piece_count++;
    return index;
}

static void entry_drop(struct demo_heap *heap, uint32_t index) {
    heap->pieces[index].free_next = heap->unused;
    heap->unused = index;
}

static void free_list_add(struct demo_heap *heap, uint32_t index) {
    struct demo_piece *piece = &heap->pieces[index];
    uint32_t *first = &heap->free[piece->kind];

    piece->is_free = true;
    piece->free_prev = 0;
    piece->free_next = *first;
    if (*first != 0)
        heap->pieces[*first].free_prev = index;
    *first = index;
}

static void free_list_remove(struct demo_heap *heap, uint32_t index) {
    struct demo_piece *piece = &heap->pieces[index];

    if (piece->free_prev != 0)
        heap->pieces[piece->free_prev].free_next = piece->free_next;
    else
        heap->free[piece->kind] = piece->free_next;
    if (piece->free_next != 0)
        heap->pieces[piece->free_next].free_prev = piece->free_prev;
    piece->is_free = false;
}

/* The smallest free piece that is large enough; 0: none. */
static uint32_t best_fit(const struct demo_heap *heap, int kind, uint64_t size_bytes) {
    uint32_t best = 0;

    for (uint32_t i = heap->free[kind]; i != 0; i = heap->pieces[i].free_next) {
        uint64_t found_bytes = heap->pieces[i].size_bytes;

        if (found_bytes >= size_bytes &&
            (best == 0 || found_bytes < heap->pieces[best].size_bytes))
            best = i;
    }
    return best;
}

/* A new segment as one free piece; 0: the source has no more. */
static uint32_t segment_take(struct demo_heap *heap, int kind, uint64_t size_bytes) {
    uint64_t granule = heap->source.granule_bytes;
    uint64_t least = kind == KIND_SMALL ? granule : SEGMENT_GRANULES * granule;
    uint64_t whole = size_bytes <= least ? least : (size_bytes + granule - 1) / granule * granule;
    void *at = heap->source.take(heap->source.argument, whole);
    uint32_t index;

    if (at == NULL && whole > size_bytes) { /* less may still be there */
        whole = (size_bytes + granule - 1) / granule * granule;
        at = heap->source.take(heap->source.argument, whole);
    }
    if (at == NULL)
        return 0;
    index = entry_take(heap);
    heap->pieces[index] = (struct demo_piece){
        .at = at, .size_bytes = whole, .kind = (uint8_t)kind};
    heap->segment_bytes += whole;
    free_list_add(heap, index);
    return index;
}

/* Cuts what a block does not need off the end of its piece. */
static void rest_cut(struct demo_heap *heap, uint32_t index, uint64_t size_bytes) {
    uint32_t rest = entry_take(heap);
    struct demo_piece *piece = &heap->pieces[index];

    heap->pieces[rest] = (struct demo_piece){
        .at = piece->at + size_bytes,
        .size_bytes = piece->size_bytes - size_bytes,
        .before = index,
        .after = piece->after,
        .kind = piece->kind,
    };
    if (piece->after != 0)
        heap->pieces[piece->after].before = rest;
    piece->after = rest;
    piece->size_bytes = size_bytes;
    free_list_add(heap, rest);
}

enum demo_heap_result demo_heap_alloc(struct demo_heap *heap, uint64_t size_bytes, void **at,
                                      uint32_t *piece) {
    uint64_t granule = heap->source.granule_bytes;
    uint64_t taken = (size_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    int kind = taken <= granule / SMALL_PART ? KIND_SMALL : KIND_LARGE;
    uint64_t rest_least = kind == KIND_SMALL ? ALIGN_BYTES : granule / REST_PART;
    uint32_t index;

    if (!table_has_room(heap))
        return DEMO_HEAP_NO_MEMORY;
    index = best_fit(heap, kind, taken);
    if (index == 0)
        index = segment_take(heap, kind, taken);
    if (index == 0) { /* as PyTorch does before it gives up */
        demo_heap_trim(heap);
        index = segment_take(heap, kind, taken);
    }
    if (index == 0)
        return DEMO_HEAP_FULL;
    free_list_remove(heap, index);
    if (heap->pieces[index].size_bytes - taken >= rest_least)
        rest_cut(heap, index, taken);
    *at = heap->pieces[index].at;
    *piece = index;
    return DEMO_HEAP_GIVEN;
}

/* Makes one piece of two neighbours; `second` is free and in no list. */
static void join(struct demo_heap *heap, uint32_t first, uint32_t second) {
    struct demo_piece *piece = &heap->pieces[first], *gone = &heap->pieces[second];

    piece->size_bytes += gone->size_bytes;
    piece->after = gone->after;
    if (gone->after != 0)
        heap->pieces[gone->after].before = first;
    entry_drop(heap, second);
}

void demo_heap_free(struct demo_heap *heap, uint32_t index) {
    uint32_t before = heap->pieces[index].before, after = heap->pieces[index].after;

    if (after != 0 && heap->pieces[after].is_free) {
        free_list_remove(heap, after);
        join(heap, index, after);
    }
    if (before != 0 && heap->pieces[before].is_free) {
        free_list_remove(heap, before);
        join(heap, before, index);
        index = before;
    }
    free_list_add(heap, index);
}

void demo_heap_trim(struct demo_heap *heap) {
    for (int kind = KIND_SMALL; kind <= KIND_LARGE; kind++) {
        uint32_t next;

        for (uint32_t i = heap->free[kind]; i != 0; i = next) {
            struct demo_piece *piece = &heap->pieces[i];

            next = piece->free_next;
            if (piece->before != 0 || piece->after != 0)
                continue;
            free_list_remove(heap, i);
            heap->source.give(heap->source.argument, piece->at);
            heap->segment_bytes -= piece->size_bytes;
            entry_drop(heap, i);
        }
    }
}
