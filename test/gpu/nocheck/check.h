/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the library Check as the tests use that run on a card, where there is libc alone: the
 * same tests compile with either. Each test is a process with a time limit; a failed assertion ends
 * it. Every test is a line on stdout, and in the file named in NOCHECK_RESULTS:
 *     PASS|FAIL|SKIP program test seconds
 * A test that exits with 77 is skipped; why, it has said itself. */
#ifndef TEST_NOCHECK_CHECK_H
#define TEST_NOCHECK_CHECK_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CK_ENV, NOCHECK_TESTS = 64, NOCHECK_FIXTURES = 4, NOCHECK_CASES = 8, NOCHECK_SKIPPED = 77 };

typedef struct {
    const char *name;
    int timeout_s, test_count, fixture_count, unchecked_count;
    struct {
        const char *name;
        void (*run)(int);
        int first, end;
    } tests[NOCHECK_TESTS];
    struct {
        void (*set_up)(void), (*tear_down)(void);
    } fixtures[NOCHECK_FIXTURES], unchecked[NOCHECK_FIXTURES];
} TCase;

typedef struct {
    const char *name;
    int case_count;
    TCase *cases[NOCHECK_CASES];
} Suite;

typedef struct {
    Suite *suite;
    int failed;
} SRunner;

/* ---- assertions ------------------------------------------------------------------------------ */

#define START_TEST(name) static void name(int _i __attribute__((unused)))
#define END_TEST

#define ck_abort_msg(...)                                      \
    do {                                                       \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__); \
        fprintf(stderr, __VA_ARGS__);                          \
        fputc('\n', stderr);                                   \
        abort();                                               \
    } while (0)
#define ck_assert_msg(condition, ...) \
    do {                              \
        if (!(condition))             \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "%s", #condition)

#define NOCHECK_INT(a, op, b)                                                              \
    do {                                                                                   \
        intmax_t a_ = (a), b_ = (b);                                                       \
        ck_assert_msg(a_ op b_, "%s is %jd, %s %s", #a, a_, #op, #b);                      \
    } while (0)
#define NOCHECK_UINT(a, op, b)                                                             \
    do {                                                                                   \
        uintmax_t a_ = (a), b_ = (b);                                                      \
        ck_assert_msg(a_ op b_, "%s is %ju, not %s %ju (%s)", #a, a_, #op, b_, #b);        \
    } while (0)
#define ck_assert_int_eq(a, b) NOCHECK_INT(a, ==, b)
#define ck_assert_int_ne(a, b) NOCHECK_INT(a, !=, b)
#define ck_assert_int_lt(a, b) NOCHECK_INT(a, <, b)
#define ck_assert_int_ge(a, b) NOCHECK_INT(a, >=, b)
#define ck_assert_uint_eq(a, b) NOCHECK_UINT(a, ==, b)
#define ck_assert_uint_ne(a, b) NOCHECK_UINT(a, !=, b)
#define ck_assert_uint_lt(a, b) NOCHECK_UINT(a, <, b)
#define ck_assert_uint_le(a, b) NOCHECK_UINT(a, <=, b)
#define ck_assert_uint_gt(a, b) NOCHECK_UINT(a, >, b)
#define ck_assert_uint_ge(a, b) NOCHECK_UINT(a, >=, b)
#define ck_assert_ptr_nonnull(a) ck_assert((a) != NULL)
#define ck_assert_ptr_null(a) ck_assert((a) == NULL)
#define ck_assert_ptr_eq(a, b) ck_assert((const void *)(a) == (const void *)(b))
#define ck_assert_str_eq(a, b) ck_assert(strcmp(a, b) == 0)
#define ck_assert_mem_eq(a, b, size) ck_assert(memcmp(a, b, size) == 0)
#define ck_assert_mem_ne(a, b, size) ck_assert(memcmp(a, b, size) != 0)

/* ---- building -------------------------------------------------------------------------------- */

static inline void *nocheck_new(size_t size) {
    void *made = calloc(1, size);

    ck_assert_ptr_nonnull(made);
    return made;
}

static inline TCase *tcase_create(const char *name) {
    TCase *made = (TCase *)nocheck_new(sizeof *made);

    made->name = name;
    made->timeout_s = 4;
    return made;
}

static inline void tcase_set_timeout(TCase *tcase, double seconds) {
    tcase->timeout_s = (int)seconds;
}

static inline void nocheck_add(TCase *tcase, const char *name, void (*run)(int), int first,
                               int end) {
    ck_assert_int_lt(tcase->test_count, NOCHECK_TESTS);
    tcase->tests[tcase->test_count].name = name;
    tcase->tests[tcase->test_count].run = run;
    tcase->tests[tcase->test_count].first = first;
    tcase->tests[tcase->test_count++].end = end;
}
#define tcase_add_test(tcase, test) nocheck_add(tcase, #test, test, 0, 1)
#define tcase_add_loop_test(tcase, test, first, end) nocheck_add(tcase, #test, test, first, end)

static inline void tcase_add_checked_fixture(TCase *tcase, void (*set_up)(void),
                                             void (*tear_down)(void)) {
    ck_assert_int_lt(tcase->fixture_count, NOCHECK_FIXTURES);
    tcase->fixtures[tcase->fixture_count].set_up = set_up;
    tcase->fixtures[tcase->fixture_count++].tear_down = tear_down;
}

static inline void tcase_add_unchecked_fixture(TCase *tcase, void (*set_up)(void),
                                               void (*tear_down)(void)) {
    ck_assert_int_lt(tcase->unchecked_count, NOCHECK_FIXTURES);
    tcase->unchecked[tcase->unchecked_count].set_up = set_up;
    tcase->unchecked[tcase->unchecked_count++].tear_down = tear_down;
}

static inline Suite *suite_create(const char *name) {
    Suite *made = (Suite *)nocheck_new(sizeof *made);

    made->name = name;
    return made;
}

static inline void suite_add_tcase(Suite *suite, TCase *tcase) {
    ck_assert_int_lt(suite->case_count, NOCHECK_CASES);
    suite->cases[suite->case_count++] = tcase;
}

static inline SRunner *srunner_create(Suite *suite) {
    SRunner *made = (SRunner *)nocheck_new(sizeof *made);

    made->suite = suite;
    return made;
}

/* ---- running --------------------------------------------------------------------------------- */

static inline double nocheck_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void nocheck_live(const TCase *tcase, void (*run)(int), int turn) {
    setpgid(0, 0); /* so that a test which takes too long ends with all its children */
    for (int i = 0; i < tcase->fixture_count; i++) {
        if (tcase->fixtures[i].set_up != NULL)
            tcase->fixtures[i].set_up();
    }
    run(turn);
    for (int i = tcase->fixture_count - 1; i >= 0; i--) {
        if (tcase->fixtures[i].tear_down != NULL)
            tcase->fixtures[i].tear_down();
    }
    fflush(NULL);
    _exit(0);
}

/* The wait status; -1: too late. */
static inline int nocheck_wait(pid_t pid, int timeout_s) {
    double end = nocheck_now() + timeout_s;
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        struct timespec nap = {0, 2000000};

        if (nocheck_now() > end) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&nap, NULL);
    }
    return status;
}

static inline void nocheck_tell(const char *result, const char *suite, const char *name, int turn,
                                double seconds) {
    const char *path = getenv("NOCHECK_RESULTS");
    FILE *file = path == NULL ? NULL : fopen(path, "a");

    printf("%s %s %s/%d %.2f\n", result, suite, name, turn, seconds);
    fflush(stdout);
    if (file != NULL) {
        fprintf(file, "%s %s %s/%d %.2f\n", result, suite, name, turn, seconds);
        fclose(file);
    }
}

/* Whether it was right, or was skipped. */
static inline int nocheck_run(const Suite *suite, const TCase *tcase, int test, int turn) {
    double begin = nocheck_now();
    const char *result = "FAIL";
    int status;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        nocheck_live(tcase, tcase->tests[test].run, turn);
    status = pid < 0 ? -1 : nocheck_wait(pid, tcase->timeout_s);
    if (status == 0)
        result = "PASS";
    else if (status > 0 && WIFEXITED(status) && WEXITSTATUS(status) == NOCHECK_SKIPPED)
        result = "SKIP";
    else if (status == -1)
        fprintf(stderr, "%s: ended after %d s\n", tcase->tests[test].name, tcase->timeout_s);
    else if (WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT)
        fprintf(stderr, "%s: signal %d\n", tcase->tests[test].name, WTERMSIG(status));
    nocheck_tell(result, suite->name, tcase->tests[test].name, turn, nocheck_now() - begin);
    return strcmp(result, "FAIL") != 0;
}

static inline void nocheck_run_case(SRunner *runner, const TCase *tcase) {
    for (int i = 0; i < tcase->unchecked_count; i++) {
        if (tcase->unchecked[i].set_up != NULL)
            tcase->unchecked[i].set_up();
    }
    for (int test = 0; test < tcase->test_count; test++) {
        for (int turn = tcase->tests[test].first; turn < tcase->tests[test].end; turn++)
            runner->failed += !nocheck_run(runner->suite, tcase, test, turn);
    }
    for (int i = tcase->unchecked_count - 1; i >= 0; i--) {
        if (tcase->unchecked[i].tear_down != NULL)
            tcase->unchecked[i].tear_down();
    }
}

static inline void srunner_run_all(SRunner *runner, int mode) {
    (void)mode;
    for (int i = 0; i < runner->suite->case_count; i++)
        nocheck_run_case(runner, runner->suite->cases[i]);
}

static inline int srunner_ntests_failed(const SRunner *runner) {
    return runner->failed;
}

static inline void srunner_free(SRunner *runner) {
    for (int i = 0; i < runner->suite->case_count; i++)
        free(runner->suite->cases[i]);
    free(runner->suite);
    free(runner);
}

#endif
