/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and counts as people write and read them. */
#ifndef CLI_FIGURES_H
#define CLI_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FIGURE_BYTES 32

/* Room for one figure and its unit. */
struct figure {
    char text[FIGURE_BYTES];
};

/* Reads 80GiB, 80Gi, 80G, 512 MiB, 1.5T (binary), 80GB (decimal), 1e9, 4096: no sign, no locale. */
bool size_read(const char *text, uint64_t *bytes);

/* "141 MiB", "70.5 MiB", "2.5 GiB": binary units, two or three digits. */
struct figure size_figure(double bytes);

/* Both as size_figure writes them, with as many more digits as tell them apart. */
void size_apart_figures(double low, double high, struct figure *low_figure,
                        struct figure *high_figure);

/* "505-519", both in the unit that size_figure gives `high`; one number where they look alike. */
struct figure size_range_figure(double low, double high);

/* "12.4 M", "77.5 k", "970". */
struct figure count_figure(uint64_t count);

/* "4,210". */
struct figure grouped_figure(uint64_t count);

/* "3 files", "1 file". */
struct figure plural_figure(uint64_t count, const char *noun);

/* Reads a whole number without a sign; false if it is none, or above 2^63 - 1. */
bool number_read(const char *text, size_t length, int64_t *number);

#endif
