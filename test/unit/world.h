/* SPDX-License-Identifier: Apache-2.0 */
/* A process that allocates, for unit tests: keeps what is live, writes down a history, and turns
 * both into the bytes of a snapshot, as torch's C++ writer would (protocol 2).
 *
 * A site is a line of /w/app.py in function f, below torch's linear; WORLD_LIBRARY has no frame of
 * the user's own. Sizes are as given (requested); blocks lie 64 MiB apart. Time starts at 1 s and
 * rises by 10 us with every entry, so that a test can put a mark exactly at, or between, events. */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/snapshot.h>

enum { WORLD_ENTRIES = 4096, WORLD_LIBRARY = -1, WORLD_DEVICES = 3 };

struct world_event {
    const char *action;
    uint64_t addr, size, time;
    int line, device;
    char metadata[32];
};

struct world_block {
    uint64_t addr, size;
    int line, device;
    int state; /* 0 gone, 1 live, 2 pending */
};

struct world_annotation {
    char name[48];
    uint64_t time;
    int is_end;
};

struct world {
    struct world_event events[WORLD_ENTRIES];
    struct world_block blocks[WORLD_ENTRIES];
    struct world_annotation annotations[256];
    size_t event_count, block_count, annotation_count;
    uint64_t time;
    int devices;
    char metadata[32];
    unsigned char *data;
    size_t size, room;
};

static inline struct world *world_new(void) {
    struct world *w = calloc(1, sizeof *w);
    ck_assert_ptr_nonnull(w);
    w->time = 1000000;
    w->devices = 1;
    return w;
}

static inline void world_free(struct world *w) {
    free(w->data);
    free(w);
}

static inline struct world_event *world_note(struct world *w, const char *action, uint64_t addr,
                                             uint64_t size, int line, int device) {
    struct world_event *e = &w->events[w->event_count++];
    ck_assert_uint_lt(w->event_count, WORLD_ENTRIES);
    w->time += 10;
    *e = (struct world_event){action, addr, size, w->time, line, device, ""};
    memcpy(e->metadata, w->metadata, sizeof e->metadata);
    return e;
}

/* Returns the block's number, for world_drop. */
static inline size_t world_alloc_on(struct world *w, int device, int line, uint64_t size) {
    size_t number = w->block_count++;
    uint64_t addr = ((uint64_t)(device + 1) << 44) + ((uint64_t)number << 26);
    ck_assert_uint_lt(w->block_count, WORLD_ENTRIES);
    w->blocks[number] = (struct world_block){addr, size, line, device, 1};
    world_note(w, "alloc", addr, size, line, device);
    return number;
}

static inline size_t world_alloc(struct world *w, int line, uint64_t size) {
    return world_alloc_on(w, 0, line, size);
}

static inline void world_drop(struct world *w, size_t number) {
    struct world_block *b = &w->blocks[number];
    ck_assert_int_eq(b->state, 1);
    world_note(w, "free_requested", b->addr, b->size, 7, b->device);
    world_note(w, "free_completed", b->addr, b->size, 7, b->device);
    b->state = 0;
}

/* Freed, while another stream may still use it. */
static inline void world_drop_pending(struct world *w, size_t number) {
    struct world_block *b = &w->blocks[number];
    world_note(w, "free_requested", b->addr, b->size, 7, b->device);
    b->state = 2;
}

/* A temporary: allocated and freed at once. */
static inline void world_touch(struct world *w, int line, uint64_t size) {
    world_drop(w, world_alloc(w, line, size));
}

static inline void world_annotate(struct world *w, const char *name, int is_end) {
    struct world_annotation *a = &w->annotations[w->annotation_count++];
    ck_assert_uint_lt(w->annotation_count, 256);
    w->time += 10;
    snprintf(a->name, sizeof a->name, "%s", name);
    a->time = w->time;
    a->is_end = is_end;
}

/* A span around nothing: both ends. */
static inline void world_span(struct world *w, const char *name) {
    world_annotate(w, name, 0);
    world_annotate(w, name, 1);
}

static inline void world_metadata(struct world *w, const char *text) {
    snprintf(w->metadata, sizeof w->metadata, "%s", text);
}

/* The history starts anew; what is live stays. */
static inline void world_forget(struct world *w) {
    w->event_count = w->annotation_count = 0;
}

/* A ring: only the last `count` events are left. */
static inline void world_keep_last(struct world *w, size_t count) {
    size_t gone = w->event_count - count;
    memmove(w->events, w->events + gone, count * sizeof *w->events);
    w->event_count = count;
}

static inline uint64_t world_live(const struct world *w) {
    uint64_t total = 0;
    for (size_t i = 0; i < w->block_count; i++)
        total += w->blocks[i].state == 1 ? w->blocks[i].size : 0;
    return total;
}

/* ---- writing ---- */

static inline void world_put(struct world *w, const void *bytes, size_t count) {
    if (w->size + count > w->room) {
        w->room = 2 * (w->size + count);
        w->data = realloc(w->data, w->room);
        ck_assert_ptr_nonnull(w->data);
    }
    memcpy(w->data + w->size, bytes, count);
    w->size += count;
}

static inline void world_op(struct world *w, const char *opcodes) {
    world_put(w, opcodes, strlen(opcodes));
}

static inline void world_text(struct world *w, const char *text) {
    uint32_t length = (uint32_t)strlen(text);
    world_op(w, "X");
    world_put(w, &length, 4); /* the tests run on little-endian machines, as torch does */
    world_put(w, text, length);
}

static inline void world_number(struct world *w, const char *key, uint64_t value) {
    if (key != NULL)
        world_text(w, key);
    world_put(w, "\x8a\x08", 2);
    world_put(w, &value, 8);
}

static inline void world_pair(struct world *w, const char *key, const char *value) {
    world_text(w, key);
    world_text(w, value);
}

static inline void world_frame(struct world *w, const char *file, const char *function, int line) {
    world_op(w, "}(");
    world_pair(w, "name", function);
    world_pair(w, "filename", file);
    world_number(w, "line", (uint64_t)line);
    world_op(w, "u");
}

static inline void world_frames(struct world *w, int line) {
    world_text(w, "frames");
    world_op(w, "](");
    world_frame(w, "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", "forward", 134);
    if (line != WORLD_LIBRARY) {
        world_frame(w, "/w/app.py", "f", line);
        world_frame(w, "/w/main.py", "<module>", 1);
    }
    world_op(w, "e");
}

static inline void world_put_events(struct world *w) {
    world_text(w, "device_traces");
    world_op(w, "](");
    for (int device = 0; device < w->devices; device++) {
        world_op(w, "](");
        for (size_t i = 0; i < w->event_count; i++) {
            const struct world_event *e = &w->events[i];
            if (e->device != device)
                continue;
            world_op(w, "}(");
            world_pair(w, "action", e->action);
            world_number(w, strcmp(e->action, "oom") == 0 ? "device_free" : "addr", e->addr);
            world_number(w, "size", e->size);
            world_number(w, "stream", 0);
            world_number(w, "time_us", e->time);
            world_pair(w, "user_metadata", e->metadata);
            world_frames(w, e->line);
            world_op(w, "u");
        }
        world_op(w, "e");
    }
    world_op(w, "e");
}

/* Each block is a segment of its own. */
static inline void world_put_segments(struct world *w) {
    world_text(w, "segments");
    world_op(w, "](");
    for (size_t i = 0; i < w->block_count; i++) {
        const struct world_block *b = &w->blocks[i];
        if (b->state == 0)
            continue;
        world_op(w, "}(");
        world_number(w, "device", (uint64_t)b->device);
        world_number(w, "address", b->addr);
        world_number(w, "total_size", b->size);
        world_number(w, "allocated_size", b->state == 1 ? b->size : 0);
        world_number(w, "active_size", b->size);
        world_number(w, "stream", 0);
        world_pair(w, "segment_type", "large");
        world_text(w, "blocks");
        world_op(w, "](}(");
        world_number(w, "address", b->addr);
        world_number(w, "size", b->size);
        world_number(w, "requested_size", b->size);
        world_pair(w, "state", b->state == 1 ? "active_allocated" : "active_pending_free");
        world_frames(w, b->line);
        world_op(w, "ueu");
    }
    world_op(w, "e");
}

/* The bytes live until the next call, or world_free. */
static inline struct tg_snapshot *world_parse(struct world *w) {
    struct tg_snapshot *snapshot;

    w->size = 0;
    world_put(w, "\x80\x02}(", 4);
    world_put_segments(w);
    world_put_events(w);
    world_text(w, "external_annotations");
    world_op(w, "](");
    for (size_t i = 0; i < w->annotation_count; i++) {
        world_op(w, "}(");
        world_pair(w, "stage", w->annotations[i].is_end ? "END" : "START");
        world_pair(w, "name", w->annotations[i].name);
        world_number(w, "device", 0);
        world_number(w, "time_us", w->annotations[i].time);
        world_op(w, "u");
    }
    world_op(w, "eu.");
    ck_assert_int_eq(tg_snapshot_parse(w->data, w->size, &snapshot), 0);
    return snapshot;
}

/* What the leak search keeps of the process now. */
static inline struct tg_digest *world_digest(struct world *w, const char *mark) {
    struct tg_snapshot *snapshot = world_parse(w);
    struct tg_digest *digest;

    ck_assert_int_eq(tg_digest_make(snapshot, mark, &digest), 0);
    tg_snapshot_close(snapshot);
    return digest;
}

#endif
