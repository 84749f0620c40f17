/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate status --live`: the node as a page, until q or a signal. */
#ifndef CLI_STATUS_LIVE_H
#define CLI_STATUS_LIVE_H

#include <stdbool.h>

#include <tidegate/ledger.h>

/* Returns the exit status. */
int status_live_run(struct tg_node_view *view, bool has_no_color);

#endif
