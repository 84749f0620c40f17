/* SPDX-License-Identifier: Apache-2.0 */
/* The shared file: where it lives, how it comes to be, what is refused, who lives. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/shmdir.h"
#include "base/shmhead.h"
#include "children.h"
#include "suite.h"

enum { BODY_BYTES = 8192 };

static char *dir;

static void set_up(void) {
    dir = make_directory();
}

static void tear_down(void) {
    remove_directory(dir);
}

static void fill(void *body, const void *argument) {
    *(uint64_t *)body = *(const uint64_t *)argument;
    /* Slow enough for the race to be one. */
    usleep(1000);
}

static const uint64_t content = 4711;

static struct tg__shmfile_params usual(void) {
    return (struct tg__shmfile_params){
        .name = "file", .format = 7, .body_bytes = BODY_BYTES, .fill = fill, .argument = &content};
}

static struct tg__shmfile *open_usual(void) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    return file;
}

static void ck_refused(struct tg__shmfile_params params, int status, const char *word) {
    struct tg__shmfile *file = (void *)1;

    ck_assert_int_eq(tg__shmfile_open(&params, &file), status);
    ck_assert_ptr_eq(file, (void *)1);
    ck_assert_msg(strstr(tg_last_error()->text, word) != NULL, "no \"%s\" in: %s", word,
                  tg_last_error()->text);
}

static const char *in_dir(const char *name) {
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* A worker that was started with another session's variables finds the same ledger. */
START_TEST(the_path_is_the_users_whatever_the_session_says) {
    static const char *const names[] = {"XDG_RUNTIME_DIR", "HOME", "TMPDIR", "USER", "LOGNAME"};
    char wanted[64], *path;

    unsetenv("TIDEGATE_DIR");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        setenv(names[i], "/run/user/4711", 1);
    snprintf(wanted, sizeof wanted, "/dev/shm/tidegate-%u", (unsigned)geteuid());
    ck_assert_int_eq(tg__shmdir_path(NULL, &path), 0);
    ck_assert_str_eq(path, wanted);
    free(path);
    setenv("TIDEGATE_DIR", "/somewhere/else/", 1);
    ck_assert_int_eq(tg__shmdir_path(NULL, &path), 0);
    ck_assert_str_eq(path, "/somewhere/else");
    free(path);
}
END_TEST

START_TEST(opens_what_it_made) {
    struct tg__shmfile *one = open_usual(), *other = open_usual();
    struct stat info;

    ck_assert_uint_eq(*(uint64_t *)tg__shmfile_body(other), content);
    ck_assert_uint_eq(tg__shmfile_ticket(one), 1);
    ck_assert_uint_eq(tg__shmfile_ticket(other), 2);
    *(uint64_t *)tg__shmfile_body(one) = 12;
    ck_assert_uint_eq(*(uint64_t *)tg__shmfile_body(other), 12);
    ck_assert_int_eq(stat(in_dir("file"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_assert_int_ge(info.st_blocks * 512, BODY_BYTES);
    tg__shmfile_close(one);
    tg__shmfile_close(other);
    one = open_usual();
    ck_assert_uint_eq(tg__shmfile_ticket(one), 3);
    ck_assert_uint_eq(*(uint64_t *)tg__shmfile_body(one), 12);
    tg__shmfile_close(one);
    tg__shmfile_close(NULL);
}
END_TEST

static int race(int in, int out, void *argument) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    (void)argument;
    hear(in);
    if (tg__shmfile_open(&params, &file) != 0)
        return 1;
    tell(out, tg__shmfile_ticket(file));
    hear(in);
    return *(uint64_t *)tg__shmfile_body(file) == content ? 0 : 2;
}

/* All open the file at once, and all have the same one: tickets 1 to 8, each once. */
static void race_all(void) {
    enum { RACERS = 8 };
    struct child children[RACERS];
    unsigned seen = 0;

    for (int i = 0; i < RACERS; i++)
        children[i] = start(race, NULL);
    for (int i = 0; i < RACERS; i++)
        tell(children[i].out, 0);
    for (int i = 0; i < RACERS; i++)
        seen |= 1u << hear(children[i].in);
    ck_assert_uint_eq(seen, 0x1fe);
    for (int i = 0; i < RACERS; i++) {
        tell(children[i].out, 0);
        ck_assert_int_eq(finish(&children[i]), 0);
    }
}

START_TEST(one_of_many_makes_it) {
    race_all();
}
END_TEST

/* Who is late finds the new file under the name, and must neither refuse nor remove it. */
START_TEST(one_of_many_replaces_what_is_left) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    params.format = 8;
    for (int round = 0; round < 30; round++) {
        ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
        tg__shmfile_close(file);
        race_all();
    }
}
END_TEST

START_TEST(the_directory_is_this_users_alone) {
    struct tg__shmfile_params params = usual();

    chmod(dir, 0750);
    ck_refused(params, -EPERM, "0750");
    chmod(dir, 0500);
    ck_refused(params, -EPERM, "0500");
    chmod(dir, 0700);
    ck_assert_int_eq(symlink(dir, in_dir("link")), 0);
    params.dir = in_dir("link");
    ck_refused(params, -EPERM, "symbolic link");
    params.dir = in_dir("link//");
    ck_refused(params, -EPERM, "symbolic link");
    ck_assert_int_eq(symlink("/nonexistent/x", in_dir("dangling")), 0);
    params.dir = in_dir("dangling");
    ck_refused(params, -EPERM, "symbolic link");
    close(open(in_dir("plain"), O_CREAT | O_WRONLY, 0600));
    params.dir = in_dir("plain");
    ck_refused(params, -EPERM, "no directory");
    params.dir = in_dir("not/there");
    ck_refused(params, -ENOENT, "cannot make the directory");
    params.dir = "relative";
    ck_refused(params, -EINVAL, "absolute");
    params.dir = NULL;
    setenv("TIDEGATE_DIR", "relative/too", 1);
    ck_refused(params, -EINVAL, "TIDEGATE_DIR");
}
END_TEST

/* A sentence has 240 bytes: of a longer path the middle goes, not what is wrong with it. */
START_TEST(a_long_path_leaves_room_for_its_fault) {
    struct tg__shmfile_params params = usual();
    char path[400] = "/dev/shm/";

    memset(path + strlen(path), 'x', sizeof path - 1 - strlen(path));
    params.dir = path;
    params.is_reader = true;
    ck_refused(params, -ENAMETOOLONG, "/dev/shm/xxx");
    ck_refused(params, -ENAMETOOLONG, "xxx...xxx");
    ck_refused(params, -ENAMETOOLONG, "x: File name too long");
    ck_assert_uint_eq(strlen(tg_last_error()->text), sizeof tg_last_error()->text - 1);
}
END_TEST

/* Beyond the limit of its files a process would be ended by SIGXFSZ. */
START_TEST(the_limit_of_files_is_no_signal) {
    struct rlimit before, small = {.rlim_cur = BODY_BYTES / 2};
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_refused(params, -EFBIG, "ulimit -f");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(a_strangers_directory_or_file_is_refused) {
    struct tg__shmfile_params params = usual();

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can give a directory away\n");
        return;
    }
    tg__shmfile_close(open_usual());
    ck_assert_int_eq(chown(in_dir("file"), 12345, 0), 0);
    ck_refused(params, -EPERM, "file belongs to user 12345");
    ck_assert_int_eq(chown(in_dir("file"), 0, 0), 0);
    ck_assert_int_eq(chown(dir, 12345, 0), 0);
    ck_refused(params, -EPERM, "belongs to user 12345 and this is user 0");
}
END_TEST

START_TEST(the_umask_is_neither_heeded_nor_touched) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;
    struct stat info;
    mode_t before = umask(0777);

    params.dir = in_dir("made");
    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    tg__shmfile_close(file);
    ck_assert_uint_eq(umask(before), 0777);
    ck_assert_int_eq(stat(in_dir("made"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0700);
    ck_assert_int_eq(stat(in_dir("made/file"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}
END_TEST

START_TEST(bad_parameters_make_nothing) {
    struct tg__shmfile_params params = usual();

    params.name = "a/b";
    ck_refused(params, -EINVAL, "without /");
    params.name = "";
    ck_refused(params, -EINVAL, "without /");
    params = usual();
    params.body_bytes = TG__SHMFILE_MAX_BYTES;
    ck_refused(params, -EINVAL, "bytes");
    params.body_bytes = 0;
    ck_refused(params, -EINVAL, "bytes");
    params = usual();
    params.is_reader = true;
    ck_refused(params, -ENOENT, "there is no file");
    params.dir = in_dir("none");
    ck_refused(params, -ENOENT, "there is no directory");
    ck_assert_int_eq(rmdir(dir), 0); /* it is empty */
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}
END_TEST

START_TEST(other_layouts_are_refused) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *living = open_usual();
    uint64_t numbers[3] = {1, 2, 3}, swapped[3] = {2, 1, 3};

    params.format = 8;
    ck_refused(params, TG_ELAYOUT, "another build");
    params = usual();
    params.body_bytes += 8;
    ck_refused(params, TG_ELAYOUT, "size");
    tg__shmfile_close(living);
    ck_assert_uint_ne(tg__shmfile_format(numbers, 3), tg__shmfile_format(swapped, 3));
    ck_assert_uint_ne(tg__shmfile_format(numbers, 3), tg__shmfile_format(numbers, 2));
    ck_assert_uint_ne(tg__shmfile_format(numbers, 1), tg__shmfile_format(numbers, 0));
}
END_TEST

/* What an older build has left is in nobody's way; readers see nothing there. */
START_TEST(what_nobody_uses_is_replaced) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;

    tg__shmfile_close(open_usual());
    params.format = 8;
    params.is_reader = true;
    ck_refused(params, -ENOENT, "there is no");
    params.is_reader = false;
    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    (void)!tg__shmfile_poison(file, "a test says so");
    ck_refused(params, TG_EPOISONED, "a test says so");
    tg__shmfile_close(file);
    params.body_bytes += 8;
    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    tg__shmfile_close(file);
    file = open_usual();
    ck_assert_int_eq(tg__shmfile_check(file, true), 0);
    tg__shmfile_close(file);
}
END_TEST

START_TEST(what_is_no_file_of_ours_is_refused) {
    struct tg__shmfile_params params = usual();
    struct tg__shmfile *file;
    int fd;

    close(open(in_dir("file"), O_CREAT | O_WRONLY, 0600));
    ck_refused(params, TG_ELAYOUT, "size");
    ck_assert_int_eq(truncate(in_dir("file"), BODY_BYTES + 256), 0);
    ck_refused(params, TG_ELAYOUT, "no file of ours");
    ck_assert_int_eq(truncate(in_dir("file"), 1 << 30), 0);
    ck_refused(params, TG_ELAYOUT, "size");
    unlink(in_dir("file"));
    tg__shmfile_close(open_usual());
    fd = open(in_dir("file"), O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "x", 1, 1), 1);
    close(fd);
    ck_refused(params, TG_ELAYOUT, "no file of ours");
    ck_assert_int_eq(truncate(in_dir("file"), 100), 0);
    ck_refused(params, TG_ELAYOUT, "size");
    unlink(in_dir("file"));
    ck_assert_int_eq(mkdir(in_dir("file"), 0700), 0);
    ck_refused(params, TG_ELAYOUT, "no regular file");
    rmdir(in_dir("file"));
    ck_assert_int_eq(mkfifo(in_dir("file"), 0600), 0);
    ck_refused(params, TG_ELAYOUT, "no regular file");
    params.is_reader = true;
    ck_refused(params, TG_ELAYOUT, "no regular file");
    unlink(in_dir("file"));
    params.is_reader = false;
    params.name = "real";
    ck_assert_int_eq(tg__shmfile_open(&params, &file), 0);
    tg__shmfile_close(file);
    params.name = "file";
    ck_assert_int_eq(symlink("real", in_dir("file")), 0);
    ck_refused(params, TG_ELAYOUT, "no regular file");
}
END_TEST

START_TEST(a_reader_only_reads) {
    struct tg__shmfile *file = open_usual(), *reader, *other = open_usual();
    struct tg__shmfile_params params = usual();
    bool has_inherited;

    params.is_reader = true;
    ck_assert_int_eq(tg__shmfile_open(&params, &reader), 0);
    ck_assert_uint_eq(tg__shmfile_ticket(reader), 0);
    ck_assert_uint_eq(*(uint64_t *)tg__shmfile_body(reader), content);
    ck_assert(tg__shmfile_is_alive(reader, 1));
    tg__shmfile_close(file);
    ck_assert(!tg__shmfile_is_alive(reader, 1));
    ck_assert(tg__shmfile_is_alive(reader, 2));
    ck_assert(!tg__shmfile_is_alive(reader, 0));
    ck_assert(!tg__shmfile_is_alive(reader, 3));
    ck_assert(!tg__shmfile_is_alive(reader, UINT32_MAX));
    ck_assert_int_eq(tg__shmfile_lock(reader, &has_inherited), -EINVAL);
    ck_assert_int_eq(tg__shmfile_check(reader, true), 0);
    ck_assert_int_eq(tg__shmfile_poison(reader, "a test"), TG_EPOISONED);
    ck_assert_int_eq(tg__shmfile_check(reader, true), 0);
    ck_assert_int_eq(tg__shmfile_check(other, true), 0);
    tg__shmfile_close(reader);
    tg__shmfile_close(other);
}
END_TEST

START_TEST(poison_is_for_all_and_for_good) {
    struct tg__shmfile *file = open_usual(), *other = open_usual();
    bool has_inherited = false;
    char text[400];

    ck_assert_int_eq(tg__shmfile_lock(other, &has_inherited), 0);
    ck_assert_int_eq(tg__shmfile_poison(other, "slot 3 lies"), TG_EPOISONED);
    tg__shmfile_unlock(other);
    ck_assert_int_eq(tg__shmfile_check(file, false), TG_EPOISONED);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "slot 3 lies"));
    ck_assert_int_eq(tg__shmfile_lock(file, &has_inherited), TG_EPOISONED);
    ck_assert_int_eq(tg__shmfile_poison(file, "second"), TG_EPOISONED);
    ck_assert_ptr_nonnull(strstr(tg_last_error()->text, "slot 3 lies"));
    tg__shmfile_close(other);
    tg__shmfile_close(file);
    unlink(in_dir("file"));
    file = open_usual();
    memset(text, '\n', sizeof text);
    text[sizeof text - 1] = '\0';
    ck_assert_int_eq(tg__shmfile_poison(file, text), TG_EPOISONED);
    ck_assert_ptr_null(strchr(tg_last_error()->text, '\n'));
    tg__shmfile_close(file);
}
END_TEST

START_TEST(a_file_that_is_gone_is_noticed) {
    struct tg__shmfile *file = open_usual(), *next;
    char away[128];

    ck_assert_int_eq(tg__shmfile_check(file, true), 0);
    unlink(in_dir("file"));
    ck_assert_int_eq(tg__shmfile_check(file, false), 0);
    ck_assert_int_eq(tg__shmfile_check(file, true), TG_EREPLACED);
    next = open_usual();
    ck_assert_uint_eq(tg__shmfile_ticket(next), 1);
    ck_assert_int_eq(tg__shmfile_check(file, true), TG_EREPLACED);
    ck_assert_int_eq(tg__shmfile_check(next, true), 0);
    tg__shmfile_close(file);
    snprintf(away, sizeof away, "%s-away", dir);
    ck_assert_int_eq(rename(dir, away), 0);
    ck_assert_int_eq(tg__shmfile_check(next, true), TG_EREPLACED);
    ck_assert_int_eq(rename(away, dir), 0);
    ck_assert_int_eq(tg__shmfile_check(next, true), 0);
    ck_assert_int_eq(truncate(in_dir("file"), 0), 0);
    ck_assert_int_eq(tg__shmfile_check(next, true), TG_EREPLACED);
    tg__shmfile_close(next);
}
END_TEST

START_TEST(tickets_are_never_used_again) {
    struct tg__shmfile *file = open_usual(), *other;
    struct tg__shmfile_params params = usual();

    file->head->next_ticket = 0; /* garbage: the number of one that lives is skipped, and 0 */
    other = open_usual();
    ck_assert_uint_eq(tg__shmfile_ticket(other), 2);
    tg__shmfile_close(other);
    file->head->next_ticket = 0x7fffffff;
    other = open_usual();
    ck_assert_uint_eq(tg__shmfile_ticket(other), 0x7fffffff);
    ck_assert(tg__shmfile_is_alive(file, 0x7fffffff));
    ck_refused(params, TG_EFULL, "no ticket is left");
    file->head->next_ticket = UINT32_MAX;
    ck_refused(params, TG_EFULL, "no ticket is left");
    params.is_reader = true;
    tg__shmfile_close(other);
    ck_assert_int_eq(tg__shmfile_open(&params, &other), 0);
    tg__shmfile_close(other);
    tg__shmfile_close(file);
}
END_TEST

enum { DIES, EXECS, EXITS, CLOSES };

static int live(int in, int out, void *argument) {
    struct tg__shmfile *file = open_usual();

    tell(out, tg__shmfile_ticket(file));
    hear(in);
    switch (*(int *)argument) {
    case DIES:
        raise(SIGKILL);
        break;
    case EXECS:
        dup2(in, 0);
        dup2(out, 1);
        execl("/bin/sh", "sh", "-c", "echo 123; read x", NULL);
        break;
    case CLOSES:
        tg__shmfile_close(file);
        tell(out, 0);
        hear(in);
        break;
    default:
        break;
    }
    return 0;
}

START_TEST(a_ticket_lives_as_long_as_its_owner) {
    struct tg__shmfile *file = open_usual();

    for (int how = DIES; how <= CLOSES; how++) {
        struct child child = start(live, &how);
        unsigned ticket = hear(child.in);

        ck_assert(tg__shmfile_is_alive(file, ticket));
        tell(child.out, 0);
        if (how == EXECS || how == CLOSES)
            ck_assert_uint_ne(hear(child.in), UINT32_MAX); /* it is past it, and runs */
        else
            ck_assert_int_eq(waitid(P_PID, (id_t)child.pid, &(siginfo_t){0}, WEXITED | WNOWAIT),
                             0);
        ck_assert_msg(!tg__shmfile_is_alive(file, ticket), "way %d", how);
        if (how == EXECS || how == CLOSES)
            tell(child.out, '\n');
        finish(&child);
    }
    ck_assert(tg__shmfile_is_alive(file, tg__shmfile_ticket(file)));
    tg__shmfile_close(file);
}
END_TEST

/* Joins, forks, and dies while its child lives on. */
static int live_and_fork(int in, int out, void *argument) {
    struct tg__shmfile *file = open_usual();
    bool has_inherited = false;

    (void)argument;
    tell(out, tg__shmfile_ticket(file));
    if (fork() == 0) {
        bool is_right = tg__shmfile_check(file, true) == TG_EFORKED &&
                        tg__shmfile_lock(file, &has_inherited) == TG_EFORKED &&
                        tg__shmfile_poison(file, "by a child") == TG_EFORKED &&
                        *(uint64_t *)tg__shmfile_body(file) == content;

        tg__shmfile_unlock(file);
        tell(out, is_right);
        hear(in); /* the parent is dead by now, and the mapping still here */
        tg__shmfile_close(file);
        file = open_usual(); /* as any other process may */
        tell(out, tg__shmfile_ticket(file));
        hear(in);
        _exit(0);
    }
    for (;;)
        pause();
}

START_TEST(a_forked_child_is_nobody) {
    struct tg__shmfile *file = open_usual();
    struct child child = start(live_and_fork, NULL);
    unsigned ticket = hear(child.in), own;

    ck_assert_uint_eq(hear(child.in), 1);
    ck_assert(tg__shmfile_is_alive(file, ticket));
    kill(child.pid, SIGKILL);
    ck_assert_int_eq(waitid(P_PID, (id_t)child.pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    ck_assert(!tg__shmfile_is_alive(file, ticket));
    ck_assert_int_eq(tg__shmfile_check(file, true), 0);
    tell(child.out, 0);
    own = hear(child.in);
    ck_assert_uint_gt(own, ticket);
    ck_assert(tg__shmfile_is_alive(file, own));
    tell(child.out, 0);
    finish(&child);
    tg__shmfile_close(file);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shmfile");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, the_path_is_the_users_whatever_the_session_says);
    tcase_add_test(cases, opens_what_it_made);
    tcase_add_test(cases, one_of_many_makes_it);
    tcase_add_test(cases, the_directory_is_this_users_alone);
    tcase_add_test(cases, a_long_path_leaves_room_for_its_fault);
    tcase_add_test(cases, the_limit_of_files_is_no_signal);
    tcase_add_test(cases, a_strangers_directory_or_file_is_refused);
    tcase_add_test(cases, the_umask_is_neither_heeded_nor_touched);
    tcase_add_test(cases, bad_parameters_make_nothing);
    tcase_add_test(cases, other_layouts_are_refused);
    tcase_add_test(cases, what_nobody_uses_is_replaced);
    tcase_add_test(cases, one_of_many_replaces_what_is_left);
    tcase_add_test(cases, what_is_no_file_of_ours_is_refused);
    tcase_add_test(cases, a_reader_only_reads);
    tcase_add_test(cases, poison_is_for_all_and_for_good);
    tcase_add_test(cases, a_file_that_is_gone_is_noticed);
    tcase_add_test(cases, tickets_are_never_used_again);
    tcase_add_test(cases, a_ticket_lives_as_long_as_its_owner);
    tcase_add_test(cases, a_forked_child_is_nobody);
    return suite_run("shmfile", cases);
}
