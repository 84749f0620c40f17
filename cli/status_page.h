/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `tidegate status --live`: what stands where, for a view, a size and what was chosen.
 * It knows no terminal but the codes it prints. */
#ifndef CLI_STATUS_PAGE_H
#define CLI_STATUS_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include <tidegate/ledger.h>

enum status_sort {
    STATUS_BY_PLACE,
    STATUS_BY_MEMORY,
    STATUS_BY_WAIT,
    STATUS_BY_NAME,
    STATUS_SORTS
};

enum status_key {
    STATUS_KEY_UP,
    STATUS_KEY_DOWN,
    STATUS_KEY_OPEN,
    STATUS_KEY_BACK,
    STATUS_KEY_SORT
};

/* Tells a tenant from others from reading to reading. */
struct status_chosen {
    uint32_t id, device;
    int32_t rank;
    char name[TG_TENANT_NAME_BYTES];
};

struct status_page {
    enum status_sort sort;
    bool has_chosen, is_open; /* a tenant; its own page */
    bool has_color;
    struct status_chosen chosen;
    unsigned columns, rows; /* of the terminal */
    unsigned top;           /* the first line of the list that is shown */
};

void status_page_key(struct status_page *page, const struct tg_node_view *view,
                     enum status_key key);

/* Paints over what was there. view NULL: there is nothing to show but the sentence; that stands
 * above the list otherwise; NULL: none. */
void status_page_paint(struct status_page *page, FILE *out, const struct tg_node_view *view,
                       const char *sentence);

#endif
