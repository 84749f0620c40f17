/* SPDX-License-Identifier: Apache-2.0 */
/* A signal at a chosen store: all stores that other processes see go through a few functions of the
 * library, and the linker puts those of storetrap.c in their place (store_wraps in meson.build). */
#ifndef TEST_STORETRAP_H
#define TEST_STORETRAP_H

#include <stdbool.h>
#include <stdint.h>

/* From now on stores are counted anew, and this process gets the signal at the nth, before it or
 * after it. nth 0: never. A fork takes trap and count along. */
void store_trap(uint64_t nth, bool is_after, int signal);
/* Stores since. */
uint64_t store_count(void);

#endif
