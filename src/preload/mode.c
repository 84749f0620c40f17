/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment asks for. It is read once: a program's threads may change it while another
 * one reads. In a program with another's rights it asks for nothing. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "preload/hooks.h"

enum { UNREAD, OFF, ON };

static atomic_int mode = UNREAD;

/* As the package understands it: spaces around and capitals do not count. */
static bool is_word(const char *said, const char *word) {
    size_t length;

    said += strspn(said, " \t\r\n");
    length = strcspn(said, " \t\r\n");
    return length == strlen(word) && strncasecmp(said, word, length) == 0 &&
           said[length + strspn(said + length, " \t\r\n")] == '\0';
}

static int read_mode(void) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    const char *said = secure_getenv("TIDEGATE");

    if (said == NULL || is_word(said, "") || is_word(said, "off") || is_word(said, "observe"))
        return OFF;
    if (is_word(said, "on"))
        return ON;
    tg__warn_once(&has_warned, "TIDEGATE='%.40s' is no mode: off, observe or on; taken as off",
                  said);
    return OFF;
}

bool tg__mode_is_on(void) {
    int now = atomic_load(&mode);

    if (now == UNREAD) {
        now = read_mode();
        atomic_store(&mode, now);
    }
    return now == ON;
}

/* Kept in *place: NULL: unread; "": nothing. */
static const char *read_once(_Atomic(char *) *place, const char *variable) {
    char *now = atomic_load(place), *read;
    const char *said;

    if (now == NULL) {
        said = secure_getenv(variable);
        read = strdup(said == NULL ? "" : said);
        if (read == NULL)
            return NULL;
        if (atomic_compare_exchange_strong(place, &now, read))
            now = read;
        else
            free(read);
    }
    return *now == '\0' ? NULL : now;
}

const char *tg__mode_default_tag(void) {
    static _Atomic(char *) tag;

    return read_once(&tag, "TIDEGATE_DEFAULT_TAG");
}

const char *tg__mode_out(void) {
    static _Atomic(char *) folder;

    return read_once(&folder, "TIDEGATE_OUT");
}
