/* SPDX-License-Identifier: Apache-2.0 */
/* What `tidegate doctor` looks at beside the device: shared memory, the ledger's directory, host
 * memory, places for files, libraries. */
#include <errno.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <tidegate/error.h>
#include <tidegate/ledger.h>

#include "doctor.h"
#include "figures.h"
#include "package.h"

#define MIB (UINT64_C(1) << 20)
#define SHM "/dev/shm"
/* Data loaders, NCCL and Ray share tensors there. */
#define SHM_WANTED (1024 * MIB)
#define LEDGER_MOST (1 * MIB)
/* Of copies: without a card there is nothing large to copy. */
#define COPIES_WANTED (8192 * MIB)
#define COPIES_WANTED_WITHOUT_CARD (256 * MIB)
#define GLIBC_OLDEST "2.34"

void doctor_shm(struct doctor *doctor, struct finding *finding) {
    uint64_t total_bytes, free_bytes;
    struct statvfs info;

    (void)doctor;
    if (statvfs(SHM, &info) != 0 || access(SHM, W_OK | X_OK) != 0) {
        finding_set(finding, FINDING_BAD, SHM " cannot be used: %s", strerror(errno));
        finding_advise(finding, "mount -t tmpfs -o size=8G,mode=1777 tmpfs " SHM,
                       "start the container with --shm-size=8g, or in it, as root");
        return;
    }
    total_bytes = (uint64_t)info.f_blocks * info.f_frsize;
    free_bytes = (uint64_t)info.f_bavail * info.f_frsize;
    if (free_bytes < LEDGER_MOST) {
        finding_set(finding, FINDING_BAD, SHM " is full: of %s %s are free",
                    size_figure((double)total_bytes).text, size_figure((double)free_bytes).text);
        finding_advise(finding, "mount -o remount,size=8G " SHM,
                       "remove what is left there by programs that ended; or, as root");
    } else if (total_bytes < SHM_WANTED) {
        finding_set(finding, FINDING_WARN, SHM " has %s: too little for data loaders, NCCL and Ray",
                    size_figure((double)total_bytes).text);
        finding_advise(finding, "mount -o remount,size=8G " SHM,
                       "start the container with --shm-size=8g, or in it, as root");
    } else {
        finding_set(finding, FINDING_OK, SHM " has %s, %s free",
                    size_figure((double)total_bytes).text, size_figure((double)free_bytes).text);
    }
}

/* On which several machines, or none, would see the same bytes; what they are called. */
static const char *network_name(const char *path) {
    static const struct {
        long magic;
        const char *name;
    } known[] = {
        {0x6969, "NFS"}, {0x517b, "SMB"}, {(long)0xff534d42, "CIFS"}, {0x0bd00bd0, "Lustre"},
        {0x47504653, "GPFS"}, {0x65735546, "FUSE"}, {0x00c36400, "Ceph"}, {0x19830326, "BeeGFS"},
    };
    struct statfs info;

    if (statfs(path, &info) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if ((unsigned)info.f_type == (unsigned)known[i].magic)
            return known[i].name;
    }
    return NULL;
}

/* The directory must be another's in the end: where this can be put right, or elsewhere. */
static void ledger_advise(const struct doctor *doctor, struct finding *finding) {
    const char *dir = getenv("TIDEGATE_DIR");
    struct sentence command;
    struct stat info;

    if (lstat(doctor->place, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
        (info.st_mode & 0777) != 0700) {
        command_of_path(&command, "chmod 700 ", doctor->place, "");
        finding_advise(finding, command.text, "make it this user's alone");
    } else if (dir != NULL && *dir != '\0') {
        finding_advise(finding, "unset TIDEGATE_DIR",
                       "in the environment of all programs that share the card");
    } else {
        sentence_set(&command, "export TIDEGATE_DIR=/tmp/tidegate-%u", (unsigned)geteuid());
        finding_advise(finding, command.text,
                       "in the environment of all programs that share the card");
    }
}

/* A ledger that is there is read; where there is none, one is made in the scratch directory. */
static int ledger_try(const struct doctor *doctor, bool *is_there) {
    struct tg_ledger *ledger;
    int status = tg_ledger_open_reader(doctor->place, &ledger);

    *is_there = status != -ENOENT;
    if (status == -ENOENT && doctor->scratch[0] != '\0')
        status = tg_ledger_open(doctor->scratch, &ledger);
    if (status == 0)
        tg_ledger_close(ledger);
    return status;
}

void doctor_ledger(struct doctor *doctor, struct finding *finding) {
    const char *network;
    bool is_there;
    int status = ledger_try(doctor, &is_there);

    if (status == -ENOENT && doctor->scratch[0] == '\0') {
        finding_set(finding, FINDING_BAD, "%s cannot be made: %s", doctor->place,
                    doctor->scratch_why.text);
        ledger_advise(doctor, finding);
        return;
    }
    network = network_name(is_there ? doctor->place : doctor->scratch);
    if (status != 0) {
        finding_set(finding, FINDING_BAD, "%s", tg_last_error()->text);
        ledger_advise(doctor, finding);
    } else if (network != NULL) {
        finding_set(finding, FINDING_BAD, "%s is on %s: programs would not see each other's writes",
                    doctor->place, network);
        ledger_advise(doctor, finding);
    } else {
        finding_set(finding, FINDING_OK, "%s %s", doctor->place,
                    is_there ? "can be read" : "can be made");
    }
}

/* The most that a program alone could reserve now, as the library itself judges. */
static uint64_t copies_most(void) {
    uint64_t low = 0, high = UINT64_C(1) << 50;

    while (high - low > MIB) {
        uint64_t middle = low + (high - low) / 2;

        if (tg_tenant_host_reserve(NULL, "doctor", middle) == 0) {
            tg_tenant_host_give(NULL, "doctor", middle, 0);
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

void doctor_memory(struct doctor *doctor, struct finding *finding) {
    bool has_card = doctor->device != NULL && doctor->asked_device == NULL;
    uint64_t wanted_bytes = has_card ? COPIES_WANTED : COPIES_WANTED_WITHOUT_CARD;
    uint64_t most_bytes = copies_most();
    int status = tg_tenant_host_reserve(NULL, "doctor", UINT64_C(1) << 60);

    if (status != TG_EHOSTMEMORY) {
        finding_set(finding, FINDING_BAD, "%s",
                    status == 0 ? "nothing tells how much there is" : tg_last_error()->text);
        finding_advise(finding, status == -EINVAL ? "unset TIDEGATE_HOST_BYTES" : NULL,
                       status == -EINVAL ? "let the machine's own figures decide"
                                         : "mount /proc and /sys/fs/cgroup");
        return;
    }
    finding_set(finding, most_bytes < wanted_bytes ? FINDING_WARN : FINDING_OK,
                "%s for copies of what sleeps", size_figure((double)most_bytes).text);
    if (most_bytes >= wanted_bytes)
        return;
    if (getenv("TIDEGATE_HOST_BYTES") != NULL)
        finding_advise(finding, "unset TIDEGATE_HOST_BYTES",
                       "let the machine's own figures decide");
    else
        finding_advise(finding, NULL, "give the container more memory (--memory), or end programs: "
                       "the kernel kills who touches more; tags that need no backup need none");
}

/* Makes a folder in it and removes that: modes alone tell neither of a user that is root elsewhere,
 * nor of what the kernel makes up. Leaves errno. */
static bool can_be_written(const char *folder) {
    char made[4096 + 32];

    snprintf(made, sizeof made, "%s/.tidegate-doctor-XXXXXX", folder);
    if (mkdtemp(made) == NULL)
        return false;
    rmdir(made);
    return true;
}

/* The same of a folder that may have to be made, with those above it. */
static bool can_be_made(const char *path) {
    char folder[4096];

    snprintf(folder, sizeof folder, "%s", path);
    while (access(folder, F_OK) != 0 && errno == ENOENT) {
        char *slash = strrchr(folder, '/');

        if (slash == NULL || slash == folder)
            return can_be_written(slash == NULL ? "." : "/");
        *slash = '\0';
    }
    return can_be_written(folder);
}

static const char *writable_folder(void) {
    static const char *const folders[] = {"/tmp", "/var/tmp", SHM};

    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        if (can_be_written(folders[i]))
            return folders[i];
    }
    return folders[0];
}

void doctor_out(struct doctor *doctor, struct finding *finding) {
    const char *out = getenv("TIDEGATE_OUT"), *home = getenv("HOME");
    bool is_out = out != NULL && *out != '\0';
    const char *place = is_out ? out : home;
    struct sentence command;

    (void)doctor;
    if (place != NULL && *place != '\0' && (is_out ? can_be_made(place) : can_be_written(place))) {
        finding_set(finding, FINDING_OK, "%s %s can be written", is_out ? "TIDEGATE_OUT" : "HOME",
                    place);
        return;
    }
    if (place == NULL || *place == '\0')
        finding_set(finding, FINDING_WARN, "HOME is not set, nor is TIDEGATE_OUT");
    else
        finding_set(finding, FINDING_WARN, "%s %s cannot be written: %s",
                    is_out ? "TIDEGATE_OUT" : "HOME", place, strerror(errno));
    sentence_set(&command, "export TIDEGATE_OUT=%s/tidegate-out-%u", writable_folder(),
                 (unsigned)geteuid());
    finding_advise(finding, command.text, "name a place for what observe records");
}

/* "torch 2.11.0, verl 0.9.1"; nothing where none is there. */
static void versions_list(const struct doctor *doctor, struct sentence *text) {
    size_t length = 0;

    text->text[0] = '\0';
    for (size_t i = 0; i < PACKAGE_COUNT; i++) {
        const char *version = doctor->packages.versions[i];

        if (*version != '\0')
            length += (size_t)snprintf(text->text + length, sizeof text->text - length, "%s%s %s",
                                       length == 0 ? "" : ", ", package_name((enum package)i),
                                       version);
        if (length >= sizeof text->text)
            return;
    }
}

void doctor_python(struct doctor *doctor, struct finding *finding) {
    const struct program_versions *known = program_versions_find("verl");
    const char *verl = doctor->packages.versions[PACKAGE_verl];
    const char *python = doctor->packages.python;
    struct sentence versions, command;
    char package[PACKAGE_BYTES];

    versions_list(doctor, &versions);
    if (!doctor->has_python) {
        finding_set(finding, FINDING_WARN, "%s", doctor->python_why.text);
        finding_advise(finding, NULL, "name the Python of your programs with --python; without "
                       "one the command works alone");
    } else if (*verl != '\0' && version_is_older(verl, known->oldest)) {
        finding_set(finding, FINDING_WARN, "%s in %s: verl before %s has no seams", versions.text,
                    python, known->oldest);
        command_of_path(&command, "", python, " -m pip install --upgrade verl");
        finding_advise(finding, command.text, "update it");
    } else if (versions.text[0] != '\0' && doctor->packages.versions[PACKAGE_tidegate][0] == '\0' &&
               !package_find(package)) {
        finding_set(finding, FINDING_WARN, "%s in %s, and no Tidegate", versions.text, python);
        command_of_path(&command, "", python, " -m pip install tidegate");
        finding_advise(finding, command.text, "install it there");
    } else {
        finding_set(finding, FINDING_OK, "%s in %s (--python names another)",
                    versions.text[0] == '\0' ? "none of the programs it knows" : versions.text,
                    python);
    }
}

void doctor_glibc(struct doctor *doctor, struct finding *finding) {
    const char *version = gnu_get_libc_version();

    (void)doctor;
    if (!version_is_older(version, GLIBC_OLDEST)) {
        finding_set(finding, FINDING_OK, "glibc %s", version);
        return;
    }
    finding_set(finding, FINDING_BAD, "glibc %s: " GLIBC_OLDEST " or newer is needed", version);
    finding_advise(finding, NULL, "use a newer system or container image");
}
