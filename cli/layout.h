/* SPDX-License-Identifier: Apache-2.0 */
/* What the path of a snapshot says about it. Pure: no file is opened.
 *
 * Read from the file's name first, then from its folders, the nearest first:
 *   step     step{N}, steps{N}-{M}, iteration_10, iter10, step-10, global_step_10 (case ignored; of
 *            several in one name the last); the file was written at the end of step N, or M
 *   rank     rank{R}, rank_3, rank-3          pid   pid{P}
 *   oom      a word "oom" in the name, a folder that begins with it (verl: oom_{time}/), or one
 *            named iteration_10_exit (torchtitan)
 *   tag      the rest of the name: torch_memory in torch_memory_rank0_pid4711.pickle
 *   run      the folders without what tells step, rank and process: see layout_run
 * verl's post_update_step{N+1}_... is written at the end of step N, after its counter rose. */
#ifndef CLI_LAYOUT_H
#define CLI_LAYOUT_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "say.h"

#define LAYOUT_TAG_BYTES 64

/* Files of different families are of different moments of a step: no series has both. */
enum {
    FAMILY_TORCH_MEMORY,
    FAMILY_POST_UPDATE,
    FAMILY_OTHER /* and above: see layout_families */
};

struct layout {
    int64_t rank, pid;             /* -1: the path does not say */
    int64_t first_step, last_step; /* likewise; the same number for one step */
    int32_t family;
    int32_t run;  /* the number of its layout_run among those of all files; the caller's */
    bool is_oom; /* named as written at an out-of-memory error */
    char tag[LAYOUT_TAG_BYTES];
};

/* --step-from and --rank-from: each with one group, the number; NULL: by the rules above. */
struct layout_patterns {
    const regex_t *step, *rank;
};

/* Does a file in a folder count? .pickle or .pkl, then perhaps .gz, .xz or .zst; not hidden. */
bool layout_counts(const char *name);

void layout_read(const char *path, struct layout *layout);

/* Compiles a pattern: POSIX extended, exactly one group. False: *why says it, nothing to free. */
bool layout_pattern_compile(const char *text, regex_t *pattern, struct sentence *why);

/* Overrides what the patterns say. False: *why says which does not fit the path. */
bool layout_apply(const struct layout_patterns *patterns, const char *path, struct layout *layout,
                  struct sentence *why);

/* What all files of one run have in common: the path without the file's name, without the folder
 * that tells the step (of verl's also one that tells the time, or oom_{time}), and with '#' for the
 * numbers of ranks and processes. "." where nothing is left. The key has room for strlen(path) + 2
 * bytes. */
void layout_run(const char *path, const struct layout_patterns *patterns, char *key);

/* Gives files of tags other than verl's their families: one for all, unless some rank of a run has
 * two of the same step with different tags: then one for each tag. Reorders `layouts`. */
void layout_families(struct layout **layouts, size_t count);

#endif
