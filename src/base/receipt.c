/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a receipt: one line for each name. When there are more names than lines, the last
 * line is the sum of all others. */
#include "base/receipt.h"

#include <stdio.h>
#include <string.h>

void tg__receipt_add(struct tg_receipt *receipt, const char *name, uint64_t size_bytes) {
    struct tg_item *last = &receipt->items[TG_RECEIPT_ITEMS - 1];

    if (size_bytes == 0)
        return;
    for (uint32_t i = 0; i < receipt->item_count; i++) {
        if (strcmp(receipt->items[i].name, name) == 0) {
            receipt->items[i].size_bytes += size_bytes;
            return;
        }
    }
    if (receipt->item_count < TG_RECEIPT_ITEMS) {
        struct tg_item *item = &receipt->items[receipt->item_count++];

        snprintf(item->name, sizeof item->name, "%s", name);
        item->size_bytes = size_bytes;
        return;
    }
    snprintf(last->name, sizeof last->name, "others");
    last->size_bytes += size_bytes;
}
