/* SPDX-License-Identifier: Apache-2.0 */
/* What a program linked to the toy runtime can do: toyhost.c. */
#ifndef TEST_TOYHOST_H
#define TEST_TOYHOST_H

/* 0, or -1: it does not know that word. */
__attribute__((visibility("default"))) int host_do(const char *what);

#endif
