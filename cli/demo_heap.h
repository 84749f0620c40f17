/* SPDX-License-Identifier: Apache-2.0 */
/* The caching allocator of the demo's trainer. A program's blocks are mostly far smaller than what
 * a device hands out, so segments are taken from the device and cut into pieces: what PyTorch's own
 * allocator does, and what makes "cached" differ from "live". Small blocks have segments of their
 * own, lest one of them keeps a large one. Segments that are empty stay until demo_heap_trim, which
 * is the program's empty_cache. Single-threaded. */
#ifndef CLI_DEMO_HEAP_H
#define CLI_DEMO_HEAP_H

#include <stdbool.h>
#include <stdint.h>

/* Where segments come from. */
struct demo_source {
    void *(*take)(void *argument, uint64_t size_bytes); /* NULL: there is no more */
    void (*give)(void *argument, void *segment);
    void *argument;
    uint64_t granule_bytes;
};

struct demo_piece;

struct demo_heap {
    struct demo_source source;
    struct demo_piece *pieces; /* pieces[0] stands for none */
    uint32_t piece_count, piece_room;
    uint32_t unused;  /* first of the entries of `pieces` that stand for nothing now */
    uint32_t free[2]; /* first free piece: of small blocks' segments, of the others' */
    uint64_t segment_bytes; /* taken from the source now */
};

enum demo_heap_result {
    DEMO_HEAP_GIVEN,
    DEMO_HEAP_FULL,     /* the source has no more */
    DEMO_HEAP_NO_MEMORY /* for the heap's own table */
};

void demo_heap_init(struct demo_heap *heap, const struct demo_source *source);
/* The segments are the source's business. */
void demo_heap_destroy(struct demo_heap *heap);

/* A block: its address, 64-byte aligned, and its piece, which is what frees it. */
enum demo_heap_result demo_heap_alloc(struct demo_heap *heap, uint64_t size_bytes, void **at,
                                      uint32_t *piece);
void demo_heap_free(struct demo_heap *heap, uint32_t piece);

/* Gives empty segments back. */
void demo_heap_trim(struct demo_heap *heap);

#endif
