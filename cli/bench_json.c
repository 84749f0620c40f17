/* SPDX-License-Identifier: Apache-2.0 */
/* `tidegate bench --json`: one object of doc/schema/bench-1.json, on one line. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <tidegate/tidegate.h>

#include "bench.h"
#include "json_value.h"

#define TEXT_MOST 1024

static json_t *stats_object(const struct bench_stats *stats) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "median", json_real(stats->median));
    failed |= json_put(object, "lowest", json_real(stats->lowest));
    failed |= json_put(object, "highest", json_real(stats->highest));
    return json_whole(object, failed);
}

static json_t *limit_object(const struct bench_row *row) {
    json_t *object;

    if (row->limit_what == NULL)
        return json_null();
    object = stats_object(&row->limit);
    return json_whole(object, json_put(object, "what", json_string(row->limit_what)));
}

static json_t *row_object(const struct bench_row *row) {
    bool is_measured = row->is_measured, has_limit = row->limit_what != NULL;
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "bench", json_string(row->bench));
    failed |= json_put(object, "what", json_text(row->what, TEXT_MOST));
    failed |= json_put(object, "unit",
                       is_measured ? json_string(bench_unit_text(row->unit)) : json_null());
    failed |= json_put(object, "value", is_measured ? stats_object(&row->value) : json_null());
    failed |= json_put(object, "each_us",
                       is_measured && row->each_us >= 0 ? json_real(row->each_us) : json_null());
    failed |= json_put(object, "size_bytes",
                       is_measured ? json_count(row->size_bytes) : json_null());
    failed |= json_put(object, "pieces", is_measured ? json_count(row->pieces) : json_null());
    failed |= json_put(object, "limit", limit_object(row));
    failed |= json_put(object, "ratio", has_limit ? json_real(row->ratio) : json_null());
    failed |= json_put(object, "reason",
                       is_measured ? json_null() : json_text(row->reason, TEXT_MOST));
    return json_whole(object, failed);
}

static json_t *rows_array(const struct bench_run *run) {
    json_t *array = json_array();
    int failed = 0;

    for (size_t i = 0; i < run->row_count; i++)
        failed |= json_array_append_new(array, row_object(&run->rows[i]));
    return json_whole(array, failed);
}

static json_t *device_object(const struct bench_run *run) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "uri", json_text(run->shown, TEXT_MOST));
    failed |= json_put(object, "name", json_text(run->info.name, TEXT_MOST));
    failed |= json_put(object, "driver",
                       run->driver[0] == '\0' ? json_null() : json_text(run->driver, TEXT_MOST));
    failed |= json_put(object, "total_bytes", json_count(run->total_bytes));
    failed |= json_put(object, "free_bytes", json_count(run->free_bytes));
    failed |= json_put(object, "host", json_boolean((run->info.can & TG_DEVICE_DIRECT) != 0));
    return json_whole(object, failed);
}

static json_t *cpu_value(void) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];
    json_t *value = NULL;

    while (file != NULL && value == NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');

        line[strcspn(line, "\n")] = '\0';
        if (colon != NULL && strncmp(line, "model name", 10) == 0)
            value = json_text(colon + 1 + strspn(colon + 1, " "), TEXT_MOST);
    }
    if (file != NULL)
        fclose(file);
    return value == NULL ? json_null() : value;
}

static json_t *machine_object(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    json_t *object = json_object();
    struct utsname system;
    int failed = 0;

    if (uname(&system) != 0)
        system.release[0] = '\0';
    failed |= json_put(object, "cpu", cpu_value());
    failed |= json_put(object, "cores", json_known(sysconf(_SC_NPROCESSORS_ONLN)));
    failed |= json_put(object, "memory_bytes", json_count((uint64_t)pages * (uint64_t)page_bytes));
    failed |= json_put(object, "kernel", json_text(system.release, TEXT_MOST));
    return json_whole(object, failed);
}

static json_t *date_value(void) {
    time_t now = time(NULL);
    char text[32] = "";
    struct tm parts;

    if (gmtime_r(&now, &parts) != NULL)
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return json_string(text);
}

static json_t *run_object(const struct bench_run *run) {
    json_t *object = json_object();
    int failed = 0;

    failed |= json_put(object, "schema", json_string("tidegate.bench/1"));
    failed |= json_put(object, "version", json_string(tg_version()));
    failed |= json_put(object, "date", date_value());
    failed |= json_put(object, "machine", machine_object());
    failed |= json_put(object, "device", device_object(run));
    failed |= json_put(object, "size_bytes", json_count(run->size_bytes));
    failed |= json_put(object, "rounds", json_count(run->rounds));
    failed |= json_put(object, "rows", rows_array(run));
    return json_whole(object, failed);
}

bool bench_json_write(const struct bench_run *run, const char *path) {
    json_t *object = run_object(run);
    bool is_written;
    FILE *file;

    if (object == NULL) {
        say_no_memory();
        return false;
    }
    if (strcmp(path, "-") == 0)
        return json_print(object, 0);
    file = fopen(path, "we");
    is_written = file != NULL && json_print_to(file, object);
    if (file == NULL)
        json_decref(object);
    if ((file != NULL && fclose(file) != 0) || !is_written) {
        say("--json %s: %s", path, strerror(errno));
        return false;
    }
    return true;
}
