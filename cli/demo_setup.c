/* SPDX-License-Identifier: Apache-2.0 */
/* Settles the device, its capacity and the sides' shares of it. */
#include "demo_setup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <tidegate/error.h>
#include <tidegate/ledger.h>

#include "budget.h"
#include "demo_look.h"
#include "demo_replay.h"
#include "stop_signal.h"
#include "figures.h"
#include "own_device.h"

#define MIB (UINT64_C(1) << 20)
#define PRESET_MOST (UINT64_C(1) << 30)
#define CAPACITY_LEAST (64 * MIB)
#define CAPACITY_UNIT (2 * MIB)

/* Room for a name of ours is left. */
enum { DEVICE_MOST = 200 };

/* What a run takes of the host's memory beside the device's bytes: at the worst moment of a
 * hand-over three quarters of them once more for what sleeps, and a little for everything else. */
#define BESIDE_BYTES (192 * MIB)

enum { TRAINER_PERCENT = 66, WEIGHTS_PERCENT = 25, KV_CACHE_PERCENT = 43 };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* A host device is made of the host's memory, a card is not: the quarters of the capacity. */
static unsigned quarters_needed(const struct demo_setup *setup) {
    return setup->is_direct ? 7 : 3;
}

static bool memory_allows(const struct demo_setup *setup, uint64_t available_bytes) {
    uint64_t capacity_bytes = setup->capacity_bytes;

    return capacity_bytes / quarters_needed(setup) <= available_bytes &&
           capacity_bytes / 4 * quarters_needed(setup) + BESIDE_BYTES <= available_bytes;
}

static void too_small_say(const struct demo_setup *setup) {
    uint64_t asked_bytes = setup->options.capacity_bytes;

    if (asked_bytes != 0)
        say("--capacity %s is too small: %s is the least that the demo can show something on",
            size_figure((double)asked_bytes).text, size_figure((double)CAPACITY_LEAST).text);
    else
        say("--device %s has %s to share out, which is too small: %s is the least that the demo "
            "can show something on",
            setup->options.device, size_figure((double)setup->capacity_bytes).text,
            size_figure((double)CAPACITY_LEAST).text);
}

/* Said where the capacity cannot be used. */
static bool capacity_is_fit(const struct demo_setup *setup, uint64_t total_bytes,
                            uint64_t available_bytes) {
    uint64_t capacity_bytes = setup->capacity_bytes;
    struct figure given, bound;

    if (capacity_bytes < CAPACITY_LEAST) {
        too_small_say(setup);
        return false;
    }
    if (capacity_bytes > total_bytes) {
        size_apart_figures((double)total_bytes, (double)capacity_bytes, &bound, &given);
        say("--capacity %s is more than the device has: %s", given.text, bound.text);
        return false;
    }
    if (!memory_allows(setup, available_bytes)) {
        double most = available_bytes > BESIDE_BYTES + 2 * CAPACITY_LEAST
                          ? (double)(available_bytes - BESIDE_BYTES) / quarters_needed(setup) * 4
                          : 0;

        say("--capacity %s is more than this machine's memory allows now: at most %s, with what "
            "sleeps beside it",
            size_figure((double)capacity_bytes).text, size_figure(most).text);
        return false;
    }
    return true;
}

static void name_make(struct demo_setup *setup) {
    own_device_name("demo", setup->device_name);
    snprintf(setup->uri, sizeof setup->uri, "%.200s,name=%s", setup->shown, setup->device_name);
}

/* A device of the run's own. */
static bool device_make(struct demo_setup *setup, uint64_t available_bytes) {
    uint64_t asked = setup->options.capacity_bytes;

    setup->capacity_bytes = asked != 0 ? asked : least(PRESET_MOST, available_bytes / 4);
    setup->capacity_bytes = setup->capacity_bytes / CAPACITY_UNIT * CAPACITY_UNIT;
    setup->is_direct = true;
    if (!capacity_is_fit(setup, UINT64_MAX, available_bytes))
        return false;
    if (setup->capacity_bytes % (UINT64_C(1) << 30) == 0)
        snprintf(setup->shown, sizeof setup->shown, "host:capacity=%" PRIu64 "GiB",
                 setup->capacity_bytes >> 30);
    else
        snprintf(setup->shown, sizeof setup->shown, "host:capacity=%" PRIu64 "MiB",
                 setup->capacity_bytes / MIB);
    name_make(setup);
    return true;
}

/* Host devices without a name become ones of the run's own, too. */
static bool device_name(struct demo_setup *setup, const char *given) {
    if (strlen(given) > DEVICE_MOST) {
        say("--device is longer than any device's name");
        return false;
    }
    snprintf(setup->shown, sizeof setup->shown, "%s", given);
    snprintf(setup->uri, sizeof setup->uri, "%s", given);
    if (own_device_lacks_name(given))
        name_make(setup);
    return true;
}

void demo_setup_undo(struct demo_setup *setup) {
    own_device_remove(setup->device_name);
}

/* Looks at the device; makes it where it is a new host device. */
static bool device_look(struct demo_setup *setup, uint64_t *free_bytes, uint64_t *total_bytes) {
    struct demo_look look;

    if (!demo_look_at(setup->uri, &look)) {
        demo_setup_undo(setup);
        return false;
    }
    if (look.status != 0) {
        demo_setup_undo(setup);
        say("--device %s: %s", setup->options.device, look.why.text);
        return false;
    }
    setup->granule_bytes = look.room.granule_bytes;
    setup->is_direct = look.is_direct;
    setup->speed = look.speed;
    *free_bytes = look.room.free_bytes;
    *total_bytes = look.room.total_bytes;
    return true;
}

/* False: said, or the demo was asked to end. */
static bool auto_choose(const struct demo_setup *setup, char uri[static DEMO_URI_BYTES]) {
    struct demo_look look;

    if (!demo_look_choose(&look))
        return false;
    if (look.status != 0)
        say("--device %s: %s", setup->options.device, look.why.text);
    else
        memcpy(uri, look.uri, sizeof look.uri);
    return look.status == 0;
}

/* A host device that `auto` comes to would be everybody's who says so: the run makes its own. */
static bool device_find(struct demo_setup *setup, uint64_t available_bytes, bool *is_made) {
    char uri[DEMO_URI_BYTES];

    *is_made = false;
    if (strcmp(setup->options.device, "auto") != 0)
        return device_name(setup, setup->options.device);
    if (!auto_choose(setup, uri))
        return false;
    *is_made = strncmp(uri, "host:", 5) == 0;
    return *is_made ? device_make(setup, available_bytes) : device_name(setup, uri);
}

/* What the two sides use of the capacity. */
static void shares_set(struct demo_setup *setup) {
    uint64_t granule = setup->granule_bytes, percent = setup->capacity_bytes / 100;
    uint64_t weights = percent * WEIGHTS_PERCENT / DEMO_WEIGHTS_BLOCKS;
    uint64_t kv_cache = percent * KV_CACHE_PERCENT / DEMO_KV_CACHE_BLOCKS;

    setup->trainer_peak_bytes = percent * TRAINER_PERCENT;
    setup->weights_bytes = (weights + granule - 1) / granule * granule;
    setup->kv_cache_bytes = (kv_cache + granule - 1) / granule * granule;
}

static bool device_settle(struct demo_setup *setup) {
    uint64_t available_bytes = 2 * budget_default_bytes();
    uint64_t free_bytes, total_bytes, preset;
    bool is_made;

    if (!device_find(setup, available_bytes, &is_made) ||
        !device_look(setup, &free_bytes, &total_bytes))
        return false;
    if (!is_made) {
        /* A device of the run's own is as large as it was asked for. */
        preset = setup->device_name[0] != '\0'
                     ? total_bytes
                     : least(least(PRESET_MOST, available_bytes / 4), free_bytes / 5 * 3);
        setup->capacity_bytes =
            setup->options.capacity_bytes != 0 ? setup->options.capacity_bytes : preset;
        setup->capacity_bytes = setup->capacity_bytes / CAPACITY_UNIT * CAPACITY_UNIT;
        if (!capacity_is_fit(setup, total_bytes, available_bytes)) {
            demo_setup_undo(setup);
            return false;
        }
    }
    shares_set(setup);
    return true;
}

/* A ledger that this build cannot read, or that is not ours, is better told before than by two
 * processes. None is fine: they make it. */
static bool ledger_look(void) {
    struct tg_ledger *ledger;
    int status = tg_ledger_open_reader(NULL, &ledger);

    if (status == 0)
        tg_ledger_close(ledger);
    else if (status != -ENOENT)
        say("%s", tg_last_error()->text);
    return status == 0 || status == -ENOENT;
}

const char *demo_setup_copy_name(const struct demo_setup *setup) {
    return setup->is_direct ? "memcpy" : "a plain copy";
}

bool demo_setup_make(struct demo_setup *setup) {
    if (!ledger_look() || !demo_replay_load(setup->options.replay, &setup->plan))
        return false;
    demo_replay_name(setup->options.replay, setup->replay_name, sizeof setup->replay_name);
    stop_signal_catch();
    if (device_settle(setup))
        return true;
    demo_plan_free(&setup->plan);
    return false;
}
