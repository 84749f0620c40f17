/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the fuzz target over files, without libFuzzer: the corpus as a regression test.
 *
 *     replay_snapshot [--prefixes] FILE|FOLDER...
 *
 * A file whose name begins with ok_ must be accepted, one with bad_ must be refused; others may be
 * either. --prefixes also runs every truncation of each file. Each input is copied into memory of
 * its exact size, so that a sanitizer sees a read past its end. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tidegate/error.h>
#include <tidegate/snapshot.h>

#define FILE_BYTES_MAX (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct totals {
    size_t files, inputs, failed;
    bool prefixes;
};

static void fail(struct totals *totals, const char *path, const char *sentence) {
    fprintf(stderr, "%s: %s\n", path, sentence);
    totals->failed++;
}

/* The file's bytes in a block of its exact size; NULL with errno set. */
static uint8_t *read_whole(const char *path, size_t *size_bytes) {
    FILE *file = fopen(path, "rbe");
    uint8_t *bytes = NULL;
    struct stat status;

    if (file == NULL)
        return NULL;
    if (fstat(fileno(file), &status) != 0)
        goto close;
    if (status.st_size > FILE_BYTES_MAX) {
        errno = EFBIG;
        goto close;
    }
    *size_bytes = (size_t)status.st_size;
    bytes = malloc(*size_bytes == 0 ? 1 : *size_bytes);
    if (bytes != NULL && fread(bytes, 1, *size_bytes, file) != *size_bytes) {
        free(bytes);
        bytes = NULL;
        errno = EIO;
    }
close:
    fclose(file);
    return bytes;
}

static void check_name(struct totals *totals, const char *path, const uint8_t *bytes, size_t size) {
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    struct tg_snapshot *snapshot = NULL;

    int status = tg_snapshot_parse(bytes, size, &snapshot);
    if (status != 0 && strncmp(name, "ok_", 3) == 0)
        fail(totals, path, tg_last_error()->text);
    if (status == 0 && strncmp(name, "bad_", 4) == 0)
        fail(totals, path, "was accepted");
    tg_snapshot_close(snapshot);
}

static void run_prefix(struct totals *totals, const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size == 0 ? 1 : size);

    if (copy == NULL) {
        fail(totals, "replay", "out of memory");
        return;
    }
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    totals->inputs++;
    free(copy);
}

static void run_file(struct totals *totals, const char *path) {
    size_t size = 0;
    uint8_t *bytes = read_whole(path, &size);

    if (bytes == NULL) {
        fail(totals, path, strerror(errno));
        return;
    }
    check_name(totals, path, bytes, size);
    LLVMFuzzerTestOneInput(bytes, size);
    totals->files++;
    totals->inputs++;
    for (size_t length = 0; totals->prefixes && length < size; length++)
        run_prefix(totals, bytes, length);
    free(bytes);
}

static void run_path(struct totals *totals, const char *path) {
    DIR *folder = opendir(path);
    struct dirent *entry;
    char name[4096];

    if (folder == NULL) {
        run_file(totals, path);
        return;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) < (int)sizeof name)
            run_file(totals, name);
    }
    closedir(folder);
}

int main(int argc, char **argv) {
    struct totals totals = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--prefixes") == 0)
            totals.prefixes = true;
        else
            run_path(&totals, argv[i]);
    }
    printf("%zu files, %zu inputs, %zu failed\n", totals.files, totals.inputs, totals.failed);
    return totals.failed > 0 || totals.files == 0 ? 1 : 0;
}
