/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_replay.h"

#include <stdio.h>
#include <string.h>

#include <tidegate/error.h>

#include "budget.h"
#include "input.h"
#include "recording.h"

static bool plan_from(const void *bytes, size_t size_bytes, struct demo_plan *plan,
                      struct sentence *why) {
    struct tg_snapshot *snapshot;
    bool is_made;

    if (tg_snapshot_parse(bytes, size_bytes, &snapshot) != 0) {
        sentence_set(why, "%s", tg_last_error()->text);
        return false;
    }
    is_made = demo_plan_make(snapshot, plan, why);
    tg_snapshot_close(snapshot);
    return is_made;
}

static bool load_own(struct budget_share *share, struct demo_plan *plan, struct sentence *why) {
    struct buffer unpacked;
    bool is_made;

    buffer_init(&unpacked, share);
    is_made = unpack(PACKING_XZ, recording_begin, (size_t)(recording_end - recording_begin),
                     &unpacked, why) == UNPACKED &&
              plan_from(unpacked.bytes, unpacked.size_bytes, plan, why);
    buffer_free(&unpacked);
    return is_made;
}

static bool load_file(const char *path, struct budget_share *share, struct demo_plan *plan,
                      struct sentence *why) {
    struct input input;
    bool is_made;

    if (!input_open(&input, path, share, why))
        return false;
    is_made = input_unpack(&input, why) == UNPACKED &&
              plan_from(input.bytes, input.size_bytes, plan, why);
    if (input.has_shrunk) {
        sentence_set(why, "became shorter while it was read: is it still being written?");
        if (is_made)
            demo_plan_free(plan);
        is_made = false;
    }
    input_close(&input);
    return is_made;
}

bool demo_replay_load(const char *path, struct demo_plan *plan) {
    struct budget_share share;
    struct sentence why;
    struct budget budget;
    bool is_made;

    budget_init(&budget, budget_default_bytes());
    budget_share_init(&share, &budget);
    is_made = path == NULL ? load_own(&share, plan, &why) : load_file(path, &share, plan, &why);
    budget_leave(&share);
    budget_destroy(&budget);
    if (!is_made)
        say("--replay %s: %s", path == NULL ? RECORDING_NAME : input_name(path), why.text);
    return is_made;
}

void demo_replay_name(const char *path, char *name, size_t room) {
    const char *shown = path == NULL ? RECORDING_NAME : input_name(path);
    const char *base = strrchr(shown, '/');
    char *kind;

    snprintf(name, room, "%s", base == NULL || base[1] == '\0' ? shown : base + 1);
    kind = strstr(name, ".pickle");
    if (kind != NULL && kind != name)
        *kind = '\0';
}
