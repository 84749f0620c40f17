/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes go all the way from the parser to the answer, and whatever is
 * accepted must keep the promises of snapshot.h: numbers stay inside their tables, texts are there.
 * A broken promise aborts. replay.c runs the same function over files without libFuzzer. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* tg_snapshot_parse promises to stay below this and twice the input. */
#define MEMORY_FLOOR_BYTES (64u << 20)

#define REQUIRE(what)                                                                  \
    do {                                                                               \
        if (!(what)) {                                                                 \
            fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #what); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* What has been read; volatile, so that no reading is left out. */
static volatile uint64_t sink;

static void touch_text(struct tg_text text) {
    REQUIRE(text.length == 0 || text.bytes != NULL);
    if (text.length > 0)
        sink += (unsigned char)text.bytes[0] + (unsigned char)text.bytes[text.length - 1];
}

static void touch_string(const char *text) {
    REQUIRE(text != NULL);
    sink += strlen(text);
}

static void touch_stacks(const struct tg_snapshot *snapshot, const struct tg_snapshot_info *info) {
    const struct tg_frame *frames = tg_snapshot_frames(snapshot);
    size_t count;

    for (size_t i = 0; i < info->texts; i++)
        touch_text(tg_snapshot_text(snapshot, (uint32_t)i));
    for (size_t i = 0; i < info->frames; i++) {
        REQUIRE(frames[i].function < info->texts && frames[i].file < info->texts);
        sink += frames[i].line;
    }
    for (size_t i = 0; i < info->stacks; i++) {
        const uint32_t *stack = tg_snapshot_stack(snapshot, (uint32_t)i, &count);
        REQUIRE(count == 0 || stack != NULL);
        REQUIRE(i > 0 || count == 0);
        for (size_t j = 0; j < count; j++)
            REQUIRE(stack[j] < info->frames);
    }
}

static void touch_contexts(const struct tg_snapshot *snapshot,
                           const struct tg_snapshot_info *info) {
    for (size_t i = 0; i < info->contexts; i++) {
        struct tg_context context;
        tg_snapshot_context(snapshot, (uint32_t)i, &context);
        touch_text(context.user_metadata);
        touch_text(context.compile_context);
        sink += context.stream + context.pool[0] + context.pool[1];
    }
}

static void touch_events(const struct tg_snapshot *snapshot, const struct tg_snapshot_info *info) {
    const struct tg_event *events = tg_snapshot_events(snapshot);
    size_t seen = 0, count;

    for (size_t device = 0; device < info->devices; device++) {
        const struct tg_event *trace = tg_snapshot_trace(snapshot, device, &count);
        REQUIRE(count <= info->events - seen);
        REQUIRE(count == 0 || (trace >= events && trace + count <= events + info->events));
        seen += count;
    }
    REQUIRE(tg_snapshot_trace(snapshot, info->devices, &count) == NULL && count == 0);
    for (size_t i = 0; i < info->events; i++) {
        REQUIRE(events[i].stack < info->stacks && events[i].context < info->contexts);
        REQUIRE(events[i].action < TG_ACTION_COUNT);
        sink += events[i].addr + events[i].size_bytes + events[i].time_us;
    }
}

static void touch_segments(const struct tg_snapshot *snapshot,
                           const struct tg_snapshot_info *info) {
    const struct tg_segment *segments = tg_snapshot_segments(snapshot);
    const struct tg_block *blocks = tg_snapshot_blocks(snapshot);

    for (size_t i = 0; i < info->segments; i++) {
        REQUIRE(segments[i].stack < info->stacks);
        REQUIRE(segments[i].first_block <= info->blocks);
        REQUIRE(segments[i].block_count <= info->blocks - segments[i].first_block);
        sink += segments[i].addr + segments[i].total_bytes;
    }
    for (size_t i = 0; i < info->blocks; i++) {
        REQUIRE(blocks[i].stack < info->stacks && blocks[i].state <= TG_BLOCK_OTHER);
        sink += blocks[i].addr + blocks[i].size_bytes + blocks[i].requested_bytes;
    }
}

static void touch_annotations(const struct tg_snapshot *snapshot,
                              const struct tg_snapshot_info *info) {
    const struct tg_annotation *annotations = tg_snapshot_annotations(snapshot);

    for (size_t i = 0; i < info->annotations; i++) {
        REQUIRE(annotations[i].name < info->texts && annotations[i].is_end <= 1);
        sink += annotations[i].time_us;
    }
}

static void touch_site(const struct tg_leak_site *site) {
    touch_string(site->where);
    REQUIRE(site->own_frame <= site->stack_count);
    REQUIRE(site->rank_count > 0 && site->ranks != NULL);
    REQUIRE(site->kind <= TG_GROWTH_UNKNOWN);
    REQUIRE(site->confidence >= 0 && site->confidence <= 1);
    for (size_t i = 0; i < site->stack_count; i++) {
        touch_string(site->stack[i].file);
        touch_string(site->stack[i].function);
    }
    for (size_t i = 0; i < site->rank_count; i++)
        sink += (uint64_t)site->ranks[i];
}

static void touch_leaks(const struct tg_leaks *leaks) {
    struct tg_leak_summary summary;

    tg_leaks_summary(leaks, &summary);
    REQUIRE(summary.verdict <= TG_VERDICT_UNKNOWN && summary.bytes_per_step >= 0);
    REQUIRE((summary.verdict == TG_VERDICT_LEAK) == (summary.sites[TG_LIST_LEAKS] > 0));
    for (int list = TG_LIST_LEAKS; list <= TG_LIST_UNKNOWN; list++) {
        for (size_t i = 0; i < summary.sites[list]; i++)
            touch_site(tg_leaks_site(leaks, (enum tg_leak_list)list, i));
        REQUIRE(tg_leaks_site(leaks, (enum tg_leak_list)list, summary.sites[list]) == NULL);
    }
    for (size_t i = 0; i < summary.ranks; i++)
        sink += tg_leaks_rank(leaks, i)->total_bytes;
    for (size_t i = 0; i < summary.notes; i++)
        touch_string(tg_leaks_note(leaks, i));
}

static void find_leaks(const struct tg_leak_input *inputs, size_t count,
                       const struct tg_leak_params *params) {
    struct tg_leaks *leaks = NULL;

    REQUIRE(tg_leaks_find(inputs, count, params, &leaks) == 0);
    touch_leaks(leaks);
    tg_leaks_close(leaks);
}

/* A small number from `from` on, drawn from the input's hash: the same for the same bytes. */
static int64_t draw(uint64_t *hash, int64_t from, uint64_t kinds) {
    *hash = *hash * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return from + (int64_t)((*hash >> 40) % kinds);
}

/* One digest in many places: any mix of ranks, processes, steps, families and runs. */
static void find_in_any_layout(const struct tg_digest *digest, uint64_t hash) {
    static const char *const own[] = {"train", "^/work"};
    const struct tg_leak_params params = {own, 2, 1};
    struct tg_leak_input inputs[8];
    size_t count = (size_t)draw(&hash, 1, 8);

    memset(inputs, 0, sizeof inputs);
    for (size_t i = 0; i < count; i++) {
        inputs[i].digest = digest;
        inputs[i].rank = draw(&hash, -1, 3);
        inputs[i].pid = draw(&hash, -1, 3);
        inputs[i].first_step = draw(&hash, -1, 6);
        inputs[i].last_step = inputs[i].first_step;
        if (inputs[i].first_step >= 0)
            inputs[i].last_step += draw(&hash, 0, 3);
        inputs[i].family = (int32_t)draw(&hash, 0, 2);
        inputs[i].is_oom = draw(&hash, 0, 4) == 3;
        inputs[i].run = (int32_t)draw(&hash, 0, 2);
    }
    find_leaks(inputs, count, (hash & 1) != 0 ? &params : NULL);
}

static void digest_and_find(const struct tg_snapshot *snapshot, const char *step_mark,
                            uint64_t hash) {
    struct tg_leak_input alone = {.rank = -1, .pid = -1, .first_step = -1, .last_step = -1};
    struct tg_digest *digest = NULL;
    struct tg_digest_info info;

    REQUIRE(tg_digest_make(snapshot, step_mark, &digest) == 0);
    tg_digest_info(digest, &info);
    REQUIRE(info.step_source <= TG_STEPS_PERIOD);
    REQUIRE(info.step_confidence >= 0 && info.step_confidence <= 1);
    alone.digest = digest;
    find_leaks(&alone, 1, NULL);
    find_in_any_layout(digest, hash);
    tg_digest_close(digest);
}

static uint64_t hash_of(const uint8_t *data, size_t size) {
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * UINT64_C(1099511628211);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tg_snapshot *snapshot = NULL;
    struct tg_snapshot_info info;

    int status = tg_snapshot_parse(data, size, &snapshot);
    if (status != 0) {
        REQUIRE(status < 0 && snapshot == NULL);
        REQUIRE(tg_last_error()->status == status && tg_last_error()->text[0] != '\0');
        return 0;
    }
    tg_snapshot_info(snapshot, &info);
    REQUIRE(info.protocol <= 5);
    REQUIRE(info.events * sizeof(struct tg_event) <= MEMORY_FLOOR_BYTES + 2 * size);
    REQUIRE(info.blocks * sizeof(struct tg_block) <= MEMORY_FLOOR_BYTES + 2 * size);
    touch_stacks(snapshot, &info);
    touch_contexts(snapshot, &info);
    touch_events(snapshot, &info);
    touch_segments(snapshot, &info);
    touch_annotations(snapshot, &info);
    digest_and_find(snapshot, NULL, hash_of(data, size));
    digest_and_find(snapshot, "step*", hash_of(data, size) + 1);
    tg_snapshot_close(snapshot);
    return 0;
}
