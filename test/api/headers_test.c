/* SPDX-License-Identifier: Apache-2.0 */
/* The public headers compile alone as C17 and C++17: that this program was built says so (see
 * meson.build). What is left to run is that headers and library say the same version. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include <tidegate/tidegate.h>

START_TEST(version_of_library_is_that_of_header) {
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", TG_VERSION_MAJOR, TG_VERSION_MINOR,
             TG_VERSION_PATCH);
    ck_assert_str_eq(tg_version(), expected);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("headers");
    TCase *tcase = tcase_create("headers");
    tcase_add_test(tcase, version_of_library_is_that_of_header);
    suite_add_tcase(suite, tcase);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
