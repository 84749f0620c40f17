/* SPDX-License-Identifier: Apache-2.0 */
/* tidegate run: a command as it is, with an environment in which the package's seams act.
 *
 * The command's processes get TIDEGATE=on or observe; VERL_USE_EXTERNAL_MODULES with tidegate.verl
 * in it, which versions of verl before 0.9 need; PYTHONPATH with a folder that holds the package
 * and nothing else; TIDEGATE_LIBRARY where the library is not the package's own; and TIDEGATE_RUN,
 * the folder in which they tell what became active (see run_folder.h); with --preload the preload
 * in LD_PRELOAD. A signal from the terminal
 * reaches the command by itself; one that was sent to this process is passed on. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "options.h"
#include "package.h"
#include "programs.h"
#include "ray_cluster.h"
#include "run_folder.h"
#include "run_preload.h"
#include "say.h"
#include "user_command.h"
#include "verb.h"

struct run_options {
    bool observe, preload, keep_host;
    const char *need, *default_tag;
};

#define FIELD(name) offsetof(struct run_options, name)

static const struct option_row rows[] = {
    {"observe", NULL, NULL, "measure and tell only: no result and no allocation changes",
     option_parse_flag, FIELD(observe)},
    {"need", "NAME,...", NULL, "status 4 if no process had the seams of verl, sglang, vllm active",
     option_parse_text, FIELD(need)},
    {"preload", NULL, NULL, "stand before the CUDA runtime: cudaMalloc of threads in a scope",
     option_parse_flag, FIELD(preload)},
    {"default-tag", "NAME", NULL,
     "the same, and 1 MiB and more of all other threads comes from this tag, saved by sleep",
     option_parse_text, FIELD(default_tag)},
    {"keep-host", NULL, NULL,
     "that tag's host memory stays for its next sleep, which is faster, instead of going back",
     option_parse_flag, FIELD(keep_host)},
};

static const struct option_table table = {
    .verb = "run",
    .arguments = "-- COMMAND [ARGUMENT...]",
    .summary =
        "Runs a command with Tidegate on in it and in all the processes that it starts: the\n"
        "hand-over of GPU memory in the programs that it knows becomes exact. On this machine\n"
        "only, and not in a Ray cluster that already runs: tidegate enable tells how there.\n",
    .more = "Exit status: the command's; 128 and the signal's number where one ended it; 126 it\n"
            "cannot be run, 127 it is not there; 4 a seam of --need was never active; 2 wrong\n"
            "usage, and nothing was run.\n",
    .ends_at_word = true,
    .rows = rows,
    .count = sizeof rows / sizeof rows[0],
};

/* Signals that ask a program to end or to do something; each is the command's to answer. */
static const int passed_on[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

static bool need_read(const char *names, bool is_needed[PROGRAM_COUNT]) {
    enum program program;

    memset(is_needed, 0, PROGRAM_COUNT * sizeof *is_needed);
    for (const char *name = names; name != NULL; name = strchr(name, ',')) {
        name += *name == ',';
        if (!program_find(name, strcspn(name, ","), &program))
            return false;
        is_needed[program] = true;
    }
    return true;
}

/* In a source tree the library lies where it was built; elsewhere the package has its own. */
static bool library_hand_on(void) {
    const char *given = getenv("TIDEGATE_LIBRARY");
    char library[PACKAGE_BYTES];

    if (given != NULL && *given != '\0')
        return package_path_can_be_listed(given);
    if (!package_library(library))
        return true;
    if (!package_path_can_be_listed(library))
        return false;
    if (setenv("TIDEGATE_LIBRARY", library, 1) == 0)
        return true;
    say_no_memory();
    return false;
}

/* Where no package belongs to this command, the command's own Python may have it, and then its
 * entry points act; a module that is missing would end verl before 0.9 with an error. */
static bool package_hand_on(const struct run_folder *folder) {
    char package[PACKAGE_BYTES], python[RUN_INSIDE_BYTES];

    if (!package_find(package)) {
        say("the Python package does not stand beside this command: seams act only where "
            "the command's own Python has it (pip install tidegate)");
        return true;
    }
    if (!library_hand_on() || !package_path_can_be_listed(package) ||
        !package_path_can_be_listed(folder->path) || !run_folder_link(folder, package, python))
        return false;
    if (environment_append("PYTHONPATH", ':', python) &&
        environment_append("VERL_USE_EXTERNAL_MODULES", ',', "tidegate.verl"))
        return true;
    say_no_memory();
    return false;
}

static bool has_preload(const struct run_options *options) {
    return options->preload || options->default_tag != NULL;
}

static bool environment_make(const struct run_options *options, const struct run_folder *folder) {
    if (!package_hand_on(folder))
        return false;
    if (has_preload(options) && !run_preload_hand_on(options->default_tag, options->keep_host))
        return false;
    if (setenv("TIDEGATE", options->observe ? "observe" : "on", 1) == 0 &&
        setenv("TIDEGATE_RUN", folder->path, 1) == 0)
        return true;
    say_no_memory();
    return false;
}

static void ray_warn(void) {
    struct sentence sign;

    if (ray_cluster_seen(&sign))
        say("a Ray cluster already runs (%s): its workers do not inherit this environment; "
            "tidegate enable verl tells what to add to the command", sign.text);
}

/* Returns how the command ended, as waitpid has it. Signals wait, blocked, until they are taken
 * here, so that none is passed on to a pid that is no longer the command's. */
static int command_wait(pid_t pid, const sigset_t *signals) {
    siginfo_t info;
    int end;

    while (waitpid(pid, &end, WNOHANG) == 0) {
        int number = sigwaitinfo(signals, &info);

        /* The kernel's own (a terminal's) went to all processes of the group. */
        if (number > 0 && number != SIGCHLD && info.si_code <= 0)
            kill(pid, number);
    }
    return end;
}

/* False: it never ran, which is said; *status then says how. */
static bool command_run(char *const *argv, int *status) {
    sigset_t signals, before;
    const struct user_command_params params = {.argv = argv, .mask = &before};
    pid_t pid;
    int error;

    signal(SIGCHLD, SIG_DFL); /* where our caller ignores it, nobody would tell of the end */
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++)
        sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    error = user_command_start(&params, &pid); /* what was blocked for our sake is not for it */
    if (error != 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        say("%s: %s", argv[0], strerror(error));
        *status = user_command_status_unstarted(error);
        return false;
    }
    *status = user_command_status(command_wait(pid, &signals));
    return true;
}

/* What the run's end means, with what was asked for. Under the preload a program needs no seam. */
static int verdict(const struct run_folder *folder, const bool is_needed[PROGRAM_COUNT],
                   bool is_preloaded, int status) {
    bool is_active[PROGRAM_COUNT], is_any = false, is_missing = false;

    run_folder_seams(folder, is_active);
    for (size_t i = 0; i < PROGRAM_COUNT; i++) {
        is_any |= is_active[i];
        if (!is_needed[i] || is_active[i])
            continue;
        say("the command ended with status %d, and no process of it had the seams of %s active; "
            "tidegate doctor tells what works here", status, program_name((enum program)i));
        is_missing = true;
    }
    if (!is_any && !is_missing && !is_preloaded)
        say("no seam became active in the command or in what it started on this machine");
    return is_missing ? EXIT_SEAMLESS : status;
}

static int run(void *values, const struct option_texts *words) {
    const struct run_options *options = values;
    bool is_needed[PROGRAM_COUNT];
    struct run_folder folder;
    int status = EXIT_WRONG;

    if (words->count == 0) {
        say("run needs a command: tidegate run -- python train.py");
        return EXIT_WRONG;
    }
    if (words->items[0][0] == '\0') {
        say("the name of the command is empty, as of a shell variable that is not set");
        return EXIT_WRONG;
    }
    if (options->observe && has_preload(options)) {
        say("--observe changes no allocation, which --preload and --default-tag are for");
        return EXIT_WRONG;
    }
    if (options->keep_host && options->default_tag == NULL) {
        say("--keep-host is of the tag that --default-tag names");
        return EXIT_WRONG;
    }
    if (options->default_tag != NULL && !run_preload_check(options->default_tag))
        return EXIT_WRONG;
    if (!need_read(options->need, is_needed) || !run_folder_make(&folder))
        return EXIT_WRONG;
    if (environment_make(options, &folder)) {
        ray_warn();
        if (command_run((char *const *)words->items, &status))
            status = verdict(&folder, is_needed, has_preload(options), status);
    }
    run_folder_remove(&folder);
    return status;
}

int verb_run(int argc, char **argv) {
    struct run_options options = {.observe = false};

    return options_run(&table, argc, argv, &options, run);
}
