/* SPDX-License-Identifier: Apache-2.0 */
/* The libtidegate.so beside this object: found, looked at, and opened once. It may be there
 * already, opened by Python: the same file is the same library. No lock: of threads that come at
 * once each opens it, which is the same handle, and one of them publishes what it found. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "preload/hooks.h"

#define STEM "libtidegate"
#define NAME STEM ".so"
#define OWN_STEM STEM "-preload"
#define STRING_OF(text) #text
#define STRING(text) STRING_OF(text)
#define VERSION \
    STRING(TG_VERSION_MAJOR) "." STRING(TG_VERSION_MINOR) "." STRING(TG_VERSION_PATCH)

static struct tg__library library;
static atomic_bool is_taken; /* by the thread that fills the library */
static atomic_bool is_ready, is_refused;
static atomic_flag has_warned = ATOMIC_FLAG_INIT;

/* Said once, and for good: the program goes on as without us. */
static const struct tg__library *refuse(const char *path, const char *why) {
    tg__warn_once(&has_warned, "the preload steps aside: %.150s: %.150s", path, why);
    atomic_store(&is_refused, true);
    return NULL;
}

/* Beside us, by its file's name, else by the link's: a wheel holds no links. False: we do not know
 * where we are. */
static bool find_path(char path[PATH_MAX]) {
    static const char *const names[] = {NAME "." VERSION, NAME};
    const char *slash;
    bool is_there = false;
    Dl_info info;
    int length = 0;

    if (dladdr(&library, &info) == 0 || info.dli_fname[0] != '/')
        return false;
    slash = strrchr(info.dli_fname, '/');
    for (size_t i = 0; i < sizeof names / sizeof *names && !is_there; i++) {
        length = snprintf(path, PATH_MAX, "%.*s%s", (int)(slash + 1 - info.dli_fname),
                          info.dli_fname, names[i]);
        is_there = length > 0 && length < PATH_MAX && access(path, F_OK) == 0;
    }
    return length > 0 && length < PATH_MAX;
}

/* ---- is it whole? ---------------------------------------------------------------------------- */

/* The loader maps what the headers say, and a file that is shorter kills by SIGBUS. The table of
 * sections stands at the very end of one that is whole. */
static const char *look_at(int fd) {
    struct stat status;
    Elf64_Ehdr head;
    uint64_t table_bytes;

    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return "this is no file";
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
        return "this is no library";
    table_bytes = (uint64_t)head.e_shnum * head.e_shentsize;
    if (head.e_shoff > (uint64_t)status.st_size ||
        table_bytes > (uint64_t)status.st_size - head.e_shoff)
        return "the file is cut off";
    return NULL;
}

/* NULL: it is. */
static const char *find_fault(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe's writer is not waited for */
    const char *fault;

    if (fd < 0)
        return strerrordesc_np(errno);
    fault = look_at(fd);
    close(fd);
    return fault;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool resolve(void *object, struct tg__library *found) {
    const struct {
        const char *name;
        void *call;
    } wanted[] = {
#define TG__CALL(name, symbol) {#symbol, &found->name},
        TG__LIBRARY_CALLS(TG__CALL)
#undef TG__CALL
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *call = dlsym(object, wanted[i].name);

        if (call == NULL)
            return false;
        memcpy(wanted[i].call, &call, sizeof call);
    }
    return true;
}

/* A thread that comes while another one fills the library uses its own until that is done. */
static const struct tg__library *publish(const struct tg__library *found) {
    static _Thread_local __attribute__((tls_model("initial-exec"))) struct tg__library own;

    found->captures(&tg__captures);
    tg__peers_tell(found);
    if (!atomic_exchange(&is_taken, true)) {
        library = *found;
        atomic_store(&is_ready, true);
    }
    if (atomic_load(&is_ready))
        return &library;
    own = *found;
    return &own;
}

/* The handle is ours until the process ends. */
static const struct tg__library *use(const char *path, void *object) {
    struct tg__library found;

    if (!resolve(object, &found) || strcmp(found.version(), VERSION) != 0)
        return refuse(path, "this is another version than the preload's, which is " VERSION);
    return publish(&found);
}

static int is_named_so(struct dl_phdr_info *object, size_t size_bytes, void *argument) {
    const char *slash = object->dlpi_name == NULL ? NULL : strrchr(object->dlpi_name, '/');

    (void)size_bytes;
    (void)argument;
    return slash != NULL && strncmp(slash + 1, STEM, strlen(STEM)) == 0 &&
           strncmp(slash + 1, OWN_STEM, strlen(OWN_STEM)) != 0;
}

/* Somebody has opened a library of this name, be it ours or another file. Asking the loader for
 * ours would open the file each time. */
static bool may_be_loaded(void) {
    return dl_iterate_phdr(is_named_so, NULL) != 0;
}

static const struct tg__library *open_beside(bool is_wanted) {
    int mode = RTLD_NOW | RTLD_LOCAL | (is_wanted ? 0 : RTLD_NOLOAD);
    const char *fault;
    char path[PATH_MAX];
    void *object;

    if (!find_path(path))
        return refuse(NAME, "name the preload by its whole path");
    fault = find_fault(path);
    if (fault != NULL)
        return refuse(path, fault);
    object = dlopen(path, mode);
    if (object != NULL)
        return use(path, object);
    fault = dlerror();
    if (!is_wanted || fault == NULL)
        fault = "another library of that name is in use, whose scopes it does not see";
    return refuse(path, fault);
}

const struct tg__library *tg__library_opened(void) {
    return atomic_load(&is_ready) ? &library : NULL;
}

static const struct tg__library *open_library(bool is_wanted) {
    const struct tg__library *opened = tg__library_opened();
    int saved = errno;

    if (opened != NULL || atomic_load(&is_refused) || (!is_wanted && !may_be_loaded()))
        return opened;
    opened = open_beside(is_wanted);
    errno = saved;
    return opened;
}

const struct tg__library *tg__library_open(void) {
    return open_library(tg__mode_default_tag() != NULL);
}

const struct tg__library *tg__library_need(void) {
    return open_library(true);
}

/* ---- what it answers ------------------------------------------------------------------------- */

bool tg__is_out_of_memory(int status) {
    return status == TG_EDEVICEMEMORY || status == TG_ENOFIT || status == TG_ENEVERFITS ||
           status == TG_EASLEEP;
}

bool tg__is_runtimes(int status) {
    return status == TG_EFORKED || status == TG_EBROKEN;
}
