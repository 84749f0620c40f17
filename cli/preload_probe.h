/* SPDX-License-Identifier: Apache-2.0 */
/* The child of `tidegate doctor --preload`: this command once more, under the preload, which makes
 * each call of the table over one CUDA runtime and tells on stdout how it came out. */
#ifndef CLI_PRELOAD_PROBE_H
#define CLI_PRELOAD_PROBE_H

/* What it is called by. */
#define PRELOAD_PROBE_NAME "tidegate-preload-probe"

/* Each line that is the probe's begins with it; all others are the preload's or somebody else's.
 *   version NUMBER                 as cudaRuntimeGetVersion has it
 *   absent                         the loader knows no runtime of that name
 *   path PATH                      the runtime's
 *   refused TEXT                   the runtime cannot be used, and nothing more was called
 *   order PATH                     an object that has a cudaMalloc, in the loader's order
 *   call INDEX OUTCOME CODE PATH   PATH: whose function the call came to first */
#define PRELOAD_PROBE_MARK "tidegate-probe> "

enum preload_call {
#define CALL(name, symbol, what, expected) PRELOAD_CALL_##name,
#include "preload_calls.def"
#undef CALL
    PRELOAD_CALLS
};

enum preload_outcome {
    OUTCOME_OURS,      /* the preload answered, or saw to it */
    OUTCOME_PASSED_ON, /* the runtime answered, as without us */
    OUTCOME_MISSING,   /* this runtime has no such function */
    OUTCOME_FAILED,    /* the call answered an error that it should not */
    OUTCOME_UNTRIED,
    OUTCOMES
};

/* The name by which programs call it. */
const char *preload_call_symbol(unsigned call);

/* argv: the name, the runtime, the preload. */
int preload_probe(char **argv);

#endif
