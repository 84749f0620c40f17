/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tags, and lists of them: "weights,kv_cache". */
#include "memory/state.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static bool is_name_char(unsigned char c) {
    return c < 128 && (isalnum(c) || strchr("_-.", c) != NULL) && c != 0;
}

int tg__name_check(const char *name) {
    size_t length = name == NULL ? 0 : strlen(name);

    if (length == 0)
        return tg__fail(-EINVAL, "a tag's name is empty");
    if (length >= TG_TAG_NAME_BYTES)
        return tg__fail(-EINVAL, "the tag's name '%.40s' has %zu bytes: at most %d are allowed",
                        name, length, TG_TAG_NAME_BYTES - 1);
    for (size_t i = 0; i < length; i++) {
        if (!is_name_char((unsigned char)name[i]))
            return tg__fail(-EINVAL,
                            "the tag's name '%s' has a wrong character at %zu: letters, digits, "
                            "'_', '-' and '.' are allowed",
                            name, i + 1);
    }
    return 0;
}

static int fail_unknown(const struct tg_memory *memory, const char *name, size_t length) {
    char known[160] = "";
    size_t used = 0;

    if (memory->tags == NULL)
        return tg__fail(-ENOENT, "no tag '%.*s': none is open", (int)length, name);
    for (const struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        if (used + strlen(tag->name) + 8 > sizeof known) {
            snprintf(known + used, sizeof known - used, ", …");
            break;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                                 tag->name);
    }
    return tg__fail(-ENOENT, "no tag '%.*s'; there are: %s", (int)(length < 40 ? length : 40),
                    name, known);
}

static bool is_named(const struct tg_tag *tag, const char *name, size_t length) {
    return strlen(tag->name) == length && memcmp(tag->name, name, length) == 0;
}

/* Whether the list names the tag. */
static bool lists(const char *names, const struct tg_tag *tag) {
    for (const char *at = names;; at++) {
        size_t length = strcspn(at, ",");

        if (is_named(tag, at, length))
            return true;
        at += length;
        if (*at == 0)
            return false;
    }
}

static int check_list(const struct tg_memory *memory, const char *names) {
    for (const char *at = names;; at++) {
        size_t length = strcspn(at, ",");
        const struct tg_tag *tag = memory->tags;

        if (length == 0)
            return tg__fail(-EINVAL, "the list of tags '%.100s' has an empty name", names);
        while (tag != NULL && !is_named(tag, at, length))
            tag = tag->next;
        if (tag == NULL)
            return fail_unknown(memory, at, length);
        at += length;
        if (*at == 0)
            return 0;
    }
}

static int choose(struct tg_memory *memory, const char *names, struct tg_tag **chosen) {
    struct tg_tag **end = chosen;
    int rc = names == NULL ? 0 : check_list(memory, names);

    if (rc != 0)
        return rc;
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        if (names == NULL || lists(names, tag)) {
            *end = tag;
            end = &tag->next_chosen;
        }
    }
    *end = NULL;
    return 0;
}

/* With lock. */
static int mark_dropped(struct tg_memory *memory, const char *names, struct tg_tag *chosen) {
    int rc = names == NULL ? 0 : check_list(memory, names);

    if (rc != 0)
        return rc;
    for (struct tg_tag *tag = memory->tags; tag != NULL; tag = tag->next) {
        const struct tg_tag *at = chosen;

        tag->is_dropped = names != NULL && lists(names, tag);
        while (at != NULL && at != tag)
            at = at->next_chosen;
        if (tag->is_dropped && at == NULL)
            return tg__fail(-EINVAL, "tag '%s' is to be dropped, and is not among those that sleep",
                            tag->name);
    }
    return 0;
}

int tg__names_drop(struct tg_memory *memory, const char *names, struct tg_tag *chosen) {
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = mark_dropped(memory, names, chosen);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

int tg__names_choose(struct tg_memory *memory, const char *names, struct tg_tag **chosen) {
    int rc;

    pthread_mutex_lock(&memory->lock);
    rc = choose(memory, names, chosen);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}
