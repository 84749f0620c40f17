/* SPDX-License-Identifier: Apache-2.0 */
/* How the layers fill receipts. */
#ifndef TG_BASE_RECEIPT_H
#define TG_BASE_RECEIPT_H

#include <tidegate/receipt.h>

/* Adds a line; 0 bytes add none. The same name twice is one line. What no longer fits goes into the
 * last line, which is then called "others". */
void tg__receipt_add(struct tg_receipt *receipt, const char *name, uint64_t size_bytes);

#endif
