/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What this thread reads; the handler of SIGBUS runs on the thread that touched the memory. */
static _Thread_local struct input *being_read;
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;

/* Only calls that a handler may make: mmap is a plain system call. */
static void on_bus_error(int number, siginfo_t *info, void *machine) {
    struct input *input = being_read;
    const unsigned char *at = info->si_addr;
    int saved = errno;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t offset;

    (void)machine;
    if (input != NULL && input->mapped != NULL && at >= input->mapped &&
        at < input->mapped + input->mapped_bytes) {
        /* All behind the new end is gone; so that is one mapping, not one for each page. */
        offset = (size_t)(at - input->mapped) / page * page;
        if (mmap((void *)(uintptr_t)(input->mapped + offset), input->mapped_bytes - offset,
                 PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
            input->has_shrunk = 1;
            errno = saved;
            return;
        }
    }
    signal(number, SIG_DFL); /* not ours: the access is made again, and ends the process */
    errno = saved;
}

static void guard_install(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};

    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

/* Maps a regular file from its beginning; false: it must be read. */
static bool map_file(struct input *input, int fd, size_t size_bytes) {
    void *mapped;

    if (lseek(fd, 0, SEEK_CUR) != 0) /* standard input that somebody has begun to read */
        return false;
    mapped = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) /* some file systems cannot */
        return false;
    (void)madvise(mapped, size_bytes, MADV_SEQUENTIAL);
    pthread_once(&guard_once, guard_install);
    input->mapped = mapped;
    input->mapped_bytes = size_bytes;
    being_read = input;
    return true;
}

static bool read_to_end(struct input *input, int fd, struct sentence *why) {
    struct buffer *raw = &input->raw;

    for (;;) {
        ssize_t got;

        if (raw->size_bytes == raw->room_bytes) {
            enum buffer_result grown = buffer_grow(raw);

            if (grown != BUFFER_GROWN) {
                if (unpack_short_of_memory(grown, raw, raw->size_bytes, why) == UNPACK_LATER)
                    sentence_set(why, "not enough memory to read it beside the others");
                return false;
            }
        }
        got = read(fd, raw->bytes + raw->size_bytes, raw->room_bytes - raw->size_bytes);
        if (got == 0)
            return true;
        if (got > 0) {
            raw->size_bytes += (size_t)got;
        } else if (errno != EINTR) {
            sentence_set(why, "at byte %zu: %s", raw->size_bytes, strerror(errno));
            return false;
        }
    }
}

/* What kinds of file are read; a device would give bytes without end, a terminal none. */
static bool is_readable_kind(mode_t mode, struct sentence *why) {
    if (S_ISREG(mode) || S_ISFIFO(mode) || S_ISSOCK(mode))
        return true;
    sentence_set(why, "%s",
                 S_ISDIR(mode) ? "is a folder" : "is a device, not a file or a pipe");
    return false;
}

static bool take_in(struct input *input, int fd, struct sentence *why) {
    struct stat about;

    if (fstat(fd, &about) != 0) {
        sentence_set(why, "%s", strerror(errno));
        return false;
    }
    if (!is_readable_kind(about.st_mode, why))
        return false;
    if (S_ISREG(about.st_mode) && about.st_size > 0 && map_file(input, fd, (size_t)about.st_size))
        return true;
    if (!read_to_end(input, fd, why))
        return false;
    if (input->raw.size_bytes == 0)
        sentence_set(why, "is empty");
    return input->raw.size_bytes > 0;
}

const char *input_name(const char *path) {
    return strcmp(path, INPUT_STDIN) == 0 ? "standard input" : path;
}

bool input_open(struct input *input, const char *path, struct budget_share *share,
                struct sentence *why) {
    bool is_stdin = strcmp(path, INPUT_STDIN) == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    bool taken;

    memset(input, 0, sizeof *input);
    buffer_init(&input->raw, share);
    buffer_init(&input->unpacked, share);
    if (fd < 0) {
        sentence_set(why, "%s", strerror(errno));
        return false;
    }
    taken = take_in(input, fd, why);
    if (!is_stdin)
        close(fd);
    if (!taken)
        input_close(input);
    return taken;
}

enum unpack_result input_unpack(struct input *input, struct sentence *why) {
    bool is_mapped = input->mapped != NULL;
    const unsigned char *bytes = is_mapped ? input->mapped : input->raw.bytes;
    size_t size_bytes = is_mapped ? input->mapped_bytes : input->raw.size_bytes;
    enum unpack_result result;

    input->packing = packing_detect(bytes, size_bytes);
    if (input->packing == PACKING_NONE) {
        input->bytes = bytes;
        input->size_bytes = size_bytes;
        return UNPACKED;
    }
    result = unpack(input->packing, bytes, size_bytes, &input->unpacked, why);
    if (result == UNPACKED) {
        input->bytes = input->unpacked.bytes;
        input->size_bytes = input->unpacked.size_bytes;
    }
    return result;
}

void input_let_go(void *argument, size_t until) {
    struct input *input = argument;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), end = until / page * page;

    if (input->packing != PACKING_NONE || input->mapped == NULL || end <= input->gone_bytes)
        return;
    (void)madvise((void *)(uintptr_t)(input->mapped + input->gone_bytes),
                  end - input->gone_bytes, MADV_DONTNEED);
    input->gone_bytes = end;
}

void input_close(struct input *input) {
    if (input->mapped != NULL)
        munmap((void *)(uintptr_t)input->mapped, input->mapped_bytes);
    input->mapped = NULL;
    if (being_read == input)
        being_read = NULL;
    buffer_free(&input->raw);
    buffer_free(&input->unpacked);
}
