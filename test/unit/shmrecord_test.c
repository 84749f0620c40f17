/* SPDX-License-Identifier: Apache-2.0 */
/* Records: a reader gets a whole one of one moment, wherever the writer is or dies. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/shmfile.h"
#include "children.h"
#include "suite.h"

enum { WORDS = 64, BYTES = WORDS * 8, READS = 10000 };

struct slot {
    struct tg__record record;
    uint64_t copies[2][WORDS];
};

struct shared {
    struct slot slot;
    _Atomic uint32_t stop;
};

static struct shared *shared;

static void set_up(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
}

static void tear_down(void) {
    munmap(shared, sizeof *shared);
}

static void publish(uint64_t value) {
    uint64_t words[WORDS];

    for (int i = 0; i < WORDS; i++)
        words[i] = value;
    tg__record_publish(&shared->slot.record, words, BYTES);
}

/* The value that all words of what was read have; fails if they differ. */
static uint64_t whole(const uint64_t *words) {
    for (int i = 1; i < WORDS; i++)
        ck_assert_msg(words[i] == words[0], "torn at word %d", i);
    return words[0];
}

static uint64_t read_whole(void) {
    uint64_t words[WORDS];

    ck_assert_int_eq(tg__record_read(&shared->slot.record, words, BYTES), 0);
    return whole(words);
}

START_TEST(what_is_published_is_read) {
    ck_assert_uint_eq(read_whole(), 0);
    for (uint64_t value = 1; value < 10; value++) {
        publish(value);
        ck_assert_uint_eq(read_whole(), value);
    }
}
END_TEST

static void *publish_on(void *argument) {
    (void)argument;
    for (uint64_t value = 1; atomic_load(&shared->stop) == 0; value++)
        publish(value);
    return NULL;
}

static void read_many(void) {
    uint64_t last = 0, words[WORDS];

    for (int i = 0; i < READS || last == 0; i++) {
        uint64_t value;

        if (tg__record_read(&shared->slot.record, words, BYTES) == TG_EMOTION)
            continue;
        value = whole(words);
        ck_assert_uint_ge(value, last);
        last = value;
    }
}

/* In one process, so that ThreadSanitizer can see it. */
START_TEST(a_thread_never_reads_a_torn_one) {
    pthread_t writer;

    ck_assert_int_eq(pthread_create(&writer, NULL, publish_on, NULL), 0);
    read_many();
    atomic_store(&shared->stop, 1);
    pthread_join(writer, NULL);
}
END_TEST

static int publish_as_child(int in, int out, void *argument) {
    (void)in;
    publish(1);
    tell(out, 0);
    publish_on(argument);
    return 0;
}

START_TEST(a_process_never_reads_a_torn_one) {
    struct child writer = start(publish_as_child, NULL);

    hear(writer.in);
    read_many();
    kill_and_finish(&writer);
    read_whole();
}
END_TEST

/* The next record ends at a page that cannot be read: the writer dies after `words` of them. */
static int die_inside(int in, int out, void *argument) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), words = *(size_t *)argument;
    unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)in;
    (void)out;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    memset(pages, 0xee, page);
    mprotect(pages + page, page, PROT_NONE);
    tg__record_publish(&shared->slot.record, pages + page - words * 8, BYTES);
    return 0;
}

START_TEST(a_writer_that_dies_inside_leaves_the_old_one) {
    uint64_t value = 1;

    publish(value);
    for (size_t words = 0; words < WORDS; words += 9) {
        struct child writer = start(die_inside, &words);

        ck_assert_int_ne(finish(&writer), 0);
        ck_assert_uint_eq(read_whole(), value);
        publish(++value); /* by who mends */
        ck_assert_uint_eq(read_whole(), value);
    }
}
END_TEST

START_TEST(a_writer_killed_anywhere_leaves_a_whole_one) {
    for (int i = 0; i < 100; i++) {
        struct child writer = start(publish_as_child, NULL);

        hear(writer.in);
        usleep((useconds_t)(i % 10) * 20);
        kill_and_finish(&writer);
        ck_assert_uint_gt(read_whole(), 0);
    }
}
END_TEST

/* The reader's copy lies over the record itself, so that each try moves all of it by a word, and
 * the version from one even number to the next. */
START_TEST(who_never_rests_is_in_motion) {
    struct slot *slot = &shared->slot;

    slot->record.version = 0;
    for (uint64_t i = 0; i < WORDS; i++) {
        slot->copies[0][i] = 2 * (i + 1);
        slot->copies[1][i] = 2 * (i + 1 + WORDS);
    }
    ck_assert_int_eq(tg__record_read(&slot->record, slot, 2 * BYTES), TG_EMOTION);
    ck_assert_uint_eq(slot->record.version, 2 * TG__READ_TRIES);
}
END_TEST

int main(void) {
    TCase *cases = tcase_create("shmrecord");

    tcase_add_checked_fixture(cases, set_up, tear_down);
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, what_is_published_is_read);
    tcase_add_test(cases, a_thread_never_reads_a_torn_one);
    tcase_add_test(cases, a_process_never_reads_a_torn_one);
    tcase_add_test(cases, a_writer_that_dies_inside_leaves_the_old_one);
    tcase_add_test(cases, a_writer_killed_anywhere_leaves_a_whole_one);
    tcase_add_test(cases, who_never_rests_is_in_motion);
    return suite_run("shmrecord", cases);
}
