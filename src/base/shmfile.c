/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, checks and poisons the shared file. What is in it is believed only where it cannot hurt:
 * its size is the system's word, compared before anything is mapped, and all lies inside it. */
#include "base/shmfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/map.h"
#include "base/shmdir.h"
#include "base/shmhead.h"

/* Each try ends when somebody else has made or removed the file in between, or is about to: after
 * the first few he is given a moment each time, for he may need this processor. */
enum { OPEN_TRIES = 100, QUICK_TRIES = 4 };
#define GIVE_WAY_NS UINT64_C(1000000)

_Static_assert(offsetof(struct tg__shmhead, body) == 256, "the head's layout is part of the magic");

uint64_t tg__shmfile_format(const uint64_t *numbers, size_t count) {
    uint64_t word = tg__hash_u64(count + 1);

    for (size_t i = 0; i < count; i++)
        word = tg__hash_u64(word + numbers[i]) + i;
    return word;
}

void tg__shmfile_name(struct tg__shmfile *file, uint32_t ticket, char *text, size_t text_bytes) {
    if (file->name_of != NULL)
        file->name_of(file->head->body, ticket, text, text_bytes);
    else
        snprintf(text, text_bytes, "process with ticket %u", ticket);
}

static int other_build(const struct tg__shmfile *file, const char *what) {
    return tg__fail(TG_ELAYOUT,
                    "%s/%s %s: delete it when no program of this user uses it, or name another "
                    "directory in TIDEGATE_DIR",
                    file->dir, file->name, what);
}

/* Before anything is mapped: what could end in a signal. */
static int judge(const struct tg__shmfile *file, const struct stat *info) {
    if (!S_ISREG(info->st_mode))
        return other_build(file, "is no regular file");
    if (info->st_uid != geteuid())
        return tg__fail(-EPERM, "%s/%s belongs to user %u: it must be this user's", file->dir,
                        file->name, (unsigned)info->st_uid);
    if (info->st_size < 0 || (uint64_t)info->st_size != file->file_bytes)
        return other_build(file, "has another size than this build's");
    return 0;
}

/* Opens the name into a slot, and says what file it is. 0, -ENOENT (without a sentence) or an
 * error. */
static int open_slot(struct tg__shmfile *file, int slot, int access, struct stat *info) {
    /* O_NONBLOCK: a FIFO in its place would let us wait for ever. */
    int rc = tg__forkguard_open(&file->guard, slot, file->guard.fds[TG__GUARD_DIRECTORY],
                                file->name, access | O_NOFOLLOW | O_NONBLOCK);

    if (rc == -ENOENT)
        return rc;
    if (rc == -ELOOP || rc == -EISDIR || rc == -ENXIO)
        return other_build(file, "is no regular file");
    if (rc == 0 && fstat(file->guard.fds[slot], info) != 0)
        rc = -errno;
    if (rc != 0)
        return tg__fail(rc, "%s/%s: %s", file->dir, file->name, tg_error_text(rc));
    return 0;
}

static int map(struct tg__shmfile *file, int fd, bool is_reader) {
    int protection = is_reader ? PROT_READ : PROT_READ | PROT_WRITE;
    int code = is_reader ? 0 : tg__shmfile_allocate(fd, file->file_bytes);
    struct tg__shmhead *head;
    bool is_ours;

    if (code != 0)
        return tg__fail(-code, "%s/%s has holes, and no space to fill them: %s", file->dir,
                        file->name, tg_error_text(-code));
    head = mmap(NULL, file->file_bytes, protection, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED)
        return tg__fail(-errno, "cannot map %s/%s: %s", file->dir, file->name,
                        tg_error_text(-errno));
    is_ours = head->magic == TG__SHM_MAGIC;
    if (is_ours && head->format == file->format && head->file_bytes == file->file_bytes) {
        file->head = head;
        return 0;
    }
    munmap(head, file->file_bytes);
    return other_build(file, is_ours ? "was made by another build" : "is no file of ours");
}

static void unmap(struct tg__shmfile *file) {
    if (file->head != NULL)
        munmap(file->head, file->file_bytes);
    file->head = NULL;
}

/* Maps what the name leads to, through a description that is closed again (see shmticket.c). */
static int attach(struct tg__shmfile *file, bool is_reader) {
    struct stat info;
    int rc = open_slot(file, TG__GUARD_SPARE, is_reader ? O_RDONLY : O_RDWR, &info);

    if (rc == 0)
        rc = judge(file, &info);
    if (rc == 0)
        rc = map(file, file->guard.fds[TG__GUARD_SPARE], is_reader);
    tg__forkguard_close(&file->guard, TG__GUARD_SPARE);
    if (rc == 0) {
        file->device = info.st_dev;
        file->inode = info.st_ino;
    }
    return rc;
}

static int say_poisoned(const struct tg__shmfile *file) {
    uint64_t words[TG__SHM_WHY_WORDS];
    char why[sizeof words];

    for (int i = 0; i < TG__SHM_WHY_WORDS; i++)
        words[i] = atomic_load_explicit(&file->head->why[i], memory_order_relaxed);
    memcpy(why, words, sizeof why);
    why[sizeof why - 1] = '\0';
    for (char *at = why; *at != '\0'; at++) {
        if (*at < ' ' || *at > '~')
            *at = '?';
    }
    return tg__fail(TG_EPOISONED, "%s/%s is no longer used: %s", file->dir, file->name, why);
}

/* 0, TG__SHM_TRY_AGAIN (the name leads elsewhere by now) or an error. */
static int attach_and_join(struct tg__shmfile *file, bool is_reader) {
    struct stat info;
    int rc = attach(file, is_reader);

    if (rc != 0)
        return rc;
    if (!is_reader && atomic_load(&file->head->is_poisoned) != 0) {
        rc = say_poisoned(file);
        unmap(file);
        return rc;
    }
    rc = open_slot(file, TG__GUARD_TICKET, is_reader ? O_RDONLY : O_RDWR, &info);
    if (rc == -ENOENT || (rc == 0 && (info.st_dev != file->device || info.st_ino != file->inode)))
        rc = TG__SHM_TRY_AGAIN;
    if (rc == 0 && !is_reader)
        rc = tg__shmfile_take_ticket(file);
    if (rc != 0) {
        tg__forkguard_close(&file->guard, TG__GUARD_TICKET);
        unmap(file);
    }
    return rc;
}

static void give_way(void) {
    const struct timespec moment = tg__timespec(GIVE_WAY_NS);
    int saved = errno;

    nanosleep(&moment, NULL);
    errno = saved;
}

static int find_or_create(struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    for (int i = 0; i < OPEN_TRIES; i++) {
        int rc = attach_and_join(file, params->is_reader);

        if (rc == TG_ELAYOUT || rc == TG_EPOISONED)
            rc = tg__shmfile_retire(file, params->is_reader, rc);
        if (rc == -ENOENT && params->is_reader)
            return tg__fail(-ENOENT, "there is no %s in %s", file->name, file->dir);
        if (rc == -ENOENT) {
            rc = tg__shmfile_create(file, params);
            if (rc == 0)
                rc = TG__SHM_TRY_AGAIN; /* it is there now, whoever made it */
        }
        if (rc != TG__SHM_TRY_AGAIN)
            return rc;
        if (i >= QUICK_TRIES)
            give_way();
    }
    return tg__fail(TG_EREPLACED, "%s/%s is deleted as often as it is made", file->dir, file->name);
}

static int check_params(const struct tg__shmfile_params *params) {
    size_t most = TG__SHMFILE_MAX_BYTES - offsetof(struct tg__shmhead, body);

    if (params->name == NULL || params->name[0] == '\0' || strchr(params->name, '/') != NULL)
        return tg__fail(-EINVAL, "a shared file's name is one word without /");
    if (params->body_bytes == 0 || params->body_bytes > most)
        return tg__fail(-EINVAL, "a shared file of %zu bytes: it has 1 to %zu", params->body_bytes,
                        most);
    return 0;
}

static int open_in_directory(struct tg__shmfile *file, const struct tg__shmfile_params *params) {
    int rc = tg__shmdir_path(params->dir, &file->dir);

    if (rc == 0)
        rc = tg__shmdir_open(file->dir, !params->is_reader, &file->guard, TG__GUARD_DIRECTORY);
    return rc == 0 ? find_or_create(file, params) : rc;
}

static int make(const struct tg__shmfile_params *params, struct tg__shmfile **file) {
    struct tg__shmfile *made = calloc(1, sizeof *made);
    int rc;

    if (made == NULL)
        return tg__fail_memory();
    made->name_of = params->name_of;
    made->format = params->format;
    made->file_bytes = offsetof(struct tg__shmhead, body) + params->body_bytes;
    made->name = strdup(params->name);
    if (made->name == NULL) {
        rc = tg__fail_memory();
        goto release;
    }
    rc = tg__forkguard_add(&made->guard);
    if (rc != 0)
        goto release_name;
    *file = made;
    return 0;
release_name:
    free(made->name);
release:
    free(made);
    return rc;
}

int tg__shmfile_open(const struct tg__shmfile_params *params, struct tg__shmfile **file) {
    int saved = errno, rc = check_params(params);
    struct tg__shmfile *opened = NULL;

    if (rc == 0)
        rc = make(params, &opened);
    if (rc == 0)
        rc = open_in_directory(opened, params);
    if (rc == 0)
        *file = opened;
    else
        tg__shmfile_close(opened);
    errno = saved;
    return rc;
}

/* In a forked child the descriptors are gone already, and only memory is left. */
void tg__shmfile_close(struct tg__shmfile *file) {
    if (file == NULL)
        return;
    tg__forkguard_remove(&file->guard);
    unmap(file);
    free(file->dir);
    free(file->name);
    free(file);
}

void *tg__shmfile_body(struct tg__shmfile *file) {
    return file->head->body;
}

uint32_t tg__shmfile_ticket(const struct tg__shmfile *file) {
    return file->ticket;
}

int tg__shmfile_ticket_fd(const struct tg__shmfile *file) {
    return file->guard.fds[TG__GUARD_TICKET];
}

/* Both the file's name in the directory and the directory's own: either may have been moved away,
 * and who comes new would then find another. */
static bool is_in_place(const struct tg__shmfile *file) {
    int directory = file->guard.fds[TG__GUARD_DIRECTORY];
    struct stat by_name, open_one;

    if (fstatat(directory, file->name, &by_name, AT_SYMLINK_NOFOLLOW) != 0 ||
        by_name.st_dev != file->device || by_name.st_ino != file->inode ||
        (uint64_t)by_name.st_size != file->file_bytes)
        return false;
    return fstat(directory, &open_one) == 0 && lstat(file->dir, &by_name) == 0 &&
           by_name.st_dev == open_one.st_dev && by_name.st_ino == open_one.st_ino;
}

int tg__shmfile_check(struct tg__shmfile *file, bool look) {
    if (tg__forkguard_is_forked(&file->guard))
        return tg__fail(TG_EFORKED, "a forked child has not joined %s/%s: it must open it itself",
                        file->dir, file->name);
    if (look) {
        int saved = errno;
        bool is_same = is_in_place(file);

        errno = saved;
        if (!is_same)
            return tg__fail(TG_EREPLACED, "%s/%s was deleted or replaced: others use another one",
                            file->dir, file->name);
    }
    if (atomic_load_explicit(&file->head->is_poisoned, memory_order_acquire) != 0)
        return say_poisoned(file);
    return 0;
}

int tg__shmfile_poison(struct tg__shmfile *file, const char *why) {
    uint64_t words[TG__SHM_WHY_WORDS] = {0};
    int rc = tg__shmfile_check(file, false);

    if (rc != 0)
        return rc;
    if (file->ticket == 0)
        return tg__fail(TG_EPOISONED, "%s/%s is inconsistent: %s", file->dir, file->name, why);
    memcpy(words, why, strnlen(why, sizeof words - 1));
    for (int i = 0; i < TG__SHM_WHY_WORDS; i++)
        tg__shm_store(&file->head->why[i], words[i]);
    tg__shm_store32(&file->head->is_poisoned, 1);
    return say_poisoned(file);
}
