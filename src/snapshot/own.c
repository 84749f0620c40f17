/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Libraries that people run from a checkout as well as installed: PKG/src/PKG/ or PKG/PKG/. verl is
 * not among them: there the users' leaks are. */
static const char *const checkouts[] = {
    "torch",    "transformers", "accelerate", "peft",  "deepspeed", "vllm",   "sglang",
    "megatron", "flash_attn",   "xformers",   "triton", "ray",      "trl",    "lightning",
    "numpy",    "apex",         "diffusers",  "timm",
};

/* Installed, and still the users' own: they edit it, and their leaks are in it. */
static const char *const installed_own[] = {"verl/"};

int tg__own_init(struct tg__own *own, const char *const *patterns, size_t count) {
    char reason[100];

    own->count = 0;
    tg__map_init(&own->files);
    own->patterns = calloc(count > 0 ? count : 1, sizeof *own->patterns);
    if (own->patterns == NULL)
        return tg__fail_memory();
    for (size_t i = 0; i < count; i++) {
        int code = regcomp(&own->patterns[i], patterns[i], REG_EXTENDED | REG_NOSUB);
        if (code == REG_ESPACE) {
            tg__own_free(own);
            return tg__fail_memory();
        }
        if (code != 0) {
            regerror(code, &own->patterns[i], reason, sizeof reason);
            tg__own_free(own);
            return tg__fail(TG_EPATTERN, "'%s': %s", patterns[i], reason);
        }
        own->count++;
    }
    return 0;
}

void tg__own_free(struct tg__own *own) {
    for (size_t i = 0; i < own->count; i++)
        regfree(&own->patterns[i]);
    free(own->patterns);
    tg__map_free(&own->files);
    own->patterns = NULL;
    own->count = 0;
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with) {
    size_t length = strlen(text), tail = strlen(with);

    return length >= tail && strcmp(text + length - tail, with) == 0;
}

/* What comes behind the folder of installed packages; NULL where the file is in none. */
static const char *inside_packages(const char *file) {
    const char *site = strstr(file, "site-packages/"), *dist = strstr(file, "dist-packages/");
    const char *folder = site != NULL ? site : dist;

    return folder == NULL ? NULL : strchr(folder, '/') + 1;
}

/* Of what is installed all is a library, but for a few. */
static bool is_own_package(const char *inside) {
    for (size_t i = 0; i < sizeof installed_own / sizeof installed_own[0]; i++) {
        if (starts(inside, installed_own[i]))
            return true;
    }
    return false;
}

/* .../lib/python3.11/threading.py, lib64/python3.9/...: Python's own. */
static bool is_python(const char *file) {
    static const char *const folders[] = {"lib/python3", "lib64/python3"};

    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        for (const char *at = strstr(file, folders[i]); at != NULL;
             at = strstr(at + 1, folders[i])) {
            if (at == file || at[-1] == '/')
                return true;
        }
    }
    return false;
}

static bool is_checkout(const char *file) {
    char doubled[64];

    for (size_t i = 0; i < sizeof checkouts / sizeof checkouts[0]; i++) {
        const char *name = checkouts[i];
        snprintf(doubled, sizeof doubled, "/%s/%s/", name, name);
        if (strstr(file, doubled) != NULL)
            return true;
        snprintf(doubled, sizeof doubled, "/%s/src/%s/", name, name);
        if (strstr(file, doubled) != NULL)
            return true;
    }
    return false;
}

/* Typed at a prompt or in a notebook. */
static bool is_typed(const char *file) {
    return starts(file, "<ipython-input") || strcmp(file, "<stdin>") == 0;
}

/* Only Python has an own frame: C++ frames come from torch, CUDA and the interpreter. Names such as
 * <frozen runpy> are no files, and torch.compile writes its code as files of its own. */
static bool is_own(const char *file) {
    const char *inside = inside_packages(file);

    if (is_typed(file))
        return true;
    if (!ends(file, ".py") || file[0] == '<')
        return false;
    if (inside != NULL)
        return is_own_package(inside);
    return !is_python(file) && !is_checkout(file) && strstr(file, "torchinductor_") == NULL;
}

static int matches(const struct tg__own *own, const char *file, bool *found) {
    *found = false;
    for (size_t i = 0; !*found && i < own->count; i++) {
        int code = regexec(&own->patterns[i], file, 0, NULL, 0);
        if (code != 0 && code != REG_NOMATCH)
            return tg__fail_memory();
        *found = code == 0;
    }
    return 0;
}

/* Asked of each file once: the same few are in every stack. */
static int is_own_file(struct tg__own *own, const struct tg__places *places, uint32_t text,
                       bool *found) {
    const char *file = tg__places_text(places, text).bytes;
    uint32_t known = tg__map_get(&own->files, text);
    int rc = 0;

    if (known != UINT32_MAX) {
        *found = known != 0;
        return 0;
    }
    if (own->count > 0)
        rc = matches(own, file, found);
    else
        *found = is_own(file);
    return rc != 0 ? rc : tg__map_put(&own->files, text, *found);
}

int tg__own_frame(struct tg__own *own, const struct tg__places *places, const uint32_t *frames,
                  size_t count, size_t *index) {
    for (*index = 0; *index < count; ++*index) {
        uint32_t file = tg__places_frame(places, frames[*index])->file;
        bool found;
        int rc = is_own_file(own, places, file, &found);
        if (rc != 0 || found)
            return rc;
    }
    return 0;
}
