/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate VERB [OPTION...] [ARGUMENT...]: finds the verb, and sees to it that what was printed has
 * also been written. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tidegate/tidegate.h>

#include "options.h"
#include "preload_probe.h"
#include "say.h"
#include "verb.h"

struct verb {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
};

static const struct verb verbs[] = {
#define VERB(name, summary) {#name, summary, verb_##name},
#include "verbs.def"
#undef VERB
};

enum { VERB_COUNT = sizeof verbs / sizeof verbs[0] };

static void usage_print(FILE *out) {
    fputs("usage: tidegate VERB [OPTION...] [ARGUMENT...]\n\n", out);
    for (size_t i = 0; i < VERB_COUNT; i++)
        fprintf(out, "  %-9s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(out, "  %-9s %s\n", "help", "this text, or with the name of a verb its options");
    fputs("\n  --version, --help\n", out);
}

static int run_verb(int argc, char **argv) {
    const char *names[VERB_COUNT + 1] = {"help"};
    const char *nearest;

    for (size_t i = 0; i < VERB_COUNT; i++) {
        if (strcmp(argv[0], verbs[i].name) == 0)
            return verbs[i].run(argc, argv);
        names[i + 1] = verbs[i].name;
    }
    nearest = option_nearest(argv[0], names, VERB_COUNT + 1);
    if (nearest == NULL)
        say("there is no verb '%s'; tidegate help lists them", argv[0]);
    else
        say("there is no verb '%s'; maybe: %s?", argv[0], nearest);
    return EXIT_WRONG;
}

static int run_help(int argc, char **argv) {
    char help[] = "--help";
    char *words[] = {argc > 1 ? argv[1] : NULL, help, NULL};

    if (argc > 1)
        return run_verb(2, words);
    usage_print(stdout);
    return EXIT_ANSWERED;
}

static int run(int argc, char **argv) {
    static const char *const names[] = {"version", "help"};
    const char *nearest;

    if (argc < 2) {
        usage_print(stderr);
        return EXIT_WRONG;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tidegate %s\n", tg_version());
        return EXIT_ANSWERED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return run_help(argc - 1, argv + 1);
    if (argv[1][0] != '-')
        return run_verb(argc - 1, argv + 1);
    nearest = option_nearest(argv[1] + strspn(argv[1], "-"), names, 2);
    if (nearest == NULL)
        say("no option %s here; options of a verb follow it", argv[1]);
    else
        say("no option %s; maybe: --%s?", argv[1], nearest);
    return EXIT_WRONG;
}

/* A descriptor that our caller closed would be given to the next file opened, and our output end up
 * in it. /dev/null, opened the wrong way round, makes using it an error that gets said. */
static void standard_files_hold(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    }
}

int main(int argc, char **argv) {
    int status;

    standard_files_hold();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is told by the write, as a full disk is */
    if (argc > 0 && strcmp(argv[0], PRELOAD_PROBE_NAME) == 0)
        status = preload_probe(argv);
    else
        status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout) != 0 || close(STDOUT_FILENO) != 0) {
        say("the answer could not be written: %s", strerror(errno));
        status = EXIT_WRONG;
    }
    return status;
}
