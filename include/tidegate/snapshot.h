/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch memory snapshots: bytes in, answers out.
 *
 * Three steps, each of its own object:
 *   tg_snapshot  what one file holds: segments, blocks, events, stacks; on the caller's bytes.
 *   tg_digest    what the leak search keeps of one snapshot: small, owns all it says.
 *   tg_leaks     the answer from the digests of many ranks and steps.
 * Files, folders, compression and JSON belong to the command. No function here opens a file, starts
 * a thread or keeps global state; different objects may be used from different threads at once.
 *
 * The format is that of torch.cuda.memory._dump_snapshot and _memory_snapshot_pickled: a pickle
 * of protocol 2 to 5. It is read by a machine of our own that never constructs an object. */
#ifndef TIDEGATE_SNAPSHOT_H
#define TIDEGATE_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include <tidegate/tidegate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one file ------------------------------------------------------------------------------- */

struct tg_snapshot;

/* Text inside the parsed bytes: not terminated, UTF-8 as its writer left it (unchecked). */
struct tg_text {
    const char *bytes;
    size_t length;
};

enum tg_action {
    TG_ACTION_OTHER, /* a kind that this version does not know */
    TG_ACTION_ALLOC,
    TG_ACTION_FREE_REQUESTED,
    TG_ACTION_FREE_COMPLETED,
    TG_ACTION_SEGMENT_ALLOC,
    TG_ACTION_SEGMENT_FREE,
    TG_ACTION_SEGMENT_MAP,
    TG_ACTION_SEGMENT_UNMAP,
    TG_ACTION_OOM,
    TG_ACTION_SNAPSHOT,
    TG_ACTION_ANNOTATE,
    TG_ACTION_COUNT
};

enum tg_block_state {
    TG_BLOCK_INACTIVE,
    TG_BLOCK_LIVE,    /* active_allocated: the program holds it */
    TG_BLOCK_PENDING, /* active_pending_free: freed, but a stream may still use it */
    TG_BLOCK_OTHER
};

/* One line of the allocator's history. `stack` and `context` index the snapshot's tables; stack 0
 * is "none recorded". */
struct tg_event {
    uint64_t addr;       /* out of memory: the driver's free bytes (device_free) */
    uint64_t size_bytes; /* alloc and free: as requested; segments: as mapped */
    uint64_t time_us;    /* since 1970; 0 where the writer had no clock (before 2.1) */
    uint32_t stack;
    uint32_t context : 24; /* tg_snapshot_context */
    uint32_t action : 8;   /* enum tg_action */
};

/* What many events share. */
struct tg_context {
    uint64_t stream;
    uint64_t pool[2];
    struct tg_text user_metadata;
    struct tg_text compile_context;
};

struct tg_block {
    uint64_t addr;            /* older files: computed from the segment's */
    uint64_t size_bytes;      /* as reserved: a multiple of 512 */
    uint64_t requested_bytes; /* older files: size_bytes */
    uint32_t stack;
    uint32_t state; /* enum tg_block_state */
};

struct tg_segment {
    uint64_t addr;
    uint64_t total_bytes, allocated_bytes, active_bytes, requested_bytes;
    uint64_t stream;
    uint64_t pool[2];
    uint32_t first_block, block_count; /* in tg_snapshot_blocks */
    uint32_t stack;
    int32_t device;
    uint8_t is_large, is_expandable;
};

struct tg_frame {
    uint32_t function, file; /* tg_snapshot_text */
    uint32_t line;           /* 0: none; compiled code says -1 */
};

/* A named span of the profiler: Optimizer.step#AdamW.step, ProfilerStep#7, nccl:all_reduce. */
struct tg_annotation {
    uint64_t time_us;
    uint32_t name; /* tg_snapshot_text */
    int32_t device;
    uint8_t is_end; /* 0: START */
};

/* Counts; which events are a device's history says tg_snapshot_trace. */
struct tg_snapshot_info {
    uint32_t protocol;
    uint32_t is_list; /* a bare list of segments, without history */
    size_t segments, blocks, events, devices, frames, stacks, contexts, texts, annotations;
};

/* Reads a snapshot. `data` is lent: it must stay unchanged until tg_snapshot_close. Memory stays
 * below 64 MiB + 2 x size_bytes whatever the bytes say; about 0.5 x size_bytes for real files.
 * Errors: TG_ETRUNCATED, TG_EFORMAT, TG_EUNSAFE, TG_ELIMIT, each with the byte's offset in the
 * sentence; -ENOMEM; -EINVAL for NULL. Cost: one pass, about 3 ns a byte. */
TG_API TG_MUST_USE int tg_snapshot_parse(const void *data, size_t size_bytes,
                                         struct tg_snapshot **snapshot);
/* The same for a file that is mapped: passed(argument, until) is called now and then, with `until`
 * ascending. What lies before it is needed no more, but for texts here and there, so the pages may
 * go (MADV_DONTNEED): a file may then be larger than memory. NULL: as tg_snapshot_parse. */
typedef void (*tg_passed_fn)(void *argument, size_t until_byte);
TG_API TG_MUST_USE int tg_snapshot_parse_mapped(const void *data, size_t size_bytes,
                                                tg_passed_fn passed, void *argument,
                                                struct tg_snapshot **snapshot);
TG_API void tg_snapshot_close(struct tg_snapshot *snapshot);

TG_API void tg_snapshot_info(const struct tg_snapshot *snapshot, struct tg_snapshot_info *info);

/* The tables; lent until close. Their lengths are in tg_snapshot_info. */
TG_API const struct tg_event *tg_snapshot_events(const struct tg_snapshot *snapshot);
TG_API const struct tg_segment *tg_snapshot_segments(const struct tg_snapshot *snapshot);
TG_API const struct tg_block *tg_snapshot_blocks(const struct tg_snapshot *snapshot);
TG_API const struct tg_frame *tg_snapshot_frames(const struct tg_snapshot *snapshot);
TG_API const struct tg_annotation *tg_snapshot_annotations(const struct tg_snapshot *snapshot);

/* The history of one device, oldest event first: NULL and 0 past the last device. */
TG_API const struct tg_event *tg_snapshot_trace(const struct tg_snapshot *snapshot, size_t device,
                                                size_t *count);
/* One stack, innermost frame first, as indices into the frames; *count 0 for stack 0, and where
 * there is no such stack. */
TG_API const uint32_t *tg_snapshot_stack(const struct tg_snapshot *snapshot, uint32_t stack,
                                         size_t *count);
/* A text, or what a context says; number 0's where there is no such number. */
TG_API struct tg_text tg_snapshot_text(const struct tg_snapshot *snapshot, uint32_t text);
TG_API void tg_snapshot_context(const struct tg_snapshot *snapshot, uint32_t context,
                                struct tg_context *out);

/* Whole steps of a history: more are not told; of more the last are. */
enum { TG_SNAPSHOT_STEPS_MAX = 512 };

/* Where the whole steps lie in the history of one device: step i is the events from positions[i] up
 * to positions[i + 1], for i below *steps; positions[0] is 0 unless a mark or the limit says where
 * the first step begins. They are the steps that tg_digest_make finds; step_mark as there.
 * positions has room for TG_SNAPSHOT_STEPS_MAX + 1 numbers; *steps 0: none were found. Errors:
 * -ENOMEM, -EINVAL (NULL). Cost: one pass over the events at worst. */
TG_API TG_MUST_USE int tg_snapshot_steps(const struct tg_snapshot *snapshot, const char *step_mark,
                                         size_t device, size_t *positions, size_t *steps);

/* ---- growth of one series: pure ------------------------------------------------------------- */

enum tg_growth_kind {
    TG_GROWTH_STEADY,  /* does not change */
    TG_GROWTH_LEAK,    /* grows with the steps */
    TG_GROWTH_ONCE,    /* grew once, then stayed */
    TG_GROWTH_BOUNDED, /* grew to a limit (a cache), then stayed */
    TG_GROWTH_TIDES,   /* comes and goes: sawtooth, double buffers, the last batch */
    TG_GROWTH_UNKNOWN  /* cannot be told from so few points */
};

struct tg_growth {
    enum tg_growth_kind kind;
    double bytes_per_step; /* a leak's rate over whole periods; else 0 */
    double confidence;     /* 0 to 1: see doc/design/snapshot.md */
    uint32_t first_point;  /* the first point that shows the growth */
    uint32_t points_grown; /* how many points lie above the one before */
};

/* Judges one series: live_bytes[i] is what a site holds at the end of step steps[i] (ascending;
 * NULL: 0, 1, 2 ...). Pure: no clock, no memory kept. Errors: -EINVAL (points is 0, a NULL, steps
 * not ascending), -ENOMEM. Cost: O(points^2) at worst. The test and its reasons are in
 * doc/design/snapshot.md. */
TG_API TG_MUST_USE int tg_series_judge(const uint64_t *live_bytes, const uint64_t *steps,
                                       size_t points, struct tg_growth *growth);

/* ---- what one file contributes -------------------------------------------------------------- */

enum tg_step_source {
    TG_STEPS_NONE,
    TG_STEPS_FILES,     /* one file a step */
    TG_STEPS_MARK,      /* --step-mark */
    TG_STEPS_PROFILER,  /* ProfilerStep#N */
    TG_STEPS_OPTIMIZER, /* Optimizer.step#... */
    TG_STEPS_PERIOD     /* a period found in the events */
};

struct tg_digest;

struct tg_digest_info {
    size_t events;
    size_t devices;                  /* with live blocks or a history */
    size_t steps;                    /* whole steps found inside the file */
    enum tg_step_source step_source; /* how */
    double step_confidence;          /* of a period: 0 to 1; else 1 */
    uint64_t first_us, last_us;      /* of its events; 0: no clock */
    uint64_t live_bytes;             /* at the end, over all devices */
    uint64_t reserved_bytes;         /* segments, likewise */
    uint64_t peak_bytes;             /* of live bytes, within the history */
    uint32_t has_oom;                /* the last out-of-memory event follows */
    uint64_t oom_asked_bytes, oom_free_bytes, oom_live_bytes;
};

/* Keeps what the leak search needs of a snapshot: live bytes and blocks by stack, at its end and at
 * each step found inside. The snapshot may be closed afterwards. step_mark names annotations or
 * user_metadata that begin a step (an exact name, or a prefix ended by '*'); NULL: by itself.
 * Errors: -ENOMEM, -EINVAL; TG_ELIMIT: places times steps beyond 64 MiB + 128 bytes an event
 * and block. Cost: about 50 ns an event. */
TG_API TG_MUST_USE int tg_digest_make(const struct tg_snapshot *snapshot, const char *step_mark,
                                      struct tg_digest **digest);
TG_API void tg_digest_close(struct tg_digest *digest);
TG_API void tg_digest_info(const struct tg_digest *digest, struct tg_digest_info *info);

/* ---- the answer ----------------------------------------------------------------------------- */

struct tg_leaks;

enum tg_verdict { TG_VERDICT_LEAK, TG_VERDICT_NONE, TG_VERDICT_UNKNOWN };

/* A digest and where it belongs. */
struct tg_leak_input {
    const struct tg_digest *digest;
    int64_t rank;       /* -1: not known; all such are one rank */
    int64_t pid;        /* -1: not known */
    int64_t first_step; /* -1: not known: ordered by time */
    int64_t last_step;  /* the step at whose end it was written; = first_step for one step */
    int32_t family;     /* files of different families (moments in a step) never share a series */
    uint32_t is_oom;    /* written in the middle of a step, at an out-of-memory error */
    int32_t run;        /* files of different runs share no series: each has ranks of its own */
};

struct tg_leak_params {
    const char *const *own; /* POSIX extended regular expressions over file paths: the user's own */
    size_t own_count;       /* code is what one of them matches; 0: the rule in snapshot.md */
    uint64_t min_bytes_per_step; /* less growth is no leak, only a note; 0: 16 KiB */
};

enum tg_leak_list { TG_LIST_LEAKS, TG_LIST_ONE_TIME, TG_LIST_TIDES, TG_LIST_UNKNOWN };

struct tg_leak_summary {
    enum tg_verdict verdict;
    enum tg_step_source step_source;
    double step_confidence;
    double bytes_per_step; /* of the rank where it is largest */
    size_t ranks;          /* rows for tg_leaks_rank */
    size_t sites[4];       /* rows of each tg_leak_list */
    size_t notes;          /* for tg_leaks_note */
    size_t file_notes;     /* so many of them come first and are of files that were left out */
    size_t small_growers;  /* lines that grow by less than min_bytes_per_step */
    size_t steps; /* most points in a rank's series */
    int64_t first_step, last_step;
};

struct tg_leak_rank {
    int64_t rank, pid; /* -1: not known */
    size_t input;      /* its last file: index into the inputs */
    uint32_t is_alone; /* that file alone, since its name tells neither rank, process nor step */
    enum tg_verdict verdict;
    double bytes_per_step;
    uint64_t total_bytes; /* growth so far, by the leaking sites */
    size_t steps;         /* points in its series */
    size_t steps_grown;   /* of the site that grew most often */
    int64_t first_step, last_step;
    size_t devices; /* of more than one, bytes are the sum, and the peak is the fullest one's */
    uint64_t live_bytes, peak_bytes; /* in its last step */
};

struct tg_leak_frame {
    const char *file, *function;
    uint32_t line;
};

/* A site: all allocations charged to the same line of the user's code that behave alike. Texts are
 * terminated, and lent until close. */
struct tg_leak_site {
    enum tg_growth_kind kind;
    double bytes_per_step;  /* on the rank where it is largest */
    double blocks_per_step; /* there */
    double confidence;      /* there */
    uint64_t bytes;         /* growth over the series; tides: the largest swing */
    uint64_t blocks;        /* likewise */
    size_t steps_grown;
    int64_t first_step;
    const char *where; /* "basename:line function", or "... (library)" */
    const struct tg_leak_frame *stack; /* innermost first, of the largest part; may be empty */
    size_t stack_count;
    size_t own_frame; /* index into stack of the frame behind `where`; stack_count: none */
    const int64_t *ranks;
    size_t rank_count;
};

/* Finds what grows from step to step. Digests are only read, and may be closed afterwards. Errors:
 * -EINVAL (no input, NULL), TG_EPATTERN, -ENOMEM. */
TG_API TG_MUST_USE int tg_leaks_find(const struct tg_leak_input *inputs, size_t count,
                                     const struct tg_leak_params *params, struct tg_leaks **leaks);
TG_API void tg_leaks_close(struct tg_leaks *leaks);
TG_API void tg_leaks_summary(const struct tg_leaks *leaks, struct tg_leak_summary *summary);
TG_API const struct tg_leak_rank *tg_leaks_rank(const struct tg_leaks *leaks, size_t index);
/* Row `index` of a list, the largest first; NULL past the end. */
TG_API const struct tg_leak_site *tg_leaks_site(const struct tg_leaks *leaks,
                                                enum tg_leak_list list, size_t index);
TG_API const char *tg_leaks_note(const struct tg_leaks *leaks, size_t index);

#ifdef __cplusplus
}
#endif

#endif
