/* SPDX-License-Identifier: Apache-2.0 */
/* A linked-in runtime shows by its own C++ names where the file has its symbols; where those were
 * stripped, by two texts that it has and a program that is linked to the shared one has not both
 * of: the name of one of its errors, and that of the driver, which it opens itself.
 *
 * It is read, not mapped: a file that becomes shorter meanwhile is then an error and no signal. */
#include "object_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CUT_OFF "the file ends before what it speaks of: it is cut off"
#define WINDOW_BYTES ((size_t)1 << 20)
enum { MARKS = 3, NAME_BYTES = 16 };

static const char *const marks[MARKS] = {"_ZN6cudart", "cudaErrorCudartUnloading", "libcuda.so.1"};
enum { MARK_SYMBOL, MARK_ERROR, MARK_DRIVER };

struct file {
    int fd;
    uint64_t size_bytes;
    Elf64_Ehdr head;
    bool is_seen[MARKS];
    char *window;
};

bool object_is_runtime(const char *path) {
    const char *slash = strrchr(path, '/');

    return strncmp(slash == NULL ? path : slash + 1, "libcudart", strlen("libcudart")) == 0;
}

/* NULL, or what is wrong. */
static const char *read_at(const struct file *file, void *to, size_t size_bytes, uint64_t at) {
    if (at > file->size_bytes || size_bytes > file->size_bytes - at)
        return CUT_OFF;
    for (size_t done = 0; done < size_bytes;) {
        ssize_t got = pread(file->fd, (char *)to + done, size_bytes - done, (off_t)(at + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0 ? "the file became shorter while it was read" : strerror(errno);
        done += (size_t)got;
    }
    return NULL;
}

/* The end of each window is looked at again with the next, for what lies across. */
static const char *search(struct file *file, uint64_t at, uint64_t size_bytes) {
    const size_t overlap = 64;
    const char *fault = NULL;

    if (at > file->size_bytes || size_bytes > file->size_bytes - at)
        return CUT_OFF;
    while (fault == NULL && size_bytes > 0) {
        size_t part = size_bytes < WINDOW_BYTES ? (size_t)size_bytes : WINDOW_BYTES;
        size_t step = part == size_bytes ? part : part - overlap;

        fault = read_at(file, file->window, part, at);
        for (int i = 0; i < MARKS && fault == NULL; i++)
            file->is_seen[i] |= memmem(file->window, part, marks[i], strlen(marks[i])) != NULL;
        at += step;
        size_bytes -= step;
    }
    return fault;
}

static const char *read_head(struct file *file) {
    const Elf64_Ehdr *head = &file->head;

    if (file->size_bytes < sizeof *head)
        return "this is no program and no library";
    if (read_at(file, &file->head, sizeof file->head, 0) != NULL ||
        memcmp(head->e_ident, ELFMAG, SELFMAG) != 0)
        return "this is no program and no library";
    if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_ident[EI_DATA] != ELFDATA2LSB)
        return "this is an ELF file of another kind of machine";
    if ((head->e_phnum > 0 && head->e_phentsize != sizeof(Elf64_Phdr)) ||
        (head->e_shnum > 0 && head->e_shentsize != sizeof(Elf64_Shdr)))
        return "the ELF file's tables have entries of an unknown size";
    return NULL;
}

/* Names of symbols, and data that is only read: fatbins and code have sections of their own. */
static bool is_searched(const Elf64_Shdr *section, const char *name) {
    return section->sh_type == SHT_STRTAB ||
           (section->sh_type == SHT_PROGBITS && strncmp(name, ".rodata", 7) == 0);
}

/* "" where the table of names has none for it. */
static const char *read_name(const struct file *file, const Elf64_Shdr *names,
                             const Elf64_Shdr *section, char name[NAME_BYTES]) {
    size_t size_bytes = NAME_BYTES - 1;

    memset(name, 0, NAME_BYTES);
    if (names->sh_offset > file->size_bytes || section->sh_name >= names->sh_size)
        return NULL;
    if (size_bytes > names->sh_size - section->sh_name)
        size_bytes = (size_t)(names->sh_size - section->sh_name);
    return read_at(file, name, size_bytes, names->sh_offset + section->sh_name);
}

static const char *search_sections(struct file *file, const Elf64_Shdr *sections) {
    const Elf64_Shdr *names = &sections[file->head.e_shstrndx];
    const char *fault = NULL;
    char name[NAME_BYTES];

    for (unsigned i = 0; i < file->head.e_shnum && fault == NULL; i++) {
        fault = read_name(file, names, &sections[i], name);
        if (fault == NULL && is_searched(&sections[i], name))
            fault = search(file, sections[i].sh_offset, sections[i].sh_size);
    }
    return fault;
}

/* Of a file without sections, all that is mapped and not written to. */
static const char *search_segments(struct file *file) {
    const char *fault = file->head.e_phoff > file->size_bytes ? CUT_OFF : NULL;
    Elf64_Phdr segment;

    for (unsigned i = 0; i < file->head.e_phnum && fault == NULL; i++) {
        fault = read_at(file, &segment, sizeof segment,
                        file->head.e_phoff + (uint64_t)i * sizeof segment);
        if (fault == NULL && segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0)
            fault = search(file, segment.p_offset, segment.p_filesz);
    }
    return fault;
}

static const char *search_file(struct file *file) {
    const char *fault = read_head(file);
    Elf64_Shdr *sections;

    if (fault != NULL)
        return fault;
    if (file->head.e_shnum == 0 || file->head.e_shstrndx >= file->head.e_shnum)
        return search_segments(file);
    sections = calloc(file->head.e_shnum, sizeof *sections);
    if (sections == NULL)
        return strerror(ENOMEM);
    fault = read_at(file, sections, file->head.e_shnum * sizeof *sections, file->head.e_shoff);
    if (fault == NULL)
        fault = search_sections(file, sections);
    free(sections);
    return fault;
}

static const char *look_at(struct file *file) {
    const char *fault;
    struct stat status;

    if (fstat(file->fd, &status) != 0)
        return strerror(errno);
    if (!S_ISREG(status.st_mode))
        return "this is no file";
    file->size_bytes = (uint64_t)status.st_size;
    file->window = malloc(WINDOW_BYTES);
    if (file->window == NULL)
        return strerror(ENOMEM);
    fault = search_file(file);
    free(file->window);
    return fault;
}

bool object_look(const char *path, struct object_facts *facts, struct sentence *why) {
    struct file file = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    const char *fault = file.fd < 0 ? strerror(errno) : look_at(&file);

    if (file.fd >= 0)
        close(file.fd);
    if (fault != NULL) {
        sentence_set(why, "%s", fault);
        return false;
    }
    facts->has_own_runtime =
        !object_is_runtime(path) &&
        (file.is_seen[MARK_SYMBOL] || (file.is_seen[MARK_ERROR] && file.is_seen[MARK_DRIVER]));
    return true;
}
