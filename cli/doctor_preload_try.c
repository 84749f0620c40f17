/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the probe, and reads what it tells. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor_preload.h"
#include "monotonic.h"
#include "stop_signal.h"

enum { TRY_MS = 120000, SAID_BYTES = 1 << 18 };

static const struct {
    const char *what;
    enum preload_outcome expected;
} calls[PRELOAD_CALLS] = {
#define CALL(name, symbol, what, expected) {what, OUTCOME_##expected},
#include "preload_calls.def"
#undef CALL
};

const char *preload_call_what(unsigned call) {
    return calls[call].what;
}

enum preload_outcome preload_call_expected(unsigned call) {
    return calls[call].expected;
}

bool preload_call_is_right(const struct preload_call_tried *tried, unsigned call) {
    return tried->outcome == calls[call].expected || tried->outcome == OUTCOME_MISSING;
}

const char *preload_outcome_text(enum preload_outcome outcome) {
    static const char *const texts[OUTCOMES] = {"ours", "passed on", "missing", "failed",
                                                "not tried"};

    return texts[outcome];
}

/* ---- the child ------------------------------------------------------------------------------- */

/* What does not fit is read and lost. False: it takes too long, or the verb is stopped. */
static bool read_all(int fd, char *said) {
    uint64_t deadline_ns = monotonic_ns() + UINT64_C(1000000) * TRY_MS;
    size_t length = 0;
    char rest[4096];

    while (monotonic_ns() < deadline_ns && !stop_signal_came()) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        bool fits = length < SAID_BYTES - 1;
        ssize_t got;

        if (poll(&wanted, 1, 1000) <= 0)
            continue;
        got = fits ? read(fd, said + length, SAID_BYTES - 1 - length)
                   : read(fd, rest, sizeof rest);
        if (got <= 0)
            return got == 0;
        if (fits) {
            length += (size_t)got;
            said[length] = '\0';
        }
    }
    return false;
}

static int start(char *const *argv, int to, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    if (error != 0)
        return error;
    error = posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, to, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn(pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* False: it did not come to its end; *why says how. */
static bool ask(const char *runtime, const char *preload, char *said, struct sentence *why) {
    const char *argv[] = {PRELOAD_PROBE_NAME, runtime, preload, NULL};
    int ends[2], error, end = 0;
    bool is_read;
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        sentence_set(why, "no pipe could be made: %s", strerror(errno));
        return false;
    }
    error = start((char *const *)argv, ends[1], &pid);
    close(ends[1]);
    is_read = error == 0 && read_all(ends[0], said);
    close(ends[0]);
    if (error != 0) {
        sentence_set(why, "no child could be started: %s", strerror(error));
        return false;
    }
    if (!is_read)
        kill(pid, SIGKILL);
    while (waitpid(pid, &end, 0) < 0 && errno == EINTR)
        ;
    if (!is_read)
        sentence_set(why, "a call did not return within %d s", TRY_MS / 1000);
    else if (WIFSIGNALED(end))
        sentence_set(why, "the program that made the calls was ended by signal %d", WTERMSIG(end));
    return is_read && !WIFSIGNALED(end);
}

/* ---- what it tells --------------------------------------------------------------------------- */

static void note_call(const char *rest, struct preload_runtime *tried) {
    int call, outcome, code, length = 0;

    if (sscanf(rest, "%d %d %d %n", &call, &outcome, &code, &length) < 3 || length == 0 ||
        call < 0 || call >= PRELOAD_CALLS || outcome < 0 || outcome >= OUTCOMES)
        return;
    tried->calls[call].outcome = (enum preload_outcome)outcome;
    tried->calls[call].code = code;
    snprintf(tried->calls[call].first, PACKAGE_BYTES, "%s", rest + length);
}

/* Behind `word` and a space; NULL: the line is another. */
static const char *value_of(const char *line, const char *word) {
    size_t length = strlen(word);

    return strncmp(line, word, length) == 0 && line[length] == ' ' ? line + length + 1 : NULL;
}

static void note_line(const char *line, struct preload_runtime *tried, struct sentence *refused) {
    const char *value;

    if ((value = value_of(line, "version")) != NULL)
        tried->version = atoi(value);
    else if ((value = value_of(line, "path")) != NULL)
        snprintf(tried->path, sizeof tried->path, "%s", value);
    else if ((value = value_of(line, "refused")) != NULL)
        sentence_set(refused, "%s", value);
    else if ((value = value_of(line, "order")) != NULL && tried->order_count < PRELOAD_ORDER_MOST)
        snprintf(tried->order[tried->order_count++], PACKAGE_BYTES, "%s", value);
    else if ((value = value_of(line, "call")) != NULL)
        note_call(value, tried);
}

/* The first line that is not the probe's is the preload's, if it has something to say. */
static void note_all(char *said, struct preload_runtime *tried, struct sentence *refused,
                     struct sentence *complaint) {
    static const char ours[] = "tidegate: ";

    for (char *line = strsep(&said, "\n"); line != NULL; line = strsep(&said, "\n")) {
        if (strncmp(line, PRELOAD_PROBE_MARK, strlen(PRELOAD_PROBE_MARK)) == 0)
            note_line(line + strlen(PRELOAD_PROBE_MARK), tried, refused);
        else if (complaint->text[0] == '\0' && strncmp(line, ours, strlen(ours)) == 0)
            sentence_set(complaint, "%s", line + strlen(ours));
    }
}

static void judge(struct preload_runtime *tried, const struct sentence *refused,
                  const struct sentence *complaint) {
    unsigned wrong = 0, made = 0;

    for (unsigned i = 0; i < PRELOAD_CALLS; i++) {
        made += tried->calls[i].outcome != OUTCOME_MISSING;
        wrong += !preload_call_is_right(&tried->calls[i], i);
    }
    if (refused->text[0] != '\0') {
        finding_set(&tried->finding, FINDING_BAD, "%s", refused->text);
        finding_advise(&tried->finding, "tidegate doctor",
                       "see what this machine's driver and devices say");
    } else if (wrong > 0) {
        finding_set(&tried->finding, FINDING_BAD, "%u of %u calls did not come out as they should"
                    "%s%s", wrong, made, complaint->text[0] == '\0' ? "" : ": ", complaint->text);
        finding_advise(&tried->finding, NULL, "run the program without --preload until the calls "
                       "below come out as they should");
    } else {
        finding_set(&tried->finding, FINDING_OK, "%u calls came out as they should", made);
    }
}

bool preload_runtime_try(const char *runtime, const char *preload, struct preload_runtime *tried) {
    struct sentence refused = {""}, complaint = {""};
    char *said = calloc(SAID_BYTES, 1);
    bool is_there = true;

    *tried = (struct preload_runtime){.finding = {.state = FINDING_OK}};
    snprintf(tried->path, sizeof tried->path, "%s", runtime);
    for (unsigned i = 0; i < PRELOAD_CALLS; i++)
        tried->calls[i].outcome = OUTCOME_UNTRIED;
    if (said == NULL) {
        sentence_set(&refused, "%s", strerror(ENOMEM));
    } else {
        is_there = !ask(runtime, preload, said, &refused) ||
                   strstr(said, PRELOAD_PROBE_MARK "absent") == NULL;
        note_all(said, tried, &refused, &complaint);
    }
    free(said);
    judge(tried, &refused, &complaint);
    return is_there;
}
