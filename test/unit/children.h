/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of what processes do to each other: a directory of one's own, children, and words that
 * they tell each other through pipes. Every wait ends: a test that hangs is ended by Check. */
#ifndef TEST_CHILDREN_H
#define TEST_CHILDREN_H

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A new directory, mode 0700, named in TIDEGATE_DIR too. It is left to the system's clearing only
 * if the test fails. */
static inline char *make_directory(void) {
    static char path[64];

    snprintf(path, sizeof path, "/dev/shm/tidegate-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    setenv("TIDEGATE_DIR", path, 1);
    return path;
}

static inline void remove_directory(const char *path) {
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", path);
    ck_assert_int_eq(system(command), 0);
}

/* Writes a file below a directory, with the folders above it. */
static inline void lay_file(const char *root, const char *path, const char *text) {
    char full[PATH_MAX];
    FILE *file;

    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(full, 0700);
        *at = '/';
    }
    file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

struct child {
    pid_t pid;
    int in, out; /* the parent's ends */
};

/* Runs the function in a child that dies with its parent; what it returns is the exit status.
 * Inside, descriptors 3 and up are the child's two ends: see hear and tell. */
static inline struct child start(int (*run)(int in, int out, void *argument), void *argument) {
    struct child child;
    int down[2], up[2];

    ck_assert_int_eq(pipe(down), 0);
    ck_assert_int_eq(pipe(up), 0);
    fflush(NULL);
    child.pid = fork();
    ck_assert_int_ge(child.pid, 0);
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        _exit(run(down[0], up[1], argument));
    }
    close(down[0]);
    close(up[1]);
    child.in = up[0];
    child.out = down[1];
    return child;
}

static inline void tell(int fd, unsigned word) {
    ck_assert_int_eq(write(fd, &word, sizeof word), (int)sizeof word);
}

/* The next word, or UINT32_MAX at the end. */
static inline unsigned hear(int fd) {
    unsigned word;

    return read(fd, &word, sizeof word) == (ssize_t)sizeof word ? word : 0xffffffffu;
}

/* Lets it go on once more and waits for its end; the wait status. Its later sisters hold copies of
 * its pipe: it sees no end of file while they live. */
static inline int finish(struct child *child) {
    unsigned word = 0;
    int status;

    signal(SIGPIPE, SIG_IGN);
    if (write(child->out, &word, sizeof word) < 0)
        ck_assert_int_eq(errno, EPIPE);
    close(child->in);
    close(child->out);
    ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
    return status;
}

static inline void kill_and_finish(struct child *child) {
    kill(child->pid, SIGKILL);
    finish(child);
}

#endif
