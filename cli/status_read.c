/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "place.h"
#include "say.h"
#include "status_report.h"

int status_read(struct tg_node_view *view, bool *has_ledger) {
    struct tg_ledger *ledger;
    int status = tg_ledger_open_reader(NULL, &ledger);

    *has_ledger = status != -ENOENT;
    if (status != 0)
        return status == -ENOENT ? 0 : status;
    status = tg_ledger_read(ledger, view);
    tg_ledger_close(ledger);
    return status;
}

void status_absence_write(struct sentence *sentence) {
    char place[PLACE_BYTES];

    place_write(place, sizeof place);
    sentence_set(sentence, "no program uses Tidegate on this machine (no ledger in %s)", place);
}
