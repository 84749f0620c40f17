/* SPDX-License-Identifier: Apache-2.0 */
#include "packages.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "monotonic.h"

enum { ANSWER_BYTES = 8192, ASK_MS = 10000 };

/* Lines of an answer begin so: others are of what the Python runs at its start. */
#define MARK "tidegate> "

/* A checkout of verl that is not installed has its version in a file; it runs from its folder. */
static const char script[] =
    "import importlib.metadata, importlib.util, os, sys\n"
    "def version(name):\n"
    "    try:\n"
    "        return importlib.metadata.version(name)\n"
    "    except Exception:\n"
    "        pass\n"
    "    try:\n"
    "        folder = os.path.dirname(importlib.util.find_spec(name).origin)\n"
    "        with open(os.path.join(folder, 'version', 'version')) as file:\n"
    "            return file.read().strip()\n"
    "    except Exception:\n"
    "        return ''\n"
    "answers = [('path', sys.executable), ('python', '%d.%d.%d' % sys.version_info[:3])]\n"
    "answers += [(name, version(name)) for name in sys.argv[1:]]\n"
    "sys.stdout.write(''.join('" MARK "%s %s\\n' % pair for pair in answers if pair[1]))\n";

static const char *const names[PACKAGE_COUNT] = {
#define PACKAGE(name) #name,
#include "packages.def"
#undef PACKAGE
};

const char *package_name(enum package package) {
    return names[package];
}

static bool is_folder(const char *path) {
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* An environment's folder stands for the Python in it. */
static void python_choose(const char *given, char *python, size_t room) {
    const char *environment = getenv("VIRTUAL_ENV");

    if (given != NULL)
        snprintf(python, room, is_folder(given) ? "%s/bin/python" : "%s", given);
    else if (environment != NULL && *environment != '\0')
        snprintf(python, room, "%s/bin/python", environment);
    else
        snprintf(python, room, "python3");
}

static int64_t now_ms(void) {
    return (int64_t)(monotonic_ns() / 1000000);
}

/* Reads until the end, or until the time is over: false. Of more than fits the end is kept: what a
 * Python prints at its start comes first. */
static bool answer_read(int fd, char *answer) {
    int64_t deadline = now_ms() + ASK_MS;
    size_t length = 0;

    while (true) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - now_ms();
        ssize_t got;

        answer[length] = '\0';
        if (left <= 0 || (poll(&wanted, 1, (int)left) < 0 && errno != EINTR))
            return false;
        if (wanted.revents == 0)
            continue;
        if (length == ANSWER_BYTES - 1) {
            length /= 2;
            memmove(answer, answer + ANSWER_BYTES - 1 - length, length);
        }
        got = read(fd, answer + length, ANSWER_BYTES - 1 - length);
        if (got <= 0)
            return got == 0;
        length += (size_t)got;
    }
}

/* Starts it with its stdout in a pipe, and nothing to read or to complain to. */
static int python_start(char *const *argv, int to, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    if (error != 0)
        return error;
    error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (error == 0)
        error = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Runs the Python on the script. False: it cannot be run, is too slow, or fails. */
static bool python_run(const char *python, char *answer, struct sentence *why) {
    const char *argv[PACKAGE_COUNT + 5] = {python, "-B", "-c", script};
    bool is_read;
    int ends[2], error, end;
    pid_t pid;

    for (size_t i = 0; i < PACKAGE_COUNT; i++)
        argv[i + 4] = names[i];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        sentence_set(why, "no pipe could be made: %s", strerror(errno));
        return false;
    }
    error = python_start((char *const *)argv, ends[1], &pid);
    close(ends[1]);
    if (error != 0) {
        close(ends[0]);
        sentence_set(why, "%s cannot be run: %s", python, strerror(error));
        return false;
    }
    is_read = answer_read(ends[0], answer);
    close(ends[0]);
    if (!is_read)
        kill(pid, SIGKILL);
    while (waitpid(pid, &end, 0) < 0 && errno == EINTR)
        ;
    if (!is_read)
        sentence_set(why, "%s did not answer within %d s", python, ASK_MS / 1000);
    else if (!WIFEXITED(end) || WEXITSTATUS(end) != 0)
        sentence_set(why, "%s did not run to its end: it is no Python 3.8 or newer", python);
    return is_read && WIFEXITED(end) && WEXITSTATUS(end) == 0;
}

/* "NAME VALUE" of one line. */
static void line_note(const char *line, struct packages *packages) {
    size_t length = strcspn(line, " ");
    const char *value = line + length + (line[length] == ' ');

    if (strncmp(line, "path ", 5) == 0)
        snprintf(packages->python, sizeof packages->python, "%s", value);
    if (strncmp(line, "python ", 7) == 0)
        snprintf(packages->python_version, sizeof packages->python_version, "%s", value);
    for (size_t i = 0; i < PACKAGE_COUNT; i++) {
        if (strlen(names[i]) == length && strncmp(line, names[i], length) == 0)
            snprintf(packages->versions[i], sizeof packages->versions[i], "%s", value);
    }
}

bool packages_ask(const char *given, struct packages *packages, struct sentence *why) {
    char answer[ANSWER_BYTES], *rest = answer, *line;

    memset(packages, 0, sizeof *packages);
    python_choose(given, packages->python, sizeof packages->python);
    if (!python_run(packages->python, answer, why))
        return false;
    for (line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        if (strncmp(line, MARK, strlen(MARK)) == 0)
            line_note(line + strlen(MARK), packages);
    }
    if (packages->python_version[0] == '\0')
        sentence_set(why, "%s ran, and did not answer as a Python does", packages->python);
    return packages->python_version[0] != '\0';
}
