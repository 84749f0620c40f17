/* SPDX-License-Identifier: Apache-2.0 */
#include "status_page.h"

#include <inttypes.h>
#include <string.h>

#include "status_bar.h"
#include "status_canvas.h"
#include "status_words.h"

enum { WHO_WIDTH = 22, BAR_LEAST = 8, BAR_MOST = 40 };

/* ---- order ----------------------------------------------------------------------------------- */

struct order {
    uint32_t count, places[TG_LEDGER_TENANTS];
};

static int compare(uint64_t one, uint64_t other) {
    return one < other ? -1 : one > other;
}

static uint64_t wait_ns(const struct tg_node_view *view, const struct tg_tenant_view *tenant) {
    return tenant->is_waiting != 0 && view->now_ns > tenant->wait_since_ns
               ? view->now_ns - tenant->wait_since_ns
               : 0;
}

/* Devices keep their order; what is chosen sorts the tenants of each. */
static bool comes_before(const struct tg_node_view *view, enum status_sort sort, uint32_t one,
                         uint32_t other) {
    const struct tg_tenant_view *a = &view->tenants[one], *b = &view->tenants[other];
    int found = compare(a->device, b->device);

    if (found == 0 && sort == STATUS_BY_MEMORY)
        found = compare(status_held_bytes(b), status_held_bytes(a));
    if (found == 0 && sort == STATUS_BY_WAIT)
        found = compare(wait_ns(view, b), wait_ns(view, a));
    if (found == 0 && sort == STATUS_BY_NAME)
        found = strcmp(a->name, b->name);
    return found == 0 ? one < other : found < 0;
}

static void order_make(const struct tg_node_view *view, enum status_sort sort,
                       struct order *order) {
    order->count = 0;
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        uint32_t at = order->count;

        if (view->tenants[i].device >= view->device_count ||
            !status_is_used(view, view->tenants[i].device))
            continue;
        for (; at > 0 && comes_before(view, sort, i, order->places[at - 1]); at--)
            order->places[at] = order->places[at - 1];
        order->places[at] = i;
        order->count++;
    }
}

/* ---- what is chosen -------------------------------------------------------------------------- */

static bool is_chosen(const struct status_page *page, const struct tg_tenant_view *tenant) {
    const struct status_chosen *chosen = &page->chosen;

    return page->has_chosen && chosen->id == tenant->id && chosen->device == tenant->device &&
           chosen->rank == tenant->rank && strcmp(chosen->name, tenant->name) == 0;
}

static void choose(struct status_page *page, const struct tg_tenant_view *tenant) {
    page->has_chosen = true;
    page->chosen.id = tenant->id;
    page->chosen.device = tenant->device;
    page->chosen.rank = tenant->rank;
    memcpy(page->chosen.name, tenant->name, sizeof page->chosen.name);
}

void status_page_key(struct status_page *page, const struct tg_node_view *view,
                     enum status_key key) {
    struct order order;
    uint32_t at = 0;

    if (key == STATUS_KEY_SORT)
        page->sort = (page->sort + 1) % STATUS_SORTS;
    if (key == STATUS_KEY_BACK)
        page->is_open = false;
    order_make(view, page->sort, &order);
    while (at < order.count && !is_chosen(page, &view->tenants[order.places[at]]))
        at++;
    if (key == STATUS_KEY_OPEN)
        page->is_open = at < order.count;
    if ((key != STATUS_KEY_UP && key != STATUS_KEY_DOWN) || order.count == 0)
        return;
    if (at == order.count) /* nothing yet, or it has left: from the first */
        at = 0;
    else if (key == STATUS_KEY_UP && at > 0)
        at--;
    else if (key == STATUS_KEY_DOWN && at + 1 < order.count)
        at++;
    choose(page, &view->tenants[order.places[at]]);
}

/* ---- the list -------------------------------------------------------------------------------- */

static unsigned bar_cells(const struct status_page *page) {
    unsigned cells = page->columns / 4;

    return cells < BAR_LEAST ? BAR_LEAST : cells > BAR_MOST ? BAR_MOST : cells;
}

static void tenant_parts(const struct tg_tenant_view *tenant, struct status_bar *bar) {
    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++) {
        const struct tg_tag_view *tag = &tenant->tags[i];

        if (tenant->is_dead != 0) {
            bar->part_bytes[STATUS_ORPHANED] += tag->occupied_bytes;
            continue;
        }
        bar->part_bytes[STATUS_AWAKE] += tag->occupied_bytes - tag->returnable_bytes;
        bar->part_bytes[STATUS_RETURNABLE] += tag->returnable_bytes;
        bar->part_bytes[STATUS_COMING] += tag->reserved_bytes;
    }
}

static void device_line(const struct status_page *page, struct canvas *canvas,
                        const struct tg_node_view *view, uint32_t index) {
    const struct tg_device_view *device = &view->devices[index];
    struct status_bar bar = {.total_bytes = device->total_bytes};

    canvas_put(canvas, CANVAS_BOLD, "%2" PRIu32 " %-*.*s ", index, WHO_WIDTH + 8, WHO_WIDTH + 8,
               status_name(device->name, sizeof device->name).text);
    if (device->measured_ns == 0) {
        canvas_put(canvas, CANVAS_PLAIN, "not measured yet");
        canvas_end(canvas);
        return;
    }
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        if (view->tenants[i].device == index)
            tenant_parts(&view->tenants[i], &bar);
    }
    bar.part_bytes[STATUS_UNATTRIBUTED] = device->unattributed_bytes;
    status_bar_put(canvas, &bar, bar_cells(page));
    canvas_put(canvas, CANVAS_PLAIN, " used %s of %s  free %s  unattributed %s",
               status_size(device->total_bytes - device->free_bytes).text,
               status_size(device->total_bytes).text, status_size(device->free_bytes).text,
               status_size(device->unattributed_bytes).text);
    canvas_end(canvas);
}

static uint64_t asleep_bytes(const struct tg_tenant_view *tenant) {
    uint64_t size_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        size_bytes += tenant->tags[i].asleep_bytes;
    return size_bytes;
}

static void state_put(struct canvas *canvas, const struct tg_node_view *view,
                      const struct tg_tenant_view *tenant) {
    uint64_t sleeping_bytes = asleep_bytes(tenant);

    if (tenant->is_dead != 0) {
        canvas_put(canvas, CANVAS_RED, " dead; held %s",
                   status_size(status_held_bytes(tenant)).text);
        return;
    }
    canvas_put(canvas, CANVAS_PLAIN, " %-8s", status_size(status_held_bytes(tenant)).text);
    if (sleeping_bytes > 0)
        canvas_put(canvas, CANVAS_CYAN, "  asleep %s", status_size(sleeping_bytes).text);
    if (tenant->is_waiting != 0)
        canvas_put(canvas, CANVAS_YELLOW, "  waits %s",
                   status_age((double)wait_ns(view, tenant) / 1e9).text);
    if (tenant->is_starting != 0)
        canvas_put(canvas, CANVAS_YELLOW, "  starting up");
    if (tenant->asked_bytes > 0)
        canvas_put(canvas, CANVAS_PLAIN, "  asked for %s", status_size(tenant->asked_bytes).text);
}

static void tenant_line(const struct status_page *page, struct canvas *canvas,
                        const struct tg_node_view *view, const struct tg_tenant_view *tenant) {
    struct status_bar bar = {.total_bytes = view->devices[tenant->device].total_bytes};
    const char *mode = status_mode_text(tenant->mode);

    if (is_chosen(page, tenant))
        canvas_mark(canvas);
    canvas_put(canvas, is_chosen(page, tenant) ? CANVAS_REVERSE : CANVAS_PLAIN,
               "%c  %-*.*s %-7s ", is_chosen(page, tenant) ? '>' : ' ', WHO_WIDTH, WHO_WIDTH,
               status_who(tenant).text, mode == NULL ? "" : mode);
    tenant_parts(tenant, &bar);
    status_bar_put(canvas, &bar, bar_cells(page));
    state_put(canvas, view, tenant);
    canvas_end(canvas);
}

static void text_line(struct canvas *canvas, enum canvas_style style, const char *text) {
    canvas_put(canvas, style, "%s", text);
    canvas_end(canvas);
}

static void nexts_lines(struct canvas *canvas, const struct tg_node_view *view, uint32_t device) {
    const struct tg_tenant_view *waiter;
    struct status_wake wake;
    uint64_t after = 0;
    uint32_t place = 0;

    while ((waiter = status_waiter_next(view, device, &after)) != NULL) {
        canvas_put(canvas, CANVAS_PLAIN, "   ");
        text_line(canvas, CANVAS_YELLOW, status_wait_line(view, waiter).text);
    }
    while (status_wake_next(view, device, &place, &wake)) {
        canvas_put(canvas, CANVAS_PLAIN, "   ");
        text_line(canvas, CANVAS_PLAIN, status_wake_line(&wake).text);
    }
}

static void list_lines(const struct status_page *page, struct canvas *canvas,
                       const struct tg_node_view *view) {
    struct order order;

    order_make(view, page->sort, &order);
    if (order.count == 0)
        text_line(canvas, CANVAS_PLAIN, "no program uses Tidegate on this machine now");
    for (uint32_t i = 0; i < order.count; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[order.places[i]];
        uint32_t device = tenant->device;

        if (i == 0 || view->tenants[order.places[i - 1]].device != device)
            device_line(page, canvas, view, device);
        tenant_line(page, canvas, view, tenant);
        if (i + 1 == order.count || view->tenants[order.places[i + 1]].device != device)
            nexts_lines(canvas, view, device);
    }
}

/* ---- one tenant ------------------------------------------------------------------------------ */

static void tag_line(struct canvas *canvas, const struct tg_tag_view *tag) {
    canvas_put(canvas, CANVAS_PLAIN, "  %-20.31s %10s %10s %10s %10s %11s", tag->name,
               status_size(tag->occupied_bytes).text, status_size(tag->returnable_bytes).text,
               status_size(tag->reserved_bytes).text, status_size(tag->asleep_bytes).text,
               status_size(tag->host_bytes).text);
    canvas_end(canvas);
}

static void about_lines(struct canvas *canvas, const struct tg_node_view *view,
                        const struct tg_tenant_view *tenant) {
    const struct tg_device_view *device = &view->devices[tenant->device];
    const char *mode = status_mode_text(tenant->mode);

    canvas_put(canvas, CANVAS_BOLD, "%s", status_who(tenant).text);
    canvas_put(canvas, CANVAS_PLAIN, "  on device %" PRIu32 " %s", tenant->device,
               status_name(device->name, sizeof device->name).text);
    canvas_end(canvas);
    canvas_put(canvas, CANVAS_PLAIN, "  pid %" PRId32 "  mode %s  seams %s  as of %s", tenant->pid,
               mode == NULL ? "none" : mode,
               tenant->seams[0] == '\0' ? "none"
                                        : status_name(tenant->seams, sizeof tenant->seams).text,
               status_age(status_seconds_since(view, tenant->updated_ns)).text);
    canvas_end(canvas);
    canvas_put(canvas, CANVAS_PLAIN, "  state");
    state_put(canvas, view, tenant);
    canvas_end(canvas);
    if (tenant->is_waiting != 0) {
        canvas_put(canvas, CANVAS_PLAIN, "  ");
        text_line(canvas, CANVAS_YELLOW, status_wait_line(view, tenant).text);
    }
}

static void tenant_lines(const struct status_page *page, struct canvas *canvas,
                         const struct tg_node_view *view) {
    const struct tg_tenant_view *tenant = NULL;

    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        if (is_chosen(page, &view->tenants[i]) && view->tenants[i].device < view->device_count)
            tenant = &view->tenants[i];
    }
    if (tenant == NULL) {
        canvas_put(canvas, CANVAS_BOLD, "%s", page->chosen.name);
        text_line(canvas, CANVAS_PLAIN, " has left");
        return;
    }
    about_lines(canvas, view, tenant);
    canvas_put(canvas, CANVAS_BOLD, "  %-20s %10s %10s %10s %10s %11s", "tag", "awake",
               "returnable", "coming", "asleep", "host copies");
    canvas_end(canvas);
    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++)
        tag_line(canvas, &tenant->tags[i]);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void title_line(struct canvas *canvas, const struct tg_node_view *view) {
    uint32_t device_count = 0, waiting_count = 0;

    for (uint32_t i = 0; view != NULL && i < view->device_count && i < TG_LEDGER_DEVICES; i++)
        device_count += status_is_used(view, i);
    for (uint32_t i = 0; view != NULL && i < view->tenant_count && i < TG_LEDGER_TENANTS; i++)
        waiting_count += view->tenants[i].is_waiting != 0;
    canvas_put(canvas, CANVAS_REVERSE, "tidegate");
    if (view != NULL)
        canvas_put(canvas, CANVAS_REVERSE, "  %s  %s  waiting %" PRIu32 "  host copies %s",
                   plural_figure(device_count, "device").text,
                   plural_figure(view->tenant_count, "tenant").text, waiting_count,
                   status_size(view->host_bytes).text);
    canvas_end(canvas);
}

static void keys_line(const struct status_page *page, struct canvas *canvas) {
    static const char *const sorts[STATUS_SORTS] = {"as joined", "memory", "wait", "name"};

    if (page->is_open)
        canvas_put(canvas, CANVAS_REVERSE, "q quit  Esc back  up/down another");
    else
        canvas_put(canvas, CANVAS_REVERSE, "q quit  s sort: %s  up/down, Enter open",
                   sorts[page->sort]);
    canvas_put(canvas, CANVAS_PLAIN, "  ");
    status_bar_legend_put(canvas);
    canvas_end(canvas);
}

static void body_lines(const struct status_page *page, struct canvas *canvas,
                       const struct tg_node_view *view, const char *sentence) {
    if (sentence != NULL)
        text_line(canvas, CANVAS_RED, sentence);
    if (view == NULL)
        return;
    if (page->is_open)
        tenant_lines(page, canvas, view);
    else
        list_lines(page, canvas, view);
}

/* Scrolls as little as shows the chosen line, and shows no emptiness below the last. */
static void scroll(struct status_page *page, const struct canvas *counted, unsigned height) {
    if (counted->has_mark && counted->mark < page->top)
        page->top = counted->mark;
    if (counted->has_mark && counted->mark >= page->top + height)
        page->top = counted->mark + 1 - height;
    if (page->top + height > counted->line)
        page->top = counted->line > height ? counted->line - height : 0;
}

void status_page_paint(struct status_page *page, FILE *out, const struct tg_node_view *view,
                       const char *sentence) {
    bool has_title = page->rows > 1, has_keys = page->rows > 2;
    unsigned height = page->rows - has_title - has_keys;
    struct canvas canvas = {.columns = page->columns};

    body_lines(page, &canvas, view, sentence); /* counts */
    scroll(page, &canvas, height);
    fputs(CANVAS_HOME, out);
    canvas = (struct canvas){
        .out = out, .columns = page->columns, .to = has_title, .has_color = page->has_color};
    title_line(&canvas, view);
    canvas.line = 0;
    canvas.from = page->top;
    canvas.to = page->top + height;
    canvas.is_last = !has_keys;
    body_lines(page, &canvas, view, sentence);
    while (canvas.line < canvas.to)
        canvas_end(&canvas);
    canvas.is_last = true;
    canvas.line = canvas.from = 0;
    canvas.to = has_keys;
    keys_line(page, &canvas);
}
