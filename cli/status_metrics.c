/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate status --metrics`: the ledger in Prometheus' text format, the same figures as --json.
 *
 * A series is named by what outlives a restart: device, name, rank. Tenants that have all these in
 * common (a dead one and its heir, two engines without ranks) are one series, their figures summed:
 * the format has no place for two samples of one name. Moments are Unix times and no ages, since a
 * collector may read the file long after it was written. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "status_report.h"

struct metrics {
    FILE *out;
    const struct tg_node_view *view;
    double wall_s; /* of the view */
};

struct family {
    const char *name, *help;
};

/* ---- text ------------------------------------------------------------------------------------ */

static void family_begin(const struct metrics *metrics, const struct family *family) {
    fprintf(metrics->out, "# HELP %s %s\n# TYPE %s gauge\n", family->name, family->help,
            family->name);
}

static void label_print(const struct metrics *metrics, const char *name, const char *value) {
    fprintf(metrics->out, ",%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            fputs("\\n", metrics->out);
        else if (*value == '\\' || *value == '"')
            fprintf(metrics->out, "\\%c", *value);
        else
            fputc(*value, metrics->out);
    }
    fputc('"', metrics->out);
}

static void device_sample_begin(const struct metrics *metrics, const char *name, uint32_t device) {
    fprintf(metrics->out, "%s{device=\"%" PRIu32 "\",uuid=\"", name, device);
    for (size_t i = 0; i < sizeof metrics->view->devices[device].uuid; i++)
        fprintf(metrics->out, "%02x", metrics->view->devices[device].uuid[i]);
    fputc('"', metrics->out);
}

static void tenant_sample_begin(const struct metrics *metrics, const char *name,
                                const struct tg_tenant_view *tenant) {
    char rank[16];

    device_sample_begin(metrics, name, tenant->device);
    label_print(metrics, "tenant", tenant->name);
    if (tenant->rank < 0)
        return;
    snprintf(rank, sizeof rank, "%" PRId32, tenant->rank);
    label_print(metrics, "rank", rank);
}

static void count_sample_end(const struct metrics *metrics, uint64_t count) {
    fprintf(metrics->out, "} %" PRIu64 "\n", count);
}

static void moment_sample_end(const struct metrics *metrics, uint64_t then_ns) {
    fprintf(metrics->out, "} %.3f\n",
            metrics->wall_s - status_seconds_since(metrics->view, then_ns));
}

/* ---- series ---------------------------------------------------------------------------------- */

static uint64_t sum(uint64_t one, uint64_t other) {
    return one > UINT64_MAX - other ? UINT64_MAX : one + other;
}

static uint64_t figure_at(const void *object, size_t offset) {
    uint64_t figure;

    memcpy(&figure, (const char *)object + offset, sizeof figure);
    return figure;
}

static bool is_one_series(const struct tg_tenant_view *one, const struct tg_tenant_view *other) {
    return one->device == other->device && one->rank == other->rank &&
           strcmp(one->name, other->name) == 0;
}

/* The next tenant of the series from a place on; NULL: no more. */
static const struct tg_tenant_view *member_next(const struct tg_node_view *view,
                                                const struct tg_tenant_view *first,
                                                uint32_t *place) {
    while (*place < view->tenant_count && *place < TG_LEDGER_TENANTS) {
        const struct tg_tenant_view *tenant = &view->tenants[(*place)++];

        if (is_one_series(first, tenant))
            return tenant;
    }
    return NULL;
}

/* The first tenant of the next series; NULL: no more. */
static const struct tg_tenant_view *series_next(const struct tg_node_view *view, uint32_t *place) {
    while (*place < view->tenant_count && *place < TG_LEDGER_TENANTS) {
        const struct tg_tenant_view *tenant = &view->tenants[(*place)++];
        uint32_t from = 0;

        if (tenant->device < view->device_count && member_next(view, tenant, &from) == tenant)
            return tenant;
    }
    return NULL;
}

static const struct tg_tag_view *tag_find(const struct tg_tenant_view *tenant, const char *name) {
    for (uint32_t i = 0; i < tenant->tag_count && i < TG_TENANT_TAGS; i++) {
        if (strcmp(tenant->tags[i].name, name) == 0)
            return &tenant->tags[i];
    }
    return NULL;
}

/* Whether an earlier member of its series has a tag of that name. */
static bool is_told(const struct tg_node_view *view, const struct tg_tenant_view *tenant,
                    const char *tag) {
    const struct tg_tenant_view *member;
    uint32_t place = 0;

    while ((member = member_next(view, tenant, &place)) != tenant) {
        if (tag_find(member, tag) != NULL)
            return true;
    }
    return false;
}

/* ---- devices --------------------------------------------------------------------------------- */

static void devices_print(const struct metrics *metrics) {
    static const struct {
        struct family family;
        size_t offset;
    } figures[] = {
        {{"tidegate_device_capacity_bytes", "Memory of the device."},
         offsetof(struct tg_device_view, total_bytes)},
        {{"tidegate_device_free_bytes", "Free memory, as the driver last said to a tenant."},
         offsetof(struct tg_device_view, free_bytes)},
        {{"tidegate_device_unattributed_bytes",
          "Memory in use beyond what tenants occupy, as of the same moment."},
         offsetof(struct tg_device_view, unattributed_bytes)},
    };
    static const struct family measured = {"tidegate_device_measured_timestamp_seconds",
                                           "When a tenant last asked the driver."};
    const struct tg_node_view *view = metrics->view;

    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        family_begin(metrics, &figures[i].family);
        for (uint32_t j = 0; j < view->device_count && j < TG_LEDGER_DEVICES; j++) {
            if (view->devices[j].measured_ns == 0)
                continue;
            device_sample_begin(metrics, figures[i].family.name, j);
            count_sample_end(metrics, figure_at(&view->devices[j], figures[i].offset));
        }
    }
    family_begin(metrics, &measured);
    for (uint32_t j = 0; j < view->device_count && j < TG_LEDGER_DEVICES; j++) {
        if (view->devices[j].measured_ns == 0)
            continue;
        device_sample_begin(metrics, measured.name, j);
        moment_sample_end(metrics, view->devices[j].measured_ns);
    }
}

static void device_names_print(const struct metrics *metrics) {
    static const struct family family = {"tidegate_device_info", "The device's name; always 1."};
    const struct tg_node_view *view = metrics->view;

    family_begin(metrics, &family);
    for (uint32_t i = 0; i < view->device_count && i < TG_LEDGER_DEVICES; i++) {
        device_sample_begin(metrics, family.name, i);
        label_print(metrics, "name", view->devices[i].name);
        count_sample_end(metrics, 1);
    }
}

static void wakes_print(const struct metrics *metrics) {
    static const struct {
        struct family family;
        size_t offset;
    } figures[] = {
        {{"tidegate_wake_asleep_bytes", "What waking all that sleeps under the tag needs."},
         offsetof(struct status_wake, asleep_bytes)},
        {{"tidegate_wake_short_bytes", "By how much free memory is short of that."},
         offsetof(struct status_wake, short_bytes)},
        {{"tidegate_wake_returnable_bytes", "What caches of tenants of the device could return."},
         offsetof(struct status_wake, returnable_bytes)},
    };
    const struct tg_node_view *view = metrics->view;
    struct status_wake wake;

    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        family_begin(metrics, &figures[i].family);
        for (uint32_t j = 0; j < view->device_count && j < TG_LEDGER_DEVICES; j++) {
            uint32_t place = 0;

            while (status_wake_next(view, j, &place, &wake)) {
                device_sample_begin(metrics, figures[i].family.name, j);
                label_print(metrics, "tag", wake.tag);
                count_sample_end(metrics, figure_at(&wake, figures[i].offset));
            }
        }
    }
}

/* ---- tenants --------------------------------------------------------------------------------- */

struct member_counts {
    uint64_t running, starting, dead;
    uint64_t asked_bytes, updated_ns;
};

static struct member_counts members_count(const struct tg_node_view *view,
                                          const struct tg_tenant_view *first) {
    struct member_counts counts = {.running = 0};
    const struct tg_tenant_view *member;
    uint32_t place = 0;

    while ((member = member_next(view, first, &place)) != NULL) {
        if (member->is_dead != 0)
            counts.dead++;
        else if (member->is_starting != 0)
            counts.starting++;
        else
            counts.running++;
        counts.asked_bytes = sum(counts.asked_bytes, member->asked_bytes);
        if (member->updated_ns > counts.updated_ns)
            counts.updated_ns = member->updated_ns;
    }
    return counts;
}

static void members_print(const struct metrics *metrics) {
    static const struct family family = {
        "tidegate_tenants", "Tenants of this name: running, starting up, or dead with bytes that "
                            "are not back yet."};
    static const struct {
        const char *text;
        size_t offset;
    } states[] = {
        {"running", offsetof(struct member_counts, running)},
        {"starting", offsetof(struct member_counts, starting)},
        {"dead", offsetof(struct member_counts, dead)},
    };
    const struct tg_tenant_view *first;
    uint32_t place = 0;

    family_begin(metrics, &family);
    while ((first = series_next(metrics->view, &place)) != NULL) {
        struct member_counts counts = members_count(metrics->view, first);

        for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
            tenant_sample_begin(metrics, family.name, first);
            label_print(metrics, "state", states[i].text);
            count_sample_end(metrics, figure_at(&counts, states[i].offset));
        }
    }
}

static void requests_print(const struct metrics *metrics) {
    static const struct family
        asked = {"tidegate_tenant_asked_bytes",
                 "What peers have asked it for and it has not looked at yet."},
        updated = {"tidegate_tenant_updated_timestamp_seconds", "When its figures last changed."};
    const struct tg_tenant_view *first;

    family_begin(metrics, &asked);
    for (uint32_t place = 0; (first = series_next(metrics->view, &place)) != NULL;) {
        tenant_sample_begin(metrics, asked.name, first);
        count_sample_end(metrics, members_count(metrics->view, first).asked_bytes);
    }
    family_begin(metrics, &updated);
    for (uint32_t place = 0; (first = series_next(metrics->view, &place)) != NULL;) {
        tenant_sample_begin(metrics, updated.name, first);
        moment_sample_end(metrics, members_count(metrics->view, first).updated_ns);
    }
}

static bool is_one_process(const struct tg_tenant_view *one, const struct tg_tenant_view *other) {
    return is_one_series(one, other) && one->pid == other->pid && one->mode == other->mode &&
           strcmp(one->role, other->role) == 0 && strcmp(one->seams, other->seams) == 0;
}

/* What is no figure, once for each that differs in any of it. */
static void tenant_names_print(const struct metrics *metrics) {
    static const struct family family = {
        "tidegate_tenant_info", "Who a tenant is, and what its seams do; always 1. The pid is of "
                                "its own namespace."};
    const struct tg_node_view *view = metrics->view;

    family_begin(metrics, &family);
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];
        const char *mode = status_mode_text(tenant->mode);
        uint32_t before = 0;
        char pid[16];

        while (!is_one_process(&view->tenants[before], tenant))
            before++;
        if (before < i || tenant->device >= view->device_count)
            continue;
        snprintf(pid, sizeof pid, "%" PRId32, tenant->pid);
        tenant_sample_begin(metrics, family.name, tenant);
        label_print(metrics, "role", tenant->role);
        label_print(metrics, "pid", pid);
        label_print(metrics, "mode", mode == NULL ? "" : mode);
        label_print(metrics, "seams", tenant->seams);
        count_sample_end(metrics, 1);
    }
}

struct wait_sum {
    uint64_t size_bytes, since_ns;
};

/* All that its series waits for under the tenant's tag; false: it waits for nothing, or an earlier
 * member of the series has told it. */
static bool wait_sum(const struct tg_node_view *view, const struct tg_tenant_view *tenant,
                     struct wait_sum *wait) {
    const struct tg_tenant_view *member;
    bool is_first = true;
    uint32_t place = 0;

    *wait = (struct wait_sum){.since_ns = UINT64_MAX};
    while (tenant->is_waiting != 0 && (member = member_next(view, tenant, &place)) != NULL) {
        if (member->is_waiting == 0 || strcmp(member->wait_tag, tenant->wait_tag) != 0)
            continue;
        if (is_first && member != tenant)
            return false;
        is_first = false;
        wait->size_bytes = sum(wait->size_bytes, member->wait_bytes);
        if (member->wait_since_ns < wait->since_ns)
            wait->since_ns = member->wait_since_ns;
    }
    return !is_first;
}

static void waits_print(const struct metrics *metrics) {
    static const struct family families[] = {
        {"tidegate_tenant_wait_bytes", "What a waiting tenant waits for."},
        {"tidegate_tenant_wait_start_timestamp_seconds", "Since when it waits."},
    };
    const struct tg_node_view *view = metrics->view;
    struct wait_sum wait;

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        family_begin(metrics, &families[i]);
        for (uint32_t j = 0; j < view->tenant_count && j < TG_LEDGER_TENANTS; j++) {
            const struct tg_tenant_view *tenant = &view->tenants[j];

            if (tenant->device >= view->device_count || !wait_sum(view, tenant, &wait))
                continue;
            tenant_sample_begin(metrics, families[i].name, tenant);
            label_print(metrics, "tag", tenant->wait_tag);
            if (i == 0)
                count_sample_end(metrics, wait.size_bytes);
            else
                moment_sample_end(metrics, wait.since_ns);
        }
    }
}

/* ---- tags ------------------------------------------------------------------------------------ */

/* A figure of the tags; what a dead tenant occupies is orphaned. */
struct tag_figure {
    const char *state; /* NULL: the family has no states */
    size_t offset;
    bool is_of_dead, is_of_living;
};

static uint64_t tag_sum(const struct tg_node_view *view, const struct tg_tenant_view *first,
                        const char *name, const struct tag_figure *figure) {
    const struct tg_tenant_view *member;
    uint64_t total = 0;
    uint32_t place = 0;

    while ((member = member_next(view, first, &place)) != NULL) {
        const struct tg_tag_view *tag = tag_find(member, name);

        if (tag != NULL && (member->is_dead != 0 ? figure->is_of_dead : figure->is_of_living))
            total = sum(total, figure_at(tag, figure->offset));
    }
    return total;
}

static void tag_family_print(const struct metrics *metrics, const struct family *family,
                             const struct tag_figure *figures, size_t count) {
    const struct tg_node_view *view = metrics->view;

    family_begin(metrics, family);
    for (uint32_t i = 0; i < view->tenant_count && i < TG_LEDGER_TENANTS; i++) {
        const struct tg_tenant_view *tenant = &view->tenants[i];

        for (uint32_t j = 0; j < tenant->tag_count && j < TG_TENANT_TAGS; j++) {
            const char *name = tenant->tags[j].name;

            if (tenant->device >= view->device_count || is_told(view, tenant, name))
                continue;
            for (size_t k = 0; k < count; k++) {
                tenant_sample_begin(metrics, family->name, tenant);
                label_print(metrics, "tag", name);
                if (figures[k].state != NULL)
                    label_print(metrics, "state", figures[k].state);
                count_sample_end(metrics, tag_sum(view, tenant, name, &figures[k]));
            }
        }
    }
}

static void tags_print(const struct metrics *metrics) {
    static const struct tag_figure states[] = {
        {"awake", offsetof(struct tg_tag_view, occupied_bytes), false, true},
        {"orphaned", offsetof(struct tg_tag_view, occupied_bytes), true, false},
        {"reserved", offsetof(struct tg_tag_view, reserved_bytes), true, true},
        {"asleep", offsetof(struct tg_tag_view, asleep_bytes), true, true},
    };
    static const struct tag_figure returnable = {
        NULL, offsetof(struct tg_tag_view, returnable_bytes), true, true};
    static const struct tag_figure host = {NULL, offsetof(struct tg_tag_view, host_bytes), true,
                                           true};

    tag_family_print(metrics,
                     &(const struct family){"tidegate_tag_bytes",
                                            "Memory of a tag: awake on the device, left there by "
                                            "a dead tenant, granted and not there yet, or asleep."},
                     states, sizeof states / sizeof states[0]);
    tag_family_print(metrics,
                     &(const struct family){"tidegate_tag_returnable_bytes",
                                            "What of the awake bytes could be given back now."},
                     &returnable, 1);
    tag_family_print(metrics,
                     &(const struct family){"tidegate_tag_host_bytes", "Host copies of a tag."},
                     &host, 1);
}

/* ---- all ------------------------------------------------------------------------------------- */

static double clock_s(clockid_t clock) {
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void plain_print(FILE *out, const char *name, const char *help, uint64_t value) {
    fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %" PRIu64 "\n", name, help, name, name, value);
}

void status_metrics_print(FILE *out, const struct tg_node_view *view) {
    struct metrics metrics = {.out = out, .view = view};

    fprintf(out, "# HELP tidegate_build_info Who wrote this; always 1.\n"
                 "# TYPE tidegate_build_info gauge\ntidegate_build_info{version=\"%s\"} 1\n",
            tg_version());
    plain_print(out, "tidegate_ledger_present", "Whether the node has a ledger.", view != NULL);
    plain_print(out, "tidegate_host_reserved_bytes",
                "Host memory that all tenants have reserved for copies.",
                view == NULL ? 0 : view->host_bytes);
    if (view == NULL)
        return;
    metrics.wall_s = clock_s(CLOCK_REALTIME) -
                     (clock_s(CLOCK_MONOTONIC) - (double)view->now_ns / 1e9);
    device_names_print(&metrics);
    devices_print(&metrics);
    wakes_print(&metrics);
    tenant_names_print(&metrics);
    members_print(&metrics);
    requests_print(&metrics);
    waits_print(&metrics);
    tags_print(&metrics);
}
