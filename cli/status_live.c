/* SPDX-License-Identifier: Apache-2.0 */
#include "status_live.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tidegate/error.h>

#include "say.h"
#include "status_page.h"
#include "status_report.h"
#include "status_screen.h"
#include "verb.h"

/* What was read last. */
struct reading {
    struct tg_node_view *view;
    bool is_whole;            /* there is a ledger, and it was read */
    struct sentence sentence; /* why not; else empty */
};

static bool has_color(bool has_no_color) {
    const char *no_color = getenv("NO_COLOR");

    return !has_no_color && (no_color == NULL || *no_color == '\0');
}

/* What cannot be read now may be read in a second: the page says why, and goes on. */
static bool read_again(struct reading *reading) {
    bool has_ledger = false;
    int status = status_read(reading->view, &has_ledger);

    reading->is_whole = status == 0 && has_ledger;
    reading->sentence.text[0] = '\0';
    if (status != 0)
        sentence_set(&reading->sentence, "%s", tg_last_error()->text);
    else if (!has_ledger)
        status_absence_write(&reading->sentence);
    return status == 0;
}

static void paint(struct status_page *page, const struct reading *reading) {
    const char *sentence = reading->sentence.text;

    status_screen_size(&page->columns, &page->rows);
    status_page_paint(page, stdout, reading->is_whole ? reading->view : NULL,
                      *sentence == '\0' ? NULL : sentence);
    fflush(stdout);
}

static void key_use(struct status_page *page, const struct reading *reading,
                    enum screen_event event) {
    static const enum status_key keys[] = {
        [SCREEN_UP] = STATUS_KEY_UP,     [SCREEN_DOWN] = STATUS_KEY_DOWN,
        [SCREEN_OPEN] = STATUS_KEY_OPEN, [SCREEN_BACK] = STATUS_KEY_BACK,
        [SCREEN_SORT] = STATUS_KEY_SORT,
    };

    if (reading->is_whole && event != SCREEN_PAINT)
        status_page_key(page, reading->view, keys[event]);
}

int status_live_run(struct tg_node_view *view, bool has_no_color) {
    struct status_page page = {.has_color = has_color(has_no_color)};
    struct reading reading = {.view = view};
    struct status_screen screen;
    enum screen_event event;

    if (!status_screen_is_there()) {
        say("--live paints a page on a terminal, and standard output is none; "
            "--json --live writes a line each second");
        return EXIT_WRONG;
    }
    if (!read_again(&reading)) {
        say("%s", reading.sentence.text);
        return EXIT_WRONG;
    }
    setvbuf(stdout, NULL, _IOFBF, BUFSIZ * 4); /* a page is written at once */
    status_screen_open(&screen);
    paint(&page, &reading);
    while (ferror(stdout) == 0 && (event = status_screen_wait(&screen)) != SCREEN_QUIT) {
        read_again(&reading);
        key_use(&page, &reading, event);
        paint(&page, &reading);
    }
    status_screen_close(&screen);
    return EXIT_ANSWERED;
}
