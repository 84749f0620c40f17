/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate bench: what sleep, wake and their parts take on this device, beside what it can do. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tidegate/error.h>

#include "bench.h"
#include "options.h"
#include "place.h"
#include "stop_signal.h"
#include "verb.h"

/* One name of the command line: what measures it, or why nothing here does. */
static const struct bench {
    const char *name;
    bench_fn *measure;
    uint64_t copies; /* of the size in host memory at the worst moment */
    const char *reason;
} benches[] = {
    {"vmm", bench_vmm, 0, NULL},
    {"sleep", bench_sleep, 2, NULL},
    {"handover", bench_handover, 0, NULL},
    {"malloc", bench_malloc, 0, NULL},
    {"prepared", bench_prepared, 2, NULL},
    {"repack", bench_repack, 0, NULL},
    {"parts", bench_parts, 1, NULL},
    {"offload", NULL, 0, "it is the Python package's: see bench/card/offload.py"},
};

enum { BENCH_COUNT = sizeof benches / sizeof benches[0] };

#define FIELD(name) offsetof(struct bench_options, name)

static const char *size_parse(const char *value, void *field) {
    const char *wanted = option_parse_size(value, field);

    return wanted == NULL && *(uint64_t *)field == 0 ? "a size such as 64MiB, above 0" : wanted;
}

static const char *rounds_parse(const char *value, void *field) {
    const char *wanted = option_parse_count(value, field);

    return wanted != NULL || *(size_t *)field > BENCH_ROUNDS_MOST ? "a number from 1 to 100" : NULL;
}

static const struct option_row rows[] = {
    {"device", "URI", "auto", "cuda:N, host:capacity=SIZE; auto: a free GPU, else host memory",
     option_parse_text, FIELD(device)},
    {"size", "SIZE", NULL, "what each row moves (default: 1/16 of what is free)",
     size_parse, FIELD(size_bytes)},
    {"rounds", "N", "5", "how often each is measured", rounds_parse, FIELD(rounds)},
    {"json", "FILE", NULL, "one JSON object, too (schema tidegate.bench/1); -: and no table",
     option_parse_text, FIELD(json)},
};

static const struct option_table table = {
    .verb = "bench",
    .arguments = "[NAME...]",
    .summary =
        "Measures on one device what sleep and wake take, and beside it, in the same rounds,\n"
        "what the link or the driver could do. A rate is of bytes, a time of one piece; ratio is\n"
        "ours by the limit: of rates 1 is the limit itself, of times less is better.\n",
    .more = "  vmm       chunks: created and mapped, unmapped and released\n"
            "  sleep     tags sleep and wake, without backup and with one on the host\n"
            "  handover  one tenant sleeps, another one wakes; reserving in the ledger\n"
            "  malloc    blocks come and go\n"
            "  prepared  tags sleep into host memory that was made before\n"
            "  repack    what is freed inside large chunks goes back\n"
            "  parts     what sleep and wake do with host memory, one after the other\n"
            "  offload   not measured here: the table says why\n\n"
            "Without a NAME all of them. The device memory that a run takes, others see as the\n"
            "tenant 'bench'.\n"
            "Exit status: 0 measured; 1 the device or the library refused; 2 it could not begin,\n"
            "or wrong usage; 130 interrupted.\n",
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

/* False: no such name, which is said. */
static bool names_read(const struct option_texts *names, bool asked[static BENCH_COUNT]) {
    const char *known[BENCH_COUNT];

    for (size_t i = 0; i < BENCH_COUNT; i++) {
        known[i] = benches[i].name;
        asked[i] = names->count == 0;
    }
    for (size_t n = 0; n < names->count; n++) {
        const char *nearest;
        size_t i = 0;

        while (i < BENCH_COUNT && strcmp(names->items[n], known[i]) != 0)
            i++;
        if (i < BENCH_COUNT) {
            asked[i] = true;
            continue;
        }
        nearest = option_nearest(names->items[n], known, BENCH_COUNT);
        if (nearest == NULL)
            say("bench measures no '%s'; tidegate bench --help lists what there is",
                names->items[n]);
        else
            say("bench measures no '%s'; maybe: %s?", names->items[n], nearest);
        return false;
    }
    return true;
}

/* Before minutes are spent on what cannot be written. */
static bool json_is_fit(const char *path) {
    const char *slash;
    char folder[PLACE_BYTES];
    struct stat found;

    if (path == NULL || strcmp(path, "-") == 0)
        return true;
    slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path + 1),
             slash == NULL ? "." : path);
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        errno = EISDIR;
    else if (access(path, W_OK) == 0 || (errno == ENOENT && access(folder, W_OK | X_OK) == 0))
        return true;
    say("--json %s: %s", path, strerror(errno));
    return false;
}

static int measure(const bool asked[static BENCH_COUNT], struct bench_run *run) {
    int status = 0;

    for (size_t i = 0; i < BENCH_COUNT && status == 0; i++) {
        run->bench = benches[i].name;
        if (asked[i])
            status = bench_fail(run, benches[i].measure == NULL
                                         ? bench_add_none(run, "", "%s", benches[i].reason)
                                         : benches[i].measure(run));
    }
    return status;
}

static int answer(const struct bench_options *options, const bool asked[static BENCH_COUNT],
                  struct bench_run *run) {
    int status;

    run->is_shown = options->json == NULL || strcmp(options->json, "-") != 0;
    if (run->is_shown)
        bench_text_begin(run);
    status = measure(asked, run);
    if (status == -EINTR && stop_signal_came())
        return EXIT_INTERRUPTED;
    if (status != 0) {
        say("%s: %s", run->bench, run->why.text);
        return EXIT_BAD;
    }
    if (run->is_shown)
        bench_text_end(run);
    if (options->json != NULL && !bench_json_write(run, options->json))
        return EXIT_WRONG;
    return EXIT_ANSWERED;
}

static int run(void *values, const struct option_texts *names) {
    const struct bench_options *options = values;
    bool asked[BENCH_COUNT];
    struct bench_run bench = {.device = NULL};
    uint64_t copies = 0;
    int status;

    if (!names_read(names, asked) || !json_is_fit(options->json))
        return EXIT_WRONG;
    for (size_t i = 0; i < BENCH_COUNT; i++)
        copies = asked[i] && benches[i].copies > copies ? benches[i].copies : copies;
    if (!bench_open(options, copies, &bench))
        return EXIT_WRONG;
    status = answer(options, asked, &bench);
    bench_close(&bench);
    free(bench.rows);
    return status;
}

int verb_bench(int argc, char **argv) {
    struct bench_options options = {.device = NULL};

    return options_run(&table, argc, argv, &options, run);
}
