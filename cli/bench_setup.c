/* SPDX-License-Identifier: Apache-2.0 */
/* Settles device, ledger and size before anything is measured, and takes it all down. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "bench.h"
#include "budget.h"
#include "figures.h"
#include "stop_signal.h"

#define PRESET_MOST (16 * BENCH_GIB)
#define BESIDE_BYTES (64 * BENCH_MIB) /* of host memory, for everything else */

enum { PRESET_SHARE = 16 }; /* of the device's free bytes */

/* Room for a name of ours is left. */
enum { DEVICE_MOST = 200 };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

int bench_go_on(const struct bench_run *run) {
    (void)run;
    return stop_signal_came() ? -EINTR : 0;
}

int bench_fail(struct bench_run *run, int status) {
    if (status != 0 && run->why.text[0] == '\0')
        sentence_set(&run->why, "%s", tg_last_error()->text);
    return status;
}

int bench_no_memory(struct bench_run *run) {
    sentence_set(&run->why, "not enough memory");
    return -ENOMEM;
}

int bench_take(const struct bench_run *run, const char *tag, uint64_t size_bytes) {
    int status = tg_tenant_reserve(run->tenant, tag, size_bytes, 0);

    if (status == 0)
        tg_tenant_commit(run->tenant, tag, size_bytes, 0);
    return status;
}

void bench_give(const struct bench_run *run, const char *tag, uint64_t size_bytes) {
    tg_tenant_give(run->tenant, tag, size_bytes, 0);
}

/* ---- the device ------------------------------------------------------------------------------ */

static bool device_say(const char *asked) {
    say("--device %s: %s", asked, tg_last_error()->text);
    return false;
}

/* A host device that `auto` comes to would be everybody's who says so: the run makes its own. */
static bool uri_settle(const char *asked, struct bench_run *run) {
    if (strlen(asked) > DEVICE_MOST) {
        say("--device is longer than any device's name");
        return false;
    }
    snprintf(run->shown, sizeof run->shown, "%s", asked);
    if (strcmp(asked, "auto") == 0 && tg_device_choose(run->shown, sizeof run->shown) != 0)
        return device_say(asked);
    snprintf(run->uri, sizeof run->uri, "%s", run->shown);
    if (own_device_lacks_name(run->shown)) {
        own_device_name("bench", run->device_name);
        snprintf(run->uri, sizeof run->uri, "%.200s,name=%s", run->shown, run->device_name);
    }
    return true;
}

static bool device_open(const char *asked, struct bench_run *run) {
    int status = tg_device_open(run->uri, &run->device);

    if (status != 0) {
        run->device = NULL;
        return device_say(asked);
    }
    run->ops = tg_device_ops(run->device);
    status = run->ops->info(run->device, &run->info);
    if (status == 0)
        status = run->ops->memory(run->device, &run->free_bytes, &run->total_bytes);
    if ((run->info.can & TG_DEVICE_DIRECT) == 0)
        (void)kernel_driver_read(run->driver);
    return status == 0 ? true : device_say(asked);
}

/* ---- the size -------------------------------------------------------------------------------- */

/* A host device is made of the host's memory, too. */
static uint64_t shares_of_host(const struct bench_run *run, uint64_t copies) {
    return copies + ((run->info.can & TG_DEVICE_DIRECT) != 0);
}

static bool size_is_fit(const struct bench_run *run, uint64_t most_bytes, bool is_given) {
    const char *what = is_given ? "--size" : "the size of this run:";
    uint64_t granule = run->info.granule_bytes;
    struct figure size, bound;

    if (run->size_bytes < granule) {
        say("%s %s is less than the device gives: %s", what,
            size_figure((double)run->size_bytes).text, size_figure((double)granule).text);
        return false;
    }
    size_apart_figures((double)run->free_bytes, (double)run->size_bytes, &bound, &size);
    if (run->size_bytes > run->free_bytes) {
        say("%s %s is more than the device has free: %s of %s", what, size.text, bound.text,
            size_figure((double)run->total_bytes).text);
        return false;
    }
    if (run->size_bytes > most_bytes) {
        say("%s %s is more than this machine's memory allows now: at most %s, with the copies "
            "beside it",
            what, size_figure((double)run->size_bytes).text, size_figure((double)most_bytes).text);
        return false;
    }
    return true;
}

/* Of what is preset the host keeps as much again for others. */
static bool size_settle(uint64_t asked_bytes, uint64_t copies, struct bench_run *run) {
    uint64_t shares = shares_of_host(run, copies), half_bytes = budget_default_bytes();
    uint64_t host_bytes = half_bytes > BESIDE_BYTES ? 2 * (half_bytes - BESIDE_BYTES / 2) : 0;
    uint64_t most_bytes = shares == 0 ? UINT64_MAX : host_bytes / shares;
    uint64_t granule = run->info.granule_bytes;

    run->size_bytes = asked_bytes != 0
                          ? asked_bytes
                          : least(least(run->free_bytes / PRESET_SHARE, PRESET_MOST),
                                  most_bytes / 2);
    if (granule > 0 && run->size_bytes >= granule) /* what is less is told as it was asked for */
        run->size_bytes -= run->size_bytes % granule;
    return size_is_fit(run, most_bytes, asked_bytes != 0);
}

/* ---- the ledger ------------------------------------------------------------------------------ */

static int ask_driver(void *argument, uint64_t *free_bytes, uint64_t *total_bytes) {
    const struct bench_run *run = argument;

    return run->ops->memory(run->device, free_bytes, total_bytes);
}

static bool ledger_open(struct bench_run *run) {
    const struct tg_tenant_params params = {.name = "bench", .rank = -1, .uuid = run->info.uuid,
                                            .device_name = run->info.name,
                                            .gauge = {ask_driver, run}};
    int status = tg_ledger_open(NULL, &run->ledger);

    run->gauge = params.gauge;
    if (status != 0)
        run->ledger = NULL;
    else
        status = tg_ledger_join(run->ledger, &params, &run->tenant);
    if (status == 0)
        return true;
    run->tenant = NULL;
    say("%s", tg_last_error()->text);
    return false;
}

bool bench_open(const struct bench_options *options, uint64_t copies, struct bench_run *run) {
    run->rounds = options->rounds;
    stop_signal_catch_first();
    if (uri_settle(options->device, run) && device_open(options->device, run) &&
        size_settle(options->size_bytes, copies, run) && ledger_open(run))
        return true;
    bench_close(run);
    return false;
}

/* The device first: what it still holds is charged to the tenant. */
void bench_close(struct bench_run *run) {
    tg_device_close(run->device);
    tg_tenant_leave(run->tenant);
    tg_ledger_close(run->ledger);
    own_device_remove(run->device_name);
    run->device = NULL;
    run->tenant = NULL;
    run->ledger = NULL;
}
