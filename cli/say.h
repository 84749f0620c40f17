/* SPDX-License-Identifier: Apache-2.0 */
/* Sentences: kept with the thing that failed, or said on stderr. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#define SENTENCE_BYTES 512

/* Why something failed, without a trailing dot. */
struct sentence {
    char text[SENTENCE_BYTES];
};

/* A sentence that does not fit is cut. */
__attribute__((format(printf, 2, 3))) void sentence_set(struct sentence *sentence,
                                                        const char *format, ...);

/* "tidegate: SENTENCE" on stderr, in one piece and made harmless. Not for threads: those keep a
 * sentence, and the main thread says it. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* What malloc's failures come to: the same words everywhere. */
void say_no_memory(void);

#endif
