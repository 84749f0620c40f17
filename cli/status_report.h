/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate status` tells: the node's ledger as it was read, for its two printers. */
#ifndef CLI_STATUS_REPORT_H
#define CLI_STATUS_REPORT_H

#include <stdbool.h>

#include <tidegate/ledger.h>

void status_text_print(const struct tg_node_view *view);

/* One object of doc/schema/status-1.json; view NULL: there is no ledger. False: no memory. */
bool status_json_print(const struct tg_node_view *view);

/* Seconds from a moment of the view's clock until the view was made; never negative. */
double status_seconds_since(const struct tg_node_view *view, uint64_t then_ns);

#endif
