/* SPDX-License-Identifier: Apache-2.0 */
/* Between the toy runtime's two files. */
#ifndef TEST_TOYIPC_H
#define TEST_TOYIPC_H

#include <stddef.h>

/* What the runtime gives comes and goes. */
void toyipc_note(void *addr, size_t size_bytes);
void toyipc_forget(void *addr);

#endif
