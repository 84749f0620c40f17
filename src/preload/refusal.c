/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds what when a program's request is answered with out of memory. The program learns its
 * code 2 and nothing else, and its stderr is its own: the account is a line of JSON in the file to
 * which the package writes, where TIDEGATE_OUT names a folder. Nothing is kept open, and nobody is
 * waited for: the program may hold its allocator's lock. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "preload/hooks.h"

/* A program that lives with its card full is refused again and again: the first refusals are told,
 * the second, fourth, eighth, …, and one a minute. */
#define PAUSE_NS (60 * TG__NS_PER_S)

/* A line about as many tenants and tags as there are places in the ledger is shorter. */
enum { LINE_BYTES = 256 * 1024 };

struct line {
    struct tg_process_node node;
    size_t length;
    char bytes[LINE_BYTES];
};

static bool is_due(uint64_t *count) {
    static _Atomic uint64_t refusals, told_ns;
    uint64_t now_ns = tg__clock_ns();

    *count = atomic_fetch_add(&refusals, 1) + 1;
    if ((*count & (*count - 1)) != 0 && now_ns - atomic_load(&told_ns) < PAUSE_NS)
        return false;
    atomic_store(&told_ns, now_ns);
    return true;
}

/* ---- words ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...) {
    size_t room = sizeof line->bytes - line->length;
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(line->bytes + line->length, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->length += (size_t)length < room ? (size_t)length : room - 1;
}

/* What is no printable sign becomes one that is. */
static void add_text(struct line *line, const char *text) {
    add(line, "\"");
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            add(line, "\\%c", *text);
        else
            add(line, "%c", *text >= ' ' && *text <= '~' ? *text : '?');
    }
    add(line, "\"");
}

static void add_rank(struct line *line, int32_t rank) {
    if (rank < 0)
        add(line, "null");
    else
        add(line, "%" PRId32, rank);
}

/* ---- the account ----------------------------------------------------------------------------- */

static bool is_here(const struct line *line, const struct tg_tenant_view *tenant, bool is_self) {
    return tenant->device == line->node.place && (tenant->id == line->node.self) == is_self;
}

static void add_own(struct line *line) {
    const char *before = "";

    for (uint32_t i = 0; i < line->node.view.tenant_count; i++) {
        const struct tg_tenant_view *tenant = &line->node.view.tenants[i];

        for (uint32_t j = 0; j < tenant->tag_count && is_here(line, tenant, true); j++) {
            add(line, "%s{\"item\": ", before);
            add_text(line, tenant->tags[j].name);
            add(line, ", \"size_bytes\": %" PRIu64 "}", tenant->tags[j].occupied_bytes);
            before = ", ";
        }
    }
}

static void add_tags(struct line *line, const struct tg_tenant_view *tenant) {
    for (uint32_t i = 0; i < tenant->tag_count; i++) {
        const struct tg_tag_view *tag = &tenant->tags[i];

        add(line, "%s{\"name\": ", i == 0 ? "" : ", ");
        add_text(line, tag->name);
        add(line, ", \"occupied_bytes\": %" PRIu64 ", \"returnable_bytes\": %" PRIu64
            ", \"asleep_bytes\": %" PRIu64 "}", tag->occupied_bytes, tag->returnable_bytes,
            tag->asleep_bytes);
    }
}

static void add_other(struct line *line, const struct tg_tenant_view *tenant) {
    uint64_t size_bytes = 0;

    for (uint32_t i = 0; i < tenant->tag_count; i++)
        size_bytes += tenant->tags[i].occupied_bytes;
    add(line, "{\"name\": ");
    add_text(line, tenant->name);
    add(line, ", \"rank\": ");
    add_rank(line, tenant->rank);
    add(line, ", \"pid\": %" PRId32 ", \"dead\": %s, \"size_bytes\": %" PRIu64
        ", \"asked_bytes\": %" PRIu64 ", \"tags\": [", tenant->pid,
        tenant->is_dead != 0 ? "true" : "false", size_bytes, tenant->asked_bytes);
    add_tags(line, tenant);
    add(line, "]}");
}

static void add_account(struct line *line) {
    const struct tg_node_view *view = &line->node.view;
    const char *before = "";

    add(line, "{\"own\": [], \"tags\": [");
    add_own(line);
    add(line, "], \"others\": [");
    for (uint32_t i = 0; i < view->tenant_count; i++) {
        if (!is_here(line, &view->tenants[i], false))
            continue;
        add(line, "%s", before);
        add_other(line, &view->tenants[i]);
        before = ", ";
    }
    add(line, "], \"unattributed_bytes\": %" PRIu64 "}",
        view->devices[line->node.place].unattributed_bytes);
}

static void fill(struct line *line, const struct tg_process_request *request, const char *why,
                 uint64_t count) {
    const struct tg_device_view *device = &line->node.view.devices[line->node.place];
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    add(line, "{\"schema\": \"tidegate.observe/1\", \"event\": \"refused\", \"time\": %.3f, "
        "\"rank\": ", (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    add_rank(line, line->node.rank);
    add(line, ", \"pid\": %d, \"driver_used_bytes\": %" PRIu64 ", \"device\": %d, \"count\": %"
        PRIu64 ", \"asked_bytes\": %" PRIu64 ", \"free_bytes\": %" PRIu64
        ", \"total_bytes\": %" PRIu64 ", \"why\": ", (int)getpid(),
        device->total_bytes - device->free_bytes, request->device, count, request->size_bytes,
        device->free_bytes, device->total_bytes);
    add_text(line, why);
    add(line, ", \"account\": ");
    if (line->node.self == 0)
        add(line, "null");
    else
        add_account(line);
    add(line, "}\n");
}

/* ---- the file -------------------------------------------------------------------------------- */

/* And those above it; what is there already is no failure. */
static void make_folder(const char *folder) {
    char path[PATH_MAX];
    size_t length = strnlen(folder, sizeof path);

    if (length == sizeof path)
        return;
    memcpy(path, folder, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (folder[i] != '/' && folder[i] != '\0')
            continue;
        path[i] = '\0';
        (void)!mkdir(path, 0777);
        path[i] = folder[i];
    }
}

/* One write: lines of several writers do not mix. A pipe's reader is not waited for. */
static int write_line(const char *folder, const struct line *line) {
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, fd, rc = 0;
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/rank%d_pid%d.jsonl", folder,
                          line->node.rank < 0 ? 0 : (int)line->node.rank, (int)getpid());

    if (length < 0 || (size_t)length >= sizeof path)
        return ENAMETOOLONG;
    make_folder(folder);
    fd = open(path, flags, 0644);
    if (fd < 0)
        return errno;
    if (write(fd, line->bytes, line->length) < 0)
        rc = errno;
    close(fd);
    return rc;
}

static void note(const struct tg__library *library, const struct tg_process_request *request,
                 const char *folder) {
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    struct tg_error why = *library->last_error();
    struct line *line;
    uint64_t count;
    int failure = 0;

    if (!is_due(&count))
        return;
    line = malloc(sizeof *line);
    if (line == NULL)
        return;
    line->length = 0;
    if (library->look(request->device, &line->node) == 0) {
        fill(line, request, why.text, count);
        failure = write_line(folder, line);
    }
    if (failure != 0)
        tg__warn_once(&has_warned, "TIDEGATE_OUT=%.200s cannot be written: %s; who holds memory "
                      "that is refused is not told there", folder, strerrordesc_np(failure));
    free(line);
}

void tg__refusal_note(const struct tg__library *library,
                      const struct tg_process_request *request) {
    const char *folder = tg__mode_out();
    int saved = errno;

    if (folder != NULL)
        note(library, request, folder);
    errno = saved;
}
