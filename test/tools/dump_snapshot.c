/* SPDX-License-Identifier: Apache-2.0 */
/* Prints all that the reader holds of a snapshot, a line an entry, through the public API only:
 *
 *     dump_snapshot FILE              the tables
 *     dump_snapshot --digest [--mark NAME] FILE    what the leak search keeps of it
 *     dump_snapshot --torture prefixes|cuts|flips SEED COUNT FILE
 *                                     reads the file spoilt in COUNT ways (prefixes: at each byte)
 *                                     and says how many were read and how many refused
 *
 * Numbers of stacks, frames and contexts are the reader's own; who compares resolves them through
 * the lines "frame", "stack" and "context". Texts are written with %XX for all that is not
 * printable ASCII, and "-" for the empty one. Exit status: 0, or 2 with the reader's sentence. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

static const char *const action_names[TG_ACTION_COUNT] = {
    [TG_ACTION_OTHER] = "other",
    [TG_ACTION_ALLOC] = "alloc",
    [TG_ACTION_FREE_REQUESTED] = "free_requested",
    [TG_ACTION_FREE_COMPLETED] = "free_completed",
    [TG_ACTION_SEGMENT_ALLOC] = "segment_alloc",
    [TG_ACTION_SEGMENT_FREE] = "segment_free",
    [TG_ACTION_SEGMENT_MAP] = "segment_map",
    [TG_ACTION_SEGMENT_UNMAP] = "segment_unmap",
    [TG_ACTION_OOM] = "oom",
    [TG_ACTION_SNAPSHOT] = "snapshot",
    [TG_ACTION_ANNOTATE] = "annotate",
};

static const char *const state_names[] = {
    [TG_BLOCK_INACTIVE] = "inactive",
    [TG_BLOCK_LIVE] = "active_allocated",
    [TG_BLOCK_PENDING] = "active_pending_free",
    [TG_BLOCK_OTHER] = "other",
};

static void put_text(struct tg_text text) {
    if (text.length == 0)
        putchar('-');
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.bytes[i];
        if (c > 0x20 && c < 0x7f && c != '%' && !(c == '-' && text.length == 1))
            putchar(c);
        else
            printf("%%%02X", c);
    }
}

static void put_stacks(const struct tg_snapshot *s, const struct tg_snapshot_info *info) {
    const struct tg_frame *frames = tg_snapshot_frames(s);

    for (size_t i = 0; i < info->frames; i++) {
        printf("frame %zu %" PRIu32 " ", i, frames[i].line);
        put_text(tg_snapshot_text(s, frames[i].file));
        putchar(' ');
        put_text(tg_snapshot_text(s, frames[i].function));
        putchar('\n');
    }
    for (size_t i = 0; i < info->stacks; i++) {
        size_t count;
        const uint32_t *stack = tg_snapshot_stack(s, (uint32_t)i, &count);
        printf("stack %zu", i);
        for (size_t k = 0; k < count; k++)
            printf(" %" PRIu32, stack[k]);
        putchar('\n');
    }
}

static void put_contexts(const struct tg_snapshot *s, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct tg_context c;
        tg_snapshot_context(s, (uint32_t)i, &c);
        printf("context %zu %" PRIu64 " %" PRIu64 " %" PRIu64 " ", i, c.stream, c.pool[0],
               c.pool[1]);
        put_text(c.user_metadata);
        putchar(' ');
        put_text(c.compile_context);
        putchar('\n');
    }
}

static void put_segments(const struct tg_snapshot *s, size_t count) {
    const struct tg_segment *segments = tg_snapshot_segments(s);
    const struct tg_block *blocks = tg_snapshot_blocks(s);

    for (size_t i = 0; i < count; i++) {
        const struct tg_segment *g = &segments[i];
        printf("segment %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
               " %" PRIu64 " %" PRIu64 " %" PRId32 " %d %d %" PRIu32 " %" PRIu32 "\n",
               g->addr, g->total_bytes, g->allocated_bytes, g->active_bytes, g->requested_bytes,
               g->stream, g->pool[0], g->pool[1], g->device, g->is_large, g->is_expandable,
               g->stack, g->block_count);
        for (uint32_t k = 0; k < g->block_count; k++) {
            const struct tg_block *b = &blocks[g->first_block + k];
            printf("block %" PRIu64 " %" PRIu64 " %" PRIu64 " %s %" PRIu32 "\n", b->addr,
                   b->size_bytes, b->requested_bytes, state_names[b->state], b->stack);
        }
    }
}

static void put_traces(const struct tg_snapshot *s, size_t devices) {
    for (size_t d = 0; d < devices; d++) {
        size_t count;
        const struct tg_event *events = tg_snapshot_trace(s, d, &count);
        printf("trace %zu %zu\n", d, count);
        for (size_t i = 0; i < count; i++)
            printf("event %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu32 "\n",
                   action_names[events[i].action], events[i].addr, events[i].size_bytes,
                   events[i].time_us, events[i].stack, (uint32_t)events[i].context);
    }
}

static void put_annotations(const struct tg_snapshot *s, size_t count) {
    const struct tg_annotation *annotations = tg_snapshot_annotations(s);

    for (size_t i = 0; i < count; i++) {
        printf("annotation %s %" PRIu64 " %" PRId32 " ", annotations[i].is_end ? "END" : "START",
               annotations[i].time_us, annotations[i].device);
        put_text(tg_snapshot_text(s, annotations[i].name));
        putchar('\n');
    }
}

static void put_tables(const struct tg_snapshot *s) {
    struct tg_snapshot_info info;

    tg_snapshot_info(s, &info);
    printf("info protocol %" PRIu32 " list %" PRIu32 " segments %zu events %zu devices %zu\n",
           info.protocol, info.is_list, info.segments, info.events, info.devices);
    put_stacks(s, &info);
    put_contexts(s, info.contexts);
    put_segments(s, info.segments);
    put_traces(s, info.devices);
    put_annotations(s, info.annotations);
}

static int put_digest(const struct tg_snapshot *s, const char *mark) {
    struct tg_digest *digest;
    struct tg_digest_info info;
    int rc = tg_digest_make(s, mark, &digest);

    if (rc != 0)
        return rc;
    tg_digest_info(digest, &info);
    printf("digest events %zu steps %zu source %d confidence %.3f first_us %" PRIu64
           " last_us %" PRIu64 " live %" PRIu64 " reserved %" PRIu64 " peak %" PRIu64
           " oom %" PRIu32 " asked %" PRIu64 " free %" PRIu64 " oom_live %" PRIu64 "\n",
           info.events, info.steps, (int)info.step_source, info.step_confidence, info.first_us,
           info.last_us, info.live_bytes, info.reserved_bytes, info.peak_bytes, info.has_oom,
           info.oom_asked_bytes, info.oom_free_bytes, info.oom_live_bytes);
    tg_digest_close(digest);
    return 0;
}

/* The whole file in memory of exactly its size, so that a sanitizer sees a read past its end. */
static void *read_whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *data;
    long end;

    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0) {
        fprintf(stderr, "dump_snapshot: %s: %s\n", path, strerror(errno));
        exit(2);
    }
    rewind(file);
    *size = (size_t)end;
    data = malloc(*size + (*size == 0));
    if (data == NULL || fread(data, 1, *size, file) != *size) {
        fprintf(stderr, "dump_snapshot: %s: cannot be read\n", path);
        exit(2);
    }
    fclose(file);
    return data;
}

/* ---- spoilt files ---- */

static uint64_t random_state;

static uint64_t random_below(uint64_t bound) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % bound;
}

/* What was read must also go through the search; what was refused must say at which byte. */
static int try_spoilt(const void *data, size_t size, size_t *read, size_t *refused) {
    struct tg_snapshot *snapshot;
    struct tg_digest *digest;
    struct tg_leaks *leaks;
    unsigned long long offset;
    int rc = tg_snapshot_parse(data, size, &snapshot);

    if (rc != 0) {
        const char *text = tg_last_error()->text;
        ++*refused;
        if (sscanf(text, "at byte %llu", &offset) == 1 && offset <= size)
            return 0;
        fprintf(stderr, "a refusal without its byte: %s\n", text);
        return -1;
    }
    ++*read;
    if (tg_digest_make(snapshot, NULL, &digest) == 0) {
        struct tg_leak_input input = {digest, -1, -1, -1, -1, 0, 0, 0};
        struct tg_leak_params params = {0};
        if (tg_leaks_find(&input, 1, &params, &leaks) == 0)
            tg_leaks_close(leaks);
        tg_digest_close(digest);
    }
    tg_snapshot_close(snapshot);
    return 0;
}

static int torture(const char *how, uint64_t seed, size_t rounds, const char *path) {
    size_t size, read = 0, refused = 0;
    unsigned char *data = read_whole(path, &size);
    int rc = 0;

    random_state = seed;
    if (how[0] == 'p')
        rounds = size;
    for (size_t i = 0; rc == 0 && i < rounds; i++) {
        size_t length = how[0] == 'p' ? i : how[0] == 'c' ? (size_t)random_below(size) : size;
        unsigned char *copy = malloc(length + (length == 0)); /* exact: for the sanitizer */
        if (copy == NULL) {
            rc = -1;
            break;
        }
        memcpy(copy, data, length);
        for (uint64_t n = how[0] == 'f' ? 1 + random_below(4) : 0; n > 0; n--)
            copy[random_below(length)] ^= (unsigned char)(1 + random_below(255));
        rc = try_spoilt(copy, length, &read, &refused);
        free(copy);
    }
    free(data);
    printf("read %zu refused %zu\n", read, refused);
    return rc == 0 && fflush(stdout) == 0 ? 0 : 2;
}

int main(int argc, char **argv) {
    int digest = argc > 1 && strcmp(argv[1], "--digest") == 0;
    const char *mark = NULL;
    int at = 1 + digest;
    struct tg_snapshot *snapshot;
    size_t size;
    void *data;
    int rc;

    if (argc == 6 && strcmp(argv[1], "--torture") == 0)
        return torture(argv[2], strtoull(argv[3], NULL, 10), strtoul(argv[4], NULL, 10), argv[5]);
    if (digest && argc > at + 1 && strcmp(argv[at], "--mark") == 0) {
        mark = argv[at + 1];
        at += 2;
    }
    if (at != argc - 1) {
        fprintf(stderr, "usage: dump_snapshot [--digest [--mark NAME]] FILE, or --torture …\n");
        return 2;
    }
    data = read_whole(argv[at], &size);
    rc = tg_snapshot_parse(data, size, &snapshot);
    if (rc == 0) {
        if (digest)
            rc = put_digest(snapshot, mark);
        else
            put_tables(snapshot);
        tg_snapshot_close(snapshot);
    }
    free(data);
    if (rc != 0) {
        fprintf(stderr, "%s\n", tg_last_error()->text);
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 2;
}
