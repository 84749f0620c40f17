/* SPDX-License-Identifier: Apache-2.0 */
/* How every unit test program ends. */
#ifndef TEST_SUITE_H
#define TEST_SUITE_H

#include <check.h>

/* Runs the cases, each in a process of its own (CK_FORK=no: all in this one); main's status. */
static inline int suite_run(const char *name, TCase *cases) {
    Suite *suite = suite_create(name);
    SRunner *runner = srunner_create(suite);
    int failed;

    suite_add_tcase(suite, cases);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif
