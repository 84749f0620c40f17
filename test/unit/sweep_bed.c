/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios of the fault sweep, and what must hold whatever failed. */
#include <stdio.h>
#include <unistd.h>

#include "memory/page.h"
#include "sweep.h"

/* The tags' places. */
enum { GENERAL, PACKED, PLAIN, STILL };
#define CAPACITY (UINT64_C(96) << 20)

/* ---- the bed --------------------------------------------------------------------------------- */

static void open_tags(struct bed *bed) {
    static const char *const names[BED_TAGS] = {"general", "packed", "plain", "still"};

    bed->params[GENERAL].backup = bed->params[PACKED].backup = TG_BACKUP_HOST;
    bed->params[PACKED].packed = 1;
    for (int i = 0; i < BED_TAGS; i++)
        bed->tags[i] = world_tag(&bed->world, names[i], bed->params[i]);
}

void bed_open(struct bed *bed, const struct scenario *scenario) {
    memset(bed, 0, sizeof *bed);
    content_step = 512;
    world_open(&bed->world, scenario->options, true);
    scenario->prepare(bed);
}

void bed_close(struct bed *bed) {
    world_close(&bed->world);
}

void bed_settle(struct bed *bed) {
    const struct tg_device_ops *ops = tg_device_ops(bed->world.spy);
    struct tg_fence fence;

    ck_assert_ok(ops->fence(bed->world.spy, NULL, &fence));
    ck_assert_ok(ops->wait(bed->world.spy, &fence, 10000));
    tg__handback_end(bed->world.memory);
    ck_assert_ok(tg_memory_wake(bed->world.memory, "still", 0, NULL));
}

static uint64_t room(uint64_t size_bytes) {
    return (size_bytes + GRANULE - 1) / GRANULE * GRANULE;
}

static void note(struct bed *bed, int tag, void *block, uint64_t size_bytes) {
    ck_assert_int_lt(bed->count, BED_PIECES);
    bed->pieces[bed->count++] =
        (struct piece){.block = block, .size_bytes = size_bytes, .tag = tag};
}

static void write_last(struct bed *bed) {
    struct piece *piece = &bed->pieces[bed->count - 1];

    piece->seed = ++bed->seeds * 1000003;
    content_write(piece->block, piece->size_bytes, piece->seed);
}

static void add(struct bed *bed, int tag, uint64_t size_bytes) {
    note(bed, tag, world_alloc(bed->tags[tag], size_bytes), size_bytes);
    write_last(bed);
}

static void drop(struct bed *bed, int number) {
    bed->pieces[number] = bed->pieces[--bed->count];
}

static bool is_trimmed(struct bed *bed, const struct piece *piece) {
    return tg__tag_block(bed->world.memory, (uintptr_t)piece->block, NULL)->holes.count > 0;
}

/* A trimmed piece, or one that was: content is the piece itself, or its host copy. */
static void check_cut(struct bed *bed, const struct piece *piece, const unsigned char *content) {
    uint64_t end_at = piece->cut_at + piece->cut_bytes;

    ck_assert(content_is(content, piece->cut_at, piece->seed));
    ck_assert(content_is(content + end_at, piece->size_bytes - end_at, piece->seed + end_at));
    if (!is_trimmed(bed, piece))
        ck_assert(content_is_zero(content + piece->cut_at, piece->cut_bytes));
}

static void check_piece(struct bed *bed, const struct piece *piece) {
    const void *content = piece->block;
    uint64_t size_bytes;

    if (world_info(bed->tags[piece->tag]).state == TG_TAG_ASLEEP) {
        if (bed->params[piece->tag].backup == TG_BACKUP_NONE)
            return;
        if (bed->is_dropped[piece->tag] || is_trimmed(bed, piece)) {
            ck_assert_int_eq(
                tg_memory_hostcopy(bed->world.memory, piece->block, &content, &size_bytes),
                -ENODATA);
            return;
        }
        ck_assert_ok(tg_memory_hostcopy(bed->world.memory, piece->block, &content, &size_bytes));
        ck_assert_uint_eq(size_bytes, piece->size_bytes);
    }
    if (piece->cut_bytes > 0)
        check_cut(bed, piece, content);
    else if (piece->seed == 0)
        /* Of the one that fills the device a look is enough. */
        ck_assert(content_is_zero(content, piece->size_bytes < GRANULE ? piece->size_bytes : 5));
    else
        ck_assert(content_is(content, piece->size_bytes, piece->seed));
}

void bed_check_content(struct bed *bed) {
    for (int i = 0; i < bed->count; i++)
        check_piece(bed, &bed->pieces[i]);
}

void bed_check_books(struct bed *bed) {
    uint64_t device_bytes = 0, host_bytes = 0, asleep_bytes = 0;
    struct tg_tag_view view = world_view(&bed->world);

    for (int i = 0; i < BED_TAGS; i++) {
        struct tg_tag_info info = world_info(bed->tags[i]);
        uint64_t blocks = 0, size_bytes = 0;

        device_bytes += info.device_bytes;
        host_bytes += info.host_bytes;
        for (int j = 0; j < bed->count; j++) {
            if (bed->pieces[j].tag != i)
                continue;
            blocks++;
            size_bytes += bed->pieces[j].size_bytes;
            if (info.state == TG_TAG_ASLEEP && info.device_bytes == 0)
                asleep_bytes += room(bed->pieces[j].size_bytes);
        }
        ck_assert_uint_eq(info.block_count, blocks);
        ck_assert_uint_eq(info.size_bytes, size_bytes);
    }
    ck_assert_uint_eq(view.occupied_bytes, device_bytes);
    ck_assert_uint_eq(world_free_bytes(&bed->world), CAPACITY - device_bytes);
    ck_assert_uint_eq(view.reserved_bytes, 0);
    ck_assert_uint_eq(view.host_bytes, host_bytes);
    ck_assert_uint_eq(view.asleep_bytes, asleep_bytes);
}

/* ---- preparations ---------------------------------------------------------------------------- */

static void some_blocks(struct bed *bed) {
    open_tags(bed);
    add(bed, GENERAL, GRANULE + 7);
    add(bed, GENERAL, 100);
    add(bed, PACKED, 5);
    add(bed, PACKED, GRANULE);
    add(bed, PACKED, GRANULE + 5);
    add(bed, PLAIN, 3000);
}

/* Host memory in steps that are smaller than most blocks. */
static void stepped_blocks(struct bed *bed) {
    bed->world.memory->step_bytes = MIB;
    some_blocks(bed);
}

static void prepared(struct bed *bed) {
    stepped_blocks(bed);
    bed->is_prepared = true;
    ck_assert_ok(tg_memory_prepare(bed->world.memory, NULL, NULL));
}

static void no_blocks(struct bed *bed) {
    open_tags(bed);
}

static void kept_copies(struct bed *bed) {
    bed->params[GENERAL].keep_host = bed->params[PACKED].keep_host = 1;
    some_blocks(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general,packed", 1000, NULL));
    ck_assert_ok(tg_memory_wake(bed->world.memory, "general,packed", 0, NULL));
    /* Others than at the last sleep, and other content. */
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[3].block, NULL));
    drop(bed, 3);
    add(bed, PACKED, 2 * GRANULE);
    add(bed, GENERAL, 6);
}

static void checked_blocks(struct bed *bed) {
    bed->params[GENERAL].checked = bed->params[PACKED].checked = 1;
    some_blocks(bed);
}

static void asleep(struct bed *bed) {
    some_blocks(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general,packed,plain", 1000, NULL));
    bed->pieces[5].seed = 0;
}

/* The general tag saved, the packed one dropped. */
static int sleep_dropping(struct bed *bed) {
    int rc = tg_memory_sleep_drop(bed->world.memory, "general,packed", "packed", 1000, NULL);

    for (int i = 0; i < bed->count && rc == 0; i++) {
        if (bed->pieces[i].tag == PACKED)
            bed->pieces[i].seed = 0;
    }
    bed->is_dropped[PACKED] = rc == 0;
    return rc;
}

static void asleep_dropped(struct bed *bed) {
    some_blocks(bed);
    ck_assert_ok(sleep_dropping(bed));
}

static void asleep_dropped_kept(struct bed *bed) {
    kept_copies(bed);
    ck_assert_ok(sleep_dropping(bed));
}

static void asleep_stepped(struct bed *bed) {
    bed->world.memory->step_bytes = MIB;
    asleep(bed);
}

/* Whose host copies go back after the wake. */
static void asleep_handed_back(struct bed *bed) {
    asleep(bed);
    bed->world.memory->handback.least_bytes = 1;
}

static void kept_stepped(struct bed *bed) {
    bed->world.memory->step_bytes = MIB;
    kept_copies(bed);
}

static void asleep_checked(struct bed *bed) {
    checked_blocks(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general,packed", 1000, NULL));
}

static void asleep_kept(struct bed *bed) {
    kept_copies(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general,packed", 1000, NULL));
}

/* Wake puts neighbours into one chunk: what is then freed between two others does not leave. */
static void merge_packed(struct bed *bed) {
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "packed", 1000, NULL));
    ck_assert_ok(tg_memory_wake(bed->world.memory, "packed", 0, NULL));
}

/* A free whose fence has not passed yet: the device lags. */
static void with_limbo(struct bed *bed) {
    const struct tg_device_ops *ops = tg_device_ops(bed->world.spy);

    some_blocks(bed);
    merge_packed(bed);
    ck_assert_ok(ops->queue_open(bed->world.spy, &bed->queue));
    ck_assert_ok(ops->fill(bed->world.spy, (uintptr_t)bed->pieces[3].block, 1, 9, bed->queue));
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[3].block, bed->queue));
    drop(bed, 3);
    ck_assert_ok(ops->fill(bed->world.spy, (uintptr_t)bed->pieces[1].block, 1, 9, bed->queue));
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[1].block, bed->queue));
    drop(bed, 1);
}

static void with_spare(struct bed *bed) {
    some_blocks(bed);
    merge_packed(bed);
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[3].block, NULL));
    drop(bed, 3);
}

static void large_block(struct bed *bed) {
    open_tags(bed);
    add(bed, PACKED, 20 * MIB);
}

/* The last chunk has a granule more than its block, that was used before. */
static void with_used_end(struct bed *bed) {
    large_block(bed);
    add(bed, PACKED, 10);
    add(bed, PACKED, 10);
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[2].block, NULL));
    drop(bed, 2);
    bed_settle(bed);
    ck_assert_uint_eq(world_info(bed->tags[PACKED]).device_bytes, 24 * MIB);
}

/* A chunk of three runs, after a wake, and of that between them nothing is left. */
static void with_holes(struct bed *bed) {
    open_tags(bed);
    for (int i = 0; i < 7; i++)
        add(bed, PACKED, 3 * MIB);
    merge_packed(bed);
    for (int i = 0; i < 2; i++) { /* the last piece takes its place */
        ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[2 + 3 * i].block, NULL));
        drop(bed, 2 + 3 * i);
    }
    bed_settle(bed);
    ck_assert_uint_eq(world_info(bed->tags[PACKED]).device_bytes, 28 * MIB);
}

/* Ten granules in one chunk, of which the third to the seventh are trimmed. */
static int trim_first(struct bed *bed) {
    struct piece *piece = &bed->pieces[0];
    struct tg_range range = {(uintptr_t)piece->block + 2 * GRANULE - 5, 5 * GRANULE + 9};
    struct tg_receipt receipt;
    int rc = tg_memory_trim(bed->world.memory, &range, 1, 1000, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    if (rc == 0 && is_trimmed(bed, piece)) { /* else there was no room */
        piece->cut_at = 2 * GRANULE;
        piece->cut_bytes = 5 * GRANULE;
    }
    return rc;
}

static void trimmable(struct bed *bed) {
    open_tags(bed);
    add(bed, GENERAL, 10 * GRANULE - 3);
    add(bed, GENERAL, 100);
    add(bed, PACKED, GRANULE);
}

static void trimmable_prepared(struct bed *bed) {
    trimmable(bed);
    bed->is_prepared = true;
    ck_assert_ok(tg_memory_prepare(bed->world.memory, NULL, NULL));
}

static void trimmed(struct bed *bed) {
    trimmable(bed);
    ck_assert_ok(trim_first(bed));
    ck_assert_uint_eq(bed->pieces[0].cut_bytes, 5 * GRANULE);
}

static void trimmed_asleep(struct bed *bed) {
    trimmed(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general", 1000, NULL));
}

static void nearly_full(struct bed *bed) {
    open_tags(bed);
    note(bed, PLAIN, world_alloc(bed->tags[PLAIN], CAPACITY - GRANULE), CAPACITY - GRANULE);
}

/* What a block needs is in limbo. */
static void full_but_for_limbo(struct bed *bed) {
    const struct tg_device_ops *ops = tg_device_ops(bed->world.spy);

    open_tags(bed);
    add(bed, GENERAL, 10 * MIB);
    note(bed, PLAIN, world_alloc(bed->tags[PLAIN], 84 * MIB), 84 * MIB);
    ck_assert_ok(ops->queue_open(bed->world.spy, &bed->queue));
    ck_assert_ok(ops->fill(bed->world.spy, (uintptr_t)bed->pieces[1].block, 1, 9, bed->queue));
    ck_assert_ok(tg_memory_free(bed->world.memory, bed->pieces[1].block, bed->queue));
    drop(bed, 1);
}

/* ---- acts ------------------------------------------------------------------------------------ */

static int alloc(struct bed *bed, int tag, uint64_t size_bytes) {
    void *block;
    int rc = tg_tag_alloc(bed->tags[tag], size_bytes, &block);

    if (rc != 0)
        return rc;
    note(bed, tag, block, size_bytes);
    ck_assert(content_is_zero(block, size_bytes));
    write_last(bed);
    return 0;
}

static int alloc_general(struct bed *bed) {
    return alloc(bed, GENERAL, GRANULE + 5);
}

static int alloc_packed(struct bed *bed) {
    return alloc(bed, PACKED, GRANULE + 5);
}

static int alloc_small(struct bed *bed) {
    return alloc(bed, PACKED, 100);
}

static int free_piece(struct bed *bed, int number) {
    int rc = tg_memory_free(bed->world.memory, bed->pieces[number].block, NULL);

    if (rc == 0)
        drop(bed, number);
    return rc;
}

static int free_general(struct bed *bed) {
    return free_piece(bed, 0);
}

static int free_packed(struct bed *bed) {
    return free_piece(bed, 4);
}

static int go_to_sleep(struct bed *bed, const char *names) {
    struct tg_receipt receipt;
    int rc = tg_memory_sleep(bed->world.memory, names, 1000, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    for (int i = 0; i < bed->count && rc == 0; i++) {
        struct piece *piece = &bed->pieces[i];

        if (bed->params[piece->tag].backup == TG_BACKUP_NONE &&
            world_info(bed->tags[piece->tag]).state == TG_TAG_ASLEEP)
            piece->seed = 0;
    }
    return rc;
}

static int prepare_all(struct bed *bed) {
    struct tg_receipt receipt;
    int rc = tg_memory_prepare(bed->world.memory, NULL, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    return rc;
}

static int sleep_plain(struct bed *bed) {
    return go_to_sleep(bed, "plain");
}

static int sleep_general(struct bed *bed) {
    return go_to_sleep(bed, "general");
}

static int sleep_packed(struct bed *bed) {
    return go_to_sleep(bed, "packed");
}

static int sleep_all(struct bed *bed) {
    return go_to_sleep(bed, "plain,general,packed");
}

static int wake(struct bed *bed, const char *names) {
    struct tg_receipt receipt;
    int rc = tg_memory_wake(bed->world.memory, names, 0, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    if (rc == 0)
        memset(bed->is_dropped, 0, sizeof bed->is_dropped);
    return rc;
}

static int wake_plain(struct bed *bed) {
    return wake(bed, "plain");
}

static int wake_general(struct bed *bed) {
    return wake(bed, "general");
}

static int wake_packed(struct bed *bed) {
    return wake(bed, "packed");
}

static int wake_all(struct bed *bed) {
    return wake(bed, "plain,general,packed");
}

static int wake_and_hand_back(struct bed *bed) {
    int rc = wake_all(bed);

    tg__handback_end(bed->world.memory);
    return rc;
}

static int repack(struct bed *bed) {
    struct tg_receipt receipt;
    int rc = tg_memory_repack(bed->world.memory, "packed,general", 1000, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    if (rc == 0 && receipt.gained_bytes > 0) /* else there was no room, or it stays for now */
        ck_assert_uint_eq(world_info(bed->tags[PACKED]).device_bytes, 20 * MIB);
    return rc;
}

static int repack_nothing(struct bed *bed) {
    return tg_memory_repack(bed->world.memory, NULL, 1000, NULL);
}

static int refill(struct bed *bed) {
    struct tg_receipt receipt;
    int rc = tg_memory_refill(bed->world.memory, 0, &receipt);

    ck_assert_int_eq(receipt.status, rc);
    return rc;
}

static int try_and_publish(struct bed *bed) {
    int rc = tg_memory_wake_try(bed->world.memory, "packed,plain", 0, NULL);

    tg_memory_wake_end(bed->world.memory, 1);
    return rc;
}

static int try_and_go_back(struct bed *bed) {
    int rc = tg_memory_wake_try(bed->world.memory, "packed,general", 0, NULL);

    tg_memory_wake_end(bed->world.memory, 0);
    return rc;
}

static int open_another(struct bed *bed) {
    struct tg_memory *memory;
    int rc = tg_memory_open(bed->world.spy, NULL, &memory);

    if (rc == 0)
        tg_memory_close(memory);
    return rc;
}

/* The entries that a memory does not use yet. */
static int ask_for_own(struct bed *bed) {
    uint64_t own_bytes;

    return tg_device_ops(bed->world.spy)->process(bed->world.spy, &own_bytes);
}

static int hand_over(struct bed *bed) {
    struct tg_device *device = bed->world.spy;
    const struct tg_device_ops *ops = tg_device_ops(device);
    uint64_t chunk, twin = 0;
    int fd = -1, rc = ops->create(device, GRANULE, TG_CHUNK_EXPORTABLE, &chunk);

    if (rc != 0)
        return rc;
    rc = ops->export_fd(device, chunk, &fd);
    if (rc == 0)
        rc = ops->import_fd(device, fd, GRANULE, &twin);
    if (fd >= 0)
        close(fd);
    while (twin != 0 && ops->release(device, twin) != 0)
        continue;
    while (ops->release(device, chunk) != 0)
        continue;
    return rc;
}

/* ---- memory that the program maps itself ----------------------------------------------------- */

static struct tg__range place(const struct bed *bed, uint64_t number) {
    return (struct tg__range){bed->estate + number * GRANULE, GRANULE};
}

/* A page of which nothing is left where it could not be mapped. */
static int map_in(struct bed *bed, int tag) {
    struct tg__range at = place(bed, bed->pages);
    uint64_t page = 0;
    int rc = tg__page_create(bed->tags[tag], GRANULE, 0, &page);

    if (rc != 0)
        return rc;
    rc = tg__page_map(bed->world.memory, page, at);
    if (rc != 0) {
        ck_assert_int_eq(tg__page_release(bed->world.memory, page), 0);
        return rc;
    }
    bed->pages++;
    bed->last = page;
    note(bed, tag, (void *)(uintptr_t)at.addr, GRANULE);
    return 0;
}

/* Neighbours of each other, some in a tag whose own blocks are in large chunks. */
static void with_pages(struct bed *bed) {
    some_blocks(bed);
    ck_assert_ok(tg__estate_reserve(bed->world.memory, 16 * GRANULE, &bed->estate));
    for (int i = 0; i < 4; i++) {
        ck_assert_ok(map_in(bed, i < 2 ? GENERAL : PACKED));
        write_last(bed);
    }
}

static void pages_asleep(struct bed *bed) {
    with_pages(bed);
    ck_assert_ok(tg_memory_sleep(bed->world.memory, "general,packed", 1000, NULL));
}

static int map_page(struct bed *bed) {
    return map_in(bed, GENERAL);
}

static int unmap_page(struct bed *bed) {
    int rc = tg__pages_unmap(bed->world.memory, place(bed, bed->pages - 1));

    if (rc != 0)
        return rc;
    ck_assert_int_eq(tg__page_release(bed->world.memory, bed->last), 0);
    bed->pages--;
    drop(bed, bed->count - 1);
    return 0;
}

static int let_in(struct bed *bed) {
    return tg__pages_access(bed->world.memory, place(bed, 1), 1);
}

static int reserve_addresses(struct bed *bed) {
    uint64_t addr;

    return tg__estate_reserve(bed->world.memory, 2 * GRANULE, &addr);
}

const struct scenario scenarios[] = {
    {"alloc general", "capacity=96MiB", some_blocks, alloc_general, false},
    {"alloc packed, first", "capacity=96MiB", no_blocks, alloc_packed, false},
    {"alloc packed, a further chunk", "capacity=96MiB", some_blocks, alloc_packed, false},
    {"alloc packed, the device nearly full", "capacity=96MiB", nearly_full, alloc_small, false},
    {"alloc packed, grown", "capacity=96MiB", large_block, alloc_small, false},
    {"alloc packed, over the end", "capacity=96MiB", with_used_end, alloc_packed, false},
    {"alloc packed, from spare", "capacity=96MiB", with_spare, alloc_small, true},
    {"alloc packed, from limbo", "capacity=96MiB,lag=3", with_limbo, alloc_small, true},
    {"alloc general, all but limbo full", "capacity=96MiB,lag=3", full_but_for_limbo,
     alloc_general, true},
    {"free general", "capacity=96MiB", some_blocks, free_general, true},
    {"free packed", "capacity=96MiB", some_blocks, free_packed, true},
    {"free asleep, general", "capacity=96MiB", asleep, free_general, true},
    {"free asleep, packed", "capacity=96MiB", asleep, free_packed, true},
    {"sleep none", "capacity=96MiB", some_blocks, sleep_plain, false},
    {"sleep host, general", "capacity=96MiB", some_blocks, sleep_general, false},
    {"sleep host, packed", "capacity=96MiB", some_blocks, sleep_packed, false},
    {"sleep, all", "capacity=96MiB", some_blocks, sleep_all, false},
    {"sleep, in steps", "capacity=96MiB", stepped_blocks, sleep_all, false},
    {"prepare", "capacity=96MiB", some_blocks, prepare_all, false},
    {"prepare, in steps", "capacity=96MiB", stepped_blocks, prepare_all, false},
    {"free, prepared", "capacity=96MiB", prepared, free_packed, true},
    {"sleep, prepared", "capacity=96MiB", prepared, sleep_all, false},
    {"sleep, one dropped, prepared", "capacity=96MiB", prepared, sleep_dropping, false},
    {"sleep, copies kept", "capacity=96MiB", kept_copies, sleep_all, false},
    {"sleep, copies kept, in steps", "capacity=96MiB", kept_stepped, sleep_all, false},
    {"sleep, checked", "capacity=96MiB", checked_blocks, sleep_all, false},
    {"sleep, one dropped", "capacity=96MiB", some_blocks, sleep_dropping, false},
    {"sleep, one dropped, copies kept", "capacity=96MiB", kept_copies, sleep_dropping, false},
    {"sleep, limbo", "capacity=96MiB,lag=3", with_limbo, sleep_all, true},
    {"wake none", "capacity=96MiB", asleep, wake_plain, false},
    {"wake host, general", "capacity=96MiB", asleep, wake_general, false},
    {"wake host, packed", "capacity=96MiB", asleep, wake_packed, false},
    {"wake, all", "capacity=96MiB", asleep, wake_all, false},
    {"wake, copies go back later", "capacity=96MiB", asleep_handed_back, wake_and_hand_back, false},
    {"wake, in steps", "capacity=96MiB", asleep_stepped, wake_all, false},
    {"wake, copies kept", "capacity=96MiB", asleep_kept, wake_all, false},
    {"wake, one dropped", "capacity=96MiB", asleep_dropped, wake_all, false},
    {"wake, one dropped, copies kept", "capacity=96MiB", asleep_dropped_kept, wake_all, false},
    {"wake, checked", "capacity=96MiB", asleep_checked, wake_all, false},
    {"repack", "capacity=96MiB", with_holes, repack, false},
    {"repack, nothing to gain", "capacity=96MiB", some_blocks, repack_nothing, false},
    {"trim", "capacity=96MiB", trimmable, trim_first, false},
    {"trim, prepared", "capacity=96MiB", trimmable_prepared, trim_first, false},
    {"refill", "capacity=96MiB", trimmed, refill, false},
    {"sleep, trimmed", "capacity=96MiB", trimmed, sleep_general, false},
    {"wake, trimmed", "capacity=96MiB", trimmed_asleep, wake_general, false},
    {"free, trimmed", "capacity=96MiB", trimmed, free_general, true},
    {"free asleep, trimmed", "capacity=96MiB", trimmed_asleep, free_general, true},
    {"try, publish", "capacity=96MiB", asleep, try_and_publish, false},
    {"try, go back", "capacity=96MiB", asleep, try_and_go_back, false},
    {"open, close", "capacity=96MiB", no_blocks, open_another, false},
    {"export, import", "capacity=96MiB", no_blocks, hand_over, false},
    {"ask for the own share", "capacity=96MiB", some_blocks, ask_for_own, false},
    {"page, map", "capacity=96MiB", with_pages, map_page, false},
    {"page, unmap", "capacity=96MiB", with_pages, unmap_page, true},
    {"page, unmap asleep", "capacity=96MiB", pages_asleep, unmap_page, true},
    {"page, access", "capacity=96MiB", with_pages, let_in, false},
    {"pages, sleep", "capacity=96MiB", with_pages, sleep_all, false},
    {"pages, wake", "capacity=96MiB", pages_asleep, wake_all, false},
    {"estate", "capacity=96MiB", some_blocks, reserve_addresses, false},
};
const size_t scenario_count = sizeof scenarios / sizeof *scenarios;
