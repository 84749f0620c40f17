/* SPDX-License-Identifier: Apache-2.0 */
/* What every verb of the command is, and how it ends. */
#ifndef CLI_VERB_H
#define CLI_VERB_H

/* Exit statuses, the same for all verbs. */
enum {
    EXIT_ANSWERED = 0, /* read, and answered */
    EXIT_LOST = 1,     /* bytes are not what they should be */
    EXIT_BAD = 1,      /* something on this machine is bad */
    EXIT_WRONG = 2,    /* nothing could be read or written, or the command was used wrongly */
    EXIT_ABOVE = 3,    /* what a --fail-... option asked for has happened */
    EXIT_SEAMLESS = 4, /* a seam that was asked for was never active */
    EXIT_CANNOT_RUN = 126, /* as shells have them: the command is there, and cannot be run */
    EXIT_NOT_FOUND = 127,  /* it is not there */
    EXIT_SIGNALLED = 128,  /* plus the number: a signal ended it */
    EXIT_INTERRUPTED = 130 /* Ctrl-C, as shells have it */
};

/* argv[0] is the verb's name; returns the exit status. What a verb prints may still be in stdout's
 * buffer: main writes it out and says so if that fails. */
#define VERB(name, summary) int verb_##name(int argc, char **argv);
#include "verbs.def"
#undef VERB

#endif
