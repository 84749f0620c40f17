/* SPDX-License-Identifier: Apache-2.0 */
/* The system's figures of host memory, and what tenants reserve of it. Reads /proc and the cgroups'
 * files anew at each reservation: limits change while programs run. */
#include "ledger/hostbudget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/saturate.h"
#include "base/sysfile.h"
#include "ledger/tenant.h"

enum { PATH_BYTES = 1024 };

/* A fiftieth, between 64 MiB and 2 GiB: what a node needs beside its programs does not grow with
 * its memory for ever. */
static uint64_t margin(uint64_t bytes) {
    const uint64_t least = UINT64_C(64) << 20, most = UINT64_C(2) << 30;
    uint64_t share = bytes / 50;

    return share < least ? least : share > most ? most : share;
}

uint64_t tg__host_budget(const struct tg__host_figures *figures, uint64_t untouched_bytes,
                         uint64_t all_bytes) {
    uint64_t system = figures->available_bytes < figures->headroom_bytes
                          ? figures->available_bytes
                          : figures->headroom_bytes;
    uint64_t budget = tg__less(tg__less(system, margin(system)), untouched_bytes);
    uint64_t option = tg__less(figures->option_bytes, all_bytes);

    return budget < option ? budget : option;
}

/* One file of one cgroup. "max" is no number. */
static bool cgroup_number(const char *folder, const char *name, const char *key,
                          uint64_t *number) {
    char path[PATH_BYTES + 32], text[TG__SYSFILE_BYTES];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return tg__sysfile_read(path, text) && tg__sysfile_number(text, key, number);
}

struct cgroup_words {
    const char *limit, *usage, *file_key;
};

static const struct cgroup_words version_2 = {"memory.max", "memory.current", "inactive_file "};
static const struct cgroup_words version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_inactive_file "};

/* The least headroom of the folder and of those above it, up to `top`. The path is shortened. */
static uint64_t least_headroom(char *folder, size_t top, const struct cgroup_words *words) {
    uint64_t least = UINT64_MAX;

    for (;;) {
        uint64_t limit, usage, cached = 0;
        char *slash;

        if (cgroup_number(folder, words->limit, "", &limit) &&
            cgroup_number(folder, words->usage, "", &usage)) {
            (void)cgroup_number(folder, "memory.stat", words->file_key, &cached);
            limit = tg__less(limit, tg__less(usage, cached));
            least = limit < least ? limit : least;
        }
        slash = strrchr(folder, '/');
        if (strlen(folder) <= top || slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Whether a list such as "cpu,memory", up to `end`, has memory in it. */
static bool has_memory(const char *list, const char *end) {
    static const char word[] = "memory";

    while (list < end) {
        const char *comma = memchr(list, ',', (size_t)(end - list));
        const char *stop = comma == NULL ? end : comma;

        if ((size_t)(stop - list) == sizeof word - 1 && memcmp(list, word, sizeof word - 1) == 0)
            return true;
        list = stop + 1;
    }
    return false;
}

/* Behind the second colon of a line of /proc/self/cgroup; NULL: the line is not of memory. */
static const char *memory_path(const char *line, bool *is_version_1) {
    const char *words = strchr(line, ':'), *path;

    if (words == NULL)
        return NULL;
    path = strchr(words + 1, ':');
    if (path == NULL)
        return NULL;
    *is_version_1 = has_memory(words + 1, path);
    return *is_version_1 || strncmp(line, "0::", 3) == 0 ? path + 1 : NULL;
}

/* /proc/self/cgroup: "0::/path" for version 2, "N:memory:/path" for 1, where controllers may be
 * joint: "N:cpu,memory:/path", and "memory" is then a link beside their folder. In a container the
 * path may be one that only the host sees; the mount's root, looked at last, then has the limit. */
static uint64_t cgroup_headroom(const char *root) {
    char text[TG__SYSFILE_BYTES], folder[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    char *rest = NULL;

    snprintf(folder, sizeof folder, "%s/proc/self/cgroup", root);
    if (!tg__sysfile_read(folder, text))
        return least;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        bool is_version_1 = false;
        const char *path = memory_path(line, &is_version_1);
        uint64_t headroom;
        int top;

        if (path == NULL)
            continue;
        top = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root,
                       is_version_1 ? "/memory" : "");
        snprintf(folder + top, sizeof folder - (size_t)top, "%s", strcmp(path, "/") ? path : "");
        headroom = least_headroom(folder, (size_t)top, is_version_1 ? &version_1 : &version_2);
        least = headroom < least ? headroom : least;
    }
    return least;
}

/* Bytes, with K, M, G or T behind the number, and "iB" or "B" behind that if one likes. */
static int read_option(uint64_t *bytes) {
    const char *text = secure_getenv("TIDEGATE_HOST_BYTES"), *units = "KMGT", *unit;
    unsigned shift = 0;
    char *end;

    *bytes = UINT64_MAX;
    if (text == NULL || text[0] == '\0')
        return 0;
    errno = 0;
    *bytes = strtoull(text, &end, 10);
    unit = *end == '\0' ? NULL : strchr(units, *end);
    if (unit != NULL) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        end += strcmp(end, "iB") == 0 ? 2 : 0;
    }
    end += strcmp(end, "B") == 0;
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        *bytes > UINT64_MAX >> shift)
        return tg__fail(-EINVAL, "TIDEGATE_HOST_BYTES is \"%.40s\": it is a size such as 64GiB",
                        text);
    *bytes <<= shift;
    return 0;
}

int tg__host_figures(const char *root, struct tg__host_figures *figures) {
    char path[PATH_BYTES], text[TG__SYSFILE_BYTES];
    struct tg__host_figures read;
    int saved = errno, rc = read_option(&read.option_bytes);

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (rc == 0 &&
        (!tg__sysfile_read(path, text) ||
         !tg__sysfile_number(text, "MemAvailable:", &read.available_bytes)))
        rc = tg__fail(-ENODATA, "%s does not say how much memory is available", path);
    if (rc == 0) {
        read.available_bytes *= 1024;
        read.headroom_bytes = cgroup_headroom(root);
        *figures = read;
    }
    errno = saved;
    return rc;
}

/* ---- a tenant's reservations ---------------------------------------------------------------- */

/* Of all tenants that live. Under the file's lock. */
static int add_up(struct tg_ledger *ledger, uint64_t *untouched_bytes, uint64_t *all_bytes) {
    *untouched_bytes = *all_bytes = 0;
    for (uint32_t i = 0; i < TG_LEDGER_TENANTS; i++) {
        const struct tg__slot *slot = &ledger->body->slots[i];
        uint32_t ticket = atomic_load_explicit(&slot->ticket, memory_order_acquire);
        struct tg__tenant_row row;
        int rc;

        if (ticket == 0)
            continue;
        rc = tg__row_read(slot, &row);
        if (rc < 0)
            return rc;
        if (tg__row_host(&row, false) == 0 || !tg__shmfile_is_alive(ledger->file, ticket))
            continue;
        *untouched_bytes = tg__sum(*untouched_bytes, tg__row_host(&row, true));
        *all_bytes = tg__sum(*all_bytes, tg__row_host(&row, false));
    }
    return 0;
}

static int refuse(const char *tag, uint64_t size_bytes, uint64_t budget_bytes,
                  const struct tg__host_figures *figures) {
    const char *limit = figures->headroom_bytes < figures->available_bytes
                            ? "the cgroup's limit"
                            : "the memory that is available";

    if (figures->option_bytes != UINT64_MAX)
        limit = "TIDEGATE_HOST_BYTES and the memory that is available";
    return tg__fail(TG_EHOSTMEMORY,
                    "host copies of %s need %s, and %s leaves %s", tag,
                    tg__amount(size_bytes).text, limit, tg__amount(budget_bytes).text);
}

static int take(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes) {
    struct tg__tag_row *row;
    int rc = tg__tenant_check_joined(tenant);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&tenant->own);
    row = tg__tenant_tag(tenant, tag);
    if (row != NULL) {
        row->host_reserved_bytes += size_bytes;
        tg__tenant_publish(tenant);
    }
    pthread_mutex_unlock(&tenant->own);
    return row != NULL ? 0 : tg__tenant_no_place(tag);
}

static int reserve_locked(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes) {
    struct tg__host_figures figures;
    uint64_t untouched_bytes, all_bytes, budget_bytes;
    int rc = add_up(tenant->ledger, &untouched_bytes, &all_bytes);

    /* Read under the lock: who has touched since would else be counted by nobody. */
    if (rc == 0)
        rc = tg__host_figures("", &figures);
    if (rc < 0)
        return rc;
    budget_bytes = tg__host_budget(&figures, untouched_bytes, all_bytes);
    if (size_bytes > budget_bytes)
        return refuse(tag, size_bytes, budget_bytes, &figures);
    /* Nothing needs no place. */
    return size_bytes == 0 ? 0 : take(tenant, tag, size_bytes);
}

static int reserve_alone(const char *tag, uint64_t size_bytes) {
    struct tg__host_figures figures;
    uint64_t budget_bytes;
    int rc = tg__host_figures("", &figures);

    if (rc < 0)
        return rc;
    budget_bytes = tg__host_budget(&figures, 0, 0);
    return size_bytes <= budget_bytes ? 0 : refuse(tag, size_bytes, budget_bytes, &figures);
}

int tg_tenant_host_reserve(struct tg_tenant *tenant, const char *tag, uint64_t size_bytes) {
    bool has_inherited;
    int rc;

    if (!tg__ledger_is_name(tag, TG_TAG_NAME_BYTES))
        return tg__fail(-EINVAL, "a tag's name is 1 to %d printable ASCII characters",
                        TG_TAG_NAME_BYTES - 1);
    if (tenant == NULL)
        return reserve_alone(tag, size_bytes);
    rc = tg__shmfile_lock(tenant->ledger->file, &has_inherited);
    if (rc < 0)
        return rc;
    if (has_inherited)
        tg__ledger_settle(tenant->ledger, 0, NULL);
    rc = reserve_locked(tenant, tag, size_bytes);
    if (rc == TG_EPOISONED)
        rc = tg__shmfile_poison(tenant->ledger->file, tg_last_error()->text);
    tg__shmfile_unlock(tenant->ledger->file);
    return rc;
}
