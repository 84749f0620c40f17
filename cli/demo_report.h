/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate demo` prints beside its bar. */
#ifndef CLI_DEMO_REPORT_H
#define CLI_DEMO_REPORT_H

#include "demo_run.h"

/* The first line. */
void demo_text_begin(const struct demo_setup *setup);
/* The closing table. */
void demo_text_end(const struct demo_report *report);

/* One object of doc/schema/demo-1.json. False: no memory. */
bool demo_json_print(const struct demo_report *report);

#endif
