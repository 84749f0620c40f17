/* SPDX-License-Identifier: Apache-2.0 */
/* What TIDEGATE_STANDIN says. A word that is not understood is told on stderr: a test that runs on
 * no driver at all would only be skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "device/options.h"
#include "standin.h"

enum {
    CAPACITY, NAME, LAG, HANG, STRAGGLER, DEVICES, CONTEXT, DRIVER, INIT, STICKY, PIDS, OPTIONS
};

int standin_read(struct standin_options *options) {
    const char *text = getenv("TIDEGATE_STANDIN");
    struct tg__option known[OPTIONS] = {
        [CAPACITY] = {.key = "capacity", .kind = TG__OPTION_SIZE, .max = UINT64_C(1) << 40,
                      .example = "1GiB"},
        [NAME] = {.key = "name", .kind = TG__OPTION_WORD, .example = "gpu", .word = "standin"},
        [LAG] = {.key = "lag", .max = 60000, .kind = TG__OPTION_NUMBER, .example = "5"},
        [HANG] = {.key = "hang", .max = 1, .kind = TG__OPTION_NUMBER, .example = "1"},
        [STRAGGLER] = {.key = "straggler", .max = 60000, .kind = TG__OPTION_NUMBER,
                       .example = "200"},
        [DEVICES] = {.key = "devices", .min = 1, .max = STANDIN_DEVICES, .number = 1,
                     .kind = TG__OPTION_NUMBER, .example = "2"},
        [CONTEXT] = {.key = "context", .max = 4096, .number = 2, .kind = TG__OPTION_NUMBER,
                     .example = "300"},
        [DRIVER] = {.key = "driver", .max = 99000, .number = 13000, .kind = TG__OPTION_NUMBER,
                    .example = "12040"},
        [INIT] = {.key = "init", .max = 999, .kind = TG__OPTION_NUMBER, .example = "999"},
        [STICKY] = {.key = "sticky", .max = UINT64_C(1) << 40, .kind = TG__OPTION_NUMBER,
                    .example = "20"},
        [PIDS] = {.key = "pids", .kind = TG__OPTION_WORD, .example = "hidden"},
    };

    if (text == NULL || *text == '\0')
        return -1;
    if (tg__options_parse("TIDEGATE_STANDIN", text, strlen(text), known, OPTIONS) != 0 ||
        !known[CAPACITY].is_given) {
        fprintf(stderr, "stand-in: %s\n", known[CAPACITY].is_given
                                              ? tg_last_error()->text
                                              : "TIDEGATE_STANDIN names no capacity=SIZE");
        return -1;
    }
    *options = (struct standin_options){
        .capacity_bytes = known[CAPACITY].number,
        .lag_ms = (uint32_t)known[LAG].number,
        .straggler_ms = (uint32_t)known[STRAGGLER].number,
        .hangs = known[HANG].number != 0,
        .devices = (int)known[DEVICES].number,
        .driver = (int)known[DRIVER].number,
        .init = (int)known[INIT].number,
        .hides_pids = strcmp(known[PIDS].word, "hidden") == 0,
        .context_bytes = known[CONTEXT].number << 20,
        .sticky = known[STICKY].number,
    };
    snprintf(options->name, sizeof options->name, "%.20s", known[NAME].word);
    return 0;
}

void standin_name(const struct standin_options *options, int device, char name[32]) {
    snprintf(name, 32, "%.20s%d", options->name, device);
}
