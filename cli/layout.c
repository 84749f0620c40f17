/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "figures.h"

/* A piece of a path: one name between two slashes, without the endings of a file. */
struct name {
    const char *text;
    size_t length;
};

/* A word and its number in a name; last_number differs only for steps{N}-{M}. */
struct found {
    size_t begin, end;
    int64_t number, last_number;
    bool is_there;
};

static const char *const packed_endings[] = {".gz", ".xz", ".zst"};
static const char *const pickle_endings[] = {".pickle", ".pkl"};
static const char *const step_words[] = {"iteration", "iter", "step"};

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Takes one of the endings off the name; false: it has none. */
static bool ending_cut(struct name *name, const char *const *endings, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(endings[i]);

        if (name->length > length &&
            memcmp(name->text + name->length - length, endings[i], length) == 0) {
            name->length -= length;
            return true;
        }
    }
    return false;
}

bool layout_counts(const char *text) {
    struct name name = {text, strlen(text)};

    ending_cut(&name, packed_endings, COUNT_OF(packed_endings));
    return text[0] != '.' && ending_cut(&name, pickle_endings, COUNT_OF(pickle_endings));
}

static bool is_letter(const struct name *name, size_t at) {
    return at < name->length && isalpha((unsigned char)name->text[at]);
}

static bool is_separator(const struct name *name, size_t at) {
    return at < name->length && strchr("_-=.", name->text[at]) != NULL;
}

/* Is `word` at this place, with no letter before it? *end: behind it. */
static bool word_at(const struct name *name, size_t at, const char *word, size_t *end) {
    size_t length = strlen(word);

    if (at + length > name->length || (at > 0 && is_letter(name, at - 1)))
        return false;
    *end = at + length;
    return strncasecmp(name->text + at, word, length) == 0;
}

/* Reads digits at *at and moves it behind them. More than 18 would be a time or a hash. */
static bool digits_read(const struct name *name, size_t *at, int64_t *number) {
    size_t end = *at;

    while (end < name->length && isdigit((unsigned char)name->text[end]))
        end++;
    if (end - *at > 18 || !number_read(name->text + *at, end - *at, number))
        return false;
    *at = end;
    return true;
}

/* The word with its number at this place: rank3, rank_3, step=10. A plural may name a range. */
static bool numbered_word_at(const struct name *name, size_t at, const char *word,
                             bool may_be_plural, struct found *found) {
    bool is_plural = false;
    size_t end, range;
    int64_t last;

    if (!word_at(name, at, word, &end))
        return false;
    if (may_be_plural && end < name->length && tolower((unsigned char)name->text[end]) == 's') {
        is_plural = true;
        end++;
    }
    if (is_separator(name, end))
        end++;
    if (!digits_read(name, &end, &found->number))
        return false;
    found->last_number = found->number;
    range = end + 1;
    if (is_plural && end < name->length && name->text[end] == '-' &&
        digits_read(name, &range, &last) && last >= found->number) {
        found->last_number = last;
        end = range;
    }
    found->begin = at;
    found->end = end;
    return !is_letter(name, end); /* step10k is not step 10 */
}

/* The last place in the name that has one of the words with a number. */
static struct found words_find(const struct name *name, const char *const *words, size_t count,
                               bool may_be_plural) {
    struct found last = {0};

    for (size_t at = 0; at < name->length; at++) {
        for (size_t i = 0; i < count; i++) {
            struct found found = {.is_there = true};

            if (numbered_word_at(name, at, words[i], may_be_plural, &found))
                last = found;
        }
    }
    return last;
}

static struct found word_find(const struct name *name, const char *word) {
    return words_find(name, &word, 1, false);
}

/* "oom" as a word of its own. */
static struct found oom_find(const struct name *name) {
    struct found found = {0};

    for (size_t at = 0; at < name->length && !found.is_there; at++) {
        found.begin = at;
        found.is_there = word_at(name, at, "oom", &found.end) && !is_letter(name, found.end);
    }
    return found;
}

/* Does the rest of a folder's name only say more about the same files? So that step2_tests/ is not
 * a step, but step10, step10_rank3 and iteration_10_exit are. */
static bool rest_is_known(const struct name *folder, size_t at) {
    static const char *const words[] = {"rank", "pid", "exit", "oom"};
    size_t end;

    if (at >= folder->length)
        return true;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (is_separator(folder, at) && word_at(folder, at + 1, words[i], &end))
            return true;
    }
    return false;
}

/* Adds what a folder says to what is not known yet; `is_nearest`: it holds the file itself. */
static void folder_read(const struct name *folder, bool is_nearest, struct layout *layout) {
    struct found step = words_find(folder, step_words, COUNT_OF(step_words), true);
    struct found rank = word_find(folder, "rank");
    struct found pid = word_find(folder, "pid");
    size_t end;

    if (layout->first_step < 0 && step.is_there && rest_is_known(folder, step.end)) {
        layout->first_step = step.number;
        layout->last_step = step.last_number;
    }
    if (layout->rank < 0 && rank.is_there)
        layout->rank = rank.number;
    if (layout->pid < 0 && pid.is_there)
        layout->pid = pid.number;
    if (!is_nearest)
        return;
    if (word_at(folder, 0, "oom", &end) && !is_letter(folder, end))
        layout->is_oom = true;
    if (step.is_there && is_separator(folder, step.end) &&
        word_at(folder, step.end + 1, "exit", &end) && end == folder->length)
        layout->is_oom = true;
}

/* The name without the pieces found in it; what differs from file to file (numbers) becomes '#'. */
static void tag_write(const struct name *name, const struct found *pieces, size_t count,
                      char tag[LAYOUT_TAG_BYTES]) {
    bool is_gap = false;
    size_t length = 0;

    for (size_t at = 0; at < name->length && length + 2 < LAYOUT_TAG_BYTES;) {
        size_t next = at + 1;

        for (size_t i = 0; i < count; i++) {
            if (pieces[i].is_there && at == pieces[i].begin)
                next = pieces[i].end;
        }
        if (next > at + 1 || is_separator(name, at)) {
            is_gap = length > 0;
        } else {
            char shown = isdigit((unsigned char)name->text[at]) ? '#' : name->text[at];

            if (is_gap)
                tag[length++] = '_';
            is_gap = false;
            if (shown != '#' || length == 0 || tag[length - 1] != '#')
                tag[length++] = shown;
        }
        at = next;
    }
    tag[length] = '\0';
}

static void file_read(const struct name *name, struct layout *layout) {
    enum { STEP, RANK, PID, OOM, PIECES };
    struct found pieces[PIECES];

    pieces[STEP] = words_find(name, step_words, COUNT_OF(step_words), true);
    pieces[RANK] = word_find(name, "rank");
    pieces[PID] = word_find(name, "pid");
    pieces[OOM] = oom_find(name);
    if (pieces[STEP].is_there) {
        layout->first_step = pieces[STEP].number;
        layout->last_step = pieces[STEP].last_number;
    }
    if (pieces[RANK].is_there)
        layout->rank = pieces[RANK].number;
    if (pieces[PID].is_there)
        layout->pid = pieces[PID].number;
    layout->is_oom = pieces[OOM].is_there;
    tag_write(name, pieces, PIECES, layout->tag);
}

/* The name before `end` in the path, without its slash; empty names of double slashes are skipped.
 */
static struct name name_before(const char *path, size_t end) {
    size_t begin;

    while (end > 0 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    return (struct name){path + begin, end - begin};
}

void layout_read(const char *path, struct layout *layout) {
    struct name name = name_before(path, strlen(path));
    size_t left = (size_t)(name.text - path);
    bool is_nearest = true;

    *layout = (struct layout){
        .rank = -1, .pid = -1, .first_step = -1, .last_step = -1, .family = FAMILY_OTHER};
    ending_cut(&name, packed_endings, COUNT_OF(packed_endings));
    ending_cut(&name, pickle_endings, COUNT_OF(pickle_endings));
    file_read(&name, layout);
    while (left > 0) {
        struct name folder = name_before(path, left);

        folder_read(&folder, is_nearest, layout);
        is_nearest = false;
        left = (size_t)(folder.text - path);
    }
    if (strcmp(layout->tag, "torch_memory") == 0) {
        layout->family = FAMILY_TORCH_MEMORY;
    } else if (strcmp(layout->tag, "post_update") == 0) {
        layout->family = FAMILY_POST_UPDATE;
        if (layout->first_step > 0) { /* written after verl's counter rose */
            layout->first_step--;
            layout->last_step--;
        }
    }
}

/* ---- which files belong together ------------------------------------------------------------- */

/* verl names a folder 20261101-1010 where it knows no step. */
static bool is_time(const struct name *name) {
    for (size_t i = 0; i < name->length; i++) {
        if (i == 8 ? name->text[i] != '-' : !isdigit((unsigned char)name->text[i]))
            return false;
    }
    return name->length == strlen("20261101-1010") || name->length == strlen("20261101-101010");
}

static struct found step_of_folder(const struct name *folder) {
    struct found step = words_find(folder, step_words, COUNT_OF(step_words), true);

    step.is_there = step.is_there && rest_is_known(folder, step.end);
    return step;
}

/* The folder that tells the step, or the time; of length 0: none. `file`: without its endings. */
static struct name folder_of_step(const char *path, const struct name *file) {
    static const struct name none = {"", 0};
    struct found in_file = words_find(file, step_words, COUNT_OF(step_words), true);
    size_t left = (size_t)(file->text - path), end;
    struct name nearest = name_before(path, left);

    if (in_file.is_there) { /* step4/post_update_step4_...: the folder says the same */
        struct found step = step_of_folder(&nearest);

        return step.is_there && step.number == in_file.number ? nearest : none;
    }
    while (left > 0) {
        struct name folder = name_before(path, left);

        if (step_of_folder(&folder).is_there)
            return folder;
        left = (size_t)(folder.text - path);
    }
    if (is_time(&nearest) || (word_at(&nearest, 0, "oom", &end) && !is_letter(&nearest, end)))
        return nearest;
    return none;
}

/* The group of a pattern in the path; empty where the pattern does not match. */
static struct name group_find(const regex_t *pattern, const char *path) {
    regmatch_t places[2];

    if (pattern == NULL || regexec(pattern, path, 2, places, 0) != 0 || places[1].rm_so < 0)
        return (struct name){"", 0};
    return (struct name){path + places[1].rm_so, (size_t)(places[1].rm_eo - places[1].rm_so)};
}

static bool holds(const struct name *outer, const struct name *inner) {
    return inner->length > 0 && inner->text >= outer->text &&
           inner->text < outer->text + outer->length;
}

/* What is not of the run in a path. */
struct varying {
    struct name step;  /* in the folder to leave out */
    struct name group; /* what --rank-from matches */
    bool has_pattern, file_has_rank, file_has_pid;
};

/* A folder rank_3 tells the rank in any case; verl_rank1 only where the file does not. */
static struct found number_of_folder(const struct name *folder, const char *word,
                                     bool file_tells) {
    struct found found = word_find(folder, word);

    found.is_there = found.is_there && (found.begin == 0 || !file_tells);
    return found;
}

/* Copies a folder's name with one '#' for the numbers of a rank and a process. */
static char *folder_copy(char *key, const struct name *folder, const struct varying *varying) {
    enum { RANK, PID, PIECES };
    struct found pieces[PIECES];

    pieces[PID] = number_of_folder(folder, "pid", varying->file_has_pid);
    pieces[RANK] = number_of_folder(folder, "rank", varying->file_has_rank);
    if (varying->has_pattern) {
        pieces[RANK] = (struct found){.is_there = holds(folder, &varying->group)};
        if (pieces[RANK].is_there) {
            pieces[RANK].begin = (size_t)(varying->group.text - folder->text);
            pieces[RANK].end = pieces[RANK].begin + varying->group.length;
        }
    }
    for (size_t at = 0; at < folder->length; at++) {
        bool is_number = false;

        for (size_t i = 0; i < PIECES; i++) {
            if (pieces[i].is_there && at >= pieces[i].begin && at < pieces[i].end &&
                isdigit((unsigned char)folder->text[at]))
                is_number = true;
        }
        if (!is_number)
            *key++ = folder->text[at];
        else if (at == 0 || key[-1] != '#')
            *key++ = '#';
    }
    return key;
}

static bool name_is(const struct name *name, const char *text) {
    return name->length == strlen(text) && memcmp(name->text, text, name->length) == 0;
}

/* What a folder that tells the step says besides: runA of runA_step5. */
static struct name before_step(const struct name *folder) {
    struct name prefix = {folder->text, step_of_folder(folder).begin};

    while (prefix.length > 0 && is_separator(&prefix, prefix.length - 1))
        prefix.length--;
    if (!is_letter(&prefix, 0) || name_is(&prefix, "global") || name_is(&prefix, "post_update"))
        prefix.length = 0;
    return prefix;
}

static struct varying varying_find(const char *path, struct name file,
                                   const struct layout_patterns *patterns) {
    struct varying varying = {.has_pattern = patterns->rank != NULL};

    ending_cut(&file, packed_endings, COUNT_OF(packed_endings));
    ending_cut(&file, pickle_endings, COUNT_OF(pickle_endings));
    varying.step = patterns->step != NULL ? group_find(patterns->step, path)
                                          : folder_of_step(path, &file);
    varying.group = group_find(patterns->rank, path);
    varying.file_has_rank = word_find(&file, "rank").is_there;
    varying.file_has_pid = word_find(&file, "pid").is_there;
    return varying;
}

void layout_run(const char *path, const struct layout_patterns *patterns, char *key) {
    struct name file = name_before(path, strlen(path));
    struct varying varying = varying_find(path, file, patterns);
    const char *at = path;
    char *begin = key;

    if (*at == '/')
        *key++ = '/';
    while (at < file.text) {
        struct name folder = {at, strcspn(at, "/")};

        at += folder.length + 1;
        if (holds(&folder, &varying.step))
            folder = patterns->step != NULL ? (struct name){"", 0} : before_step(&folder);
        if (folder.length == 0 || name_is(&folder, "."))
            continue;
        if (key > begin && key[-1] != '/')
            *key++ = '/';
        key = folder_copy(key, &folder, &varying);
    }
    if (key == begin)
        *key++ = '.';
    *key = '\0';
}

/* ---- patterns and families ------------------------------------------------------------------- */

bool layout_pattern_compile(const char *text, regex_t *pattern, struct sentence *why) {
    char reason[128];
    int status = regcomp(pattern, text, REG_EXTENDED);

    if (status != 0) {
        regerror(status, pattern, reason, sizeof reason);
        sentence_set(why, "'%s' is not a regular expression: %s", text, reason);
        return false;
    }
    if (pattern->re_nsub == 1)
        return true;
    sentence_set(why, "'%s' needs one group in parentheses, around the number; it has %zu", text,
                 pattern->re_nsub);
    regfree(pattern);
    return false;
}

static bool number_match(const regex_t *pattern, const char *option, const char *path,
                         int64_t *number, struct sentence *why) {
    regmatch_t places[2];
    const regmatch_t *group = &places[1];
    int status = regexec(pattern, path, 2, places, 0);

    if (status != 0) {
        sentence_set(why, status == REG_NOMATCH ? "%s does not match this path"
                                                : "not enough memory to apply %s", option);
        return false;
    }
    if (group->rm_so < 0 ||
        !number_read(path + group->rm_so, (size_t)(group->rm_eo - group->rm_so), number)) {
        sentence_set(why, "%s matches this path, but its group holds no number: '%.*s'", option,
                     group->rm_so < 0 ? 0 : (int)(group->rm_eo - group->rm_so),
                     path + (group->rm_so < 0 ? 0 : group->rm_so));
        return false;
    }
    return true;
}

bool layout_apply(const struct layout_patterns *patterns, const char *path, struct layout *layout,
                  struct sentence *why) {
    struct layout read = *layout;

    if (patterns->step != NULL) {
        if (!number_match(patterns->step, "--step-from", path, &read.first_step, why))
            return false;
        read.last_step = read.first_step;
    }
    if (patterns->rank != NULL &&
        !number_match(patterns->rank, "--rank-from", path, &read.rank, why))
        return false;
    *layout = read;
    return true;
}

static int compare_numbers(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* By run, rank and step, then by tag. */
static int compare_places(const void *left, const void *right) {
    const struct layout *a = *(struct layout *const *)left;
    const struct layout *b = *(struct layout *const *)right;
    int order = compare_numbers(a->run, b->run);

    if (order == 0)
        order = compare_numbers(a->rank, b->rank);
    if (order == 0)
        order = compare_numbers(a->first_step, b->first_step);
    if (order == 0)
        order = compare_numbers(a->last_step, b->last_step);
    return order != 0 ? order : strcmp(a->tag, b->tag);
}

static int compare_tags(const void *left, const void *right) {
    const struct layout *a = *(struct layout *const *)left;
    const struct layout *b = *(struct layout *const *)right;

    return strcmp(a->tag, b->tag);
}

static bool is_same_place(const struct layout *a, const struct layout *b) {
    return a->run == b->run && a->rank == b->rank && a->first_step == b->first_step &&
           a->last_step == b->last_step;
}

void layout_families(struct layout **layouts, size_t count) {
    int32_t family = FAMILY_OTHER;
    bool tags_tell = false;
    size_t others = 0;

    for (size_t i = 0; i < count; i++) {
        if (layouts[i]->family >= FAMILY_OTHER) {
            struct layout *other = layouts[i];

            layouts[i] = layouts[others];
            layouts[others++] = other;
            other->family = FAMILY_OTHER;
        }
    }
    qsort(layouts, others, sizeof(struct layout *), compare_places);
    for (size_t i = 1; i < others && !tags_tell; i++) {
        tags_tell = layouts[i]->first_step >= 0 && is_same_place(layouts[i - 1], layouts[i]) &&
                    strcmp(layouts[i - 1]->tag, layouts[i]->tag) != 0;
    }
    if (!tags_tell)
        return;
    qsort(layouts, others, sizeof(struct layout *), compare_tags);
    for (size_t i = 0; i < others; i++) {
        if (i > 0 && strcmp(layouts[i - 1]->tag, layouts[i]->tag) != 0)
            family++;
        layouts[i]->family = family;
    }
}
