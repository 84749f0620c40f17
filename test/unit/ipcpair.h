/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes and their directory, for tests of IPC: one has blocks, the other opens them. */
#ifndef TEST_IPCPAIR_H
#define TEST_IPCPAIR_H

#include "actors.h"
#include "suite.h"

#define OPTIONS "capacity=64MiB"

static char *dir;
static struct actor exporter, opener;

static void set_up_both(void) {
    dir = make_directory();
    exporter = actor_start(OPTIONS);
    opener = actor_start(OPTIONS);
}

static void tear_down(void) {
    remove_directory(dir);
}

static void end_both(void) {
    actor_end(&opener);
    actor_end(&exporter);
}

/* A block of the exporter, full of this seed. */
static struct tg__token make(int place, uint64_t seed) {
    actor_must(&exporter, to(ACT_ALLOC, place, ACTOR_SIZE));
    actor_must(&exporter, to(ACT_WRITE, place, seed));
    return actor_must(&exporter, to(ACT_TOKEN, place, 0)).token;
}

#endif
